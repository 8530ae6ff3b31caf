#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/toy_data.h"
#include "tests/worker/training/peers/trained.h"
#include "worker/training/optimizers/batch_gradient.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::training {
namespace {

using testing::expect_alike;
using testing::expect_near;
using testing::share_of;
using testing::toy_data;
using testing::train;
using testing::Trained;

constexpr uint64_t kSgdDimension = 40;

PeerTrainOptions sgd_options_of(peer::AlgorithmId algorithm = peer::AlgorithmId::kSsarSplitAllgather) {
  PeerTrainOptions options;
  options.optimizer = find_optimizer("sgd");
  options.options.algorithm = algorithm;
  options.options.batch_rows = 16;
  options.options.schedule.rate = 0.2;
  options.epochs = 2;
  return options;
}

/// Plain SGD in double on batches of rows, with dense vectors; a gradient is of the weights `stale` steps before, or of
/// the epoch's first.
struct Stale {
  size_t steps = 0;
  size_t epoch_steps = 1;
};
std::vector<double> slow_sgd(const Dataset& data, const std::vector<std::vector<size_t>>& batches, Loss loss,
                             double rate, double l2, Stale stale = {}) {
  std::vector<double> w(data.dimension + 1);
  std::vector<std::vector<double>> history = {w};
  for (size_t step = 0; step < batches.size(); ++step) {
    const auto& batch = batches[step];
    const size_t first = step / stale.epoch_steps * stale.epoch_steps;
    const std::vector<double>& at_weights = history[std::max(first, step - std::min(step, stale.steps))];
    std::vector<double> gradient(w.size());
    for (const size_t at : batch) {
      const RowView row = data.row(at);
      double margin = at_weights.back();
      for (size_t i = 0; i < row.indices.size(); ++i)
        margin += at_weights[row.indices[i]] * static_cast<double>(row.values[i]);
      const double y = static_cast<double>(row.label);
      const double slope = loss == Loss::kLogistic ? -y / (1 + std::exp(y * margin)) : (y * margin < 1 ? -y : 0);
      for (size_t i = 0; i < row.indices.size(); ++i)
        gradient[row.indices[i]] += slope * static_cast<double>(row.values[i]);
      gradient.back() += slope;
    }
    for (size_t i = 0; i < w.size(); ++i) {
      const double shrunk = i + 1 == w.size() ? w[i] : w[i] * (1 - rate * l2);
      w[i] = shrunk - rate * gradient[i] / static_cast<double>(batch.size());
    }
    history.push_back(w);
  }
  return w;
}

double mean_loss(const LinearModel& model, const Dataset& data, const std::vector<uint32_t>& rows) {
  double sum = 0;
  for (const uint32_t row : rows)
    sum += loss_at(model.loss(), static_cast<double>(data.labels[row]), model.margin(data.row(row)));
  return sum / static_cast<double>(rows.size());
}

/// An epoch's batches where ranks have consecutive rows, and each step an equal part of them.
std::vector<std::vector<size_t>> batches_of(size_t rows_of_all, uint32_t ranks, size_t batch_rows) {
  std::vector<std::vector<size_t>> batches;
  const size_t most = (rows_of_all + ranks - 1) / ranks;
  const size_t steps = (most + batch_rows - 1) / batch_rows;
  for (size_t step = 0; step < steps; ++step) {
    batches.emplace_back();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const size_t first = rows_of_all * rank / ranks, rows = rows_of_all * (rank + 1) / ranks - first;
      for (size_t at = rows * step / steps; at < rows * (step + 1) / steps; ++at) batches.back().push_back(first + at);
    }
  }
  return batches;
}

TEST(WeightedGradient, IsTheSlopeOfTheLossByFiniteDifferences) {
  const Dataset data = toy_data(50, kSgdDimension, 3);
  const std::vector<uint32_t> rows = {0, 3, 7, 8, 9, 20, 31, 49};
  for (const Loss loss : {Loss::kLogistic, Loss::kHinge}) {
    for (const uint32_t count : {1u, 3u, 20u}) {
      ComputeThreads threads(count);
      LinearModel model(loss, kSgdDimension);
      RandomSequence random(RandomKey::from(5));
      for (float& value : model.values()) value = static_cast<float>(0.05 * random.next_normal());
      const BatchGradient batch = weighted_gradient(threads, model, data, rows, 1.0 / static_cast<double>(rows.size()));
      const Stream gradient = to_dense(batch.gradient.view());
      EXPECT_NEAR(batch.loss_sum / static_cast<double>(rows.size()), mean_loss(model, data, rows), 1e-9);
      for (size_t i = 0; i <= kSgdDimension; ++i) {
        constexpr float kStep = 1.0F / 1024;
        const float before = model.values()[i];
        model.values()[i] = before + kStep;
        const double above = mean_loss(model, data, rows);
        model.values()[i] = before - kStep;
        const double below = mean_loss(model, data, rows);
        const double width = static_cast<double>(before + kStep) - static_cast<double>(before - kStep);
        model.values()[i] = before;
        EXPECT_NEAR(static_cast<double>(gradient.values[i]), (above - below) / width, 2e-4) << i;
      }
    }
  }
}

TEST(PeerSgd, OneRankAndManyOnTheSameBatchesHaveTheSameModel) {
  const Dataset data = toy_data(96, kSgdDimension, 11);
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    for (const Loss loss : {Loss::kLogistic, Loss::kHinge}) {
      PeerTrainOptions options = sgd_options_of();
      options.options.loss = loss;
      options.options.l2 = 0.01;
      options.options.order = RowOrder::kFile;
      options.options.batch_rows = 10;
      options.threads = ranks % 2 + 1;
      const auto trained = train(ranks, options, [&](uint32_t rank) { return share_of(data, rank, ranks); });
      expect_alike(trained);
      auto batches = batches_of(data.rows(), ranks, 10);
      const auto one_epoch = batches;
      batches.insert(batches.end(), one_epoch.begin(), one_epoch.end());
      expect_near(trained[0].weights, slow_sgd(data, batches, loss, 0.2, 0.01), 1e-5);
    }
  }
}

TEST(PeerSgd, AStepUsesTheModelFromStalenessStepsEarlier) {
  const Dataset data = toy_data(96, kSgdDimension, 20);
  for (const uint32_t ranks : {1u, 3u, 4u}) {
    for (const uint32_t stale : {1u, 2u, 50u}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(stale) + " steps");
      PeerTrainOptions options = sgd_options_of();
      options.options.l2 = 0.01;
      options.options.order = RowOrder::kFile;
      options.options.batch_rows = 4;
      options.options.job.consistency = Synchronous{stale};
      const auto trained = train(ranks, options, [&](uint32_t rank) { return share_of(data, rank, ranks); });
      expect_alike(trained);
      auto batches = batches_of(data.rows(), ranks, 4);
      const auto one_epoch = batches;
      batches.insert(batches.end(), one_epoch.begin(), one_epoch.end());
      expect_near(trained[0].weights, slow_sgd(data, batches, Loss::kLogistic, 0.2, 0.01, {stale, one_epoch.size()}),
                  1e-5);
    }
  }
}

TEST(PeerSgd, FullBatches_SameForEveryRankCountOrderAndExactAlgorithm) {
  const Dataset data = toy_data(60, kSgdDimension, 12);
  std::vector<size_t> all(data.rows());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<double> expected = slow_sgd(data, {all, all}, Loss::kLogistic, 0.2, 0);
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    if (info.result != peer::ResultKind::kExactSum) continue;
    for (const uint32_t ranks : {1u, 3u, 4u, 7u}) {
      SCOPED_TRACE(std::string(info.name) + " on " + std::to_string(ranks));
      PeerTrainOptions options = sgd_options_of(info.id);
      options.options.batch_rows = 60;
      const auto trained = train(ranks, options, [&](uint32_t rank) { return share_of(data, rank, ranks); });
      expect_alike(trained);
      expect_near(trained[0].weights, expected, 1e-5);
    }
  }
}

TEST(PeerSgd, RanksWithoutRowsTakePart) {
  const Dataset data = toy_data(30, kSgdDimension, 13);
  const auto trained =
      train(3, sgd_options_of(), [&](uint32_t rank) { return share_of(data, rank == 1 ? 0 : 1, rank == 1 ? 1 : 99); });
  expect_alike(trained);
  EXPECT_LT(trained[0].epochs.back().train.loss, std::log(2.0));
}

TEST(PeerSgd, LossGoesDownForEverySelectionAlgorithmAndCodec) {
  const Dataset data = toy_data(600, 300, 14);
  struct Case {
    peer::AlgorithmId algorithm;
    const char* select;
    const char* codec;
    const char* quantizer;
    uint32_t asynchronous = 0;
  };
  using enum peer::AlgorithmId;
  const Case cases[] = {{kSsarSplitAllgather, "none", "", ""},
                        {kSsarRecursiveDoubling, "topk:0.1", "", ""},
                        {kSparseRing, "bucket_topk:0.05", "gap+raw", ""},
                        {kSsarSplitAllgather, "topk:0.1", "gap+qsgd4", ""},
                        {kDsarSplitAllgather, "none", "", "raw+qsgd4"},
                        {kRedsyncAllgather, "none", "gap+bf16", ""},
                        {kTopkA, "topk:0.1", "", ""},
                        {kGtopk, "topk:0.2", "", ""},
                        {kGaussianK, "topk:0.1", "", ""},
                        {kOktopk, "topk:0.1", "", ""},
                        {kSsarSplitAllgather, "none", "", "", 2},
                        {kSsarRecursiveDoubling, "topk:0.1", "gap+qsgd4", "", 3},
                        {kOktopk, "topk:0.1", "", "", 1},
                        {kGtopk, "topk:0.2", "", "", 2}};
  for (const Loss loss : {Loss::kLogistic, Loss::kHinge}) {
    const double at_zero = loss == Loss::kLogistic ? std::log(2.0) : 1;
    for (const Case& one : cases) {
      SCOPED_TRACE(std::string(peer::algorithm_info(one.algorithm).name) + " " + one.select + " " + one.codec);
      PeerTrainOptions options = sgd_options_of(one.algorithm);
      options.options.loss = loss;
      millrace::testing::set_option(options.options.job, "select", one.select);
      if (*one.codec != 0) millrace::testing::set_option(options.options.job, "codec_up", one.codec);
      if (*one.quantizer != 0) options.options.quantizer = codec_from_text(one.quantizer).value();
      // Older gradients, shorter steps.
      options.options.job.consistency = Synchronous{one.asynchronous};
      options.options.schedule.rate = 0.1 / (one.asynchronous + 1);
      options.epochs = 15 * (one.asynchronous + 1);
      options.threads = 2;
      ASSERT_TRUE(options.optimizer->check(options.options));
      const auto trained = train(3, options, [&](uint32_t rank) { return share_of(data, rank, 3); });
      expect_alike(trained);
      const auto& epochs = trained[0].epochs;
      ASSERT_EQ(epochs.size(), options.epochs);
      EXPECT_LT(epochs.back().train.loss, epochs.front().train.loss);
      EXPECT_LT(epochs.back().train.loss, 0.75 * at_zero);
      EXPECT_GT(epochs.back().train.accuracy, 0.8);
      EXPECT_GT(epochs.back().bytes_max, 0u);
    }
  }
}

TEST(PeerSgd, AnotherSeedAnotherOrder) {
  const Dataset data = toy_data(100, kSgdDimension, 15);
  std::vector<std::vector<float>> weights;
  for (const uint64_t seed : {1u, 1u, 2u}) {
    PeerTrainOptions options = sgd_options_of();
    options.options.job.seed = seed;
    weights.push_back(train(2, options, [&](uint32_t rank) { return share_of(data, rank, 2); })[0].weights);
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_NE(weights[0], weights[2]);
}

TEST(PeerSgd, AStopOfOneRankEndsAllAtTheSameStep) {
  const Dataset data = toy_data(200, kSgdDimension, 16);
  PeerTrainOptions options = sgd_options_of();
  options.epochs = 1'000'000;
  const auto trained = train(3, options, [&](uint32_t rank) { return share_of(data, rank, 3); }, 1);
  expect_alike(trained);
  for (const Trained& one : trained) {
    EXPECT_TRUE(one.interrupted);
    EXPECT_EQ(one.steps, trained[0].steps);
  }
}

TEST(PeerSgd, StepsMaxEndsInTheMiddleOfAnEpoch) {
  const Dataset data = toy_data(200, kSgdDimension, 17);
  PeerTrainOptions options = sgd_options_of();
  options.steps_max = 7;  // of 5 an epoch
  const auto trained = train(3, options, [&](uint32_t rank) { return share_of(data, rank, 3); });
  expect_alike(trained);
  EXPECT_EQ(trained[0].steps, 7u);
  ASSERT_EQ(trained[0].epochs.size(), 2u);
  EXPECT_EQ(trained[0].epochs[1].steps, 2u);
}

TEST(PeerSgd, AGradientThatOverflowsEndsAllRanks) {
  Dataset data = toy_data(30, kSgdDimension, 18);
  for (float& value : data.values) value = 3e38F;
  for (const uint32_t asynchronous : {0u, 3u}) {
    PeerTrainOptions options = sgd_options_of();
    options.options.job.consistency = Synchronous{asynchronous};
    options.options.loss = Loss::kHinge;
    options.options.schedule.rate = 1e6;
    for (const Trained& one : train(3, options, [&](uint32_t rank) { return share_of(data, rank, 3); })) {
      EXPECT_THAT(one.error, ::testing::HasSubstr("NaN or infinity"));
    }
  }
}

TEST(PeerSgd, AllRanksReportBothValuesOfADifferingOption) {
  const Dataset data = toy_data(30, kSgdDimension, 19);
  const auto said = testing::on_ranks<std::string>(3, peer::Progress::kByThread, [&](peer::PeerGroup& group) {
    PeerTrainOptions options = sgd_options_of();
    options.options.schedule.rate = group.rank() == 2 ? 0.5 : 0.25;
    const std::atomic<bool> stop = false;
    const Dataset share = share_of(data, group.rank(), 3);
    const auto result = train_over_peers(group, share, nullptr, options, {}, stop);
    return result ? "trained" : result.error().message;
  });
  for (const std::string& one : said) {
    EXPECT_THAT(one, ::testing::AllOf(::testing::HasSubstr("lr=0.5"), ::testing::HasSubstr("lr=0.25")));
  }
}

TEST(PeerSgd, WhatCannotBeIsRefused) {
  using enum peer::AlgorithmId;
  const std::map<peer::AlgorithmId, const char*> selects = {
      {kOktopk, "none"}, {kGtopk, "topk:0.1:warm_up=50"}, {kTopkA, "bucket_topk:0.01"}, {kSparseRing, "uniform:0.1"}};
  for (const auto& [algorithm, select] : selects) {
    PeerTrainOptions options = sgd_options_of(algorithm);
    millrace::testing::set_option(options.options.job, "select", select);
    EXPECT_FALSE(options.optimizer->check(options.options)) << select;
  }
}

}  // namespace
}  // namespace millrace::training
