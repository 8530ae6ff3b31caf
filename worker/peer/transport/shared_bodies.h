#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "worker/peer/channel/message_body.h"
#include "worker/peer/transport/shared_segment.h"

namespace millrace::peer {

/// What a message says instead of carrying its body. Plain bytes on the wire.
struct BodyReference {
  uint32_t owner = 0;   ///< the rank whose segment it is in
  uint32_t slot = 0;    ///< the counter of who holds it; whoever gets the reference holds it once
  uint64_t offset = 0;  ///< of the body among the segment's bodies
};

/// What became of bodies.
struct SharedBodiesCounters {
  uint64_t in_place = 0;  ///< sent as they lay there
  uint64_t copied = 0;    ///< into the segment
  uint64_t full = 0;      ///< not: no room
};

/// The bodies that one rank shares with the others of its machine: its own segment, in which it writes what it sends,
/// and views of theirs. A body is written once, however many ranks get it and pass it on; its last holder's counter
/// going to 0 frees it.
///
/// Bounds   the segment's size; what finds no room is sent as without it.
/// Deaths   nobody waits for a counter: what a dead rank holds stays taken, and the group ends.
/// Trust    the others are of the same user, who may write into each other's memory anyway: a body that was looked at
///          is not expected to change. References are checked: whatever one says, nothing outside of a segment's bodies
///          is read.
/// Threads  send and receive: one at a time; bodies are let go on any, also after this object's end.
class SharedBodies {
 public:
  /// segments  by rank; null: that rank is on another machine. REQUIRES: segments[rank] was created here.
  SharedBodies(uint32_t rank, std::vector<std::shared_ptr<SharedSegment>> segments);
  SharedBodies(const SharedBodies&) = delete;
  SharedBodies& operator=(const SharedBodies&) = delete;
  ~SharedBodies();

  /// Memory for a body, or nothing where there is no room.
  std::optional<WritableBody> take(size_t bytes);

  /// Whether `to` can look into what is here: all of the machine have all of its segments.
  bool reaches(uint32_t to) const { return to < segments_.size() && segments_[to] != nullptr; }
  /// Holds the body for the one who is told where it lies: a body that lies in any segment as it lies, another is
  /// copied. Nothing: no room.
  std::optional<BodyReference> hold(ByteSpan body);
  /// Of a reference that could not be sent.
  void let_go(const BodyReference& reference);

  /// The body of a reference that came. Hostile.
  /// Errors   malformed: it points nowhere.
  Result<SharedBytes> body_of(const BodyReference& reference, uint64_t bytes);

  SharedBodiesCounters counters() const { return counters_; }

 private:
  friend struct SharedBodiesPeek;  ///< of tests
  class Holdings;
  struct Block {
    uint32_t slot = 0;
    uint64_t begin = 0;
    uint64_t bytes = 0;
  };

  std::optional<Block> allocate(size_t bytes);
  bool is_populated(uint64_t end);
  void reclaim();
  void give_back(uint64_t begin, uint64_t bytes);

  uint32_t rank_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;
  std::shared_ptr<Holdings> holdings_;
  SharedBodiesCounters counters_;
  // Of the own segment.
  std::map<uint64_t, uint64_t> free_;  ///< begin to length; no two touch
  std::vector<uint32_t> free_slots_;
  std::vector<Block> blocks_;  ///< that somebody held when last looked at
  uint64_t populated_ = 0;     ///< bytes, from the begin on
  uint64_t populated_max_;
};

}  // namespace millrace::peer
