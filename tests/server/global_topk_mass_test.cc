#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "tests/server/scripted_cluster.h"

/// The share of the exact global top-k's mass (the sum of magnitudes) that an exact step keeps over several shards. The
/// shards divide the boundary bin by counts and not by magnitude. deploy/OPERATING.md, "Limits", and
/// server/aggregation/DESIGN.md state the assertions of these tests.
namespace millrace::server {
namespace {

constexpr uint64_t kMassDimension = 40'000;
constexpr uint64_t kMassK = 1'000;
/// Upper bound of a bin's width over its lower edge: bins keep seven bits of the mantissa.
constexpr double kBinWidth = 1.0 / 128;
constexpr double kClaimedLoss = 0.001;

using Magnitudes = std::vector<float>;

double mass_of(const Magnitudes& values) {
  double sum = 0;
  for (const float value : values) sum += std::fabs(value);
  return sum;
}

/// Returns the k largest magnitudes of all values, by sorting; zeros are left out.
Magnitudes largest(const Magnitudes& values) {
  Magnitudes sorted;
  for (const float value : values) {
    if (value != 0) sorted.push_back(std::fabs(value));
  }
  std::ranges::sort(sorted, std::greater<>());
  sorted.resize(std::min<size_t>(sorted.size(), kMassK));
  return sorted;
}

/// Returns the update that `shards` shards decide on one worker's dense gradient.
ScriptedCluster::Gathered decided(const Magnitudes& gradient, uint32_t shards) {
  protocol::JobSpec spec = ScriptedCluster::small_job(1, gradient.size());
  spec.parts_per_shard = 2;
  spec.reselect.reselect = protocol::Reselect::kTopK;
  spec.reselect.k = kMassK;
  ScriptedCluster cluster(spec, shards);
  cluster.join_all();
  cluster.push(0, 0, gradient);
  return cluster.gather(0, 0);
}

/// Asserts the properties of every input: exactly min(k, non-zeros) entries of the sum; with one shard the k largest.
/// With more shards, the missing mass is less than a bin's width of the carried entries of the boundary bin. Returns
/// the missing share of the mass.
double missing_share(const Magnitudes& gradient, uint32_t shards) {
  const ScriptedCluster::Gathered got = decided(gradient, shards);
  const Magnitudes exact = largest(gradient);
  EXPECT_EQ(got.entries, exact.size());
  const uint32_t boundary = MagnitudeHistogram::bin_of(exact.back());
  double kept = 0, kept_of_bin = 0;
  uint64_t altered = 0;
  for (size_t at = 0; at < gradient.size(); ++at) {
    if (got.dense[at] == 0) continue;
    if (got.dense[at] != gradient[at]) ++altered;
    kept += std::fabs(got.dense[at]);
    if (MagnitudeHistogram::bin_of(got.dense[at]) == boundary) kept_of_bin += std::fabs(got.dense[at]);
  }
  EXPECT_EQ(altered, 0U) << "entries that are not the sum's";
  const double whole = mass_of(exact);
  const double rounding = 1e-12 * whole;
  EXPECT_GE(whole - kept, -rounding);
  EXPECT_LE(whole - kept, kBinWidth * kept_of_bin + rounding);
  if (shards == 1) {
    EXPECT_NEAR(kept, whole, rounding);
  }
  return (whole - kept) / whole;
}

Magnitudes drawn(uint64_t seed, double (*one)(RandomSequence& random)) {
  RandomSequence random(RandomKey::from(seed));
  Magnitudes values(kMassDimension);
  for (float& value : values) value = static_cast<float>(one(random));
  return values;
}

double sign_of(RandomSequence& random) { return random.next_unit() < 0.5 ? -1 : 1; }
double positive_unit(RandomSequence& random) { return 1 - random.next_unit(); }

struct Drawn {
  const char* name;
  double (*one)(RandomSequence& random);
};
const std::vector<Drawn> kDrawn = {
    {"normal", [](RandomSequence& random) { return random.next_normal(); }},
    {"laplace", [](RandomSequence& random) { return sign_of(random) * -std::log(positive_unit(random)); }},
    {"pareto 3", [](RandomSequence& random) { return sign_of(random) * std::pow(positive_unit(random), -1.0 / 3); }},
    {"pareto 1.1", [](RandomSequence& random) { return sign_of(random) * std::pow(positive_unit(random), -1 / 1.1); }},
    {"log-normal 3", [](RandomSequence& random) { return sign_of(random) * std::exp(3 * random.next_normal()); }},
    {"uniform", [](RandomSequence& random) { return sign_of(random) * positive_unit(random); }},
};

TEST(GlobalTopKMass, OfDrawnGradientsLessThanAThousandthIsMissing) {
  for (const Drawn& input : kDrawn) {
    const Magnitudes gradient = drawn(1, input.one);
    for (const uint32_t shards : {1U, 2U, 4U, 8U}) {
      SCOPED_TRACE(std::string(input.name) + ", " + std::to_string(shards) + " shards");
      EXPECT_LT(missing_share(gradient, shards), kClaimedLoss);
    }
  }
}

TEST(GlobalTopKMass, ShardsOfVeryDifferentScaleMissNoMore) {
  // Each eighth of the indices is a quarter smaller than the one before: whole shards are above or below the threshold.
  Magnitudes gradient = drawn(3, kDrawn[0].one);
  for (size_t at = 0; at < gradient.size(); ++at) {
    gradient[at] *= std::pow(0.75F, static_cast<float>(at * 8 / gradient.size()));
  }
  for (const uint32_t shards : {1U, 2U, 4U, 8U}) EXPECT_LT(missing_share(gradient, shards), kClaimedLoss) << shards;
}

TEST(GlobalTopKMass, TiesAtTheBoundaryMissNothing) {
  // Nearly all entries are equal: none, a third or all but one of the k are above them.
  for (const size_t above : {size_t{0}, size_t{333}, size_t{999}}) {
    Magnitudes gradient(kMassDimension, 0.5F);
    for (size_t at = 0; at < above; ++at) gradient[at * 37 % kMassDimension] = at % 2 == 0 ? -1.0F : 2.0F;
    for (const uint32_t shards : {1U, 2U, 4U, 8U}) EXPECT_EQ(missing_share(gradient, shards), 0) << shards;
  }
}

TEST(GlobalTopKMass, FewerEntriesThanKMissNothing) {
  Magnitudes gradient(kMassDimension, 0.0F);
  for (size_t at = 0; at < kMassK / 2; ++at) gradient[at * 79 % kMassDimension] = 1 + static_cast<float>(at);
  for (const uint32_t shards : {1U, 2U, 4U, 8U}) EXPECT_EQ(missing_share(gradient, shards), 0) << shards;
}

/// Half of the indices at a bin's lower edge; k at its upper one, which the last shard holds with nothing else. One
/// entry above the bin carries `heavy` times the mass of the k.
Magnitudes worst_bin(double heavy) {
  constexpr float kLowEdge = 1;
  const float high = std::nextafter(1.0F + static_cast<float>(kBinWidth), 0.0F);
  Magnitudes gradient(kMassDimension, 0.0F);
  std::fill_n(gradient.begin(), kMassDimension / 2, kLowEdge);
  for (size_t at = 0; at < kMassK; ++at) gradient[kMassDimension - 1 - at] = high;
  if (heavy > 0) gradient[0] = static_cast<float>(heavy * kMassK);
  return gradient;
}

TEST(GlobalTopKMass, WhereOneBinHasItAllUpToItsWidthIsMissing) {
  const Magnitudes gradient = worst_bin(0);
  EXPECT_EQ(missing_share(gradient, 1), 0);
  for (const uint32_t shards : {2U, 4U, 8U}) {
    const double missing = missing_share(gradient, shards);
    EXPECT_GT(missing, 0.9 * kBinWidth) << "the stated limit is not idle: " << shards;
    EXPECT_LT(missing, kBinWidth) << shards;
  }
}

TEST(GlobalTopKMass, OfTheWorstBinAnEighthOfTheMassMissesLessThanAThousandth) {
  const Magnitudes gradient = worst_bin(7);
  for (const uint32_t shards : {2U, 4U, 8U}) {
    const double missing = missing_share(gradient, shards);
    EXPECT_LT(missing, kClaimedLoss) << shards;
    EXPECT_GT(missing, 0.8 * kClaimedLoss) << "an eighth is about where it ends: " << shards;
  }
}

}  // namespace
}  // namespace millrace::server
