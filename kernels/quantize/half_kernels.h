#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// f32 in 16 bits, rounded at random between the two neighbours so that the mean is the value.
///
/// values, words, codes, decoded   [count]; decoded may be values. A word of 32 random bits a value.
/// Same bits on every instruction set.

/// To bf16, the upper half of an f32. REQUIRES magnitudes of at most kBf16Largest.
inline constexpr float kBf16Largest = 0x1.FEp127F;
void bf16_round(const float* values, const uint32_t* words, size_t count, uint16_t* codes, float* decoded);
void bf16_values(const uint16_t* codes, size_t count, float* values);

/// To f16 of value * 2^-exponent. A code's value, times 2^exponent, is an f32 exactly.
///
/// REQUIRES magnitudes of at most kF16Largest * 2^exponent; exponent in [kF16ExponentMin, kF16ExponentMax].
inline constexpr float kF16Largest = 65504;
inline constexpr int kF16ExponentMin = -101;  // 2^-24, f16's smallest, is 2^-125 then: a normal f32, others are slow
inline constexpr int kF16ExponentMax = 112;   // 2^15, f16's highest power, is 2^127 then
void f16_round(const float* values, const uint32_t* words, int exponent, size_t count, uint16_t* codes, float* decoded);
void f16_values(const uint16_t* codes, int exponent, size_t count, float* values);

/// Round to the nearest code, and between two equally near ones to the even one. A NaN stays NaN. A value beyond the
/// largest code becomes an infinity, as in IEEE 754.
///
/// values, codes   [count], apart from each other. Same bits on every instruction set.
void bf16_nearest(const float* values, size_t count, uint16_t* codes);
void f16_nearest(const float* values, size_t count, uint16_t* codes);

/// Returns the exact values of all f16 codes, infinities and NaN included: those of f16_values() are finite.
void f16_any_values(const uint16_t* codes, size_t count, float* values);

/// Returns whether none of the codes is NaN or infinity.
bool bf16_all_finite(const uint16_t* codes, size_t count);
bool f16_all_finite(const uint16_t* codes, size_t count);

}  // namespace millrace
