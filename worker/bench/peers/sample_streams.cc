#include "worker/bench/peers/sample_streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/random.h"

namespace millrace::peer {
namespace {

constexpr std::array kDistributions{
    DistributionName{Distribution::kUniform, "uniform"},
    DistributionName{Distribution::kClustered, "clustered"},
    DistributionName{Distribution::kSame, "same"},
    DistributionName{Distribution::kDisjoint, "disjoint"},
    DistributionName{Distribution::kOneRegion, "one_region"},
    DistributionName{Distribution::kTwoEnds, "two_ends"},
    DistributionName{Distribution::kHotRegion, "hot_region"},
};
constexpr uint64_t kRun = 64;
constexpr uint32_t kLevels = 4096;    ///< of a value's magnitude, a 64th apart
constexpr uint32_t kColdLevels = 64;  ///< outside the hot region
constexpr uint64_t kIndexDraws = 0x696e6478;
constexpr uint64_t kValueDraws = 0x76616c75;

std::vector<uint32_t> words(RandomKey key, size_t count, uint64_t stream) {
  std::vector<uint32_t> drawn(count);
  random_fill(key, 0, drawn, stream);
  return drawn;
}

/// `count` distinct numbers of [begin, end), ascending: positions of a Poisson process, scaled to the range that is
/// left beside one place for each.
IndexBuffer ascending(RandomKey key, uint64_t begin, uint64_t end, uint64_t count) {
  count = std::min(count, end - begin);
  const std::vector<uint32_t> drawn = words(key, count + 1, kIndexDraws);
  std::vector<double> at(count + 1);
  double sum = 0;
  for (size_t i = 0; i <= count; ++i) at[i] = sum -= std::log((drawn[i] + 0.5) / 4294967296.0);
  const double scale = static_cast<double>(end - begin - count + 1) / sum;
  IndexBuffer indices(count);
  for (size_t i = 0; i < count; ++i) {
    const auto free = std::min<uint64_t>(static_cast<uint64_t>(at[i] * scale), end - begin - count);
    indices[i] = static_cast<uint32_t>(begin + free + i);
  }
  return indices;
}

/// Runs of neighbours.
IndexBuffer clustered(RandomKey key, uint64_t dimension, uint64_t count) {
  const uint64_t run = std::min(kRun, std::max<uint64_t>(1, count));
  const uint64_t places = (dimension + run - 1) / run;
  IndexBuffer indices;
  for (const uint32_t place : ascending(key, 0, places, (count + run - 1) / run)) {
    for (uint64_t i = 0; i < run && indices.size() < count; ++i) {
      if (place * run + i < dimension) indices.push_back(static_cast<uint32_t>(place * run + i));
    }
  }
  return indices;
}

IndexBuffer sample_streams_indices_of(const SampleOptions& options, uint32_t rank, uint64_t step) {
  const uint64_t n = options.dimension;
  const bool same = options.distribution == Distribution::kSame;
  const RandomKey key = random_key(options.seed, step, same ? 0 : rank);
  switch (options.distribution) {
    case Distribution::kUniform:
    case Distribution::kHotRegion:
    case Distribution::kSame: return ascending(key, 0, n, options.count);
    case Distribution::kClustered: return clustered(key, n, options.count);
    case Distribution::kDisjoint:
      return ascending(key, n * rank / options.ranks, n * (rank + 1) / options.ranks, options.count);
    case Distribution::kOneRegion:
      return ascending(key, 0, std::min(n, std::max(n / 16, 2 * options.count)), options.count);
    case Distribution::kTwoEnds:
      return rank % 2 == 0 ? ascending(key, 0, (n + 3) / 4, options.count)
                           : ascending(key, n - (n + 3) / 4, n, options.count);
  }
  return {};
}

}  // namespace

std::span<const DistributionName> distributions() { return kDistributions; }

std::optional<Distribution> find_distribution(std::string_view name) {
  const auto at = std::ranges::find(kDistributions, name, &DistributionName::name);
  return at == kDistributions.end() ? std::nullopt : std::optional(at->distribution);
}

std::string_view name_of(Distribution distribution) {
  return std::ranges::find(kDistributions, distribution, &DistributionName::distribution)->name;
}

SharedStream sample_contribution(const SampleOptions& options, uint32_t rank, uint64_t step) {
  MILLRACE_CHECK(rank < options.ranks && options.dimension >= 1, rank, options.ranks, options.dimension);
  Stream stream = Stream::empty(options.dimension);
  stream.indices = sample_streams_indices_of(options, rank, step);
  const std::vector<uint32_t> drawn = words(random_key(options.seed, step, rank), stream.indices.size(), kValueDraws);
  stream.values.resize(stream.indices.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    const bool cold = options.distribution == Distribution::kHotRegion && stream.indices[i] >= options.dimension / 16;
    const auto magnitude = static_cast<float>((drawn[i] >> 1) % (cold ? kColdLevels : kLevels) + 1) / 64;
    stream.values[i] = drawn[i] % 2 == 0 ? magnitude : -magnitude;
  }
  return SharedStream::from(std::move(stream));
}

}  // namespace millrace::peer
