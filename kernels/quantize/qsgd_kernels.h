#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// Holds a bucket's scale and the numbers derived from it. unit = scale / levels in f32, a normal number, or all of it
/// is 0.
struct QsgdBucket {
  float scale = 0;
  float unit = 0;
  uint32_t bits = 4;
  uint32_t levels() const { return (1u << (bits - 1)) - 1; }
};

/// Rounds values to the bucket's levels, up with the probability of the fraction: word / 2^32 below it (24 bits count).
///
/// values, words, codes, decoded   [count]; decoded may be values. One code a byte.
void qsgd_quantize(const QsgdBucket& bucket, const float* values, const uint32_t* words, size_t count, uint8_t* codes,
                   float* decoded);

/// Computes the values of codes (one a byte). codes, values [count].
void qsgd_dequantize(const QsgdBucket& bucket, const uint8_t* codes, size_t count, float* values);

/// Codes of a byte each to `bits` bits each, low bits first, padded with 0 to a byte; and back.
///
/// bits    1 to 8.
/// codes   [count rounded up to 8]: qsgd_pack reads, and qsgd_unpack writes, up to 7 past count; qsgd_pack sets them to
///         0.
/// bytes   [ceil(count * bits / 8)], exactly.
void qsgd_pack(uint8_t* codes, size_t count, uint32_t bits, uint8_t* bytes);
void qsgd_unpack(const uint8_t* bytes, size_t count, uint32_t bits, uint8_t* codes);

}  // namespace millrace
