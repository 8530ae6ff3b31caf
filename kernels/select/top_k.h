#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

/// Selects the k entries of `values` with the largest magnitude.
///
/// values     [n], any alignment; n <= kDimensionMax (u32 positions).
/// positions  out: exactly k positions, strictly increasing. Empty on error.
/// Order      ties: lower position first; NaN and infinity are errors. Zeros are selected if k asks for them.
/// Cost       one memory pass and a sample of it on ordinary data; where the sample misleads (few distinct values,
///            adversaries) at most five passes. Never quadratic. Scratch O(k).
/// Errors     k > n: invalid_argument. NaN or infinity: non_finite. n too large: limit_exceeded.
/// Threads    reentrant; uses TBB above a size, the result does not depend on it.
Status select_top_k(std::span<const float> values, uint64_t k, IndexBuffer& positions);

/// Does the same as select_top_k, but never selects zeros: fewer than k positions where fewer entries are not zero.
///
/// Errors     NaN or infinity: non_finite. k > n is as k = n.
Status select_top_k_nonzero(std::span<const float> values, uint64_t k, IndexBuffer& positions);

/// Selects every entry with |x| >= threshold (threshold > 0), at most `count_max` of them (the first ones).
///
/// Errors     NaN or infinity anywhere: non_finite. threshold not positive, or NaN: invalid_argument.
Status select_threshold(std::span<const float> values, float threshold, uint64_t count_max, IndexBuffer& positions);

/// Returns the smallest f32 that is not below the threshold: |x| >= it is then the same as |x| >= threshold in f64.
float threshold_in_f32(double threshold);

/// Returns the magnitude of the k-th largest entry: the threshold of top-k.
///
/// Errors     k = 0 or k > n: invalid_argument. NaN or infinity: non_finite.
Result<float> top_k_threshold(std::span<const float> values, uint64_t k);

/// Returns max|x| over the array, SIMD with several accumulators: the memory pass that selections are measured against.
/// 0 for an empty array; infinite or NaN if a value is.
float max_magnitude(std::span<const float> values);

}  // namespace millrace
