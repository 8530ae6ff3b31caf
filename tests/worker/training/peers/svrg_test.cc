#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/shards.h"
#include "tests/worker/training/peers/slow_gradient.h"
#include "tests/worker/training/peers/toy_data.h"
#include "tests/worker/training/peers/trained.h"

/// SVRG against [GSpar18, equation 2], written down in double by one process that has all rows: over peers and over
/// servers.
namespace millrace::training {
namespace {

using testing::expect_alike;
using testing::expect_near;
using testing::Shards;
using testing::share_of;
using testing::slow_gradient;
using testing::toy_data;
using testing::train;
using testing::Trained;
using testing::Weights;

constexpr uint64_t kSvrgFeatures = 24;
constexpr double kSvrgRate = 0.3;
constexpr double kSvrgL2 = 0.01;
constexpr size_t kSvrgBatch = 5;

double slow_objective(const Dataset& data, const Weights& w) {
  double sum = 0, norm = 0;
  for (size_t at = 0; at < data.rows(); ++at) {
    const RowView row = data.row(at);
    double margin = w.back();
    for (size_t i = 0; i < row.indices.size(); ++i) margin += w[row.indices[i]] * static_cast<double>(row.values[i]);
    sum += std::log1p(std::exp(-static_cast<double>(row.label) * margin));
  }
  for (size_t i = 0; i + 1 < w.size(); ++i) norm += w[i] * w[i];
  return sum / static_cast<double>(data.rows()) + kSvrgL2 / 2 * norm;
}

struct SlowSvrg {
  uint64_t every = 0;  ///< steps; 0: an epoch's
  uint32_t stale = 0;  ///< steps in flight
  uint32_t epochs = 3;
};

/// Rank k has consecutive rows, and a step's batch an equal part of each rank's.
Weights slow_svrg(const Dataset& data, uint32_t ranks, const SlowSvrg& how) {
  const size_t rows = data.rows(), most = (rows + ranks - 1) / ranks;
  const size_t steps = (most + kSvrgBatch - 1) / kSvrgBatch;
  std::vector<size_t> all(rows);
  for (size_t row = 0; row < rows; ++row) all[row] = row;
  Weights w(kSvrgFeatures + 1), snapshot, full;
  std::deque<Weights> in_flight;
  const auto finish_down_to = [&](size_t left) {
    for (; in_flight.size() > left; in_flight.pop_front()) {
      for (size_t i = 0; i < w.size(); ++i) {
        if (i + 1 < w.size()) w[i] *= 1 - kSvrgRate * kSvrgL2;  // not the intercept
        w[i] -= kSvrgRate * in_flight.front()[i];
      }
    }
  };
  for (uint64_t step = 0; step < how.epochs * steps; ++step) {
    if (step % (how.every > 0 ? how.every : steps) == 0) {
      finish_down_to(0);
      snapshot = w;
      full = slow_gradient(data, all, w);
    }
    std::vector<size_t> batch;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const size_t first = rows * rank / ranks, own = rows * (rank + 1) / ranks - first, at = step % steps;
      for (size_t row = first + own * at / steps; row < first + own * (at + 1) / steps; ++row) batch.push_back(row);
    }
    Weights gradient = slow_gradient(data, batch, w);
    const Weights before = slow_gradient(data, batch, snapshot);
    for (size_t i = 0; i < w.size(); ++i) gradient[i] += full[i] - before[i];
    in_flight.push_back(gradient);
    finish_down_to(step % steps + 1 == steps ? 0 : how.stale);  // an epoch ends with nothing in flight
  }
  return w;
}

class Svrg : public ::testing::Test {
 protected:
  static PeerTrainOptions options_of(const SlowSvrg& how) {
    PeerTrainOptions run;
    run.optimizer = find_optimizer("svrg");
    run.options = default_options(*run.optimizer);
    run.options.schedule.rate = kSvrgRate;
    run.options.l2 = kSvrgL2;
    run.options.batch_rows = kSvrgBatch;
    run.options.order = RowOrder::kFile;
    run.options.snapshot_every = how.every;
    run.options.job.consistency = Synchronous{how.stale};
    run.epochs = how.epochs;
    return run;
  }

  std::vector<Trained> trained_over(ExchangePath path, PeerTrainOptions run, const Dataset& data, uint32_t ranks) {
    run.options.path = path;
    if (path == ExchangePath::kServers) run.options.me.shards = shards_.addresses();
    run.options.job.name = "svrg " + std::to_string(++jobs_);
    const Status taken = run.optimizer->check(run.options);
    EXPECT_TRUE(taken) << taken.error().message;
    return train(ranks, run, [&](uint32_t rank) { return share_of(data, rank, ranks); });
  }

  Shards shards_{1};
  int jobs_ = 0;
};

TEST_F(Svrg, FollowsThePapersStepOverBothPaths) {
  const Dataset data = toy_data(50, kSvrgFeatures, 41);
  for (const SlowSvrg& how : {SlowSvrg{}, SlowSvrg{.every = 1}, SlowSvrg{.every = 3}, SlowSvrg{.every = 1'000},
                              SlowSvrg{.stale = 2}, SlowSvrg{.every = 3, .stale = 1}}) {
    for (const uint32_t ranks : {1u, 2u, 3u}) {
      const Weights expected = slow_svrg(data, ranks, how);
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        for (const char* select : {"none", "uniform:1"}) {
          SCOPED_TRACE(std::to_string(how.every) + ' ' + std::to_string(how.stale) + ' ' + std::to_string(ranks) + ' ' +
                       std::string(path_name(path)) + ' ' + select);
          PeerTrainOptions run = options_of(how);
          millrace::testing::set_option(run.options.job, "select", select);
          run.options.job.contributions.unbiased = select_of(run.options).selection != SelectionId::kNone;
          const auto trained = trained_over(path, run, data, ranks);
          ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
          expect_near(trained[0].weights, expected, 2e-5);
        }
      }
    }
  }
}

// With a snapshot before every step the difference is nothing: full gradients, and no entry of a step's own.
TEST_F(Svrg, ASnapshotBeforeEveryStepLeavesNothingToExchange) {
  const Dataset data = toy_data(50, kSvrgFeatures, 42);
  const auto trained = trained_over(ExchangePath::kPeers, options_of({.every = 1}), data, 3);
  ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
  for (const PeerEpoch& epoch : trained[0].epochs) EXPECT_EQ(epoch.entries_mean, 0);
  EXPECT_GT(trained[0].epochs[0].bytes_sum, 0u);  // the snapshots' gradients
}

TEST_F(Svrg, EveryAlgorithmCodecAndSelectionTrains) {
  struct Case {
    const char* algorithm;
    const char* select;
    const char* codec;
    bool unbiased;
  };
  const Dataset data = toy_data(200, kSvrgFeatures, 43);
  for (const Case& one :
       {Case{"dense_ring", "none", "", false}, Case{"dsar_split_allgather", "gspar:0.5", "gap+qsgd4", true},
        Case{"redsync_allgather", "uniform:0.5", "", true}, Case{"oktopk", "topk:0.5", "", false},
        Case{"topk_a", "topk:0.5", "", false}}) {
    SCOPED_TRACE(one.algorithm);
    PeerTrainOptions run = options_of({.epochs = 10});
    run.options.algorithm = peer::find_algorithm(one.algorithm)->id;
    millrace::testing::set_option(run.options.job, "select", one.select);
    if (*one.codec != 0) millrace::testing::set_option(run.options.job, "codec_up", one.codec);
    run.options.job.contributions.unbiased = one.unbiased;
    run.options.schedule.rate = 0.1;
    const auto trained = trained_over(ExchangePath::kPeers, run, data, 3);
    ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
    EXPECT_LT(trained[0].epochs.back().train.loss, 0.75 * std::log(2.0));
  }
}

// The claim of [GSpar18, figure 2]: at a constant rate SGD stays at a distance from the minimum, and SVRG does not.
// This holds also where its differences are drawn.
TEST_F(Svrg, DrawnDifferencesComeCloserThanDrawnGradients) {
  const Dataset data = toy_data(120, kSvrgFeatures, 44);
  const Weights minimum = slow_svrg(data, 1, {.every = 1, .epochs = 1'000});
  const double least = slow_objective(data, minimum);
  std::vector<double> above;
  for (const char* optimizer : {"sgd", "svrg"}) {
    PeerTrainOptions run = options_of({.epochs = 200});
    run.optimizer = find_optimizer(optimizer);
    millrace::testing::set_option(run.options.job, "select", "gspar:0.3");
    run.options.job.contributions.unbiased = true;
    const auto trained = trained_over(ExchangePath::kPeers, run, data, 3);
    ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
    above.push_back(slow_objective(data, {trained[0].weights.begin(), trained[0].weights.end()}) - least);
  }
  EXPECT_GT(above[1], -1e-6);
  EXPECT_LT(above[1], 0.1 * above[0]);
}

TEST_F(Svrg, RanksWithoutRowsTakePart) {
  const Dataset data = toy_data(30, kSvrgFeatures, 45);
  const auto trained =
      train(3, options_of({}), [&](uint32_t rank) { return share_of(data, rank == 1 ? 0 : 1, rank == 1 ? 1 : 99); });
  expect_alike(trained);
  EXPECT_LT(trained[0].epochs.back().train.loss, std::log(2.0));
}

TEST_F(Svrg, SvrgRefusesUnsupportedOptions) {
  const auto refusal = [](const char* optimizer, auto change) {
    OptimizerOptions options = default_options(*find_optimizer(optimizer));
    change(options);
    const Status checked = find_optimizer(optimizer)->check(options);
    return checked ? std::string("taken") : checked.error().message;
  };
  using Options = OptimizerOptions&;
  EXPECT_EQ(refusal("svrg", [](Options) {}), "taken");
  EXPECT_THAT(refusal("svrg", [](Options options) { options.job.guarantees.reproducible = true; }),
              ::testing::HasSubstr("grid"));
  EXPECT_THAT(
      refusal("svrg",
              [](Options options) { millrace::testing::set_option(options.job, "momentum", "correction:0.9"); }),
      ::testing::HasSubstr("svrg has no --momentum"));
  EXPECT_THAT(refusal("svrg", [](Options options) { options.job.contributions.clip = 1; }),
              ::testing::HasSubstr("svrg has no --clip"));
  for (const char* other : {"sgd", "adam", "scd"}) {
    EXPECT_THAT(refusal(other, [](Options options) { options.snapshot_every = 5; }),
                ::testing::HasSubstr("is of --optimizer svrg"));
  }
}

}  // namespace
}  // namespace millrace::training
