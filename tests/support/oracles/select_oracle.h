#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"

namespace millrace::testing {

inline std::vector<uint32_t> listed(IndexSpan positions) { return {positions.begin(), positions.end()}; }

/// The k of largest magnitude by a full sort, ties to the lower position; increasing positions.
inline std::vector<uint32_t> top_k_oracle(std::span<const float> values, uint64_t k) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  order.resize(std::min<size_t>(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

inline std::vector<uint32_t> without_zeros(std::span<const float> values, std::vector<uint32_t> positions) {
  std::erase_if(positions, [&](uint32_t position) { return values[position] == 0; });
  return positions;
}

inline std::vector<uint32_t> threshold_oracle(std::span<const float> values, float threshold, uint64_t count_max) {
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < values.size() && positions.size() < count_max; ++i) {
    if (std::abs(values[i]) >= threshold) positions.push_back(static_cast<uint32_t>(i));
  }
  return positions;
}

/// Inputs that a selection meets, or that would mislead one which samples or partitions.
enum class Pattern {
  kGaussian,
  kAllEqual,
  kAllZero,
  kMostlyZero,
  kFewDistinct,
  kIncreasing,
  kDecreasing,
  kDenormal,
  kHeavyTail,
  kOneSpike,
  kPeriodic,
  kLargeAtTheEnd,
  kHuge,
};
inline constexpr Pattern kPatterns[] = {
    Pattern::kGaussian,   Pattern::kAllEqual,      Pattern::kAllZero,  Pattern::kMostlyZero, Pattern::kFewDistinct,
    Pattern::kIncreasing, Pattern::kDecreasing,    Pattern::kDenormal, Pattern::kHeavyTail,  Pattern::kOneSpike,
    Pattern::kPeriodic,   Pattern::kLargeAtTheEnd, Pattern::kHuge};

inline std::vector<float> values_of(Pattern pattern, size_t n, uint64_t seed) {
  RandomSequence random(random_key(seed, static_cast<uint64_t>(pattern)));
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const float sign = random.next_below(2) == 0 ? 1.0F : -1.0F;
    switch (pattern) {
      case Pattern::kGaussian: values[i] = static_cast<float>(random.next_normal()); break;
      case Pattern::kAllEqual: values[i] = sign * 0.5F; break;
      case Pattern::kAllZero: values[i] = sign * 0.0F; break;
      case Pattern::kMostlyZero:
        values[i] = random.next_below(50) == 0 ? static_cast<float>(random.next_normal()) : sign * 0.0F;
        break;
      case Pattern::kFewDistinct: values[i] = sign * static_cast<float>(random.next_below(3)); break;
      case Pattern::kIncreasing: values[i] = sign * static_cast<float>(i); break;
      case Pattern::kDecreasing: values[i] = sign * static_cast<float>(n - i); break;
      case Pattern::kDenormal:
        values[i] = sign * std::numeric_limits<float>::denorm_min() * static_cast<float>(random.next_below(1000));
        break;
      case Pattern::kHeavyTail: values[i] = sign * static_cast<float>(1 / (random.next_unit() + 1e-9)); break;
      case Pattern::kOneSpike: values[i] = i == n / 2 ? 1e9F : static_cast<float>(random.next_normal()) * 1e-3F; break;
      case Pattern::kPeriodic: values[i] = i % 256 == 0 ? 100.0F : static_cast<float>(random.next_unit()); break;
      case Pattern::kLargeAtTheEnd:
        values[i] = sign * static_cast<float>(random.next_unit()) + (i + 17 > n ? 10.0F : 0.0F);
        break;
      case Pattern::kHuge:
        values[i] = sign * std::numeric_limits<float>::max() * static_cast<float>(random.next_unit());
        break;
    }
  }
  return values;
}

inline std::string name_of(Pattern pattern, size_t n, uint64_t k) {
  return "pattern " + std::to_string(static_cast<int>(pattern)) + " n " + std::to_string(n) + " k " + std::to_string(k);
}

}  // namespace millrace::testing
