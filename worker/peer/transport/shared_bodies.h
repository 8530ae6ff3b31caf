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

/// Refers to a body in shared memory: a message carries it in place of the body. Plain bytes on the wire.
struct BodyReference {
  uint32_t owner = 0;   ///< the rank whose segment it is in
  uint32_t slot = 0;    ///< the counter of the holding rank; the receiver of the reference holds it once
  uint64_t offset = 0;  ///< of the body among the segment's bodies
};

/// Counts bodies by how they were passed.
struct SharedBodiesCounters {
  uint64_t in_place = 0;  ///< sent as they lay there
  uint64_t copied = 0;    ///< into the segment
  uint64_t full = 0;      ///< not: no room
};

/// Shares the bodies of one rank with the others of its machine. It has a segment of its own, in which it writes the
/// bodies that it sends, and views of the others' segments. A body is written once, however many ranks get it and pass
/// it on; when its last holder's counter reaches 0, it is free.
///
/// Bounds   the segment's size; a body without room is sent without shared memory.
/// Deaths   no rank is blocked on a counter. A dead rank's bodies stay taken, and the group ends.
/// Trust    the other ranks run as the same user, and can write into this memory anyway. A body that was checked is
///          expected not to change. References are checked: no reference makes a rank read outside of a segment's
///          bodies.
/// Threads  send and receive: one at a time; bodies are released on any thread, also after this object's end.
class SharedBodies {
 public:
  /// segments  by rank; null: that rank is on another machine. REQUIRES: segments[rank] was created here.
  SharedBodies(uint32_t rank, std::vector<std::shared_ptr<SharedSegment>> segments);
  SharedBodies(const SharedBodies&) = delete;
  SharedBodies& operator=(const SharedBodies&) = delete;
  ~SharedBodies();

  /// Returns memory for a body, or nothing where there is no room.
  std::optional<WritableBody> take(size_t bytes);

  /// Returns whether `to` can read this rank's segment: all ranks of the machine have all of its segments.
  bool reaches(uint32_t to) const { return to < segments_.size() && segments_[to] != nullptr; }
  /// Holds the body for the rank that gets the reference. A body in any segment stays in place, another is copied.
  /// Nothing: no room.
  std::optional<BodyReference> hold(ByteSpan body);
  /// Releases a reference that could not be sent.
  void let_go(const BodyReference& reference);

  /// Returns the body of a received reference. Hostile.
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
  std::vector<Block> blocks_;  ///< blocks that a rank held at the last check
  uint64_t populated_ = 0;     ///< bytes, from the begin on
  uint64_t populated_max_;
};

}  // namespace millrace::peer
