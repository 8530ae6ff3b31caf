#include "worker/bench/peers/simulated_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <set>
#include <stdexcept>

#include "worker/bench/peers/measured_child.h"
#include "worker/peer/channel/message.h"

namespace millrace::peer::testing {
namespace {

SampleOptions samples_of(Distribution distribution, uint32_t ranks, uint64_t dimension, uint64_t count) {
  return {distribution, ranks, dimension, count, 7};
}

TEST(SampleStreams, AreWellFormedAndTheSameAgain) {
  for (const DistributionName& one : distributions()) {
    EXPECT_EQ(find_distribution(one.name), one.distribution);
    EXPECT_EQ(name_of(one.distribution), one.name);
    for (const uint32_t ranks : {1u, 2u, 5u}) {
      for (const uint64_t dimension : {uint64_t{1}, uint64_t{63}, uint64_t{10'000}}) {
        for (const uint64_t count : {uint64_t{1}, dimension / 100 + 1, dimension}) {
          const SampleOptions options = samples_of(one.distribution, ranks, dimension, count);
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            const SharedStream stream = sample_contribution(options, rank, 3);
            ASSERT_TRUE(validate(stream.view).has_value()) << one.name;
            ASSERT_LE(stream.view.count(), count) << one.name;
            const SharedStream again = sample_contribution(options, rank, 3);
            ASSERT_TRUE(std::ranges::equal(stream.view.indices, again.view.indices));
            ASSERT_TRUE(std::ranges::equal(stream.view.values, again.view.values));
          }
        }
      }
    }
  }
  EXPECT_FALSE(find_distribution("other").has_value());
}

/// Every index is as likely as every other: chi-square over 100 cells.
TEST(SampleStreams, UniformOnesAreUniform) {
  constexpr uint64_t kDimension = 10'000;
  constexpr uint64_t kCount = 500;
  std::vector<double> cells(100);
  double total = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    const SharedStream stream = sample_contribution(samples_of(Distribution::kUniform, 1, kDimension, kCount), 0, step);
    ASSERT_EQ(stream.view.count(), kCount);
    for (const uint32_t index : stream.view.indices) cells[index / 100] += 1;
    total += static_cast<double>(stream.view.count());
  }
  double chi_square = 0;
  for (const double cell : cells) chi_square += (cell - total / 100) * (cell - total / 100) / (total / 100);
  EXPECT_LT(chi_square, 99 + 5 * std::sqrt(2 * 99.0));
}

TEST(SampleStreams, LieWhereTheySay) {
  const auto indices = [](Distribution distribution, uint32_t rank) {
    const SharedStream stream = sample_contribution(samples_of(distribution, 4, 4'096, 64), rank, 0);
    return std::set<uint32_t>(stream.view.indices.begin(), stream.view.indices.end());
  };
  EXPECT_EQ(indices(Distribution::kSame, 0), indices(Distribution::kSame, 3));
  EXPECT_NE(indices(Distribution::kUniform, 0), indices(Distribution::kUniform, 3));
  EXPECT_GE(*indices(Distribution::kDisjoint, 2).begin(), 2'048u);
  EXPECT_LT(*indices(Distribution::kDisjoint, 2).rbegin(), 3'072u);
  EXPECT_LT(*indices(Distribution::kOneRegion, 3).rbegin(), 256u);
  EXPECT_LT(*indices(Distribution::kTwoEnds, 2).rbegin(), 1'024u);
  EXPECT_GE(*indices(Distribution::kTwoEnds, 1).begin(), 3'072u);
  const SharedStream hot = sample_contribution(samples_of(Distribution::kHotRegion, 4, 4'096, 64), 1, 0);
  for (size_t i = 0; i < hot.view.indices.size(); ++i) {
    const float most = hot.view.indices[i] < 256 ? 64.0F : 1.0F;
    EXPECT_LE(std::abs(hot.view.values[i]), most) << hot.view.indices[i];
  }
  EXPECT_TRUE(std::ranges::any_of(hot.view.values, [](float value) { return std::abs(value) > 8; }));
  const std::set<uint32_t> run = indices(Distribution::kClustered, 1);
  EXPECT_EQ(*run.rbegin() - *run.begin(), 63u);
}

SimulatedRunOptions simulated_run_options_of(uint32_t ranks, Distribution distribution) {
  SimulatedRunOptions options;
  options.network.ranks = ranks;
  options.settings.dimension = 20'000;
  options.settings.k = 200;
  options.settings.boundaries_period = 2;
  options.settings.thresholds_period = 3;
  options.samples = samples_of(distribution, ranks, 20'000, 200);
  options.steps = 4;
  return options;
}

TEST(SimulatedRun, EveryAlgorithmAgreesOnEveryDistribution) {
  for (const AlgorithmInfo& info : algorithms()) {
    for (const DistributionName& one : distributions()) {
      for (const uint32_t ranks : {1u, 6u, 33u}) {
        SCOPED_TRACE(std::string(info.name) + ", " + std::string(one.name) + ", " + std::to_string(ranks) + " ranks");
        const auto run = run_simulated(info.id, simulated_run_options_of(ranks, one.distribution));
        ASSERT_TRUE(run.has_value()) << run.error().message;
        ASSERT_EQ(run->steps.size(), 4u);
        uint64_t messages = 0;
        for (const SimulatedStep& step : run->steps) {
          EXPECT_TRUE(step.correct);
          EXPECT_GE(static_cast<double>(step.bytes_max), step.bytes_mean - 1e-6);
          if (ranks > 1) {
            EXPECT_GT(step.virtual_s, 0);  // one rank alone may still compute
          }
          messages += static_cast<uint64_t>(std::llround(step.messages_mean * ranks));
        }
        EXPECT_EQ(run->messages, messages);
      }
    }
  }
}

/// Groups larger than ResultMemory::kKeptRanksMax send halves in pieces; ranks beyond a power of two, a half that no
/// piece divides.
TEST(SimulatedRun, RabenseifnerInPiecesAgreesAndSendsAsMuch) {
  SimulatedRunOptions options;
  options.network.ranks = 258;
  options.settings.dimension = 600'001;
  options.settings.k = 100;
  options.samples = samples_of(Distribution::kUniform, 258, options.settings.dimension, 100);
  const auto run = run_simulated(AlgorithmId::kDenseRabenseifner, options);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_TRUE(run->steps.front().correct);
  // At least: log2 of 256 messages while halving, two more of the first half's three pieces and one of the quarter's
  // two. Also a folded vector and its result's way back, and the log2 rounds of the gathering.
  EXPECT_LE(run->steps.front().messages_max, 8 + 3 + 9u);
  EXPECT_GE(run->steps.front().messages_max, 8 + 3 + 8u);
}

TEST(SimulatedRun, CountsWhatRecursiveDoublingSends) {
  const auto run = run_simulated(AlgorithmId::kSsarRecursiveDoubling, simulated_run_options_of(8, Distribution::kSame));
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->steps[0].messages_max, 3u);
  EXPECT_EQ(run->steps[0].bytes_max, 3 * (kMessageHeaderBytes + 200 * 8));
  EXPECT_DOUBLE_EQ(run->steps[0].words_max, 3 * 200 * 2);
}

TEST(SimulatedRun, SaysWhichStepsEvaluate) {
  AllreduceSettings settings;
  settings.boundaries_period = 4;
  settings.thresholds_period = 6;
  int evaluating = 0;
  for (uint64_t step = 0; step < 12; ++step) evaluating += evaluates_in(AlgorithmId::kOktopk, settings, step) ? 1 : 0;
  EXPECT_DOUBLE_EQ(evaluating_share(AlgorithmId::kOktopk, settings), evaluating / 12.0);
  EXPECT_EQ(evaluating_share(AlgorithmId::kTopkA, settings), 0);
  EXPECT_DOUBLE_EQ(words_bound(100, 4), 450);
}

TEST(MeasuredChild, ReturnsTheResultAndThePeakMemory) {
  const nlohmann::json result = run_in_child({}, [] { return nlohmann::json{{"seven", 7}}; });
  EXPECT_EQ(result["seven"], 7);
  EXPECT_GT(result["peak_mb"].get<double>(), 0);
  EXPECT_FALSE(result.contains("error"));
}

TEST(MeasuredChild, SaysHowItFailed) {
  const nlohmann::json thrown = run_in_child({}, []() -> nlohmann::json { throw std::runtime_error("like this"); });
  EXPECT_EQ(thrown["error"], "like this");
  const nlohmann::json killed = run_in_child({}, []() -> nlohmann::json {
    std::raise(SIGKILL);
    return nlohmann::json::object();
  });
  EXPECT_EQ(killed["error"], "ended by signal 9");
}

}  // namespace
}  // namespace millrace::peer::testing
