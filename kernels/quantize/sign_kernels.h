#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// Holds sums of magnitudes by sign; zeros of either sign are in neither count. In f64, where they cannot overflow.
struct SignSums {
  double positive = 0;
  double negative = 0;
  uint64_t positives = 0;
  uint64_t negatives = 0;
};

/// Computes eight sums in a fixed order, then their sum: the same bits on every instruction set.
SignSums sign_sums(const float* values, size_t count);

/// Writes a bit a value, 1 where it is below 0, low bits first; the rest of the last byte is 0. Also writes the decoded
/// values: `positive`, or `negative` where the bit is 1.
///
/// values, decoded   [count]; decoded may be values. bytes [ceil(count / 8)].
void sign_round(const float* values, size_t count, float positive, float negative, uint8_t* bytes, float* decoded);

/// Computes the values of the bits. values [count].
void sign_values(const uint8_t* bytes, size_t count, float positive, float negative, float* values);

}  // namespace millrace
