#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

/// Selects the k entries of `values` with the largest magnitude.
///
/// values     [n], any alignment.
/// positions  out: exactly k positions, strictly increasing.
/// Order      ties: lower position first; NaN and infinity are errors.
/// Errors     k > n: invalid_argument. NaN or infinity: non_finite.
/// Threads    reentrant; uses TBB above a size, the result does not depend on it.
template <typename T>
Status select_top_k(std::span<const T> values, uint64_t k, IndexBuffer& positions);

/// Selects every entry with |x| >= threshold (threshold > 0), at most `count_max` of them (the first ones).
///
/// Errors     NaN or infinity: non_finite.
template <typename T>
Status select_threshold(std::span<const T> values, T threshold, uint64_t count_max, IndexBuffer& positions);

/// The magnitude of the k-th largest entry: the threshold that top-k used.
template <typename T>
Result<T> top_k_threshold(std::span<const T> values, uint64_t k);

/// max|x| over the array, SIMD with several accumulators: the memory pass that selections are measured against.
template <typename T>
T max_magnitude(std::span<const T> values);

}  // namespace millrace
