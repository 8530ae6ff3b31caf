#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol/job/job_spec.h"
#include "tests/worker/training/peers/shards.h"
#include "tests/worker/training/peers/slow_gradient.h"
#include "tests/worker/training/peers/toy_data.h"
#include "worker/training/data/epoch_order.h"
#include "worker/training/trainer.h"

/// SVRG of `millrace train` against [GSpar18, equation 2], in double: real shards, a thread a worker.
namespace millrace::training {
namespace {

using testing::Shards;
using testing::share_of;
using testing::slow_gradient;
using testing::toy_data;
using testing::Weights;

constexpr uint64_t kJobFeatures = 20;

TrainOptions svrg_job(const std::vector<std::string>& servers, uint32_t workers) {
  static std::atomic<int> jobs = 0;
  TrainOptions options;
  options.job.name = "svrg job " + std::to_string(++jobs);
  options.job.workers = workers;
  options.me.shards = servers;
  options.optimizer = TrainOptimizer::kSvrg;
  options.batch_rows = 4;
  options.learning_rate = 0.3;
  options.l2 = 0.01;
  options.epochs = 3;
  return options;
}

/// Each worker's step is the mean gradient of its batch, in the order of the epoch; a step is the mean of the workers'.
Weights slow_job(const Dataset& data, const TrainOptions& options) {
  const uint64_t steps = steps_per_epoch(data.rows(), options.job.workers, options.batch_rows);
  std::vector<Dataset> shares;
  for (uint32_t worker = 0; worker < options.job.workers; ++worker) {
    shares.push_back(share_of(data, worker, options.job.workers));
  }
  Weights w(kJobFeatures + 1), snapshot;
  std::vector<Weights> full;
  std::deque<Weights> in_flight;
  const auto finish_down_to = [&](size_t left) {
    for (; in_flight.size() > left; in_flight.pop_front()) {
      for (size_t i = 0; i < w.size(); ++i) {
        if (i + 1 < w.size()) w[i] *= 1 - options.learning_rate * options.l2;
        w[i] -= options.learning_rate * in_flight.front()[i];
      }
    }
  };
  for (uint64_t step = 0; step < steps * options.epochs; ++step) {
    if (step % (options.snapshot_every > 0 ? options.snapshot_every : steps) == 0) {
      finish_down_to(0);
      snapshot = w;
      full.clear();
      for (const Dataset& share : shares) {
        full.push_back(slow_gradient(share, epoch_order(share.rows(), options.job.seed, 0, 0), w));
      }
    }
    Weights gradient(w.size());
    for (uint32_t worker = 0; worker < options.job.workers; ++worker) {
      const Dataset& share = shares[worker];
      const auto epoch = static_cast<uint32_t>(step / steps);
      const std::vector<uint32_t> order = epoch_order(share.rows(), options.job.seed, worker, epoch);
      const size_t begin = std::min<size_t>(step % steps * options.batch_rows, order.size());
      const size_t end = std::min<size_t>(begin + options.batch_rows, order.size());
      const auto batch = std::span(order).subspan(begin, end - begin);
      const Weights now = slow_gradient(share, batch, w), before = slow_gradient(share, batch, snapshot);
      for (size_t i = 0; i < w.size(); ++i) gradient[i] += (now[i] - before[i] + full[worker][i]) / options.job.workers;
    }
    in_flight.push_back(gradient);
    finish_down_to(step % steps + 1 == steps ? 0 : std::get<Synchronous>(options.job.consistency).staleness);
  }
  return w;
}

std::vector<std::vector<float>> trained_by(const Dataset& data, const TrainOptions& options) {
  std::vector<std::vector<float>> weights(options.job.workers);
  std::vector<std::jthread> workers;
  for (uint32_t worker = 0; worker < options.job.workers; ++worker) {
    workers.emplace_back([&, worker] {
      TrainOptions own = options;
      own.me.worker = worker;
      const Dataset share = share_of(data, worker, options.job.workers);
      const std::atomic<bool> stop = false;
      const auto result = train(own, share, nullptr, {}, stop);
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(result->rounds, result->epochs.size() * result->epochs[0].steps);
      for (uint64_t i = 0; i <= result->model.dimension(); ++i) {
        weights[worker].push_back(static_cast<float>(result->model.weight(i)));
      }
    });
  }
  workers.clear();
  return weights;
}

TEST(SvrgJob, FollowsThePapersStep) {
  const Dataset data = toy_data(50, kJobFeatures, 51);
  const Shards shards(2);
  for (const uint32_t workers : {1u, 3u}) {
    for (const uint64_t every : {uint64_t{0}, uint64_t{1}, uint64_t{3}}) {
      for (const uint32_t staleness : {0u, 2u}) {
        for (const bool draws : {false, true}) {
          SCOPED_TRACE(std::to_string(workers) + ' ' + std::to_string(every) + ' ' + std::to_string(staleness) + ' ' +
                       (draws ? "uniform" : "all"));
          TrainOptions options = svrg_job(shards.addresses(), workers);
          options.snapshot_every = every;
          options.job.consistency = Synchronous{staleness};
          if (draws) {
            options.job.select = Selection::uniform(1.0);
            options.job.contributions.unbiased = true;
            options.job.contributions.codec_error = CodecError::kDrop;
          }
          ASSERT_TRUE(check_job(options, kJobFeatures));
          const auto weights = trained_by(data, options);
          const Weights expected = slow_job(data, options);
          for (const std::vector<float>& one : weights) {
            EXPECT_EQ(one, weights[0]);
            ASSERT_EQ(one.size(), expected.size());
            for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(static_cast<double>(one[i]), expected[i], 2e-5) << i;
          }
        }
      }
    }
  }
}

TEST(SvrgJob, JobsWithoutACommonSnapshotAreRefused) {
  const auto refusal = [](auto change) {
    TrainOptions options = svrg_job({"tcp://127.0.0.1:7600"}, 2);
    change(options);
    const program::Outcome checked = check_job(options, kJobFeatures);
    return checked ? std::string("taken") : checked.error().message;
  };
  using Options = TrainOptions&;
  EXPECT_EQ(refusal([](Options) {}), "taken");
  EXPECT_EQ(refusal([](Options options) {  // the snapshots' job goes over servers, without the switch's options
              options.job.path = SwitchPath{.address = "127.0.0.1:7700",
                                            .slots = 128,
                                            .codec = SwitchCodec{SwitchIndex::kGap, SwitchValue::kFixed32}};
            }),
            "taken");
  for (const Consistency& how : {Consistency(BoundedStaleness{StepDecision::quorum(1)}),
                                 Consistency(Partial{StepDecision::quorum(1)}), Consistency(Asynchronous{})}) {
    EXPECT_THAT(refusal([how](Options options) { options.job.consistency = how; }),
                ::testing::HasSubstr("needs --mode synchronous"));
  }
  EXPECT_THAT(refusal([](Options options) { options.job.store = Store{optimizer::Sgd{0.1}}; }),
              ::testing::HasSubstr("leave --store out"));
  EXPECT_THAT(refusal([](Options options) { options.state_path = "state"; }),
              ::testing::HasSubstr("leave --state out"));
  EXPECT_THAT(refusal([](Options options) { options.job.updates.initial_weights = InitialWeights::kFirst; }),
              ::testing::HasSubstr("leave --initial-weights out"));
  EXPECT_THAT(refusal([](Options options) { options.job.guarantees.reproducible = true; }),
              ::testing::HasSubstr("grid"));
  EXPECT_THAT(refusal([](Options options) {
                options.optimizer = TrainOptimizer::kSgd;
                options.snapshot_every = 3;
              }),
              ::testing::HasSubstr("is of --optimizer svrg"));
  // Refused before any data are read, also settings that only the snapshots' job would refuse.
  const std::string longest(protocol::kNameBytesMax, 'j');
  EXPECT_EQ(refusal([&](Options options) { options.job.name = longest, options.optimizer = TrainOptimizer::kSgd; }),
            "taken");
  EXPECT_THAT(refusal([&](Options options) { options.job.name = longest; }), ::testing::HasSubstr("name"));
}

}  // namespace
}  // namespace millrace::training
