#include "server/aggregation/bucket_threshold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/random.h"
#include "tests/server/scripted_cluster.h"

namespace millrace::server {
namespace {

using ::testing::ElementsAre;

TEST(SplitTake, SumsToTakeAndNoQuotaExceedsItsCount) {
  RandomSequence random(RandomKey::from(7));
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> in_bin(1 + random.next_below(6));
    for (uint64_t& count : in_bin) count = random.next_below(20);
    const uint64_t total = std::accumulate(in_bin.begin(), in_bin.end(), uint64_t{0});
    const uint64_t take = random.next_below(total + 3);
    const std::vector<uint64_t> quotas = split_take(take, in_bin);
    EXPECT_EQ(std::accumulate(quotas.begin(), quotas.end(), uint64_t{0}), std::min(take, total));
    for (size_t at = 0; at < in_bin.size(); ++at) {
      EXPECT_LE(quotas[at], in_bin[at]);
      if (take <= total && total > 0) {
        const double exact = static_cast<double>(take * in_bin[at]) / static_cast<double>(total);
        EXPECT_LT(std::abs(static_cast<double>(quotas[at]) - exact), 1);
      }
    }
  }
}

TEST(SplitTake, EqualRemaindersGoToTheLowerHolder) {
  EXPECT_THAT(split_take(1, std::vector<uint64_t>{5, 5, 5}), ElementsAre(1, 0, 0));
  EXPECT_THAT(split_take(4, std::vector<uint64_t>{3, 3, 3}), ElementsAre(2, 1, 1));
  EXPECT_THAT(split_take(0, std::vector<uint64_t>{}), ElementsAre());
}

/// Returns the k largest by magnitude, ties by lower index, zeros never: the update with one shard must equal it.
std::vector<float> oracle_top_k(const std::vector<float>& sum, uint64_t k) {
  std::vector<size_t> order(sum.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return std::fabs(sum[a]) > std::fabs(sum[b]); });
  std::vector<float> kept(sum.size(), 0.0f);
  for (size_t at = 0; at < std::min<size_t>(k, order.size()); ++at) kept[order[at]] = sum[order[at]];
  return kept;
}

struct Shape {
  uint32_t shards;
  uint32_t parts_per_shard;
  uint64_t dimension;
  uint64_t k;
};

protocol::JobSpec top_k_job(const Shape& shape, uint32_t workers = 2) {
  protocol::JobSpec spec = ScriptedCluster::small_job(workers, shape.dimension);
  spec.parts_per_shard = shape.parts_per_shard;
  spec.reselect.reselect = protocol::Reselect::kTopK;
  spec.reselect.k = shape.k;
  spec.fuse_below = 0;
  return spec;
}

std::vector<float> draws(RandomSequence& random, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(std::ldexp(std::round(random.next_normal() * 256), -8));
  return values;
}

std::vector<float> added(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a);
  for (size_t at = 0; at < sum.size(); ++at) sum[at] += b[at];
  return sum;
}

uint64_t non_zeros(const std::vector<float>& values) {
  return static_cast<uint64_t>(std::ranges::count_if(values, [](float value) { return value != 0; }));
}

TEST(GlobalTopK, OneShardIsExactlyTheOracleOverAnyNumberOfParts) {
  RandomSequence random(RandomKey::from(11));
  for (const uint32_t parts : {1u, 2u, 5u, 8u}) {
    const Shape shape{1, parts, 4'000, 300};
    ScriptedCluster cluster(top_k_job(shape));
    cluster.join_all();
    for (uint64_t step = 0; step < 3; ++step) {
      const std::vector<float> first = draws(random, shape.dimension);
      const std::vector<float> second = draws(random, shape.dimension);
      cluster.push(0, step, first);
      cluster.push(1, step, second);
      const auto got = cluster.gather(0, step);
      EXPECT_EQ(got.parts, parts);
      EXPECT_EQ(got.dense, oracle_top_k(added(first, second), shape.k)) << parts << " parts, step " << step;
      cluster.take(1);
    }
  }
}

TEST(GlobalTopK, SizeIsExactlyKWithManyShardsAndOnlyTheBoundaryBinIsShared) {
  RandomSequence random(RandomKey::from(12));
  for (uint32_t shards = 2; shards <= 5; ++shards) {
    const Shape shape{shards, 3, 200'000, 5'000};
    ScriptedCluster cluster(top_k_job(shape), shards);
    cluster.join_all();
    ASSERT_EQ(cluster.layout().parts.size(), shards * 3u);
    const std::vector<float> first = draws(random, shape.dimension);
    const std::vector<float> second = draws(random, shape.dimension);
    cluster.push(0, 0, first);
    cluster.push(1, 0, second);
    const auto got = cluster.gather(0, 0);
    EXPECT_EQ(got.entries, shape.k) << shards;
    const std::vector<float> sum = added(first, second);
    // Every value above the boundary bin is in the update; no smaller one is.
    const float least = *std::ranges::min_element(got.dense, {}, [](float v) { return v == 0 ? 1e30f : std::fabs(v); });
    const uint32_t bin = MagnitudeHistogram::bin_of(least);
    for (size_t at = 0; at < sum.size(); ++at) {
      if (MagnitudeHistogram::bin_of(sum[at]) <= bin) continue;
      ASSERT_EQ(got.dense[at], sum[at]) << at;
    }
  }
}

TEST(GlobalTopK, EqualMagnitudesGiveExactlyKEntries) {
  for (uint32_t shards = 1; shards <= 5; ++shards) {
    const Shape shape{shards, 2, 100'000, 777};
    ScriptedCluster cluster(top_k_job(shape), shards);
    cluster.join_all();
    std::vector<float> gradient(shape.dimension);
    for (size_t at = 0; at < gradient.size(); ++at) gradient[at] = at % 3 == 0 ? -0.5f : 0.5f;
    cluster.push(0, 0, gradient);
    cluster.push(1, 0, gradient);
    EXPECT_EQ(cluster.gather(0, 0).entries, shape.k) << shards;
  }
}

TEST(GlobalTopK, FewerNonZerosThanKAreAllTaken) {
  const Shape shape{3, 2, 100'000, 500};
  ScriptedCluster cluster(top_k_job(shape), 3);
  cluster.join_all();
  std::vector<float> gradient(shape.dimension, 0.0f);
  for (size_t at = 0; at < 20; ++at) gradient[at * 7] = 1.0f;  // all on the first shard: the others are empty
  cluster.push(0, 0, gradient);
  cluster.push(1, 0, gradient);
  const auto got = cluster.gather(0, 0);
  EXPECT_EQ(got.entries, 20u);
  EXPECT_EQ(got.parts, 6u) << "parts without entries are decided too";
}

TEST(GlobalTopK, NothingAtAllIsDecided) {
  const Shape shape{2, 2, 100'000, 500};
  ScriptedCluster cluster(top_k_job(shape), 2);
  cluster.join_all();
  const std::vector<float> nothing(shape.dimension, 0.0f);
  cluster.push(0, 0, nothing);
  cluster.push(1, 0, nothing);
  const auto got = cluster.gather(0, 0);
  EXPECT_EQ(got.parts, 4u);
  EXPECT_EQ(got.entries, 0u);
}

TEST(ReuseStep, SizeStaysWithinTwoPercentOfKAndNoShardWaits) {
  RandomSequence random(RandomKey::from(13));
  const Shape shape{3, 4, 200'000, 4'000};
  protocol::JobSpec spec = top_k_job(shape);
  spec.reselect.threshold_period = 100;
  ScriptedCluster cluster(spec, 3);
  cluster.join_all();
  for (uint64_t step = 0; step < 8; ++step) {
    // Magnitudes grow by a quarter every step: yesterday's threshold alone would let far too many through.
    const float growth = std::pow(1.25f, static_cast<float>(step));
    std::vector<float> first = draws(random, shape.dimension);
    std::vector<float> second = draws(random, shape.dimension);
    for (float& value : first) value *= growth;
    for (float& value : second) value *= growth;
    if (step > 0) cluster.mute = {0, 1, 2};  // no histogram arrives, and still every step is decided
    if (step > 4) cluster.mute = {};
    cluster.push(0, step, first);
    cluster.push(1, step, second);
    const auto got = cluster.gather(0, step);
    ASSERT_EQ(got.parts, 12u) << step;
    EXPECT_NEAR(static_cast<double>(got.entries), 4'000.0, 0.02 * 4'000 + 3) << step;
    cluster.take(1);
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
}

TEST(ReuseStep, TiesDoNotMakeAnUpdateLarge) {
  const Shape shape{2, 3, 100'000, 1'000};
  protocol::JobSpec spec = top_k_job(shape);
  spec.reselect.threshold_period = 10;
  ScriptedCluster cluster(spec, 2);
  cluster.join_all();
  const std::vector<float> gradient(shape.dimension, 0.25f);
  for (uint64_t step = 0; step < 4; ++step) {
    cluster.push(0, step, gradient);
    cluster.push(1, step, gradient);
    EXPECT_NEAR(static_cast<double>(cluster.gather(0, step).entries), 1'000.0, 0.02 * 1'000 + 2) << step;
  }
}

/// How the magnitudes of a job change: `scale` of each step, varied at random for each step where `noise` is not 0.
struct Drift {
  const char* name;
  float (*scale)(uint64_t step);
  double noise;
  double quick_steps;  ///< at least this many of the 10 are cut while they are summed
};

/// Of a step's update: its entries are those of the sum, bit for bit, and there are about k of them.
void expect_reused(const ScriptedCluster::Gathered& got, const std::vector<float>& sum, const Shape& shape) {
  EXPECT_EQ(got.parts, shape.shards * shape.parts_per_shard);
  EXPECT_NEAR(static_cast<double>(got.entries), static_cast<double>(shape.k),
              0.02 * static_cast<double>(shape.k) + shape.shards);
  uint64_t wrong = 0;
  for (size_t at = 0; at < sum.size(); ++at) wrong += got.dense[at] != 0 && got.dense[at] != sum[at] ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
}

TEST(ReuseStep, SizeIsHeldWhileMagnitudesDriftJumpShrinkAndScatter) {
  const std::vector<Drift> drifts = {
      {"steady", [](uint64_t) { return 1.0f; }, 0, 9},
      {"slow growth", [](uint64_t step) { return std::pow(1.01f, static_cast<float>(step)); }, 0, 9},
      {"slow decay", [](uint64_t step) { return std::pow(0.98f, static_cast<float>(step)); }, 0, 8},
      {"halved every step", [](uint64_t step) { return std::pow(0.5f, static_cast<float>(step)); }, 0, 0},
      {"doubled every step", [](uint64_t step) { return std::pow(2.0f, static_cast<float>(step)); }, 0, 8},
      {"falls at once", [](uint64_t step) { return step < 5 ? 1.0f : 0.001f; }, 0, 8},
      {"to and fro", [](uint64_t step) { return step % 2 == 0 ? 1.0f : 3.0f; }, 0, 4},
      {"noise", [](uint64_t) { return 1.0f; }, 0.15, 5},
  };
  for (const Shape& shape : {Shape{1, 1, 60'000, 1'500}, Shape{3, 4, 90'000, 3'000}}) {
    for (const Drift& drift : drifts) {
      SCOPED_TRACE(std::string(drift.name) + ", shards " + std::to_string(shape.shards));
      RandomSequence random(RandomKey::from(21));
      protocol::JobSpec spec = top_k_job(shape);
      spec.reselect.threshold_period = 64;
      ScriptedCluster cluster(spec, shape.shards);
      cluster.join_all();
      for (uint64_t step = 0; step < 12; ++step) {
        const double noise = drift.noise == 0 ? 0 : drift.noise * random.next_normal();
        const float scale = drift.scale(step) * static_cast<float>(std::exp(noise));
        std::vector<float> first = draws(random, shape.dimension);
        std::vector<float> second = draws(random, shape.dimension);
        for (float& value : first) value *= scale;
        for (float& value : second) value *= scale;
        cluster.push(0, step, first);
        cluster.push(1, step, second);
        expect_reused(cluster.gather(0, step), added(first, second), shape);
        cluster.take(1);
        cluster.ack(0, step + 1);
        cluster.ack(1, step + 1);
      }
      const double quick =
          cluster.counted(Metric::kFusedThresholds, "as_it_was") + cluster.counted(Metric::kFusedThresholds, "trimmed");
      EXPECT_GE(quick, drift.quick_steps * shape.shards * shape.parts_per_shard);
    }
  }
}

TEST(ReuseStep, SteadyMagnitudesAreCutWhileTheyAreSummed) {
  RandomSequence random(RandomKey::from(22));
  const Shape shape{2, 4, 200'000, 20'000};
  protocol::JobSpec spec = top_k_job(shape);
  spec.reselect.threshold_period = 64;
  ScriptedCluster cluster(spec, shape.shards);
  cluster.join_all();
  const std::vector<float> first = draws(random, shape.dimension);
  for (uint64_t step = 0; step < 10; ++step) {
    // Finer than a bin: the quick threshold lies within one.
    std::vector<float> second(shape.dimension);
    for (float& value : second) value = static_cast<float>(random.next_normal());
    cluster.push(0, step, first);
    cluster.push(1, step, second);
    expect_reused(cluster.gather(0, step), added(first, second), shape);
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
  // Steps 1 to 9 but for step 8, which counts magnitudes; by the noise of a few thousand entries a part now and then
  // more.
  EXPECT_GE(cluster.counted(Metric::kFusedThresholds, "as_it_was"), 0.9 * 8 * 8);
}

/// One shard, two parts of 2,048 entries whose k-th is agreed at step 0: 500 of each part. Step 1 then has
/// `large_in_each_part` large entries in each part. Both parts are summed and cut before either of the two is counted.
struct TwoPartsCutAtOnce {
  explicit TwoPartsCutAtOnce(size_t large_in_each_part) {
    spec.reselect.threshold_period = 64;
    cluster = std::make_unique<ScriptedCluster>(spec);
    cluster->join_all();
    step_of(0, 500);
    cluster->gather(0, 0);
    cluster->take(1);
    cluster->ack(0, 1);
    cluster->ack(1, 1);
    cluster->hold_tasks = true;
    sum = step_of(1, large_in_each_part);
    cluster->run_held_tasks_until(Task::Kind::kReduce);
    cluster->hold_tasks = false;
    cluster->run_held_tasks();
    got = cluster->gather(0, 1);
  }
  /// Magnitudes in [1, 2) where they are large, in [0.25, 0.5) where they are not; all differ.
  std::vector<float> step_of(uint64_t step, size_t large) {
    std::vector<float> gradient(4'096);
    for (size_t at = 0; at < gradient.size(); ++at) {
      const float magnitude = 1 + static_cast<float>(at * 7'919 % 4'096) / 4'096.0f;
      gradient[at] = (at % 2'048 < large ? magnitude : magnitude / 4) * (at % 3 == 0 ? -1.0f : 1.0f);
    }
    cluster->push(0, step, gradient);
    cluster->push(1, step, std::vector<float>(4'096, 0.0f));
    return gradient;
  }
  double quick(const char* result) const { return cluster->counted(Metric::kFusedThresholds, result); }

  protocol::JobSpec spec = top_k_job({1, 2, 4'096, 1'000});
  std::unique_ptr<ScriptedCluster> cluster;
  std::vector<float> sum;
  ScriptedCluster::Gathered got;
};

TEST(ReuseStep, PartTooLargeAfterCounting_TrimmedAndNotSummedAgain) {
  // 515 are in the band of either part alone (500 and 2 % of 1,000 give or take); 515 and 515 are not.
  const TwoPartsCutAtOnce cut(515);
  EXPECT_EQ(cut.quick("as_it_was"), 1);
  EXPECT_EQ(cut.quick("trimmed"), 1);
  EXPECT_EQ(cut.quick("summed_again"), 0);
  EXPECT_EQ(cut.cluster->counted(Metric::kSumEntries), 4'096) << "step 0 alone was summed whole";
  EXPECT_EQ(cut.got.entries, 1'015u);
  // The second part omits the 15 smallest of its large entries; the first part omits none.
  const std::vector<float> second(cut.sum.begin() + 2'048, cut.sum.end());
  std::vector<float> expected = oracle_top_k(second, 500);
  EXPECT_EQ(std::vector<float>(cut.got.dense.begin() + 2'048, cut.got.dense.end()), expected);
  for (size_t at = 0; at < 515; ++at) ASSERT_EQ(cut.got.dense[at], cut.sum[at]) << at;
}

TEST(ReuseStep, APartThatIsTooSmallOnceTheOthersAreCountedIsSummedAgain) {
  const TwoPartsCutAtOnce cut(485);
  EXPECT_EQ(cut.quick("as_it_was"), 1);
  EXPECT_EQ(cut.quick("trimmed"), 0);
  EXPECT_EQ(cut.quick("summed_again"), 1);
  EXPECT_EQ(cut.got.entries, 980u) << "the least that the band allows";
}

/// A shard whose share of k is less than one entry: a few large sums come and go on it.
TEST(ReuseStep, ShardsWithAShareOfLessThanOneEntryAreCutLikeOthers) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    SCOPED_TRACE(seed);
    RandomSequence random(RandomKey::from(seed));
    const Shape shape{2, 1 + static_cast<uint32_t>(seed % 2) * 3, 16'384, 10};
    protocol::JobSpec spec = top_k_job(shape);
    spec.reselect.threshold_period = 64;
    ScriptedCluster cluster(spec, shape.shards);
    cluster.join_all();
    for (uint64_t step = 0; step < 24; ++step) {
      std::vector<float> gradient(shape.dimension, 0.0f);
      // 50 of equal magnitude, all but one of them on the first shard; later, one to ten large ones on the second.
      for (size_t at = 0; at < 49; ++at) gradient[at * 100] = 1;
      gradient[shape.dimension - 1] = step == 0 ? 1.0f : 0.0f;
      const uint64_t large = step == 0 ? 0 : random.next_below(10);
      for (uint64_t at = 0; at < large; ++at) gradient[shape.dimension / 2 + 700 * at] = 2;
      cluster.push(0, step, gradient);
      cluster.push(1, step, std::vector<float>(shape.dimension, 0.0f));
      const auto got = cluster.gather(0, step);
      ASSERT_EQ(got.parts, shape.shards * shape.parts_per_shard) << step;
      EXPECT_LE(got.entries, 2 * shape.k) << step;  // shares of less than one are rounded part by part
      cluster.take(1);
      cluster.ack(0, step + 1);
      cluster.ack(1, step + 1);
    }
  }
}

TEST(ReuseStep, CodecThatAddsEntriesTakesThemFromTheWholeSum) {
  RandomSequence random(RandomKey::from(23));
  const Shape shape{1, 2, 60'000, 1'500};
  protocol::JobSpec spec = top_k_job(shape);
  spec.reselect.threshold_period = 64;
  spec.codec_down.index = IndexCodecId::kBloom;
  spec.codec_down.bloom_false_positive_rate = 0.01;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  for (uint64_t step = 0; step < 4; ++step) {
    const std::vector<float> first = draws(random, shape.dimension);
    const std::vector<float> second = draws(random, shape.dimension);
    cluster.push(0, step, first);
    cluster.push(1, step, second);
    const auto got = cluster.gather(0, step);
    EXPECT_GT(got.entries, shape.k) << "false positives";
    const std::vector<float> sum = added(first, second);
    uint64_t wrong = 0;
    for (size_t at = 0; at < sum.size(); ++at) wrong += got.dense[at] != 0 && got.dense[at] != sum[at] ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
  EXPECT_EQ(
      cluster.counted(Metric::kFusedThresholds, "as_it_was") + cluster.counted(Metric::kFusedThresholds, "trimmed"), 0);
}

TEST(ReuseStep, SumThatOverflowsEndsTheJobThoughOnlyLargeSumsAreLookedAt) {
  RandomSequence random(RandomKey::from(24));
  const Shape shape{1, 1, 60'000, 1'500};
  protocol::JobSpec spec = top_k_job(shape);
  spec.reselect.threshold_period = 64;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  std::vector<float> gradient = draws(random, shape.dimension);
  for (uint64_t step = 0; step < 2; ++step) {
    cluster.push(0, step, gradient);
    cluster.push(1, step, gradient);
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
  cluster.take(0);
  gradient[77] = 3e38f;
  cluster.push(0, 2, gradient);
  cluster.push(1, 2, gradient);
  const std::vector<protocol::Abort> aborts = cluster.take_of<protocol::Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kNonFinite);
}

TEST(MagnitudeReachedBy, IsReachedByTheGivenNumberOfEntries) {
  RandomSequence random(RandomKey::from(25));
  std::vector<float> values(100'000);
  for (float& value : values) value = static_cast<float>(random.next_normal());
  MagnitudeHistogram histogram;
  histogram.add(values);
  for (const double count : {1.0, 100.0, 5'000.0, 50'000.0, 99'000.0}) {
    const float magnitude = magnitude_reached_by(histogram, count);
    const auto above = std::ranges::count_if(values, [&](float value) { return std::fabs(value) >= magnitude; });
    EXPECT_NEAR(static_cast<double>(above), count, 3 + 0.002 * count);
  }
  EXPECT_GT(magnitude_reached_by(histogram, 1e9), 0) << "as small as any";
  EXPECT_GT(magnitude_reached_by(histogram, 0), 3) << "one entry";
  EXPECT_GT(magnitude_reached_by(MagnitudeHistogram{}, 5), 0);
}

TEST(SilentShard, ExactStepFallsBackToTheLastThresholdAndIsCounted) {
  RandomSequence random(RandomKey::from(14));
  const Shape shape{2, 2, 100'000, 2'000};
  ScriptedCluster cluster(top_k_job(shape), 2);
  cluster.join_all();
  const auto step_of = [&](uint64_t step) {
    const std::vector<float> first = draws(random, shape.dimension);
    cluster.push(0, step, first);
    cluster.push(1, step, draws(random, shape.dimension));
  };
  step_of(0);
  EXPECT_EQ(cluster.gather(0, 0).entries, shape.k);
  cluster.mute = {1};
  step_of(1);
  cluster.pass(150);
  EXPECT_EQ(cluster.counted(Metric::kExchangeFallbacks), 0);
  const auto before = cluster.core(0).status(cluster.now);
  EXPECT_THAT(before.jobs[0].waiting_because, ::testing::HasSubstr("magnitudes of shard 1"));
  cluster.pass(100);
  EXPECT_EQ(cluster.counted(Metric::kExchangeFallbacks), 2) << "both parts of a shard";
  const auto got = cluster.gather(0, 1);
  EXPECT_EQ(got.parts, 4u) << "shard 1 had shard 0's magnitudes, shard 0 fell back";
  EXPECT_NEAR(static_cast<double>(got.entries), 2'000.0, 0.03 * 2'000);
  cluster.mute = {};
  step_of(2);
  EXPECT_EQ(cluster.gather(0, 2).entries, shape.k) << "exact again";
}

TEST(SilentShard, FirstStepFallsBackToTheMagnitudesThatAreThere) {
  RandomSequence random(RandomKey::from(15));
  const Shape shape{2, 2, 100'000, 2'000};
  ScriptedCluster cluster(top_k_job(shape), 2);
  cluster.join_all();
  cluster.mute = {0, 1};
  const std::vector<float> first = draws(random, shape.dimension);
  cluster.push(0, 0, first);
  cluster.push(1, 0, first);
  cluster.pass(300);
  EXPECT_EQ(cluster.counted(Metric::kExchangeFallbacks), 4);
  EXPECT_EQ(cluster.gather(0, 0).parts, 4u);
}

TEST(SilentShard, ASuspensionOfThisShardExtendsTheWait) {
  BucketThreshold threshold(
      {.k = 10, .period = 1, .shard = 0, .shards = {0, 1}, .local_parts = 1, .timeout_ns = kNsPerS});
  ASSERT_TRUE(threshold.on_local(0, 0, std::make_shared<MagnitudeHistogram>(), 5 * kNsPerS));
  ASSERT_EQ(threshold.deadline(), 6 * kNsPerS);
  threshold.extend_deadlines(60 * kNsPerS);
  EXPECT_EQ(threshold.deadline(), 66 * kNsPerS);
  EXPECT_TRUE(threshold.expire(65 * kNsPerS).empty());
}

TEST(Threshold, DamagedHistogramsAreDroppedAndTheLastThresholdIsUsed) {
  RandomSequence random(RandomKey::from(17));
  const Shape shape{2, 2, 100'000, 2'000};
  ScriptedCluster cluster(top_k_job(shape), 2);
  cluster.join_all();
  const auto step_of = [&](uint64_t step) {
    cluster.push(0, step, draws(random, shape.dimension));
    cluster.push(1, step, draws(random, shape.dimension));
  };
  step_of(0);
  ASSERT_EQ(cluster.gather(0, 0).entries, shape.k);
  // A count that is one too high, another bucket's or another step's: each is a well-formed histogram.
  const std::vector<std::function<void(protocol::Message&)>> damages = {
      [](protocol::Message& message) {
        ByteBuffer bytes(message.payload.bytes.begin(), message.payload.bytes.end());
        bytes[bytes.size() - 1] = bytes[bytes.size() - 1] == 1 ? 2 : bytes[bytes.size() - 1] - 1;
        message.payload = SharedBytes::from(std::move(bytes));
      },
      [](protocol::Message& message) { std::get<protocol::ThresholdHistogram>(message.body).step ^= 1; },
      [](protocol::Message& message) { std::get<protocol::ThresholdHistogram>(message.body).bucket ^= 1; },
      [](protocol::Message& message) { std::get<protocol::ThresholdHistogram>(message.body).payload_hash ^= 1; },
  };
  for (uint64_t step = 1; step <= damages.size(); ++step) {
    cluster.on_the_way = [&](protocol::Message& message) {
      if (std::holds_alternative<protocol::ThresholdHistogram>(message.body)) damages[step - 1](message);
    };
    step_of(step);
    EXPECT_EQ(cluster.counted(Metric::kDropped, "damaged_histogram"), 2.0 * static_cast<double>(step));
    cluster.pass(300);
    EXPECT_EQ(cluster.counted(Metric::kExchangeFallbacks), 4.0 * static_cast<double>(step));
    EXPECT_EQ(cluster.gather(0, step).parts, 4u) << step;
    cluster.take(1);
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
  cluster.on_the_way = {};
  step_of(damages.size() + 1);
  EXPECT_EQ(cluster.gather(0, damages.size() + 1).entries, shape.k) << "exact again";
}

TEST(Threshold, MembersThatChangeAfterTheAgreementDoNotStopTheStep) {
  RandomSequence random(RandomKey::from(16));
  const Shape shape{2, 2, 100'000, 2'000};
  ScriptedCluster cluster(top_k_job(shape, 3), 2);
  cluster.join_all();
  std::vector<std::vector<float>> pushed;
  for (uint32_t worker = 0; worker < 3; ++worker) pushed.push_back(draws(random, shape.dimension));
  for (uint32_t worker = 0; worker < 3; ++worker) cluster.push(worker, 0, pushed[worker]);
  ASSERT_EQ(cluster.gather(0, 0).entries, shape.k);
  for (uint32_t worker = 0; worker < 2; ++worker) cluster.push(worker, 1, pushed[worker]);
  cluster.hold_tasks = true;
  cluster.push(2, 1, pushed[2]);
  cluster.run_held_tasks_until(Task::Kind::kEncode);  // agreed; the updates are about to be coded
  cluster.send(ScriptedCluster::peer(2), 0,
               {cluster.header(2), protocol::Goodbye{protocol::Goodbye::Reason::kFailed, "killed"}, {}});
  cluster.pass(100);
  cluster.hold_tasks = false;
  cluster.run_held_tasks();
  const auto got = cluster.gather(0, 1);
  EXPECT_EQ(got.parts, 4u);
  const std::vector<float> sum = added(pushed[0], pushed[1]);
  for (size_t at = 0; at < sum.size(); ++at) {
    if (got.dense[at] == 0) continue;
    ASSERT_EQ(got.dense[at], sum[at]) << "worker 2 is not in it";
  }
  EXPECT_GT(non_zeros(got.dense), 0u);
  EXPECT_GT(cluster.counted(Metric::kRestarted), 0);
}

}  // namespace
}  // namespace millrace::server
