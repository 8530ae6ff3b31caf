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

enum class ValueType : uint8_t { kF32 = 1, kF64 = 2 };

template <typename T>
inline constexpr ValueType kValueTypeOf = sizeof(T) == 4 ? ValueType::kF32 : ValueType::kF64;

/// A view of a sparse stream: dimension, strictly increasing indices, values; or, past the density where that is
/// smaller, a dense array (SparCML 5.1). Does not own; valid while the arrays are.
///
/// sparse   indices.size() == values.size() <= dimension, indices strictly increasing and < dimension.
/// dense    indices empty, values.size() == dimension.
template <typename T>
struct StreamView {
  uint64_t dimension = 0;
  bool dense = false;
  IndexSpan indices;
  std::span<const T> values;

  /// Entries carried: stored values (a dense stream carries all of its dimension).
  uint64_t count() const { return values.size(); }
};

/// An owned sparse stream. The same shape rules as StreamView.
template <typename T>
struct Stream {
  uint64_t dimension = 0;
  bool dense = false;
  IndexBuffer indices;
  Buffer<T> values;

  StreamView<T> view() const { return {dimension, dense, indices, values}; }
  uint64_t count() const { return values.size(); }
  uint64_t memory_bytes() const { return indices.capacity() * sizeof(uint32_t) + values.capacity() * sizeof(T); }

  static Stream empty(uint64_t dimension_) {
    Stream stream;
    stream.dimension = dimension_;
    return stream;
  }
};

/// Number of entries from which the dense form is not larger: count * (4 + sizeof(T)) >= dimension * sizeof(T).
/// Source   sparcml.txt, section 5.1 (delta).
template <typename T>
constexpr uint64_t dense_from_count(uint64_t dimension) {
  constexpr uint64_t pair_bytes = sizeof(uint32_t) + sizeof(T);
  return (dimension / pair_bytes) * sizeof(T) + ((dimension % pair_bytes) * sizeof(T) + pair_bytes - 1) / pair_bytes;
}

/// Accepts exactly the well-formed streams.
///
/// Errors   malformed: dimension 0 or over kDimensionMax, sizes that do not agree, an index out of range, indices not
///          strictly increasing. Values are not looked at (see all_finite).
/// Threads  reentrant.
template <typename T>
Status validate(const StreamView<T>& stream);

/// True when no value is NaN or infinite. One pass, SIMD.
template <typename T>
bool all_finite(std::span<const T> values);

/// Copies and looks on the way: block by block, while what was copied is in the first-level cache. False: what was asked for
/// does not hold, and `out` is unspecified.
///
/// indices, values   out.size() of them, any alignment, not overlapping `out`.
/// Cost              one pass.
bool copy_increasing(const void* indices, std::span<uint32_t> out);
template <typename T>
bool copy_finite(const void* values, std::span<T> out);

/// The stream as a dense array of `dimension` values (absent entries are 0).
template <typename T>
Stream<T> to_dense(const StreamView<T>& stream);

/// The stream in sparse form: every stored entry of a sparse stream, every non-zero of a dense one.
template <typename T>
Stream<T> to_sparse(const StreamView<T>& stream);

/// Entries with index in [begin, end), indices rebased to begin; dimension end - begin. For a sparse stream a view into it
/// cannot be rebased, so `cut` copies; `range_of` gives the positions without copying. REQUIRES: begin <= end <= dimension.
template <typename T>
Stream<T> cut(const StreamView<T>& stream, uint64_t begin, uint64_t end);

/// Positions [first, second) of the sparse `indices` that lie in [begin, end). Binary search.
std::pair<size_t, size_t> range_of(IndexSpan indices, uint64_t begin, uint64_t end);

/// Makes a well-formed stream of unsorted entries: sorts by index, adds up duplicates (in the order given).
///
/// indices, values   [m], any order, duplicates allowed, m < 2^32.
/// Errors   invalid_argument: sizes differ; an index >= dimension (the message names the first); m too large.
template <typename T>
Result<Stream<T>> coalesce(uint64_t dimension, IndexSpan indices, std::span<const T> values);

}  // namespace millrace
