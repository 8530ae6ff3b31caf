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
template <typename T>
std::vector<uint32_t> top_k_oracle(std::span<const T> values, uint64_t k) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  order.resize(std::min<size_t>(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

template <typename T>
std::vector<uint32_t> without_zeros(std::span<const T> values, std::vector<uint32_t> positions) {
  std::erase_if(positions, [&](uint32_t position) { return values[position] == 0; });
  return positions;
}

template <typename T>
std::vector<uint32_t> threshold_oracle(std::span<const T> values, T threshold, uint64_t count_max) {
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

template <typename T>
std::vector<T> values_of(Pattern pattern, size_t n, uint64_t seed) {
  RandomSequence random(random_key(seed, static_cast<uint64_t>(pattern)));
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) {
    const T sign = random.next_below(2) == 0 ? T(1) : T(-1);
    switch (pattern) {
      case Pattern::kGaussian: values[i] = static_cast<T>(random.next_normal()); break;
      case Pattern::kAllEqual: values[i] = sign * T(0.5); break;
      case Pattern::kAllZero: values[i] = sign * T(0); break;
      case Pattern::kMostlyZero:
        values[i] = random.next_below(50) == 0 ? static_cast<T>(random.next_normal()) : sign * T(0);
        break;
      case Pattern::kFewDistinct: values[i] = sign * static_cast<T>(random.next_below(3)); break;
      case Pattern::kIncreasing: values[i] = sign * static_cast<T>(i); break;
      case Pattern::kDecreasing: values[i] = sign * static_cast<T>(n - i); break;
      case Pattern::kDenormal:
        values[i] = sign * std::numeric_limits<T>::denorm_min() * static_cast<T>(random.next_below(1000));
        break;
      case Pattern::kHeavyTail: values[i] = sign * static_cast<T>(1 / (random.next_unit() + 1e-9)); break;
      case Pattern::kOneSpike: values[i] = i == n / 2 ? T(1e9) : static_cast<T>(random.next_normal()) * T(1e-3); break;
      case Pattern::kPeriodic: values[i] = i % 256 == 0 ? T(100) : static_cast<T>(random.next_unit()); break;
      case Pattern::kLargeAtTheEnd:
        values[i] = sign * static_cast<T>(random.next_unit()) + (i + 17 > n ? T(10) : T(0));
        break;
      case Pattern::kHuge: values[i] = sign * std::numeric_limits<T>::max() * static_cast<T>(random.next_unit()); break;
    }
  }
  return values;
}

inline std::string name_of(Pattern pattern, size_t n, uint64_t k) {
  return "pattern " + std::to_string(static_cast<int>(pattern)) + " n " + std::to_string(n) + " k " + std::to_string(k);
}

}  // namespace millrace::testing
