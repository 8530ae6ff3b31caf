#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/select/select.h"

namespace millrace::testing {

/// GSpar's problem (6), slowly. Values are f64; p holds the probabilities with which entries are drawn.
struct Problem {
  std::vector<double> sizes;  ///< |g|

  double squares() const {
    return std::accumulate(sizes.begin(), sizes.end(), 0.0, [](double sum, double g) { return sum + g * g; });
  }
  /// (5), over the squares: at most 1 + epsilon in (6).
  double variance(const std::vector<double>& p) const {
    double sum = 0;
    for (size_t i = 0; i < sizes.size(); ++i) sum += sizes[i] == 0 ? 0 : sizes[i] * sizes[i] / p[i];
    return sum / squares();
  }
};

inline double sum_of(const std::vector<double>& p) { return std::accumulate(p.begin(), p.end(), 0.0); }

/// Algorithm 3, line by line.
inline std::vector<double> greedy_oracle(const Problem& problem, double k, uint32_t iterations) {
  const double sum = sum_of(problem.sizes);
  const auto d = static_cast<double>(problem.sizes.size());
  std::vector<double> p;
  for (const double g : problem.sizes) p.push_back(std::min(k * g / sum, 1.0));
  for (uint32_t j = 0; j < iterations; ++j) {
    double active = 0;
    double active_sum = 0;
    for (const double one : p) {
      if (one == 1) continue;
      active += 1;
      active_sum += one;
    }
    if (active_sum == 0) break;
    const double c = (k - d + active) / active_sum;
    // Equal to 1 but for rounding: nothing was cut in the iteration before.
    if (c <= 1 + 1e-13) break;
    for (double& one : p) one = std::min(c * one, 1.0);
  }
  return p;
}

/// Algorithm 2 with (11), by sorting.
inline std::vector<double> closed_oracle(const Problem& problem, double epsilon) {
  std::vector<double> sorted = problem.sizes;
  std::ranges::sort(sorted, std::greater<>());
  const double budget = epsilon * problem.squares();
  for (size_t k = 0; k < sorted.size(); ++k) {
    double sum = 0;
    double squares = 0;
    for (size_t j = sorted.size(); j-- > k;) sum += sorted[j], squares += sorted[j] * sorted[j];
    if (sorted[k] * sum > budget + squares) continue;
    std::vector<double> p;
    for (const double g : problem.sizes) p.push_back(std::min(1.0, g * sum / (budget + squares)));
    return p;
  }
  return std::vector<double>(problem.sizes.size(), 1);
}

/// Returns the p in (0, 1]^d with the least variance that sums to `total` <= d. It exchanges between two entries at a
/// time, and does not use Proposition 1, which describes the solution. REQUIRES: no zeros.
inline std::vector<double> exchanged(const Problem& problem, double total) {
  const size_t d = problem.sizes.size();
  std::vector<double> p(d, total / static_cast<double>(d));
  for (int round = 0; round < 400; ++round) {
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = i + 1; j < d; ++j) {
        const double both = p[i] + p[j];
        const double share = both * problem.sizes[i] / (problem.sizes[i] + problem.sizes[j]);
        p[i] = std::clamp(share, std::max(both - 1, 0.0), std::min(both, 1.0));
        p[j] = both - p[i];
      }
    }
  }
  return p;
}

/// What draw_by_size() says of position i: word i of the key's stream 1, and 32 bits more of stream 2.
inline bool drawn_by_oracle(RandomKey key, uint64_t position, double p) {
  const uint32_t word = random_words(key, position / 4, 1)[position % 4];
  const uint32_t rest = random_words(key, position, 2)[0];
  return (static_cast<long double>(word) + (static_cast<long double>(rest) + 0.5L) * 0x1p-32L) * 0x1p-32L <
         static_cast<long double>(p);
}

/// Sums over many draws of one vector.
struct DrawnSums {
  std::vector<double> sums, squares, times;
  double counts = 0, counts_squared = 0;
  double norms = 0, norms_squared = 0;  ///< of |sent|^2
  uint64_t draws = 0;

  double mean(size_t i) const { return sums[i] / static_cast<double>(draws); }
  double error(size_t i) const {
    const double of = mean(i);
    return std::sqrt(std::max(0.0, squares[i] / static_cast<double>(draws) - of * of) / static_cast<double>(draws));
  }
  double mean_count() const { return counts / static_cast<double>(draws); }
  double count_error() const { return standard_error(counts, counts_squared); }
  double mean_norm() const { return norms / static_cast<double>(draws); }
  double norm_error() const { return standard_error(norms, norms_squared); }

 private:
  double standard_error(double sum, double of_squares) const {
    const auto n = static_cast<double>(draws);
    return std::sqrt(std::max(0.0, of_squares / n - sum / n * (sum / n)) / n);
  }
};

inline DrawnSums draw_many(Selector& selector, const std::vector<float>& values, uint64_t draws, uint64_t seed) {
  DrawnSums found;
  found.sums.assign(values.size(), 0);
  found.squares = found.times = found.sums;
  found.draws = draws;
  IndexBuffer positions;
  Buffer<float> sent;
  for (uint64_t draw = 0; draw < draws; ++draw) {
    const StreamView view{values.size(), true, {}, values};
    if (!selector.draw(view, {draw, random_key(seed, draw)}, positions, sent)) return found;
    double norm = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      const auto value = static_cast<double>(sent[i]);
      found.sums[positions[i]] += value;
      found.squares[positions[i]] += value * value;
      found.times[positions[i]] += 1;
      norm += value * value;
    }
    const auto count = static_cast<double>(positions.size());
    found.counts += count;
    found.counts_squared += count * count;
    found.norms += norm;
    found.norms_squared += norm * norm;
  }
  return found;
}

}  // namespace millrace::testing
