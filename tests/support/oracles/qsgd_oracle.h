#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/quantize/qsgd.h"

namespace millrace::testing {

/// QSGD bit by bit, as qsgd.h words it.
struct QsgdOracle {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;

  QsgdOracle(std::span<const float> values, const QsgdOptions& options) {
    for (size_t begin = 0; begin < values.size(); begin += options.bucket_size) {
      const size_t count = std::min<size_t>(options.bucket_size, values.size() - begin);
      add_bucket(values.subspan(begin, count), begin, options);
    }
  }

 private:
  static float scale_of(std::span<const float> bucket, QsgdBucketScale scale) {
    double sums[8] = {};
    float largest = 0;
    for (size_t i = 0; i < bucket.size(); ++i) {
      largest = std::max(largest, std::abs(bucket[i]));
      sums[i % 8] += static_cast<double>(bucket[i]) * static_cast<double>(bucket[i]);
    }
    if (scale == QsgdBucketScale::kMax) return largest;
    double sum = 0;
    for (const double part : sums) sum += part;
    return static_cast<float>(std::min<double>(std::sqrt(sum), std::numeric_limits<float>::max()));
  }

  void add_bucket(std::span<const float> bucket, size_t begin, const QsgdOptions& options) {
    const uint32_t levels = (1u << (options.bits - 1)) - 1;
    float scale = scale_of(bucket, options.scale);
    float unit = scale / static_cast<float>(levels);
    if (unit < std::numeric_limits<float>::min()) scale = unit = 0;
    const auto scale_bits = std::bit_cast<uint32_t>(scale);
    for (int byte = 0; byte < 4; ++byte) bytes.push_back(static_cast<uint8_t>(scale_bits >> (8 * byte)));
    const float per_unit = unit > 0 ? 1 / unit : 0;
    std::vector<bool> code_bits;
    for (size_t i = 0; i < bucket.size(); ++i) {
      const uint64_t word = options.counter_base + begin + i;
      const uint32_t drawn = random_words(options.random, word / 4)[word % 4] >> 8;
      const float exact = std::abs(bucket[i]) * per_unit;
      uint32_t level = static_cast<uint32_t>(std::floor(exact));
      const float fraction = exact - std::floor(exact);
      if (static_cast<float>(drawn) * 0x1p-24f < fraction) ++level;
      level = std::min(level, levels);
      const bool negative = bucket[i] < 0 && level != 0;
      const float magnitude = level == levels ? scale : static_cast<float>(level) * unit;
      decoded.push_back(negative ? -magnitude : magnitude);
      const uint32_t code = level | (negative ? levels + 1 : 0);
      for (uint32_t bit = 0; bit < options.bits; ++bit) code_bits.push_back((code >> bit & 1) != 0);
    }
    while (code_bits.size() % 8 != 0) code_bits.push_back(false);
    for (size_t at = 0; at < code_bits.size(); at += 8) {
      uint32_t byte = 0;
      for (uint32_t bit = 0; bit < 8; ++bit) byte |= (code_bits[at + bit] ? 1u : 0u) << bit;
      bytes.push_back(static_cast<uint8_t>(byte));
    }
  }
};

}  // namespace millrace::testing
