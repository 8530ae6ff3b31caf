#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

/// Largest dimension of a tensor: indices are u32.
inline constexpr uint64_t kDimensionMax = uint64_t{1} << 32;

/// Bytes of an entry as a plain pair of index and value.
inline constexpr uint64_t kPairBytes = sizeof(uint32_t) + sizeof(float);

/// Names the types that a job's values and a container's may have on the wire. Streams carry f32. The number of f64 is
/// reserved: what names it is refused.
enum class ValueType : uint8_t { kF32 = 1, kF64 = 2 };

/// Views a sparse stream: dimension, strictly increasing indices, values; or, past the density where that is smaller, a
/// dense array [SparCML19, 5.1]. Does not own; valid while the arrays are.
///
/// sparse   indices.size() == values.size() <= dimension, indices strictly increasing and < dimension.
/// dense    indices empty, values.size() == dimension.
struct StreamView {
  uint64_t dimension = 0;
  bool dense = false;
  IndexSpan indices;
  std::span<const float> values;

  /// Returns the number of carried entries: stored values (a dense stream carries all of its dimension).
  uint64_t count() const { return values.size(); }
};

/// Owns a sparse stream. The same shape rules as StreamView.
struct Stream {
  uint64_t dimension = 0;
  bool dense = false;
  IndexBuffer indices;
  Buffer<float> values;

  StreamView view() const { return {dimension, dense, indices, values}; }
  uint64_t count() const { return values.size(); }
  uint64_t memory_bytes() const { return indices.capacity() * sizeof(uint32_t) + values.capacity() * sizeof(float); }

  static Stream empty(uint64_t dimension_) {
    Stream stream;
    stream.dimension = dimension_;
    return stream;
  }
};

/// Returns the number of entries from which the dense form is not larger: count * kPairBytes >= dimension *
/// sizeof(float).
/// Source   [SparCML19, 5.1] (delta).
constexpr uint64_t dense_from_count(uint64_t dimension) {
  return (dimension / kPairBytes) * sizeof(float) +
         ((dimension % kPairBytes) * sizeof(float) + kPairBytes - 1) / kPairBytes;
}

/// Accepts exactly the well-formed streams.
///
/// Errors   malformed: dimension 0 or over kDimensionMax, sizes that do not agree, an index out of range, indices not
///          strictly increasing. Values are not looked at (see all_finite).
/// Threads  reentrant.
Status validate(const StreamView& stream);

/// Returns the number of values that are not 0.
uint64_t count_nonzero(std::span<const float> values);

/// Returns whether no value is NaN or infinite. One pass, SIMD.
bool all_finite(std::span<const float> values);

/// Copies and checks on the way: block by block, while the copy is in the first-level cache. False: the check failed,
/// and `out` is unspecified.
///
/// indices, values   out.size() of them, any alignment, not overlapping `out`.
/// Cost              one pass.
bool copy_increasing(const void* indices, std::span<uint32_t> out);
bool copy_finite(const void* values, std::span<float> out);

/// Returns the stream as a dense array of `dimension` values (absent entries are 0).
Stream to_dense(const StreamView& stream);

/// Returns the stream in sparse form: every stored entry of a sparse stream, every non-zero of a dense one.
Stream to_sparse(const StreamView& stream);

/// Returns a dense stream in sparse form, without zeros, where that is smaller; any other stream as it is.
Stream in_smaller_form(Stream&& stream);

/// Returns the entries with index in [begin, end), indices rebased to begin; dimension end - begin. For a sparse stream
/// a view into it cannot be rebased, so `cut` copies; `range_of` gives the positions without copying. REQUIRES:
/// begin <= end <= dimension.
Stream slice_of(const StreamView& stream, uint64_t begin, uint64_t end);

/// Positions [first, second) of the sparse `indices` that lie in [begin, end). Binary search.
std::pair<size_t, size_t> range_of(IndexSpan indices, uint64_t begin, uint64_t end);

/// Makes a well-formed stream of unsorted entries: sorts by index, adds up duplicates (in the order given).
///
/// indices, values   [m], any order, duplicates allowed, m < 2^32.
/// Errors   invalid_argument: sizes differ; an index >= dimension (the message names the first); m too large.
Result<Stream> coalesce(uint64_t dimension, IndexSpan indices, std::span<const float> values);

}  // namespace millrace
