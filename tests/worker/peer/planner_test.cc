#include "worker/peer/algorithms/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "kernels/base/random.h"
#include "tests/worker/peer/cases.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/simulation/simulated_allreduce.h"

namespace millrace::peer::testing {
namespace {

constexpr double kHeader = kMessageHeaderBytes;

AlgorithmInfo info_of(AlgorithmId id) {
  AlgorithmInfo info{};
  info.id = id;
  return info;
}

/// Returns speeds with which a cost counts one thing. Latency only: messages of the longest chain. Bytes only: the
/// bytes through a port.
MachineSpeeds messages_only() { return {.latency_s = 1, .byte_s = 0, .add_entry_s = 0, .add_value_s = 0}; }
MachineSpeeds bytes_only() { return {.latency_s = 0, .byte_s = 1, .add_entry_s = 0, .add_value_s = 0}; }
MachineSpeeds adds_only() { return {.latency_s = 0, .byte_s = 0, .add_entry_s = 1, .add_value_s = 1}; }

double cost_of(AlgorithmId id, const SumShape& shape, const MachineSpeeds& speeds) {
  return planned_cost(info_of(id), shape, speeds).total_s();
}

TEST(ExpectedSupport, IsSparcmlsAlternatingSum) {
  // N (P p - C(P, 2) p^2 + ...), p = k / N, at N = 512 as in [SparCML19, figure 7].
  for (const uint64_t k : {1u, 8u, 64u}) {
    for (const int ranks : {1, 2, 5, 16}) {
      const double p = static_cast<double>(k) / 512;
      double sum = 0, binomial = 1;
      for (int i = 1; i <= ranks; ++i) {
        binomial = binomial * (ranks - i + 1) / i;
        sum += (i % 2 == 1 ? 1 : -1) * binomial * std::pow(p, i);
      }
      EXPECT_NEAR(expected_support(512, k, ranks), 512 * sum, 1e-8) << k << " " << ranks;
    }
  }
  EXPECT_EQ(expected_support(10, 10, 3), 10);
  EXPECT_EQ(expected_support(10, 0, 3), 0);
  EXPECT_NEAR(expected_support(uint64_t{1} << 32, 1, 1), 1, 1e-9);
}

TEST(ExpectedSupport, IsTheMeanOfDrawnSupports) {
  constexpr uint64_t kDimension = 1'000;
  constexpr uint64_t kCount = 30;
  constexpr int kRounds = 200;
  for (const uint32_t ranks : {2u, 8u, 40u}) {
    RandomSequence draws(RandomKey::from(ranks));
    double sum = 0, squares = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::set<uint64_t> all;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        std::set<uint64_t> own;
        while (own.size() < kCount) own.insert(draws.next_below(kDimension));
        all.insert(own.begin(), own.end());
      }
      sum += static_cast<double>(all.size());
      squares += static_cast<double>(all.size()) * static_cast<double>(all.size());
    }
    const double mean = sum / kRounds;
    const double deviation = std::sqrt(std::max(0.0, squares / kRounds - mean * mean) / kRounds);
    EXPECT_NEAR(mean, expected_support(kDimension, kCount, ranks), 5 * deviation) << ranks << " ranks";
  }
}

// n = 2^20, k = 1024, P = 8: by hand.
constexpr SumShape kShape{.dimension = 1 << 20, .k = 1024, .ranks = 8};

TEST(PlannedCost, MessagesOfTheLongestChain) {
  EXPECT_EQ(cost_of(AlgorithmId::kDenseRing, kShape, messages_only()), 14);
  EXPECT_EQ(cost_of(AlgorithmId::kDenseRecursiveDoubling, kShape, messages_only()), 3);
  // Halving 3; slices of 512 KiB travel beside their bundles: 3 + 7.
  EXPECT_EQ(cost_of(AlgorithmId::kDenseRabenseifner, kShape, messages_only()), 13);
  EXPECT_EQ(cost_of(AlgorithmId::kSsarRecursiveDoubling, kShape, messages_only()), 3);
  EXPECT_EQ(cost_of(AlgorithmId::kSsarSplitAllgather, kShape, messages_only()), 7 + 3);
  EXPECT_EQ(cost_of(AlgorithmId::kSparseRing, kShape, messages_only()), 14);
  EXPECT_EQ(cost_of(AlgorithmId::kRedsyncAllgather, kShape, messages_only()), 3);
  EXPECT_EQ(cost_of(AlgorithmId::kGtopk, kShape, messages_only()), 6);
  // Boundaries: 3 halvings and 3 doublings every 64 steps; thresholds: as many for 5 digits (7, 7, 7, 7 and 3 bits)
  // every 32.
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kOktopk, kShape, messages_only()), 7 + 3 + 3 + 6.0 / 64 + 5 * 6.0 / 32);
  const SumShape seven{.dimension = 1 << 20, .k = 1024, .ranks = 7};
  EXPECT_EQ(cost_of(AlgorithmId::kSsarRecursiveDoubling, seven, messages_only()), 2 + 2);
  EXPECT_EQ(cost_of(AlgorithmId::kRedsyncAllgather, seven, messages_only()), 3);
}

TEST(PlannedCost, BytesThroughAPort) {
  constexpr double kDense = 4.0 * (1 << 20);
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kDenseRing, kShape, bytes_only()), 14 * (kHeader + kDense / 8));
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kDenseRecursiveDoubling, kShape, bytes_only()), 3 * (kHeader + kDense));
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kDenseRabenseifner, kShape, bytes_only()),
                   13 * kHeader + 2 * kDense * 7 / 8 + 7 * 8);
  double doubling = 0;
  for (const double draws : {1.0, 2.0, 4.0}) doubling += kHeader + 8 * expected_support(1 << 20, 1024, draws);
  EXPECT_NEAR(cost_of(AlgorithmId::kSsarRecursiveDoubling, kShape, bytes_only()), doubling, 1e-6);
  // Between SparCML's bounds, k and P k entries on the way.
  const double bodies = cost_of(AlgorithmId::kSsarSplitAllgather, kShape, bytes_only()) - 10 * kHeader;
  EXPECT_GE(bodies, 2 * 7.0 / 8 * 1024 * 8);
  EXPECT_LE(bodies, 8 * 1024.0 * 8 + 8 * (7 + 7));
  // [OkTopk22, table 1]: from 2k to 6k (P - 1) / P words.
  const double oktopk =
      (planned_cost(info_of(AlgorithmId::kOktopk), kShape, bytes_only()).transfer_s - 13 * kHeader) / 4;
  EXPECT_GE(oktopk, 2 * 1024 * 7.0 / 8);
  EXPECT_LE(oktopk, 6 * 1024 * 7.0 / 8);
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kGtopk, kShape, bytes_only()), 6 * (kHeader + 8 * 1024));
}

TEST(PlannedCost, EntriesThatAreAdded) {
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kRedsyncAllgather, kShape, adds_only()), 8 * 1024);  // p gamma_1
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kDenseRecursiveDoubling, kShape, adds_only()), 3 * 2.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(planned_cost(info_of(AlgorithmId::kOktopk), kShape, adds_only()).add_s, 1024);
}

/// The sum of `count` 8-byte numbers over the ranks, message by message ([Rabenseifner04]; ranks above the power of two
/// fold).
double slow_number_sum(double count, uint32_t ranks, const MachineSpeeds& speeds) {
  const auto message = [&](double bytes) { return speeds.latency_s + (kHeader + bytes) * speeds.byte_s; };
  uint32_t paired = 1;
  while (2 * paired <= ranks) paired *= 2;
  double took = paired == ranks ? 0 : 2 * message(8 * count);
  for (uint32_t group = paired; group > 1; group /= 2) {
    count /= 2;
    took += 2 * message(8 * count);
  }
  return took;
}

/// [OkTopk22, algorithm 1], step after step: lines 5 to 7 where t mod tau = 0, lines 9 to 12 where t mod tau' = 0.
double slow_reevaluation(const SumShape& shape, const MachineSpeeds& speeds) {
  const uint64_t steps = uint64_t{shape.boundary_period} * shape.threshold_period;
  int bits = 4;
  while (bits < 11 && (uint64_t{16} << bits) <= shape.k) ++bits;
  double took = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    if (step % shape.boundary_period == 0) took += slow_number_sum(shape.ranks, shape.ranks, speeds);
    if (step % shape.threshold_period != 0) continue;
    const double sum = expected_support(shape.dimension, shape.k, shape.ranks),
                 n = static_cast<double>(shape.dimension);
    took += (2 * sum < n ? sum * speeds.add_entry_s : n * speeds.add_value_s) / shape.ranks;
    for (int left = 31; left > 0; left -= bits) {
      took += slow_number_sum(static_cast<double>(1 << std::min(bits, left)), shape.ranks, speeds);
    }
  }
  return took / static_cast<double>(steps);
}

TEST(PlannedCost, OktopkSpreadsReevaluationOverItsPeriods) {
  const MachineSpeeds speeds{.latency_s = 20e-6, .byte_s = 8e-9, .add_entry_s = 2e-9, .add_value_s = 1e-9};
  for (const uint32_t ranks : {2U, 3U, 8U, 12U, 256U}) {
    for (const uint64_t k : {1U, 10U, 255U, 256U, 1'024U, 100'000U}) {
      for (const auto& [tau, tau_prime] : {std::pair{1U, 1U}, std::pair{64U, 32U}, std::pair{64U, 128U}}) {
        const SumShape shape{1 << 24, k, ranks, tau_prime, tau};
        const PlannedCost cost = planned_cost(info_of(AlgorithmId::kOktopk), shape, speeds);
        const double expected = slow_reevaluation(shape, speeds);
        EXPECT_NEAR(cost.reevaluate_s, expected, 1e-9 * expected) << ranks << " ranks, k " << k << ", tau " << tau;
        EXPECT_DOUBLE_EQ(cost.total_s(), cost.latency_s + cost.transfer_s + cost.add_s + cost.reevaluate_s);
      }
    }
  }
  for (const AlgorithmInfo& info : algorithms()) {
    if (info.id == AlgorithmId::kOktopk) continue;
    EXPECT_EQ(planned_cost(info, kShape, speeds).reevaluate_s, 0) << info.name;
  }
}

TEST(PlannedCost, OktopkIsNeverFasterWithShorterPeriods) {
  const MachineSpeeds speeds{.latency_s = 20e-6, .byte_s = 8e-9};
  double before = std::numeric_limits<double>::infinity();
  for (const uint32_t period : {1U, 2U, 32U, 128U, 100'000U}) {
    const double both = cost_of(AlgorithmId::kOktopk, {1 << 20, 1'024, 8, period, period}, speeds);
    EXPECT_LT(both, before) << period;
    EXPECT_LT(both, cost_of(AlgorithmId::kOktopk, {1 << 20, 1'024, 8, period, 1}, speeds) + 1e-15);
    EXPECT_LT(both, cost_of(AlgorithmId::kOktopk, {1 << 20, 1'024, 8, 1, period}, speeds) + 1e-15);
    before = both;
  }
}

TEST(PlannedCost, DenseValuesHaveASpeedOfTheirOwn) {
  const MachineSpeeds slow_values{.latency_s = 0, .byte_s = 0, .add_entry_s = 0, .add_value_s = 1};
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kDenseRecursiveDoubling, kShape, slow_values), 3 * 2.0 * (1 << 20));
  EXPECT_EQ(cost_of(AlgorithmId::kSsarRecursiveDoubling, kShape, slow_values), 0) << "nothing in it is dense";
  // Contributions that are smaller dense are added as such.
  const SumShape full{.dimension = 1 << 20, .k = 3 << 18, .ranks = 4};
  EXPECT_DOUBLE_EQ(cost_of(AlgorithmId::kRedsyncAllgather, full, slow_values), 4.0 * (1 << 20));
}

/// Speeds of which no two are alike, so that no term can stand for another.
MachineSpeeds all_speeds() {
  return {
      .latency_s = 20e-6,
      .byte_s = 8e-9,
      .add_entry_s = 2e-9,
      .add_value_s = 1e-9,
      .select = {.callers_s = 1.1e-9, .topk_s = 3e-9, .gaussian_s = 0.7e-9, .reevaluate_s = 5e-9, .reuse_s = 0.3e-9},
      .contribution = {.bytes = 3, .encode_s = 4e-9, .decode_s = 6e-9},
      .sums = {.bytes = 5, .encode_s = 7e-9, .decode_s = 9e-9}};
}

/// Computes [RedSync19, equation 1]: T_select + log2(p) alpha + (p - 1)(M D) beta + p gamma_1.
/// DeepReduce's encoding is done once and its decoding p - 1 times. P is a power of two. Each body has a
/// message of its own: it has 64 KiB and more, or no bundle holds it.
double slow_redsync(const SumShape& shape, const MachineSpeeds& speeds) {
  const auto n = static_cast<double>(shape.dimension), k = static_cast<double>(shape.k),
             p = static_cast<double>(shape.ranks);
  double messages = 0;
  for (uint32_t held = 1; held < shape.ranks; held *= 2) messages += held + 1;  // bodies, and their table
  const double bytes = (p - 1) * k * speeds.contribution.bytes + messages * kHeader + 8 * (p - 1);
  return n * speeds.select.callers_s + k * speeds.contribution.encode_s + (p - 1) * k * speeds.contribution.decode_s +
         messages * speeds.latency_s + bytes * speeds.byte_s + p * k * speeds.add_entry_s;
}

/// [SparCML19, 5.3.1] with expected supports: stage t sends what 2^(t-1) ranks have, and adds two such sums.
double slow_ssar_recursive_doubling(const SumShape& shape, const MachineSpeeds& speeds) {
  double took = static_cast<double>(shape.dimension) * speeds.select.callers_s;
  for (uint32_t held = 1; held < shape.ranks; held *= 2) {
    const double entries = expected_support(shape.dimension, shape.k, held);
    const EntryCoding& coding = held == 1 ? speeds.contribution : speeds.sums;
    took += speeds.latency_s + (kHeader + entries * coding.bytes) * speeds.byte_s;
    took += entries * (coding.encode_s + coding.decode_s + 2 * speeds.add_entry_s);
  }
  return took;
}

/// Computes [OkTopk22, table 1], all ranks alike. Each rank sends k / P to each other rank, two numbers of each entry,
/// and k (P - 1) / P while gathering. A threshold of its own is found every tau' steps and reused in between.
double slow_oktopk(const SumShape& shape, const MachineSpeeds& speeds) {
  const auto n = static_cast<double>(shape.dimension), k = static_cast<double>(shape.k),
             p = static_cast<double>(shape.ranks);
  double took = 0;
  for (uint32_t step = 0; step < shape.threshold_period; ++step) {
    took += n * (step == 0 ? speeds.select.reevaluate_s : speeds.select.reuse_s) / shape.threshold_period;
  }
  const auto entries = [&](double count, const EntryCoding& coding) {
    return count * (coding.bytes * speeds.byte_s + coding.encode_s + coding.decode_s);
  };
  took += (p - 1) * (speeds.latency_s + kHeader * speeds.byte_s) + entries(k * (p - 1) / p, speeds.contribution);
  took += k * speeds.add_entry_s;
  for (uint32_t held = 1; held < shape.ranks; held *= 2) {
    took += 2 * (speeds.latency_s + kHeader * speeds.byte_s) + 16.0 * held * speeds.byte_s;
  }
  took += entries(k * (p - 1) / p, speeds.sums);
  return took + slow_reevaluation(shape, speeds);
}

/// Servers, link by link: a shard's takes every worker's share in, and gives each its share of the result.
double slow_servers(const SumShape& shape, uint32_t shards, const MachineSpeeds& speeds) {
  const auto n = static_cast<double>(shape.dimension), k = static_cast<double>(shape.k);
  const double result = expected_support(shape.dimension, shape.k, shape.ranks);
  const double messages = std::max(shape.ranks, shards);
  double took = n * speeds.select.callers_s + k * speeds.contribution.encode_s;
  double up = k * speeds.contribution.bytes, down = result * speeds.sums.bytes;
  if (shape.ranks > shards) {
    up *= static_cast<double>(shape.ranks) / shards;
    down *= static_cast<double>(shape.ranks) / shards;
  }
  took += 2 * messages * (speeds.latency_s + kHeader * speeds.byte_s) + (up + down) * speeds.byte_s;
  const double at_a_shard = k * shape.ranks / shards;
  took += at_a_shard * (speeds.contribution.decode_s + speeds.add_entry_s);
  return took + result / shards * speeds.sums.encode_s + result * (speeds.sums.decode_s + speeds.add_entry_s);
}

TEST(PlannedCost, EveryTermOfThePapersModelsCounts) {
  const MachineSpeeds speeds = all_speeds();
  const auto near = [](double one, double other) { EXPECT_NEAR(one, other, 1e-9 * other); };
  for (const uint32_t ranks : {2U, 4U, 16U}) {
    for (const uint64_t k : {uint64_t{40'000}, uint64_t{100'000}}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, k " + std::to_string(k));
      const SumShape shape{.dimension = 1 << 24, .k = k, .ranks = ranks};
      near(cost_of(AlgorithmId::kRedsyncAllgather, shape, speeds), slow_redsync(shape, speeds));
      near(cost_of(AlgorithmId::kSsarRecursiveDoubling, shape, speeds), slow_ssar_recursive_doubling(shape, speeds));
      near(cost_of(AlgorithmId::kOktopk, shape, speeds), slow_oktopk(shape, speeds));
      for (const uint32_t shards : {1U, 2U, 8U, 32U}) {
        near(planned_server_cost({.shards = shards}, shape, speeds).total_s(), slow_servers(shape, shards, speeds));
      }
      for (const PlannedCost& one : rank_with_servers(shape, speeds, Wanted::kAnyResult, 2)) {
        EXPECT_DOUBLE_EQ(one.total_s(), one.select_s + one.encode_s + one.decode_s + one.latency_s + one.transfer_s +
                                            one.add_s + one.reevaluate_s);
        EXPECT_EQ(one.select_s > 0, !one.info.dense_only) << one.info.name;
        EXPECT_EQ(one.encode_s > 0 && one.decode_s > 0, !one.info.dense_only) << one.info.name;
      }
    }
  }
}

TEST(PlannedCost, ServersThatKeepTheLargestSelectThemAndSendFewerDown) {
  const SumShape shape{.dimension = 1 << 24, .k = 100'000, .ranks = 16, .threshold_period = 4};
  const MachineSpeeds speeds = all_speeds();
  const PlannedCost whole = planned_server_cost({.shards = 2}, shape, speeds);
  const PlannedCost largest = planned_server_cost({.shards = 2, .keeps_topk = true}, shape, speeds);
  EXPECT_LT(largest.transfer_s, whole.transfer_s);
  EXPECT_NEAR(largest.select_s - whole.select_s, expected_support(1 << 24, 100'000, 16) / 2 * speeds.select.topk_s,
              1e-12);
  EXPECT_DOUBLE_EQ(largest.reevaluate_s, speeds.latency_s / 4) << "the shards' histograms, every fourth step";
  EXPECT_EQ(planned_server_cost({.shards = 1, .keeps_topk = true}, shape, speeds).reevaluate_s, 0);
  EXPECT_EQ(rank_with_servers(shape, speeds, Wanted::kAnyResult, 2).size(), algorithms().size() + 1);
  for (const PlannedCost& one : rank_with_servers(shape, speeds, Wanted::kExactSum, 2)) {
    EXPECT_EQ(one.info.result, ResultKind::kExactSum) << one.info.name;
  }
}

/// A slower selection or codec makes no algorithm faster, and none that uses it faster beside one that does not.
TEST(PlannedCost, ASlowerSelectionOrCodecMakesNothingMoreFavourable) {
  using Speed = double& (*)(MachineSpeeds&);
  const std::vector<Speed> knobs = {[](MachineSpeeds& all) -> double& { return all.select.callers_s; },
                                    [](MachineSpeeds& all) -> double& { return all.select.topk_s; },
                                    [](MachineSpeeds& all) -> double& { return all.select.gaussian_s; },
                                    [](MachineSpeeds& all) -> double& { return all.select.reevaluate_s; },
                                    [](MachineSpeeds& all) -> double& { return all.select.reuse_s; },
                                    [](MachineSpeeds& all) -> double& { return all.contribution.bytes; },
                                    [](MachineSpeeds& all) -> double& { return all.contribution.encode_s; },
                                    [](MachineSpeeds& all) -> double& { return all.contribution.decode_s; },
                                    [](MachineSpeeds& all) -> double& { return all.sums.bytes; },
                                    [](MachineSpeeds& all) -> double& { return all.sums.encode_s; },
                                    [](MachineSpeeds& all) -> double& { return all.sums.decode_s; }};
  for (const uint32_t ranks : {2U, 3U, 8U, 64U}) {
    for (const uint64_t k : {1U << 6, 1U << 12, 1U << 19}) {
      const SumShape shape{.dimension = 1 << 20, .k = k, .ranks = ranks};
      for (size_t knob = 0; knob < knobs.size(); ++knob) {
        MachineSpeeds slower = all_speeds();
        knobs[knob](slower) *= 10;
        const auto before = rank_with_servers(shape, all_speeds(), Wanted::kAnyResult, 2);
        const auto after = rank_with_servers(shape, slower, Wanted::kAnyResult, 2);
        for (const PlannedCost& one : before) {
          const auto same = std::ranges::find(after, one.info.name, [](const PlannedCost& it) { return it.info.name; });
          ASSERT_NE(same, after.end());
          EXPECT_GE(same->total_s(), one.total_s()) << one.info.name << ", speed " << knob;
          if (!one.info.dense_only) continue;
          EXPECT_EQ(same->total_s(), one.total_s()) << one.info.name << ", speed " << knob;
          EXPECT_LE(same - after.begin(), &one - before.data()) << "a dense one falls behind: " << one.info.name;
        }
      }
    }
  }
}

AlgorithmId planned_choice(const SumShape& shape, const MachineSpeeds& speeds, Wanted wanted) {
  return rank_algorithms(shape, speeds, wanted).front().info.id;
}

TEST(PlannedCost, WhatAddingTakesDecidesWhereItIsTheMost) {
  // A fast network: only the time of adding is left. Each form wins where the other's kernel is slow.
  const SumShape shape{.dimension = 1 << 20, .k = 1 << 17, .ranks = 4};
  MachineSpeeds speeds{.latency_s = 1e-7, .byte_s = 1e-12, .add_entry_s = 100e-9, .add_value_s = 0.1e-9};
  EXPECT_TRUE(algorithm_info(planned_choice(shape, speeds, Wanted::kExactSum)).dense_only);
  std::swap(speeds.add_entry_s, speeds.add_value_s);
  EXPECT_FALSE(algorithm_info(planned_choice(shape, speeds, Wanted::kExactSum)).dense_only);
}

TEST(PlannedCost, OneRankHasItAlready) {
  const SumShape alone{.dimension = 100, .k = 10, .ranks = 1};
  for (const AlgorithmInfo& info : algorithms()) EXPECT_EQ(planned_cost(info, alone, {}).total_s(), 0) << info.name;
}

TEST(PlannedCost, WhereWhichIsFaster) {
  using enum AlgorithmId;
  const auto faster = [](AlgorithmId one, AlgorithmId other, const SumShape& shape, const MachineSpeeds& speeds) {
    return cost_of(one, shape, speeds) < cost_of(other, shape, speeds);
  };
  const MachineSpeeds lan{.latency_s = 20e-6, .byte_s = 8e-9, .add_entry_s = 2e-9};
  // Nothing but latency: recursive doubling. Sums that overlap much: the split.
  const SumShape tiny{.dimension = 1 << 20, .k = 16, .ranks = 64};
  for (const AlgorithmId other : {kSsarSplitAllgather, kSparseRing, kDenseRing, kDenseRabenseifner}) {
    EXPECT_TRUE(faster(kSsarRecursiveDoubling, other, tiny, lan)) << static_cast<int>(other);
  }
  const SumShape much{.dimension = 1 << 24, .k = 1 << 21, .ranks = 8};
  EXPECT_TRUE(faster(kSsarSplitAllgather, kSsarRecursiveDoubling, much, lan));
  EXPECT_TRUE(faster(kSsarSplitAllgather, kDenseRabenseifner, much, lan));
  // Contributions that are dense already: the dense ones.
  const SumShape full{.dimension = 1 << 20, .k = 3 << 18, .ranks = 4};
  for (const AlgorithmId sparse : {kSsarRecursiveDoubling, kRedsyncAllgather, kTopkA}) {
    EXPECT_TRUE(faster(kDenseRabenseifner, sparse, full, lan)) << static_cast<int>(sparse);
  }
  // [RedSync19, 2.4]: the gathering grows with the ranks, and at some number of them the dense one is faster.
  const SumShape few{.dimension = 1 << 20, .k = 1 << 14, .ranks = 4};
  const SumShape many{.dimension = 1 << 20, .k = 1 << 14, .ranks = 256};
  EXPECT_TRUE(faster(kRedsyncAllgather, kDenseRabenseifner, few, lan));
  EXPECT_TRUE(faster(kDenseRabenseifner, kRedsyncAllgather, many, lan));
  EXPECT_TRUE(faster(kOktopk, kTopkA, many, lan));
}

TEST(Planner, RanksByTime) {
  const std::vector<PlannedCost> ranking = rank_algorithms(kShape, {}, Wanted::kAnyResult);
  ASSERT_EQ(ranking.size(), algorithms().size() - 1) << "all but auto";
  EXPECT_TRUE(std::ranges::is_sorted(ranking, {}, [](const PlannedCost& one) { return one.total_s(); }));
  EXPECT_EQ(planned_choice(kShape, {}, Wanted::kAnyResult), ranking.front().info.id);
  EXPECT_EQ(algorithm_info(planned_choice(kShape, {}, Wanted::kExactSum)).result, ResultKind::kExactSum);
  EXPECT_FALSE(reason_of(ranking, kShape).empty());
}

TEST(Planner, DenseAndSparseAreTheFirstOfEachKind) {
  for (const uint64_t k : {1U << 6, 1U << 12, 1U << 19}) {
    const SumShape shape{.dimension = 1 << 20, .k = k, .ranks = 8};
    const auto ranking = rank_with_servers(shape, all_speeds(), Wanted::kAnyResult, 2);
    const DenseAndSparse best = dense_and_sparse(ranking).value();
    EXPECT_TRUE(best.dense.info.dense_only);
    EXPECT_FALSE(best.sparse.info.dense_only);
    for (const PlannedCost& one : ranking) {
      EXPECT_GE(one.total_s(), (one.info.dense_only ? best.dense : best.sparse).total_s()) << one.info.name;
    }
    EXPECT_EQ(best.dense_wins(), ranking.front().info.dense_only) << k;
    EXPECT_TRUE(reason_of(ranking, shape).starts_with(best.dense_wins() ? "Dense wins" : "Sparse wins"));
  }
  EXPECT_FALSE(dense_and_sparse({}).has_value());
  std::vector<PlannedCost> sparse_only = rank_algorithms(kShape, {}, Wanted::kExactSum);
  std::erase_if(sparse_only, [](const PlannedCost& one) { return one.info.dense_only; });
  EXPECT_FALSE(dense_and_sparse(sparse_only).has_value());
}

struct Simulated {
  AlgorithmId id;
  double seconds;
};

/// Virtual time of an exact sum, for each of them.
std::vector<Simulated> simulated(const SumShape& shape, const MachineSpeeds& speeds) {
  SimulationOptions options;
  options.ranks = shape.ranks;
  options.latency = static_cast<TimeNs>(std::llround(speeds.latency_s * kNsPerS));
  options.bytes_per_s = 1 / speeds.byte_s;
  AllreduceSettings settings;
  settings.dimension = shape.dimension;
  settings.k = shape.k;
  std::vector<SharedStream> own;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    own.push_back(contribution_of(Spread::kUniform, rank, shape.ranks, shape.dimension, shape.k, 3));
  }
  std::vector<Simulated> times;
  for (const AlgorithmInfo& info : algorithms()) {
    if (info.result != ResultKind::kExactSum || info.chooses) continue;
    auto all = SimulatedAllreduce::make(options, info.id, settings).value();
    const auto took =
        all->step([&own](uint32_t rank) { return own[rank]; }, [](uint32_t, Reduced, const SharedStream&) {});
    EXPECT_TRUE(took.has_value()) << info.name << ": " << took.error().message;
    times.push_back({info.id, static_cast<double>(took.value_or(0)) / kNsPerS});
  }
  return times;
}

/// Ok-Topk's model against its simulation, over whole periods: they include steps that find boundaries or thresholds
/// again.
TEST(Planner, OktopksMeanStepIsNearTheSimulatedOne) {
  for (const uint32_t ranks : {2U, 4U, 8U, 16U}) {
    for (const uint32_t period : {1U, 4U}) {
      const SumShape shape{1 << 16, 1'024, ranks, period, period};
      const MachineSpeeds speeds{.latency_s = 5e-6, .byte_s = 8e-9, .add_entry_s = 2e-9};
      SimulationOptions options;
      options.ranks = ranks;
      options.latency = static_cast<TimeNs>(std::llround(speeds.latency_s * kNsPerS));
      options.bytes_per_s = 1 / speeds.byte_s;
      AllreduceSettings settings;
      settings.dimension = shape.dimension;
      settings.k = shape.k;
      settings.thresholds_period = settings.boundaries_period = period;
      auto all = SimulatedAllreduce::make(options, AlgorithmId::kOktopk, settings).value();
      double took = 0;
      for (uint32_t step = 0; step < period; ++step) {
        const auto own = [&](uint32_t rank) {
          return contribution_of(Spread::kUniform, rank, ranks, shape.dimension, shape.k, 3);
        };
        const auto one = all->step(own, [](uint32_t, Reduced, const SharedStream&) {});
        ASSERT_TRUE(one.has_value()) << one.error().message;
        took += static_cast<double>(*one) / kNsPerS / period;
      }
      const double planned = cost_of(AlgorithmId::kOktopk, shape, speeds);
      EXPECT_LE(std::max(planned, took), 1.5 * std::min(planned, took))
          << ranks << " ranks, period " << period << ": planned " << planned << " s, simulated " << took << " s";
    }
  }
}

/// `algorithm = auto` against every forced one. How far off a single prediction may be is looked at, too.
TEST(Planner, ItsChoiceIsWithinATenthOfTheBest) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u, 16u, 32u}) {
    for (const uint64_t dimension : {uint64_t{1} << 12, uint64_t{1} << 17}) {
      for (const double density : {0.0005, 0.005, 0.05, 0.4}) {
        for (const double rate : {1.25e8, 1.25e10}) {
          const auto k = std::max<uint64_t>(1, static_cast<uint64_t>(density * static_cast<double>(dimension)));
          const SumShape shape{.dimension = dimension, .k = k, .ranks = ranks};
          const MachineSpeeds speeds{.latency_s = 5e-6, .byte_s = 1 / rate, .add_entry_s = 2e-9};
          SCOPED_TRACE(std::to_string(ranks) + " ranks, n " + std::to_string(dimension) + ", k " + std::to_string(k) +
                       ", rate " + std::to_string(rate));
          const std::vector<Simulated> times = simulated(shape, speeds);
          const auto best = std::ranges::min_element(times, {}, &Simulated::seconds);
          const AlgorithmId chosen = planned_choice(shape, speeds, Wanted::kExactSum);
          const auto mine = std::ranges::find(times, chosen, &Simulated::id);
          ASSERT_NE(mine, times.end());
          EXPECT_LE(mine->seconds, 1.1 * best->seconds)
              << algorithm_info(chosen).name << ", but " << algorithm_info(best->id).name;
          for (const Simulated& one : times) {
            const double planned = planned_cost(algorithm_info(one.id), shape, speeds).total_s();
            EXPECT_LE(std::max(planned, one.seconds), 1.5 * std::min(planned, one.seconds))
                << algorithm_info(one.id).name << ": planned " << planned << " s, simulated " << one.seconds << " s";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::peer::testing
