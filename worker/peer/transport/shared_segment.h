#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/result.h"

namespace millrace::peer {

/// Says how a process finds another one's segment. Plain bytes: sent as they are.
struct SegmentName {
  int32_t pid = 0;
  int32_t descriptor = -1;
  uint64_t bytes = 0;
  uint64_t nonce = 0;  ///< drawn: in another namespace of process numbers the same pid is another process
};

/// Maps memory of one process that others on its machine can read, so that a message refers to a body instead of
/// carrying it.
///
/// Layout   one page or more with the nonce and a counter for each slot (a body's place): the number of its holders.
///          From 2 MiB on the bodies.
/// Owner    the process that creates it writes the bodies; the others can only read them, and change nothing but
///          counters.
/// End      an anonymous file (memfd) that cannot shrink: it is gone with the last process that has it, however that
///          ended.
/// Threads  any.
class SharedSegment {
 public:
  static constexpr uint32_t kSlots = 4096;
  /// The unit in which the segment is populated: a huge page, where the system gives those.
  static constexpr uint64_t kPieceBytes = uint64_t{2} << 20;

  /// bytes    of bodies; rounded up to kPieceBytes. Only populated pages take memory.
  /// Errors   unavailable: no such files here (Linux 5.14 and later), or no address space.
  static Result<std::shared_ptr<SharedSegment>> create(uint64_t bytes);
  /// Opens another process's, or one's own again. REQUIRES: its owner has not called close_name().
  /// Errors   unavailable: not on this machine, not among the processes that this one sees, or no right to it.
  static Result<std::shared_ptr<SharedSegment>> open(const SegmentName& name);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  const SegmentName& name() const { return name_; }
  /// Closes the name: from here on, no process can open the segment.
  void close_name();

  std::span<const uint8_t> bodies() const { return bodies_; }
  std::atomic<uint32_t>& holders(uint32_t slot) const;

  /// Returns the owner's memory for bodies. REQUIRES: created here.
  std::span<uint8_t> writable_bodies() const;
  /// Has the system give memory to [begin, begin + kPieceBytes) of the bodies. Errors  limit_exceeded: it has none.
  Status populate(uint64_t begin);

 private:
  struct Counters;
  enum class Access : uint8_t { kOwner = 1, kReader = 2 };
  SharedSegment(const SegmentName& name, int descriptor, Access access);
  Status map();

  SegmentName name_;
  int descriptor_;
  Access access_;
  Counters* counters_ = nullptr;
  void* reserved_;  ///< address space that the bodies are in
  uint8_t* written_ = nullptr;
  std::span<const uint8_t> bodies_;
};

}  // namespace millrace::peer
