#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "kernels/cuda/quantize_kernels.h"
#include "kernels/cuda/top_k.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/half_kernels.h"
#include "kernels/quantize/qsgd.h"

/// Value codes of an array that lies where a queue's kernels run. Bytes are those of the host's codec behind its
/// header. `decoded`, where it is not null, gets the values that the receiver will decode. It may be `values`.
namespace millrace::cuda {

inline std::unexpected<Error> non_finite_to_code(std::string_view codec) {
  return fail(ErrorCode::kNonFinite, std::string(codec) + ": NaN or infinity among the values");
}

inline WordSource words_of(RandomKey key, uint64_t first) { return {RoundKeys::of(key.low, key.high), first}; }

/// Waits for the queue, and returns non_finite where *flag is not 0.
template <class Queue>
Status check_flag(Queue& queue, const uint32_t* flag, std::string_view codec) {
  uint32_t value = 0;
  queue.download(std::span(&value, 1), flag);
  if (auto done = queue.finish(); !done) return done;
  if (value != 0) return non_finite_to_code(codec);
  return {};
}

/// Enqueues a code in buckets.
template <class Queue, class Format>
void code_buckets(Queue& queue, const Format& format, const BucketLayout& layout, const float* values,
                  const WordSource& words, uint8_t* out, float* decoded, uint32_t* non_finite) {
  queue.launch(CodeBuckets<Format>{format, values, layout.count, layout.bucket_size, words, out,
                                   layout.head_bytes + layout.code_bytes(layout.bucket_size), decoded, non_finite},
               layout.buckets());
}

template <uint32_t kBits, class Queue>
void enqueue_qsgd_warps(Queue& queue, const float* values, uint64_t n, const WordSource& words, uint8_t* out,
                        float* decoded, uint32_t* non_finite) {
  using Kernel = QsgdWarps<kBits, false>;
  const uint64_t blocks = (n + Kernel::kBlockEntries - 1) / Kernel::kBlockEntries;
  if (decoded == nullptr) {
    queue.launch(Kernel{values, n, words, out, nullptr, non_finite}, blocks);
  } else {
    queue.launch(QsgdWarps<kBits, true>{values, n, words, out, decoded, non_finite}, blocks);
  }
}

/// Enqueues QSGD's code: 512 values a bucket in one read of the values where all is aligned, any other in two.
template <class Queue>
void enqueue_qsgd(Queue& queue, const float* values, uint64_t n, const QsgdOptions& options, uint8_t* out,
                  float* decoded, uint32_t* non_finite) {
  const WordSource words = words_of(options.random, options.counter_base);
  const BucketLayout layout{
      .count = n, .bucket_size = options.bucket_size, .head_bytes = sizeof(float), .codes_bits = options.bits};
  const bool is_whole = options.bucket_size == kWarpBucket && options.scale == QsgdBucketScale::kMax &&
                        words.first % 4 == 0 && is_aligned16(values) != 0 && is_aligned16(out) != 0 &&
                        is_aligned16(decoded) != 0;
  if (is_whole && options.bits == 2) {
    enqueue_qsgd_warps<2>(queue, values, n, words, out, decoded, non_finite);
  } else if (is_whole && options.bits == 4) {
    enqueue_qsgd_warps<4>(queue, values, n, words, out, decoded, non_finite);
  } else if (is_whole && options.bits == 8) {
    enqueue_qsgd_warps<8>(queue, values, n, words, out, decoded, non_finite);
  } else {
    const QsgdFormat format{options.bits, options.scale == QsgdBucketScale::kL2 ? 1u : 0u};
    code_buckets(queue, format, layout, values, words, out, decoded, non_finite);
  }
}

/// Codes values as qsgd_encode() does.
///
/// out     [qsgd_encoded_bytes(n, options.bits, options.bucket_size)]
/// Errors  as qsgd_encode()'s; the output is unspecified then.
template <class Queue>
Status qsgd(Queue& queue, const float* values, uint64_t n, const QsgdOptions& options, uint8_t* out, float* decoded) {
  if (options.bits < kQsgdBitsMin || options.bits > kQsgdBitsMax) {
    return fail(ErrorCode::kInvalidArgument, "qsgd has 2 to 8 bits, not " + std::to_string(options.bits));
  }
  if (options.bucket_size == 0) return fail(ErrorCode::kInvalidArgument, "a qsgd bucket holds at least 1 value");
  auto flag = queue.template allocate<uint32_t>(1);
  queue.clear(flag.data(), sizeof(uint32_t));
  enqueue_qsgd(queue, values, n, options, out, decoded, flag.data());
  return check_flag(queue, flag.data(), "qsgd");
}

inline BucketLayout ternary_layout(uint64_t n, uint64_t bucket_size) {
  return {.count = n, .bucket_size = bucket_size, .head_bytes = 4, .codes_bits = 8, .codes_values = 5};
}
inline BucketLayout one_bit_layout(uint64_t n, uint64_t bucket_size) {
  return {.count = n, .bucket_size = bucket_size, .head_bytes = 8, .codes_bits = 1};
}

/// Codes values as codec `terngrad` does. out [ternary_layout(n, bucket_size).bytes()].
template <class Queue>
Status ternary(Queue& queue, const float* values, uint64_t n, uint64_t bucket_size, const WordSource& words,
               uint8_t* out, float* decoded) {
  auto flag = queue.template allocate<uint32_t>(1);
  queue.clear(flag.data(), sizeof(uint32_t));
  code_buckets(queue, TernaryFormat{}, ternary_layout(n, bucket_size), values, words, out, decoded, flag.data());
  return check_flag(queue, flag.data(), "terngrad");
}

/// Codes values as codec `onebit` does. out [one_bit_layout(n, bucket_size).bytes()].
template <class Queue>
Status one_bit(Queue& queue, const float* values, uint64_t n, uint64_t bucket_size, uint8_t* out, float* decoded) {
  auto flag = queue.template allocate<uint32_t>(1);
  queue.clear(flag.data(), sizeof(uint32_t));
  code_buckets(queue, OneBitFormat{}, one_bit_layout(n, bucket_size), values, {}, out, decoded, flag.data());
  return check_flag(queue, flag.data(), "onebit");
}

/// Returns the largest key of an array; waits for the queue.
template <class Queue>
Result<uint32_t> largest_key(Queue& queue, const float* values, uint64_t n, std::string_view codec) {
  auto largest = queue.template allocate<uint32_t>(1);
  queue.clear(largest.data(), sizeof(uint32_t));
  enqueue_max_key(queue, values, n, largest.data());
  uint32_t key = 0;
  queue.download(std::span(&key, 1), largest.data());
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  if (key >= kKeyInfinity) return non_finite_to_code(codec);
  return key;
}

/// What codec `sign_mean` writes before the signs: 0 all positive, 1 all negative, 2 a bit each; and the mean.
struct SignMeanHead {
  uint8_t signs = 0;
  float mean = 0;
};

/// Codes values as codec `sign_mean` does.
///
/// out   [(n + 7) / 8]; nothing is written where all have one sign.
/// Cost  eight threads add one value after the other, as the host does: k / 8 additions of f64, one after the other.
template <class Queue>
Result<SignMeanHead> sign_mean(Queue& queue, const float* values, uint64_t n, uint8_t* out, float* decoded) {
  const auto key = largest_key(queue, values, n, "sign_mean");
  if (!key) return std::unexpected(key.error());
  auto memory = queue.template allocate<SumsBySign>(1);
  queue.launch(SumSigns{values, n, memory.data()}, 1);
  SumsBySign sums;
  queue.download(std::span(&sums, 1), memory.data());
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  SignMeanHead head;
  if (n != 0) head.mean = SumsBySign::mean(sums.positive + sums.negative, n, magnitude_of_key(*key));
  if (sums.negatives > 0) head.signs = sums.positives > 0 ? 2 : 1;
  const bool is_mixed = head.signs == 2;
  const float positive = head.signs == 1 ? -head.mean : head.mean;
  queue.launch(RoundSigns{values, n, positive, -head.mean, is_mixed ? out : nullptr, decoded},
               (n + 8 * RoundSigns::kThreads - 1) / (8 * RoundSigns::kThreads));
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  return head;
}

template <class Queue, class Format>
void enqueue_halves(Queue& queue, const Format& format, const float* values, uint64_t n, const WordSource& words,
                    uint16_t* out, float* decoded) {
  const bool is_aligned =
      is_aligned16(values) != 0 && is_aligned16(out) != 0 && is_aligned16(decoded) != 0 && words.first % 4 == 0;
  constexpr uint64_t kOfBlock = 4 * RoundHalves<Format>::kThreads;
  queue.launch(RoundHalves<Format>{format, values, n, words, out, decoded, is_aligned ? 1u : 0u},
               (n + kOfBlock - 1) / kOfBlock);
}

/// Codes values as codec `bf16` does. out [n].
///
/// Errors  limit_exceeded: a magnitude over kBf16Largest.
template <class Queue>
Status bf16(Queue& queue, const float* values, uint64_t n, const WordSource& words, uint16_t* out, float* decoded) {
  const auto key = largest_key(queue, values, n, "bf16");
  if (!key) return std::unexpected(key.error());
  if (magnitude_of_key(*key) > kBf16Largest) {
    return fail(ErrorCode::kLimitExceeded, "bf16: a value that cannot be rounded up without overflow");
  }
  enqueue_halves(queue, Bf16Format{}, values, n, words, out, decoded);
  return queue.finish();
}

/// The exponent of a stream, as codec `f16` has it; empty: the magnitude is beyond it.
inline std::optional<int> f16_exponent(float largest) {
  if (largest == 0) return 0;
  constexpr int kHighestPower = 15;
  int exponent = std::max(std::ilogb(largest) - kHighestPower, kF16ExponentMin);
  if (std::ldexp(largest, -exponent) > kF16Largest) ++exponent;
  if (exponent > kF16ExponentMax) return std::nullopt;
  return exponent;
}

/// Codes values as codec `f16` does; returns the exponent of the stream. out [n].
///
/// Errors  limit_exceeded: a magnitude that f16 times a power of two cannot hold.
template <class Queue>
Result<int> f16(Queue& queue, const float* values, uint64_t n, const WordSource& words, uint16_t* out, float* decoded) {
  const auto key = largest_key(queue, values, n, "f16");
  if (!key) return std::unexpected(key.error());
  const auto exponent = f16_exponent(magnitude_of_key(*key));
  if (!exponent) return fail(ErrorCode::kLimitExceeded, "f16: a value that cannot be rounded up without overflow");
  const F16Format format{std::ldexp(1.0F, -*exponent), std::ldexp(1.0F, *exponent)};
  enqueue_halves(queue, format, values, n, words, out, decoded);
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  return *exponent;
}

}  // namespace millrace::cuda
