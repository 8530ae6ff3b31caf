#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/shards.h"
#include "tests/worker/training/peers/toy_data.h"
#include "tests/worker/training/peers/trained.h"

/// Every optimizer by gradients against its paper's pseudocode: one process, all ranks' vectors dense, in double; over
/// peers and over servers.
namespace millrace::training {
namespace {

using testing::expect_alike;
using testing::expect_near;
using testing::Shards;
using testing::share_of;
using testing::toy_data;
using testing::train;

constexpr uint64_t kModelFeatures = 40;
constexpr size_t kSize = kModelFeatures + 1;
constexpr size_t kBatchRows = 6;
constexpr double kLearningRate = 0.2;
constexpr uint32_t kEpochs = 3;
using Values = std::vector<double>;

/// The pseudocode's step on all ranks' gradients, each of which is a mean.
using SlowStep = std::function<void(uint64_t step, Values& w, std::vector<Values>& gradients)>;

/// Rank k has consecutive rows, and a step's batch an equal part of them; its gradient is weighed by its share of the
/// step's rows.
Values slow_training(const Dataset& data, uint32_t ranks, const SlowStep& slow_step) {
  Values w(kSize);
  const size_t rows = data.rows();
  const size_t most = (rows + ranks - 1) / ranks, steps = (most + kBatchRows - 1) / kBatchRows;
  for (uint64_t step = 0; step < kEpochs * steps; ++step) {
    const size_t at = step % steps;
    std::vector<Values> gradients(ranks, Values(kSize));
    size_t rows_of_step = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const size_t first = rows * rank / ranks, own = rows * (rank + 1) / ranks - first;
      for (size_t row = first + own * at / steps; row < first + own * (at + 1) / steps; ++row, ++rows_of_step) {
        const RowView view = data.row(row);
        const auto y = static_cast<double>(view.label);
        double margin = w.back();
        for (size_t i = 0; i < view.indices.size(); ++i)
          margin += w[view.indices[i]] * static_cast<double>(view.values[i]);
        const double slope = -y / (1 + std::exp(y * margin));
        for (size_t i = 0; i < view.indices.size(); ++i) {
          gradients[rank][view.indices[i]] += slope * static_cast<double>(view.values[i]);
        }
        gradients[rank].back() += slope;
      }
    }
    for (Values& gradient : gradients) {
      for (double& value : gradient) value *= static_cast<double>(ranks) / static_cast<double>(rows_of_step);
    }
    slow_step(step, w, gradients);
  }
  return w;
}

/// Which of [begin, end) have one of the k largest magnitudes.
std::vector<bool> mask_of_largest(const Values& values, size_t k, size_t begin = 0, size_t end = kSize) {
  std::vector<size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  std::vector<bool> is(values.size());
  for (size_t at = 0; at < std::min(k, order.size()); ++at) is[order[at]] = values[order[at]] != 0;
  return is;
}

void shrink(Values& w, double by) {
  for (size_t i = 0; i + 1 < w.size(); ++i) w[i] *= 1 - by;  // not the intercept
}

class Optimizers : public ::testing::Test {
 protected:
  static PeerTrainOptions options_of(const char* name, const char* select) {
    PeerTrainOptions run;
    run.optimizer = find_optimizer(name);
    run.options = default_options(*run.optimizer);
    millrace::testing::set_option(run.options.job, "select", select);
    run.options.job.codec_up = index::raw;
    run.options.thresholds_period = 1;
    run.options.batch_rows = kBatchRows;
    run.options.order = RowOrder::kFile;
    run.options.schedule.rate = kLearningRate;
    run.epochs = kEpochs;
    return run;
  }

  /// Checks that each rank's steps are those of the pseudocode. slow: made for each number of ranks.
  void expect_slow(PeerTrainOptions run, const std::function<SlowStep(uint32_t ranks)>& slow, double off = 1e-5) {
    const Dataset data = toy_data(50, kModelFeatures, 31);
    for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
      const Values expected = slow_training(data, ranks, slow(ranks));
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        SCOPED_TRACE(std::string(run.optimizer->name) + ' ' + std::to_string(ranks) + ' ' +
                     std::string(path_name(path)));
        run.options.path = path;
        run.options.me.shards = path == ExchangePath::kServers ? shards_.addresses() : std::vector<std::string>();
        run.options.job.name = "job " + std::to_string(++jobs_);
        const Status taken = run.optimizer->check(run.options);
        ASSERT_TRUE(taken) << taken.error().message;
        const auto trained = train(ranks, run, [&](uint32_t rank) { return share_of(data, rank, ranks); });
        ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
        expect_near(trained[0].weights, expected, off);
        EXPECT_LT(trained[0].epochs.back().train.loss, std::log(2.0));
      }
    }
  }

  Shards shards_{1};
  int jobs_ = 0;
};

TEST_F(Optimizers, SgdIsTheSameOverBothPaths) {
  PeerTrainOptions run = options_of("sgd", "none");
  run.options.l2 = 0.01;
  expect_slow(run, [](uint32_t ranks) {
    return [ranks](uint64_t, Values& w, std::vector<Values>& gradients) {
      shrink(w, kLearningRate * 0.01);
      for (const Values& gradient : gradients) {
        for (size_t i = 0; i < kSize; ++i) w[i] -= kLearningRate * gradient[i] / ranks;
      }
    };
  });
}

// [GSpar18, algorithm 1], where every entry is drawn with probability 1.
TEST_F(Optimizers, UnbiasedSgdThatDropsNothingIsSgd) {
  for (const char* select : {"none", "uniform:1", "random:1.0"}) {
    SCOPED_TRACE(select);
    PeerTrainOptions run = options_of("sgd", select);
    run.options.job.contributions.unbiased = true;
    expect_slow(run, [](uint32_t ranks) {
      return [ranks](uint64_t, Values& w, std::vector<Values>& gradients) {
        for (const Values& gradient : gradients) {
          for (size_t i = 0; i < kSize; ++i) w[i] -= kLearningRate * gradient[i] / ranks;
        }
      };
    });
  }
}

// [OkTopk22, algorithms 1 and 2], with both thresholds exact in every step.
TEST_F(Optimizers, OktopkSgdIsAlgorithm2) {
  constexpr size_t kLargest = 6;
  expect_slow(options_of("oktopk_sgd", "topk:6"), [](uint32_t ranks) {
    return [ranks, residual = std::vector<Values>(ranks, Values(kSize))](uint64_t, Values& w,
                                                                         std::vector<Values>& gradients) mutable {
      std::vector<std::vector<bool>> local(ranks);
      Values reduced(kSize);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (size_t i = 0; i < kSize; ++i) residual[rank][i] += kLearningRate * gradients[rank][i];  // line 4: acc
        local[rank] = mask_of_largest(residual[rank], kLargest);
        for (size_t i = 0; i < kSize; ++i) reduced[i] += local[rank][i] ? residual[rank][i] : 0;
      }
      const std::vector<bool> global = mask_of_largest(reduced, kLargest);
      for (size_t i = 0; i < kSize; ++i) {
        if (!global[i]) continue;
        w[i] -= reduced[i] / ranks;                                                                 // line 7
        for (uint32_t rank = 0; rank < ranks; ++rank) residual[rank][i] *= local[rank][i] ? 0 : 1;  // line 6
      }
    };
  });
}

// [SparCML19, algorithm 1], with Q the identity; v -= the sum, which is over P as the gradients' means are.
TEST_F(Optimizers, TopkSgdIsAlgorithm1) {
  expect_slow(options_of("topk_sgd", "bucket_topk:0.125:16"), [](uint32_t ranks) {
    return [ranks, error = std::vector<Values>(ranks, Values(kSize))](uint64_t, Values& v,
                                                                      std::vector<Values>& gradients) mutable {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        Values& acc = error[rank];
        for (size_t i = 0; i < kSize; ++i) acc[i] += kLearningRate * gradients[rank][i];
        for (size_t begin = 0; begin < kSize; begin += 16) {
          const std::vector<bool> top = mask_of_largest(acc, 2, begin, std::min(begin + 16, kSize));
          for (size_t i = 0; i < kSize; ++i) {
            if (!top[i]) continue;
            v[i] -= acc[i] / ranks;
            acc[i] = 0;
          }
        }
      }
    };
  });
}

struct Rgc {
  const char* select;
  std::string momentum;
  double factor = 0;
  double clip = 0;
  uint64_t dense_steps = 0;  ///< kAlways: of a tensor that is not compressed
  bool quantized = false;
};
constexpr uint64_t kAlways = std::numeric_limits<uint64_t>::max();
constexpr size_t kSelected = 5;

void only_sign(Values& values, bool positive) {
  for (double& value : values) value = (value > 0) == positive ? value : 0;
}

/// [RedSync19, algorithm 4, appendix B] (clipping), and uncompressed steps: momentum SGD, whose velocity is not masked.
SlowStep rgc_of(uint32_t ranks, const Rgc& rgc) {
  struct Rank {
    Values u = Values(kSize), v = Values(kSize);
  };
  return [=, all = std::vector<Rank>(ranks)](uint64_t step, Values& w, std::vector<Values>& gradients) mutable {
    const bool compresses = step >= rgc.dense_steps;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Values& gradient = gradients[rank];
      const double norm = std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
      const double most = rgc.clip * std::sqrt(static_cast<double>(ranks));  // the update is a mean
      auto& [u, v] = all[rank];
      for (size_t i = 0; i < kSize; ++i) {
        const double g = rgc.clip > 0 && norm > most ? gradient[i] * most / norm : gradient[i];
        u[i] = rgc.factor * u[i] + g;
        v[i] += rgc.momentum.starts_with("nesterov_printed") ? u[i] + g
                : rgc.momentum.starts_with("nesterov")       ? g + rgc.factor * u[i]
                                                             : u[i];
      }
      Values candidates = v;
      if (compresses && rgc.quantized) only_sign(candidates, step % 2 == 0);
      const std::vector<bool> mask = mask_of_largest(candidates, compresses ? kSelected : kSize);
      const auto count = static_cast<double>(std::ranges::count(mask, true));
      double mean = 0;
      for (size_t i = 0; i < kSize; ++i) mean += mask[i] ? v[i] / count : 0;
      for (size_t i = 0; i < kSize; ++i) {
        if (!mask[i]) continue;
        w[i] -= kLearningRate * (compresses && rgc.quantized ? mean : v[i]) / ranks;
        v[i] = 0;
        if (compresses) u[i] = 0;
      }
    }
  };
}

TEST_F(Optimizers, RgcIsAlgorithm4) {
  for (const Rgc& one :
       {Rgc{"topk:5", "correction:0.5", 0.5}, Rgc{"topk:5", "nesterov:0.5", 0.5},
        Rgc{"topk:5", "nesterov_printed:0.5", 0.5}, Rgc{"topk:5", "none", 0, 0.3},
        Rgc{"topk:5:dense=4", "correction:0.75", 0.75, 0.5, 4}, Rgc{"topk:5:dense=4", "nesterov:0.75", 0.75, 0.5, 4},
        Rgc{"topk:5:dense=4", "none", 0, 0.5, 4}, Rgc{"trimmed:5:signs:dense=4", "correction:0.75", 0.75, 0, 4, true},
        Rgc{"by_size:0.001", "correction:0.75", 0.75, 0, kAlways},
        Rgc{"by_size:0.001:signs:dense=4", "nesterov:0.75", 0.75, 0, kAlways, true},
        Rgc{"topk:41", "correction:0.75", 0.75, 0, kAlways}}) {
    SCOPED_TRACE(std::string(one.select) + ' ' + one.momentum);
    PeerTrainOptions run = options_of("rgc", one.select);
    millrace::testing::set_option(run.options.job, "momentum", one.momentum);
    run.options.job.contributions.clip = one.clip;
    if (one.quantized) millrace::testing::set_option(run.options.job, "codec_up", "raw+sign_mean");
    expect_slow(run, [&one](uint32_t ranks) { return rgc_of(ranks, one); });
  }
}

TEST_F(Optimizers, MomentumIsPolyaksOfTheMean) {
  PeerTrainOptions run = options_of("momentum", "none");
  run.options.beta1 = 0.75;
  run.options.l2 = 0.01;
  expect_slow(run, [](uint32_t ranks) {
    return [ranks, velocity = Values(kSize)](uint64_t, Values& w, std::vector<Values>& gradients) mutable {
      shrink(w, kLearningRate * 0.01);
      for (size_t i = 0; i < kSize; ++i) {
        double mean = 0;
        for (const Values& gradient : gradients) mean += gradient[i] / ranks;
        velocity[i] = 0.75 * velocity[i] + mean;
        w[i] -= kLearningRate * velocity[i];
      }
    };
  });
}

// [Adam15, algorithm 1], on the mean of Ok-Topk's sum: entries that the sum lacks have a step too.
TEST_F(Optimizers, AdamIsDenseAfterTheSparseSum) {
  constexpr size_t kLargest = 8;
  PeerTrainOptions run = options_of("adam", "topk:8");
  run.options.l2 = 0.01;
  run.options.epsilon = 1e-3;  // f32 would decide the sign of a small gradient differently
  const auto slow = [](uint32_t ranks) {
    return [ranks, residual = std::vector<Values>(ranks, Values(kSize)), m = Values(kSize), v = Values(kSize)](
               uint64_t step, Values& w, std::vector<Values>& gradients) mutable {
      std::vector<std::vector<bool>> local(ranks);
      Values sum(kSize);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (size_t i = 0; i < kSize; ++i) residual[rank][i] += gradients[rank][i];
        local[rank] = mask_of_largest(residual[rank], kLargest);
        for (size_t i = 0; i < kSize; ++i) sum[i] += local[rank][i] ? residual[rank][i] : 0;
      }
      const std::vector<bool> global = mask_of_largest(sum, kLargest);
      shrink(w, kLearningRate * 0.01);
      const auto t = static_cast<double>(step + 1);
      for (size_t i = 0; i < kSize; ++i) {
        const double g = global[i] ? sum[i] / ranks : 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) residual[rank][i] *= global[i] && local[rank][i] ? 0 : 1;
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        w[i] -= kLearningRate * (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-3);
      }
    };
  };
  expect_slow(run, slow, 1e-3);
}

TEST_F(Optimizers, TheirOwnDefaultsTrainOverBothPaths) {
  const Dataset data = toy_data(600, 300, 14);
  for (const OptimizerInfo& info : optimizers()) {
    for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
      if (info.name == "scd" && path == ExchangePath::kServers) continue;
      SCOPED_TRACE(std::string(info.name) + ' ' + std::string(path_name(path)));
      PeerTrainOptions run;
      run.optimizer = &info;
      run.options = default_options(info);
      // A thousandth of 301 weights is none.
      if (info.name == "rgc") millrace::testing::set_option(run.options.job, "select", "by_size:0.1");
      if (info.name == "oktopk_sgd" || info.name == "adam")
        millrace::testing::set_option(run.options.job, "select", "topk:0.1");
      run.options.schedule.rate = info.name == "adam" ? 0.005 : info.name == "scd" ? 1 : 0.1;
      if (info.name == "momentum") run.options.schedule.rate = 0.02;
      run.options.batch_rows = 16;
      run.options.coordinates = 10;
      run.options.path = path;
      if (path == ExchangePath::kServers) run.options.me.shards = shards_.addresses();
      run.options.job.name = std::string(info.name);
      run.epochs = 15;
      const auto trained = train(3, run, [&](uint32_t rank) { return share_of(data, rank, 3); });
      ASSERT_NO_FATAL_FAILURE(expect_alike(trained));
      EXPECT_LT(trained[0].epochs.back().train.loss, 0.75 * std::log(2.0));
      EXPECT_GT(trained[0].epochs.back().train.accuracy, 0.8);
      EXPECT_GT(trained[0].epochs.back().received_sum, 0u);
    }
  }
}

}  // namespace
}  // namespace millrace::training
