#include "kernels/quantize/qsgd_levels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/check.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/quantize/bucket_layout.h"

namespace millrace {
namespace {

// Eight sums in a fixed order, then their sum: the same bits on any machine. In f64, where squares of f32 cannot
// overflow; a norm beyond f32 is the largest f32, which no magnitude passes.
float l2_norm(std::span<const float> values) {
  std::array<double, 8> sums{};
  const size_t whole = values.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (size_t i = whole; i < values.size(); ++i) {
    const double value = values[i];
    sums[i - whole] += value * value;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return static_cast<float>(std::min(std::sqrt(sum), static_cast<double>(std::numeric_limits<float>::max())));
}

}  // namespace

Status qsgd_check_values(std::span<const float> values, std::string_view who) {
  if (max_key(values) < kInfinityKey) return {};
  return fail(ErrorCode::kNonFinite, std::string(who) + ": NaN or infinity among the values");
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

QsgdBucket qsgd_bucket_of_values(std::span<const float> values, uint32_t bits, QsgdBucketScale scale) {
  const QsgdBucket bucket =
      qsgd_bucket_of_scale(scale == QsgdBucketScale::kL2 ? l2_norm(values) : magnitude_of_key(max_key(values)), bits);
  if (bucket.unit < std::numeric_limits<float>::min()) return {0, 0, bits};
  return bucket;
}

void qsgd_round(const QsgdBucket& bucket, std::span<const float> values, RandomKey random, uint64_t word,
                uint8_t* codes, float* decoded) {
  MILLRACE_CHECK(values.size() <= kQuantizeChunk, values.size());
  std::array<uint32_t, kQuantizeChunk> words;
  random_fill(random, word, std::span(words).first(values.size()));
  qsgd_quantize(bucket, values.data(), words.data(), values.size(), codes, decoded);
}

void qsgd_values(const QsgdBucket& bucket, const uint8_t* codes, std::span<float> values) {
  qsgd_dequantize(bucket, codes, values.size(), values.data());
}

}  // namespace millrace
