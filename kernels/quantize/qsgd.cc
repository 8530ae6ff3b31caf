#include "kernels/quantize/qsgd.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/base/check.h"
#include "kernels/quantize/qsgd_kernels.h"
#include "kernels/select/magnitude_scan.h"

namespace millrace {
namespace {

constexpr size_t kScaleBytes = sizeof(float);
// Values that are quantized at a time: what a chunk needs besides stays in the first-level cache. A multiple of 8, so that
// chunks of a bucket end on whole bytes.
constexpr size_t kChunk = 1024;
constexpr size_t kTaskValues = size_t{1} << 16;  // what one task of TBB is worth

Status check_options(uint32_t bits, uint32_t bucket_size) {
  if (bits != 2 && bits != 4 && bits != 8) {
    return fail(ErrorCode::kInvalidArgument, "qsgd has 2, 4 or 8 bits, not " + std::to_string(bits));
  }
  if (bucket_size == 0) return fail(ErrorCode::kInvalidArgument, "a qsgd bucket holds at least 1 value");
  return {};
}

uint64_t code_bytes(uint64_t count, uint32_t bits) { return (count * bits + 7) / 8; }

// Where the buckets of an array are, in values and in bytes.
struct Layout {
  uint64_t count;
  uint32_t bits;
  uint64_t bucket_size;

  uint64_t buckets() const { return (count + bucket_size - 1) / bucket_size; }
  uint64_t first(uint64_t bucket) const { return bucket * bucket_size; }
  uint64_t size(uint64_t bucket) const { return std::min(bucket_size, count - first(bucket)); }
  uint64_t byte(uint64_t bucket) const { return bucket * (kScaleBytes + code_bytes(bucket_size, bits)); }
};

template <typename Each>
void for_each_bucket(const Layout& layout, Each&& each) {
  const uint64_t buckets = layout.buckets();
  const uint64_t of_task = std::max<uint64_t>(1, kTaskValues / layout.bucket_size);
  if (buckets <= of_task) {
    for (uint64_t bucket = 0; bucket < buckets; ++bucket) each(bucket);
    return;
  }
  tbb::parallel_for(uint64_t{0}, (buckets + of_task - 1) / of_task, [&](uint64_t task) {
    const uint64_t end = std::min(buckets, (task + 1) * of_task);
    for (uint64_t bucket = task * of_task; bucket < end; ++bucket) each(bucket);
  });
}

// Eight sums in a fixed order, then their sum: the same bits whatever the machine. In f64, where squares of f32 cannot
// overflow; a norm beyond f32 is the largest f32, which no magnitude passes.
template <typename T>
float l2_norm(std::span<const T> values) {
  std::array<double, 8> sums{};
  const size_t whole = values.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      const double value = static_cast<float>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (size_t i = whole; i < values.size(); ++i) {
    const double value = static_cast<float>(values[i]);
    sums[i - whole] += value * value;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return static_cast<float>(std::min(std::sqrt(sum), static_cast<double>(std::numeric_limits<float>::max())));
}

QsgdBucket bucket_of_scale(float scale, uint32_t bits) {
  QsgdBucket bucket{scale, 0, bits};
  bucket.unit = scale / static_cast<float>(bucket.levels());
  return bucket;
}

template <typename T>
QsgdBucket bucket_of_values(std::span<const T> values, const QsgdOptions& options) {
  const float scale =
      options.scale == QsgdScale::kL2 ? l2_norm(values) : static_cast<float>(magnitude_of_key<T>(max_key(values)));
  const QsgdBucket bucket = bucket_of_scale(scale, options.bits);
  if (bucket.unit < std::numeric_limits<float>::min()) return {0, 0, options.bits};
  return bucket;
}

// Quantizes one bucket to `bytes`: its scale and codes.
template <typename T>
void encode_bucket(std::span<const T> values, const QsgdOptions& options, uint64_t counter, uint8_t* bytes,
                   T* decoded) {
  const QsgdBucket bucket = bucket_of_values(values, options);
  std::memcpy(bytes, &bucket.scale, kScaleBytes);
  bytes += kScaleBytes;
  std::array<uint32_t, kChunk> words;
  std::array<uint8_t, kChunk> codes;
  [[maybe_unused]] std::array<float, kChunk> narrow;
  for (size_t at = 0; at < values.size(); at += kChunk) {
    const size_t count = std::min(kChunk, values.size() - at);
    random_fill(options.random, counter + at, std::span(words).first(count));
    if constexpr (sizeof(T) == sizeof(float)) {
      qsgd_quantize(bucket, values.data() + at, words.data(), count, codes.data(), decoded + at);
    } else {
      std::transform(values.data() + at, values.data() + at + count, narrow.begin(),
                     [](T value) { return static_cast<float>(value); });
      qsgd_quantize(bucket, narrow.data(), words.data(), count, codes.data(), narrow.data());
      std::copy_n(narrow.begin(), count, decoded + at);
    }
    qsgd_pack(codes.data(), count, options.bits, bytes + code_bytes(at, options.bits));
  }
}

template <typename T>
void decode_bucket(const uint8_t* bytes, uint32_t bits, std::span<T> values) {
  float scale;
  std::memcpy(&scale, bytes, kScaleBytes);
  bytes += kScaleBytes;
  const QsgdBucket bucket = bucket_of_scale(scale, bits);
  std::array<uint8_t, kChunk> codes;
  [[maybe_unused]] std::array<float, kChunk> narrow;
  for (size_t at = 0; at < values.size(); at += kChunk) {
    const size_t count = std::min(kChunk, values.size() - at);
    qsgd_unpack(bytes + code_bytes(at, bits), count, bits, codes.data());
    if constexpr (sizeof(T) == sizeof(float)) {
      qsgd_dequantize(bucket, codes.data(), count, values.data() + at);
    } else {
      qsgd_dequantize(bucket, codes.data(), count, narrow.data());
      std::copy_n(narrow.begin(), count, values.data() + at);
    }
  }
}

// Every scale is finite and not negative; every bucket's padding is 0.
Status check_buckets(ByteSpan bytes, const Layout& layout) {
  for (uint64_t bucket = 0; bucket < layout.buckets(); ++bucket) {
    float scale;
    std::memcpy(&scale, bytes.data() + layout.byte(bucket), kScaleBytes);
    if (!std::isfinite(scale) || std::signbit(scale)) {
      return fail(ErrorCode::kMalformed, "qsgd: a scale that is negative, infinite or NaN");
    }
    const uint64_t used_bits = layout.size(bucket) * layout.bits;
    if (used_bits % 8 == 0) continue;
    const uint8_t last = bytes[layout.byte(bucket) + kScaleBytes + used_bits / 8];
    if (last >> (used_bits % 8) != 0) return fail(ErrorCode::kMalformed, "qsgd: padding that is not 0");
  }
  return {};
}

}  // namespace

uint64_t qsgd_encoded_bytes(uint64_t count, uint32_t bits, uint32_t bucket_size) {
  MILLRACE_CHECK(bucket_size != 0);
  const Layout layout{count, bits, bucket_size};
  if (count == 0) return 0;
  const uint64_t last = layout.buckets() - 1;
  return layout.byte(last) + kScaleBytes + code_bytes(layout.size(last), bits);
}

template <typename T>
Status qsgd_encode(std::span<const T> values, const QsgdOptions& options, ByteBuffer& out, std::span<T> decoded) {
  MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
  if (auto valid = check_options(options.bits, options.bucket_size); !valid) return valid;
  const MagnitudeKey<T> largest = max_key(values);
  if (largest >= kInfinityKey<T>) return fail(ErrorCode::kNonFinite, "qsgd: NaN or infinity among the values");
  if (magnitude_of_key<T>(largest) > std::numeric_limits<float>::max()) {
    return fail(ErrorCode::kLimitExceeded, "qsgd: a value is beyond the range of f32");
  }
  const Layout layout{values.size(), options.bits, options.bucket_size};
  const size_t begin = out.size();
  out.resize(begin + qsgd_encoded_bytes(values.size(), options.bits, options.bucket_size));
  for_each_bucket(layout, [&](uint64_t bucket) {
    const uint64_t first = layout.first(bucket);
    encode_bucket<T>(values.subspan(first, layout.size(bucket)), options, options.counter_base + first,
                     out.data() + begin + layout.byte(bucket), decoded.data() + first);
  });
  return {};
}

template <typename T>
Status qsgd_decode(ByteSpan bytes, uint32_t bits, uint32_t bucket_size, std::span<T> out) {
  if (auto valid = check_options(bits, bucket_size); !valid) return valid;
  if (bytes.size() != qsgd_encoded_bytes(out.size(), bits, bucket_size)) {
    return fail(ErrorCode::kMalformed, "qsgd: the length is not that of the values");
  }
  const Layout layout{out.size(), bits, bucket_size};
  if (auto valid = check_buckets(bytes, layout); !valid) return valid;
  for_each_bucket(layout, [&](uint64_t bucket) {
    decode_bucket<T>(bytes.data() + layout.byte(bucket), bits, out.subspan(layout.first(bucket), layout.size(bucket)));
  });
  return {};
}

template Status qsgd_encode<float>(std::span<const float>, const QsgdOptions&, ByteBuffer&, std::span<float>);
template Status qsgd_encode<double>(std::span<const double>, const QsgdOptions&, ByteBuffer&, std::span<double>);
template Status qsgd_decode<float>(ByteSpan, uint32_t, uint32_t, std::span<float>);
template Status qsgd_decode<double>(ByteSpan, uint32_t, uint32_t, std::span<double>);

}  // namespace millrace
