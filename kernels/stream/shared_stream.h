#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/check.h"
#include "kernels/stream/stream.h"
#include "kernels/stream/stream_scan.h"

namespace millrace {

/// Holds a stream that does not change any more, and its memory. This is arrays of its own, or the bytes that contain
/// it (a received message, a coded container).
///
/// Owner    all copies together: copying shares, the last one frees. `view` is valid as long as one of them is.
/// Threads  the stream may be read on any thread; one SharedStream is, like a std::shared_ptr, one thread's at a time.
struct SharedStream {
  StreamView view;
  std::shared_ptr<const void> owner;
  uint64_t memory_bytes = 0;  ///< of the shared memory: all of the bytes, where the stream lies in some

  static SharedStream from(Stream&& stream) {
    const uint64_t bytes = stream.memory_bytes();
    auto kept = std::make_shared<const Stream>(std::move(stream));
    return {kept->view(), kept, bytes};
  }
  /// Makes a view within `bytes`. REQUIRES: `view` looks into `bytes`.
  static SharedStream within(const SharedBytes& bytes, const StreamView& view) {
    return {view, bytes.owner, bytes.bytes.size()};
  }
  /// Returns a copy with arrays of its own.
  Stream copy() const { return slice_of(view, 0, view.dimension); }
};

/// Does the same as slice_of() of a stream, but shares the values with `stream` instead of copying them. REQUIRES:
/// begin <= end <= dimension.
inline SharedStream slice_of(const SharedStream& stream, uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin <= end && end <= stream.view.dimension, begin, end, stream.view.dimension);
  struct OwnedSlice {
    IndexBuffer indices;
    std::shared_ptr<const void> whole;
  };
  const auto [first, last] =
      stream.view.dense ? std::pair<size_t, size_t>(begin, end) : range_of(stream.view.indices, begin, end);
  SharedStream out;
  out.view.dimension = end - begin;
  out.view.dense = stream.view.dense;
  out.view.values = stream.view.values.subspan(first, last - first);
  auto kept = std::make_shared<OwnedSlice>(OwnedSlice{{}, stream.owner});
  if (!stream.view.dense) {
    kept->indices.resize(last - first);
    moved_down(stream.view.indices.data() + first, last - first, static_cast<uint32_t>(begin), kept->indices.data());
    out.view.indices = kept->indices;
  }
  out.memory_bytes = kept->indices.capacity() * sizeof(uint32_t) + out.view.values.size_bytes();
  out.owner = std::move(kept);
  return out;
}

}  // namespace millrace
