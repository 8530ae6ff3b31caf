#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// A stream that does not change any more, and what keeps it alive: arrays of its own, or the bytes that it lies in (a message as
/// it was received, a container as it was coded).
///
/// Owner    all copies together: copying shares, the last one frees. `view` is valid as long as one of them is.
/// Threads  the stream may be read on any thread; one HeldStream is, like a std::shared_ptr, one thread's at a time.
template <typename T>
struct HeldStream {
  StreamView<T> view;
  std::shared_ptr<const void> owner;
  uint64_t memory_bytes = 0;  ///< of what is kept alive: all of the bytes, where the stream lies in some

  static HeldStream from(Stream<T>&& stream) {
    const uint64_t bytes = stream.memory_bytes();
    auto kept = std::make_shared<const Stream<T>>(std::move(stream));
    return {kept->view(), kept, bytes};
  }
  /// REQUIRES: `view` looks into `bytes`.
  static HeldStream within(const SharedBytes& bytes, const StreamView<T>& view) {
    return {view, bytes.owner, bytes.bytes.size()};
  }
  /// A copy with arrays of its own.
  Stream<T> copy() const { return cut(view, 0, view.dimension); }
};

}  // namespace millrace
