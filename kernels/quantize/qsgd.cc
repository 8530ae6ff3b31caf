#include "kernels/quantize/qsgd.h"

#include <array>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/qsgd_levels.h"

namespace millrace {
namespace {

constexpr size_t kScaleBytes = sizeof(float);

Status check_options(uint32_t bits, uint32_t bucket_size) {
  if (bits < kQsgdBitsMin || bits > kQsgdBitsMax) {
    return fail(ErrorCode::kInvalidArgument, "qsgd has 2 to 8 bits, not " + std::to_string(bits));
  }
  if (bucket_size == 0) return fail(ErrorCode::kInvalidArgument, "a qsgd bucket holds at least 1 value");
  return {};
}

BucketLayout layout_of(uint64_t count, uint32_t bits, uint32_t bucket_size) {
  return {.count = count, .bucket_size = bucket_size, .head_bytes = kScaleBytes, .codes_bits = bits};
}

// Quantizes one bucket to `bytes`: its scale and codes.
void encode_bucket(std::span<const float> values, const QsgdOptions& options, uint64_t word, uint8_t* bytes,
                   float* decoded) {
  const QsgdBucket bucket = qsgd_bucket_of_values(values, options.bits, options.scale);
  std::memcpy(bytes, &bucket.scale, kScaleBytes);
  bytes += kScaleBytes;
  std::array<uint8_t, kQuantizeChunk> codes;
  for (size_t at = 0; at < values.size(); at += kQuantizeChunk) {
    const size_t count = std::min(kQuantizeChunk, values.size() - at);
    qsgd_round(bucket, values.subspan(at, count), options.random, word + at, codes.data(), decoded + at);
    qsgd_pack(codes.data(), count, options.bits, bytes + at / 8 * options.bits);
  }
}

void decode_qsgd_bucket(const uint8_t* bytes, uint32_t bits, std::span<float> values) {
  float scale;
  std::memcpy(&scale, bytes, kScaleBytes);
  bytes += kScaleBytes;
  const QsgdBucket bucket = qsgd_bucket_of_scale(scale, bits);
  std::array<uint8_t, kQuantizeChunk> codes;
  for (size_t at = 0; at < values.size(); at += kQuantizeChunk) {
    const size_t count = std::min(kQuantizeChunk, values.size() - at);
    qsgd_unpack(bytes + at / 8 * bits, count, bits, codes.data());
    qsgd_values(bucket, codes.data(), values.subspan(at, count));
  }
}

// Every scale is finite and not negative; every bucket's padding is 0.
Status check_buckets(ByteSpan bytes, const BucketLayout& layout) {
  for (uint64_t bucket = 0; bucket < layout.buckets(); ++bucket) {
    float scale;
    std::memcpy(&scale, bytes.data() + layout.byte(bucket), kScaleBytes);
    if (!qsgd_is_scale(scale, static_cast<uint32_t>(layout.codes_bits))) {
      return fail(ErrorCode::kMalformed, "qsgd: a scale that is negative, infinite, NaN or too small");
    }
    const uint64_t used_bits = layout.size(bucket) * layout.codes_bits;
    if (used_bits % 8 == 0) continue;
    const uint8_t last = bytes[layout.byte(bucket) + kScaleBytes + used_bits / 8];
    if (last >> (used_bits % 8) != 0) return fail(ErrorCode::kMalformed, "qsgd: padding that is not 0");
  }
  return {};
}

}  // namespace

uint64_t qsgd_encoded_bytes(uint64_t count, uint32_t bits, uint32_t bucket_size) {
  MILLRACE_CHECK(bucket_size != 0);
  return layout_of(count, bits, bucket_size).bytes();
}

Status qsgd_encode(std::span<const float> values, const QsgdOptions& options, ByteBuffer& out,
                   std::span<float> decoded) {
  MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
  if (auto valid = check_options(options.bits, options.bucket_size); !valid) return valid;
  if (auto valid = qsgd_check_values(values, "qsgd"); !valid) return valid;
  const BucketLayout layout = layout_of(values.size(), options.bits, options.bucket_size);
  const size_t begin = out.size();
  out.resize(begin + layout.bytes());
  for_each_bucket(layout, [&](uint64_t bucket) {
    const uint64_t first = layout.first(bucket);
    encode_bucket(values.subspan(first, layout.size(bucket)), options, options.counter_base + first,
                  out.data() + begin + layout.byte(bucket), decoded.data() + first);
  });
  return {};
}

Status qsgd_decode(ByteSpan bytes, uint32_t bits, uint32_t bucket_size, std::span<float> out) {
  if (auto valid = check_options(bits, bucket_size); !valid) return valid;
  const BucketLayout layout = layout_of(out.size(), bits, bucket_size);
  if (bytes.size() != layout.bytes()) {
    return fail(ErrorCode::kMalformed, "qsgd: the length is not that of the values");
  }
  if (auto valid = check_buckets(bytes, layout); !valid) return valid;
  for_each_bucket(layout, [&](uint64_t bucket) {
    decode_qsgd_bucket(bytes.data() + layout.byte(bucket), bits,
                       out.subspan(layout.first(bucket), layout.size(bucket)));
  });
  return {};
}

}  // namespace millrace
