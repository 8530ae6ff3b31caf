#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/quantize/qsgd.h"
#include "kernels/quantize/qsgd_kernels.h"

namespace millrace {

/// Shared parts of the codes of QSGD's levels, for every form of their bits (packed, Elias, base 3).

/// Checks that the values are finite.
/// Errors   non_finite: NaN or infinity. The message begins with the parameter's name.
Status qsgd_check_values(std::span<const float> values, std::string_view who);

/// Returns the bucket that has this scale.
QsgdBucket qsgd_bucket_of_scale(float scale, uint32_t bits);

/// Returns whether an encoder can have written this scale: finite, not negative, and 0 or with a normal scale / s.
/// Arithmetic with others is many times slower.
bool qsgd_is_scale(float scale, uint32_t bits);

/// Returns the bucket of these values. Where scale / s is below the smallest normal f32: all of it 0.
/// REQUIRES what qsgd_check_values() accepts.
QsgdBucket qsgd_bucket_of_values(std::span<const float> values, uint32_t bits, QsgdBucketScale scale);

/// Rounds values to levels: writes a code a byte, and its decoded value. Value i draws word `word + i` of `random`.
///
/// values, codes, decoded   [at most kQuantizeChunk]; decoded may be values. `codes` has room for count rounded up to
///                          8.
void qsgd_round(const QsgdBucket& bucket, std::span<const float> values, RandomKey random, uint64_t word,
                uint8_t* codes, float* decoded);

/// Computes the values of codes.
///
/// values, codes   [at most kQuantizeChunk].
void qsgd_values(const QsgdBucket& bucket, const uint8_t* codes, std::span<float> values);

}  // namespace millrace
