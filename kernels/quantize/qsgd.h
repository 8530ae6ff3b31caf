#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"

namespace millrace {

inline constexpr uint32_t kQsgdBitsMin = 2;
inline constexpr uint32_t kQsgdBitsMax = 8;

/// Selects the scale of a bucket; its levels are multiples of a fraction of the scale. Stochastic rounding makes both
/// unbiased. With s = 2^(bits-1) - 1 levels no value moves by more than scale / s.
enum class QsgdBucketScale : uint8_t {
  /// The bucket's L2 norm [QSGD17]. Its error must not be fed back: where sqrt(bucket_size) is several times s, the
  /// residual explodes.
  kL2 = 1,
  /// The bucket's largest magnitude M: errors are below M / s, a contraction in the maximum norm for s > 1. So with 3
  /// bits and more the error may be fed back: the residual stays below max|gradient| / (s - 1). With 2 bits s is 1
  /// [TernGrad17] and no such bound holds: on Gaussian data the residual settles near eight gradients (bench codec,
  /// residual_over_gradient).
  kMax = 2,
};

/// The defaults and where they are from:
///
///     bits 4       one of SparCML's 2, 4 and 8 [SparCML19, 6]
///     bucket 512   DeepReduce's [DeepReduce21, 6.3]. SparCML: "in the order of 1024" [SparCML19, 6], text `:1024`
///     scale kMax   ours: with 3 bits and more its error may be fed back. [QSGD17], and [SparCML19, 6] by reference to
///                  it: the L2 norm, text `:l2`
///
/// `qsgd4:l2:1024` is SparCML's.
struct QsgdOptions {
  uint32_t bits = 4;           ///< 2 to 8, sign included
  uint32_t bucket_size = 512;  ///< values a scale
  QsgdBucketScale scale = QsgdBucketScale::kMax;
  RandomKey random = {};  ///< stochastic rounding draws word (counter_base + position), as random_fill numbers them
  uint64_t counter_base = 0;
};

/// Returns the bytes of `count` values: one f32 scale a bucket, then bits a value, each bucket padded to a byte.
/// REQUIRES bucket_size >= 1.
uint64_t qsgd_encoded_bytes(uint64_t count, uint32_t bits, uint32_t bucket_size);

/// Quantizes, appends the code to `out` and writes the values that the receiver will decode.
///
/// values   [n] finite. decoded [n] out; may be the same array as values.
/// Bits     bucket by bucket: f32 scale, then codes of `bits` bits, low bits first: sign-magnitude, s = 2^(bits-1) - 1
///          levels. Level s is the scale itself, level l below it is l * (scale / s) in f32 arithmetic. A value that
///          rounds to 0 has no sign; padding is 0. Equal on every machine, with every instruction set and number of
///          threads.
/// Limits   a bucket whose scale / s is below the smallest normal f32 is sent as zeros (scale 0).
/// Errors   non_finite: NaN or infinity. invalid_argument: bits or bucket_size.
///          On error nothing is written.
/// Cost     one read pass more than the quantization, to find non-finite values before anything is written.
/// Threads  reentrant; uses TBB above a size.
/// Source   [QSGD17]; [SparCML19, 6]; stochastic rounding by a counter-based generator.
Status qsgd_encode(std::span<const float> values, const QsgdOptions& options, ByteBuffer& out,
                   std::span<float> decoded);

/// Errors   malformed: bytes.size() is not qsgd_encoded_bytes(out.size(), ...); padding that is not 0. Also a scale
///          that is NaN, infinite, negative, or positive but below the encoder's smallest. invalid_argument: bits or
///          bucket_size. On error nothing is written.
/// Threads  reentrant; uses TBB above a size.
Status qsgd_decode(ByteSpan bytes, uint32_t bits, uint32_t bucket_size, std::span<float> out);

}  // namespace millrace
