#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Draws every value with the probability |x| / magnitude, at most 1, independently of the others. A drawn value is
/// sent as `magnitude` with the sign of x, the same bits for all. A value of at least that magnitude is always taken,
/// unchanged. So E[sent] = x.
///
/// values     [n], finite, n <= kDimensionMax. Zeros are never drawn.
/// magnitude  positive and finite.
/// key        value i has word i of (key, stream kDrawStream), and 32 bits more where that is not enough to decide.
///            Probabilities are exact to 2^-53 of themselves and 2^-64.
/// positions, drawn   out: as many of each, positions strictly increasing.
/// Cost       one pass with 4 random bytes a value; memory O(drawn values).
/// Threads    reentrant; uses TBB above a size, the result does not depend on it.
/// Source     [GSpar18, equation 4, 4.2] (no division where p < 1).
void draw_by_size(std::span<const float> values, float magnitude, RandomKey key, IndexBuffer& positions,
                  Buffer<float>& drawn);

inline constexpr uint64_t kDrawStream = 1;
inline constexpr uint64_t kRefineStream = 2;

/// Writes the positions, relative to values[0], of every value that draw_by_size() may draw, and a few that it does not
/// (2^-20 of them). One thread's part; count <= kScanBlock; positions have room for count + kScanSlack.
///
/// inverse  1 / magnitude, rounded; a normal number.
size_t draw_candidates_f32(const float* values, const uint32_t* words, size_t count, float inverse,
                           uint32_t* positions);

/// Returns the magnitude nearest to `value` that a finite f32 other than 0 has.
float finite_magnitude(double value);

/// Returns the error "NaN or infinity among the values ...".
std::unexpected<Error> refuse_non_finite();

/// Refuses values that are not finite, or would not be once multiplied by `scale`.
///
/// largest   the key of the largest one, as max_key() or a scan returns it.
Status fits_scaled(MagnitudeKey largest, double scale);
/// Does the same with a read pass for the largest one.
Status fits_scaled(std::span<const float> values, double scale);

}  // namespace millrace
