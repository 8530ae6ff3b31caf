#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/shards.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/optimizers/optimizer.h"

/// [GSpar18, 2, algorithm 1] as an allreduce. The sum of the ranks' drawn entries is the sum of their gradients in
/// expectation, by every algorithm with exact sums, as over servers. Nothing stays for later.
namespace millrace::training {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnbiasedDimension = 33;

/// The same in every step; magnitudes from 1/2 to 8, so that probabilities differ; every fifth entry absent.
Stream constant_gradient(uint32_t rank) {
  RandomSequence random(random_key(5, rank));
  Stream gradient = Stream::empty(kUnbiasedDimension);
  for (uint32_t index = 0; index < kUnbiasedDimension; ++index) {
    if ((index + rank) % 5 == 0) continue;
    gradient.indices.push_back(index);
    const auto value = static_cast<float>(std::exp2(4 * random.next_unit() - 1));
    gradient.values.push_back(random.next_below(2) == 0 ? value : -value);
  }
  return gradient;
}

struct DrawnBooks {
  std::string error = "not run";
  std::vector<double> sums = std::vector<double>(kUnbiasedDimension);
  std::vector<double> squares = sums;
  uint64_t entries = 0;
  uint64_t kept = 0;  ///< entries of the residual
};

DrawnBooks drawn_on(peer::PeerGroup& group, const OptimizerOptions& options, uint64_t steps) {
  DrawnBooks books;
  auto exchange = make_exchange({group, kUnbiasedDimension}, options);
  if (!exchange) return {.error = exchange.error().message};
  for (uint64_t step = 0; step < steps; ++step) {
    if (const Status status = (*exchange)->start(step, constant_gradient(group.rank())); !status) {
      return {.error = status.error().message};
    }
    const auto sum = (*exchange)->finish_oldest();
    if (!sum) return {.error = sum.error().message};
    const Stream dense = to_dense(sum->sum.view);
    for (size_t i = 0; i < kUnbiasedDimension; ++i) {
      const auto value = static_cast<double>(dense.values[i]);
      books.sums[i] += value;
      books.squares[i] += value * value;
    }
  }
  books.entries = (*exchange)->counts().entries;
  const auto residual = (*exchange)->take_residual();
  books.kept = residual ? residual->count() : 1;
  const Status ended = (*exchange)->end();
  books.error = ended ? "" : ended.error().message;
  return books;
}

class UnbiasedOverRanks : public ::testing::Test {
 protected:
  static constexpr uint32_t kRanks = 3;

  /// The mean of the sums lies within 5 standard errors of the gradients' sum. Fixed seeds: no chance from run to run.
  /// Steps over servers take longer, and unbiased_test.cc has the draws of jobs: fewer do.
  void expect_expectation(OptimizerOptions options, const char* select, const char* codec) {
    options.job.contributions.unbiased = true;
    options.job.seed = 3;
    millrace::testing::set_option(options.job, "select", select);
    if (*codec != 0) millrace::testing::set_option(options.job, "codec_up", codec);
    const bool servers = options.path == ExchangePath::kServers;
    if (servers) options.me.shards = shards_.addresses();
    const uint64_t steps = servers ? 300 : 800;
    options.job.name = "unbiased " + std::to_string(++jobs_);
    const Status taken = check_exchange(options);
    ASSERT_TRUE(taken) << taken.error().message;
    const auto ranks = testing::on_ranks<DrawnBooks>(
        kRanks, peer::Progress::kByCaller, [&](peer::PeerGroup& group) { return drawn_on(group, options, steps); });
    std::vector<double> expected(kUnbiasedDimension);
    uint64_t entries = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const Stream gradient = to_dense(constant_gradient(rank).view());
      entries += constant_gradient(rank).count() * steps;
      for (size_t i = 0; i < kUnbiasedDimension; ++i) expected[i] += static_cast<double>(gradient.values[i]);
    }
    uint64_t sent = 0;
    for (const DrawnBooks& books : ranks) {
      ASSERT_EQ(books.error, "");
      EXPECT_EQ(books.sums, ranks[0].sums);
      EXPECT_EQ(books.kept, 0u);
      sent += books.entries;
    }
    EXPECT_LT(sent, entries);
    const auto count = static_cast<double>(steps);
    for (size_t i = 0; i < kUnbiasedDimension; ++i) {
      const double mean = ranks[0].sums[i] / count;
      const double variance = std::max(0.0, ranks[0].squares[i] / count - mean * mean);
      EXPECT_NEAR(mean, expected[i], 5 * std::sqrt(variance / count) + 1e-4 * std::abs(expected[i])) << i;
    }
  }

  testing::Shards shards_{1};
  int jobs_ = 0;
};

TEST_F(UnbiasedOverRanks, EveryExactAlgorithmHasTheGradientInExpectation) {
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    if (info.result != peer::ResultKind::kExactSum || info.selects) continue;
    SCOPED_TRACE(info.name);
    OptimizerOptions options;
    options.algorithm = info.id;
    expect_expectation(options, "gspar:0.3", "");
  }
}

TEST_F(UnbiasedOverRanks, EverySelectionThatDrawsHasItOverBothPaths) {
  for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
    for (const char* select : {"gspar:0.25:4", "gspar_closed:0.7", "uniform:0.4", "random:9"}) {
      for (const char* codec : {"", "gap+qsgd4"}) {
        SCOPED_TRACE(std::string(path_name(path)) + ' ' + select + ' ' + codec);
        OptimizerOptions options;
        options.path = path;
        expect_expectation(options, select, codec);
      }
    }
  }
}

TEST(UnbiasedContribution, EveryRankAndStepHasItsOwnDraw) {
  for (const char* select : {"random:5", "gspar:0.3", "uniform:0.3"}) {
    for (const bool unbiased : {true, false}) {
      ErrorFeedbackOptions options;
      options.dimension = kUnbiasedDimension;
      options.select = selection_from_text(select).value();
      options.codec_error = CodecError::kDrop;
      options.unbiased = unbiased;
      if (!ErrorFeedback::make(options)) continue;  // gspar and uniform are for unbiased ones alone
      SCOPED_TRACE(std::string(select) + (unbiased ? " unbiased" : ""));
      std::set<std::vector<uint32_t>> drawn;
      for (options.rank = 0; options.rank < 3; ++options.rank) {
        for (uint64_t step = 0; step < 4; ++step) {
          auto feedback = ErrorFeedback::make(options).value();
          const auto sent = feedback.contribution(constant_gradient(0), step).value();
          drawn.insert({sent.view.indices.begin(), sent.view.indices.end()});
          EXPECT_EQ(feedback.residual().empty(), unbiased);
        }
      }
      EXPECT_GT(drawn.size(), 9u);  // of 12
    }
  }
}

TEST(UnbiasedContribution, WhatNeedsAResidualIsRefusedBySentence) {
  const auto refusal = [](const char* optimizer, ExchangePath path, auto change) {
    OptimizerOptions options = default_options(*find_optimizer(optimizer));
    options.path = path;
    if (path == ExchangePath::kServers) options.me.shards = {"tcp://127.0.0.1:7600"};
    options.job.contributions.unbiased = true;
    change(options);
    const Status checked = find_optimizer(optimizer)->check(options);
    return checked ? std::string("taken") : checked.error().message;
  };
  using Options = OptimizerOptions&;
  constexpr auto kPeers = ExchangePath::kPeers;
  constexpr auto kServers = ExchangePath::kServers;
  const auto select = [](const char* text) {
    return [text](Options options) { millrace::testing::set_option(options.job, "select", text); };
  };
  const auto codec = [](const char* text) {
    return [text](Options options) { millrace::testing::set_option(options.job, "codec_up", text); };
  };
  for (const ExchangePath path : {kPeers, kServers}) {
    SCOPED_TRACE(path_name(path));
    for (const char* text : {"none", "gspar:0.1", "gspar_closed:1", "uniform:0.1", "random:0.1", "gspar:0.1:dense=5"}) {
      EXPECT_EQ(refusal("sgd", path, select(text)), "taken") << text;
    }
    EXPECT_THAT(refusal("sgd", path, select("topk:0.1")), HasSubstr("one that draws (random, gspar"));
    EXPECT_THAT(refusal("sgd", path, codec("gap+sign_mean")), HasSubstr("rounds with a bias"));
    EXPECT_THAT(refusal("sgd", path, codec("bloom_p0+raw")),
                HasSubstr(path == kPeers ? "did not draw" : "no draw chose"));
    EXPECT_THAT(refusal("oktopk_sgd", path, [](Options) {}), HasSubstr("take --optimizer sgd"));
    EXPECT_THAT(refusal("rgc", path, select("gspar:0.1")), HasSubstr("unmasked"));
    EXPECT_EQ(refusal("rgc", path,
                      [](Options options) {
                        millrace::testing::set_option(options.job, "select", "gspar:0.1");
                        millrace::testing::set_option(options.job, "momentum", "correction:0.9:unmasked");
                      }),
              "taken");
    EXPECT_THAT(refusal("sgd", path, [](Options options) { options.job.guarantees.reproducible = true; }),
                HasSubstr("grid"));
  }
  EXPECT_THAT(refusal("scd", kPeers, [](Options) {}), HasSubstr("no --unbiased"));
  EXPECT_THAT(
      refusal("sgd", kPeers, [](Options options) { options.quantizer = codec_from_text("raw+sign_mean").value(); }),
      HasSubstr("--quantizer raw+sign_mean rounds with a bias"));
  for (const char* name : {"topk_a", "gtopk", "gaussian_k", "oktopk"}) {
    EXPECT_THAT(refusal("sgd", kPeers,
                        [name](Options options) {
                          options.algorithm = peer::find_algorithm(name)->id;
                          millrace::testing::set_option(options.job, "select", "topk:0.1");
                        }),
                HasSubstr("keeps no residual to return it to"));
  }
  const auto without = [](const char* text) {
    OptimizerOptions options;
    millrace::testing::set_option(options.job, "select", text);
    const Status checked = check_exchange(options);
    return checked ? std::string("taken") : checked.error().message;
  };
  for (const char* text : {"gspar:0.1", "gspar_closed:1", "uniform:0.1"}) {
    EXPECT_THAT(without(text), HasSubstr("add --unbiased"));
  }
}

}  // namespace
}  // namespace millrace::training
