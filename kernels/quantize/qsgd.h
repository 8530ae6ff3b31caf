#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"

namespace millrace {

/// What a bucket's levels are multiples of.
enum class QsgdScale : uint8_t {
  kL2 = 1,   ///< the bucket's L2 norm (the paper): unbiased; its error must not be fed back
  kMax = 2,  ///< the bucket's largest magnitude: a contraction, may feed its error back
};

struct QsgdOptions {
  uint32_t bits = 4;           ///< 2, 4 or 8, sign included
  uint32_t bucket_size = 512;  ///< values a scale
  QsgdScale scale = QsgdScale::kMax;
  RandomKey random;            ///< stochastic rounding draws word (counter_base + position)
  uint64_t counter_base = 0;
};

/// Bytes that `count` values take: one f32 scale a bucket, then bits a value, each bucket padded to a byte.
uint64_t qsgd_encoded_bytes(uint64_t count, uint32_t bits, uint32_t bucket_size);

/// Quantizes, appends the code to `out` and writes what the receiver will decode.
///
/// values   [n] finite. decoded [n] out; may be the same array as values.
/// Bits     bucket by bucket: f32 scale, then codes of `bits` bits, low bits first: sign-magnitude, s = 2^(bits-1) - 1 levels.
/// Errors   non_finite: NaN or infinity. invalid_argument: bits or bucket_size.
/// Source   sparcml.txt, section 6 (QSGD); stochastic rounding by a counter-based generator.
template <typename T>
Status qsgd_encode(std::span<const T> values, const QsgdOptions& options, ByteBuffer& out, std::span<T> decoded);

/// Errors   malformed: bytes.size() is not qsgd_encoded_bytes(out.size(), ...); a scale that is NaN, infinite or negative.
template <typename T>
Status qsgd_decode(ByteSpan bytes, uint32_t bits, uint32_t bucket_size, std::span<T> out);

}  // namespace millrace
