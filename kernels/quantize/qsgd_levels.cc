#include "kernels/quantize/qsgd_levels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/check.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/select/magnitude_scan.h"

namespace millrace {
namespace {

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

}  // namespace

template <typename T>
Status qsgd_check_values(std::span<const T> values, std::string_view who) {
  const MagnitudeKey<T> largest = max_key(values);
  if (largest >= kInfinityKey<T>) {
    return fail(ErrorCode::kNonFinite, std::string(who) + ": NaN or infinity among the values");
  }
  if (magnitude_of_key<T>(largest) > std::numeric_limits<float>::max()) {
    return fail(ErrorCode::kLimitExceeded, std::string(who) + ": a value is beyond the range of f32");
  }
  return {};
}

QsgdBucket qsgd_bucket_of_scale(float scale, uint32_t bits) {
  QsgdBucket bucket{scale, 0, bits};
  bucket.unit = scale / static_cast<float>(bucket.levels());
  return bucket;
}

bool qsgd_is_scale(float scale, uint32_t bits) {
  if (!std::isfinite(scale) || std::signbit(scale)) return false;
  return scale == 0 || qsgd_bucket_of_scale(scale, bits).unit >= std::numeric_limits<float>::min();
}

template <typename T>
QsgdBucket qsgd_bucket_of_values(std::span<const T> values, uint32_t bits, QsgdScale scale) {
  const QsgdBucket bucket = qsgd_bucket_of_scale(
      scale == QsgdScale::kL2 ? l2_norm(values) : static_cast<float>(magnitude_of_key<T>(max_key(values))), bits);
  if (bucket.unit < std::numeric_limits<float>::min()) return {0, 0, bits};
  return bucket;
}

template <typename T>
void qsgd_round(const QsgdBucket& bucket, std::span<const T> values, RandomKey random, uint64_t word, uint8_t* codes,
                T* decoded) {
  MILLRACE_CHECK(values.size() <= kQuantizeChunk, values.size());
  std::array<uint32_t, kQuantizeChunk> words;
  random_fill(random, word, std::span(words).first(values.size()));
  if constexpr (sizeof(T) == sizeof(float)) {
    qsgd_quantize(bucket, values.data(), words.data(), values.size(), codes, decoded);
  } else {
    std::array<float, kQuantizeChunk> narrow;
    std::ranges::transform(values, narrow.begin(), [](T value) { return static_cast<float>(value); });
    qsgd_quantize(bucket, narrow.data(), words.data(), values.size(), codes, narrow.data());
    std::copy_n(narrow.begin(), values.size(), decoded);
  }
}

template <typename T>
void qsgd_values(const QsgdBucket& bucket, const uint8_t* codes, std::span<T> values) {
  if constexpr (sizeof(T) == sizeof(float)) {
    qsgd_dequantize(bucket, codes, values.size(), values.data());
  } else {
    MILLRACE_CHECK(values.size() <= kQuantizeChunk, values.size());
    std::array<float, kQuantizeChunk> narrow;
    qsgd_dequantize(bucket, codes, values.size(), narrow.data());
    std::copy_n(narrow.begin(), values.size(), values.begin());
  }
}

template Status qsgd_check_values<float>(std::span<const float>, std::string_view);
template Status qsgd_check_values<double>(std::span<const double>, std::string_view);
template QsgdBucket qsgd_bucket_of_values<float>(std::span<const float>, uint32_t, QsgdScale);
template QsgdBucket qsgd_bucket_of_values<double>(std::span<const double>, uint32_t, QsgdScale);
template void qsgd_round<float>(const QsgdBucket&, std::span<const float>, RandomKey, uint64_t, uint8_t*, float*);
template void qsgd_round<double>(const QsgdBucket&, std::span<const double>, RandomKey, uint64_t, uint8_t*, double*);
template void qsgd_values<float>(const QsgdBucket&, const uint8_t*, std::span<float>);
template void qsgd_values<double>(const QsgdBucket&, const uint8_t*, std::span<double>);

}  // namespace millrace
