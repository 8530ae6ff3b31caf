#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace {

/// Ternary digits in a byte, and the byte of five zeros.
inline constexpr size_t kQuarticDigits = 5;
inline constexpr uint8_t kQuarticZeros = 121;

/// Returns the bytes of `count` values before runs of zeros are coded.
constexpr uint64_t quartic_bytes(uint64_t count) { return count / kQuarticDigits + (count % kQuarticDigits != 0); }

/// Rounds values to -scale, 0 and scale and packs five of them a byte (protocol/wire/sketch_codecs.md).
///
/// values, decoded   [count]; decoded may be values.
/// scale             over 0, below twice the largest magnitude.
/// bytes             out: [quartic_bytes(count)].
/// Source            [ThreeLC19, 3.1, 3.2]: equations 1 to 3, quartic encoding.
void quartic_pack(std::span<const float> values, float scale, uint8_t* bytes, float* decoded);

}  // namespace millrace
