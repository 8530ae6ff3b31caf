#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/toy_data.h"
#include "tests/worker/training/peers/trained.h"
#include "worker/training/data/feature_columns.h"

namespace millrace::training {
namespace {

using testing::expect_alike;
using testing::expect_near;
using testing::share_of;
using testing::toy_data;
using testing::train;
using testing::Trained;

constexpr uint64_t kCoordinateDescentDimension = 40;
constexpr double kL2 = 0.01;

PeerTrainOptions coordinate_descent_options_of(uint32_t coordinates, uint32_t epochs, Loss loss = Loss::kLogistic) {
  PeerTrainOptions options;
  options.optimizer = find_optimizer("scd");
  options.options.coordinates = coordinates;
  options.options.loss = loss;
  options.options.l2 = kL2;
  options.options.schedule.rate = 1;
  options.epochs = epochs;
  return options;
}

/// The objective and, by finite differences, its derivatives.
double objective(const Dataset& data, const std::vector<double>& w, Loss loss) {
  double sum = 0, norm = 0;
  for (size_t at = 0; at < data.rows(); ++at) {
    const RowView row = data.row(at);
    double margin = w.back();
    for (size_t i = 0; i < row.indices.size(); ++i) margin += w[row.indices[i]] * static_cast<double>(row.values[i]);
    sum += loss_at(loss, static_cast<double>(row.label), margin);
  }
  for (size_t i = 0; i + 1 < w.size(); ++i) norm += w[i] * w[i];
  return sum / static_cast<double>(data.rows()) + kL2 / 2 * norm;
}

std::vector<double> slopes(const Dataset& data, std::vector<double> w, Loss loss) {
  constexpr double kStep = 1e-5;
  std::vector<double> slopes(w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    const double before = w[i];
    w[i] = before + kStep;
    const double above = objective(data, w, loss);
    w[i] = before - kStep;
    slopes[i] = (above - objective(data, w, loss)) / (2 * kStep);
    w[i] = before;
  }
  return slopes;
}

/// Moves all coordinates at once, from these weights: a step over all blocks must do the same.
std::vector<double> whole_step(const Dataset& data, const std::vector<double>& w, Loss loss) {
  std::vector<double> squares(w.size());
  size_t longest = 0;
  for (size_t at = 0; at < data.rows(); ++at) {
    const RowView row = data.row(at);
    longest = std::max(longest, row.indices.size() + 1);
    for (size_t i = 0; i < row.indices.size(); ++i) {
      squares[row.indices[i]] += static_cast<double>(row.values[i]) * static_cast<double>(row.values[i]);
    }
    squares.back() += 1;
  }
  const std::vector<double> by = slopes(data, w, loss);
  std::vector<double> next = w;
  for (size_t i = 0; i < w.size(); ++i) {
    // The second derivative of log(1 + exp(-m)) is 1/4 at most, that of max(0, 1 - m)^2 is 2.
    const double curve = loss == Loss::kLogistic ? 0.25 : 2;
    const double curvature = curve * squares[i] / static_cast<double>(data.rows()) + (i + 1 == w.size() ? 0 : kL2);
    // All coordinates move at once: beta is the longest row.
    next[i] -= by[i] / (curvature * static_cast<double>(longest));
  }
  return next;
}

constexpr Loss kLosses[] = {Loss::kLogistic, Loss::kSquaredHinge};

TEST(CoordinateDescent, AStepFollowsTheDerivativesOfTheObjective) {
  const Dataset data = toy_data(80, kCoordinateDescentDimension, 21);
  for (const Loss loss : kLosses) {
    SCOPED_TRACE(loss_name(loss));
    std::vector<double> expected(kCoordinateDescentDimension + 1);
    for (const uint32_t steps : {1u, 2u}) {
      expected = whole_step(data, expected, loss);
      for (const uint32_t ranks : {1u, 2u, 3u, 7u}) {
        PeerTrainOptions options = coordinate_descent_options_of(1'000, steps, loss);
        options.threads = ranks % 3 + 1;
        const auto trained = train(ranks, options, [&](uint32_t rank) { return share_of(data, rank, ranks); });
        expect_alike(trained);
        EXPECT_EQ(trained[0].steps, steps);
        expect_near(trained[0].weights, expected, 1e-5);
      }
    }
  }
}

void expect_minimum(const Dataset& data, uint32_t ranks, const PeerTrainOptions& options) {
  const Loss loss = options.options.loss;
  const auto trained = train(ranks, options, [&](uint32_t rank) { return share_of(data, rank, ranks); });
  expect_alike(trained);
  for (size_t at = 1; at < trained[0].epochs.size(); ++at) {
    EXPECT_LE(trained[0].epochs[at].objective, trained[0].epochs[at - 1].objective + 1e-6) << at;
  }
  const std::vector<double> w(trained[0].weights.begin(), trained[0].weights.end());
  EXPECT_NEAR(trained[0].epochs.back().objective, objective(data, w, loss), 1e-6);
  // At the minimum of a convex function every derivative is 0.
  EXPECT_THAT(slopes(data, w, loss), ::testing::Each(::testing::DoubleNear(0, 1e-3)));
}

TEST(CoordinateDescent, TheObjectiveGoesDownToItsMinimumForEveryNumberOfRanks) {
  const Dataset data = toy_data(200, 12, 22);
  for (const Loss loss : kLosses) {
    for (const uint32_t ranks : {1u, 3u, 9u}) {
      SCOPED_TRACE(std::string(loss_name(loss)) + ", " + std::to_string(ranks) + " ranks");
      // Where no row is short of its margin any more the squared hinge is less curved than its bound says: steps are
      // small.
      expect_minimum(data, ranks, coordinate_descent_options_of(1, loss == Loss::kLogistic ? 200 : 1'500, loss));
    }
  }
  PeerTrainOptions options = coordinate_descent_options_of(1, 200);
  millrace::testing::set_option(options.options.job, "codec_up", "gap+bf16");
  expect_minimum(data, 3, options);
}

TEST(CoordinateDescent, AsynchronousStepsComeToTheSameMinimum) {
  const Dataset data = toy_data(200, 12, 26);
  PeerTrainOptions options = coordinate_descent_options_of(1, 200);
  const auto share = [&](uint32_t rank) { return share_of(data, rank, 3); };
  const auto synchronous = train(3, options, share);
  options.options.job.consistency = Synchronous{2};
  const auto asynchronous = train(3, options, share);
  expect_alike(asynchronous);
  EXPECT_NEAR(asynchronous[0].epochs.back().objective, synchronous[0].epochs.back().objective, 1e-4);
}

TEST(CoordinateDescent, FeaturesThatNoRowHasAreLeftOut) {
  Dataset data = toy_data(60, 10, 23);
  data.dimension = 5'000'000;
  for (uint32_t& index : data.indices) index = index * 400'001 + 7;
  PeerTrainOptions options = coordinate_descent_options_of(3, 5);
  const auto trained = train(4, options, [&](uint32_t rank) { return share_of(data, rank, 4); });
  expect_alike(trained);
  // 11 coordinates of 4 ranks: 3 each at most, so one step an epoch.
  EXPECT_EQ(trained[0].steps, 5u);
  EXPECT_LT(trained[0].epochs.back().objective, trained[0].epochs.front().objective);
  EXPECT_EQ(std::ranges::count_if(trained[0].weights, [](float w) { return w != 0; }), 11);
}

TEST(CoordinateDescent, ADenseAllgatherGivesTheSameBitsAndSendsTheWholeModel) {
  Dataset data = toy_data(60, 10, 27);
  data.dimension = 50'000;
  for (uint32_t& index : data.indices) index = index * 4'001 + 7;
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 7u, 13u}) {  // more ranks than coordinates among them
    for (const uint32_t asynchronous : {0u, 2u}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(asynchronous));
      PeerTrainOptions options = coordinate_descent_options_of(1, 3);
      options.options.job.consistency = Synchronous{asynchronous};
      const auto share = [&](uint32_t rank) { return share_of(data, rank, ranks); };
      const auto sparse = train(ranks, options, share);
      options.options.allgather = AllgatherForm::kDense;
      ASSERT_TRUE(options.optimizer->check(options.options));
      const auto dense = train(ranks, options, share);
      ASSERT_NO_FATAL_FAILURE(expect_alike(sparse));
      ASSERT_NO_FATAL_FAILURE(expect_alike(dense));
      EXPECT_EQ(dense[0].weights, sparse[0].weights);
      const uint64_t steps = dense[0].epochs[0].steps;
      // Over all ranks (P - 1) of every index's 4 bytes, and no more than a little beside that.
      const uint64_t slices = uint64_t{ranks - 1} * 4 * (data.dimension + 1) * steps;
      EXPECT_GE(dense[0].epochs[0].bytes_sum, slices);
      EXPECT_LE(dense[0].epochs[0].bytes_sum, slices + slices / 10);
      EXPECT_LE(sparse[0].epochs[0].bytes_sum, slices / 4);
    }
  }
}

TEST(CoordinateDescent, RanksWithoutRowsOrCoordinatesTakePart) {
  const Dataset data = toy_data(5, 2, 24);
  const auto trained =
      train(7, coordinate_descent_options_of(1, 3), [&](uint32_t rank) { return share_of(data, rank, 7); });
  expect_alike(trained);
  EXPECT_LT(trained[0].epochs.back().objective, std::log(2.0));
}

TEST(CoordinateDescent, CoordinateDescentRefusesUnsupportedOptions) {
  PeerTrainOptions options = coordinate_descent_options_of(1, 1);
  EXPECT_TRUE(options.optimizer->check(options.options));
  options.options.loss = Loss::kHinge;
  EXPECT_FALSE(options.optimizer->check(options.options));
  options = coordinate_descent_options_of(1, 1);
  options.options.allgather = AllgatherForm::kDense;
  millrace::testing::set_option(options.options.job, "codec_up", "gap+raw");
  EXPECT_THAT(options.optimizer->check(options.options).error().message, ::testing::HasSubstr("leave --codec-up out"));
  options.options.job.codec_up = index::raw;
  EXPECT_TRUE(options.optimizer->check(options.options));
  EXPECT_THAT(find_optimizer("sgd")->check(options.options).error().message, ::testing::HasSubstr("--optimizer scd"));
  options = coordinate_descent_options_of(1, 1);
  millrace::testing::set_option(options.options.job, "select", "topk:0.1");
  EXPECT_FALSE(options.optimizer->check(options.options));
  options = coordinate_descent_options_of(1, 1);
  millrace::testing::set_option(options.options.job, "codec_up", "auto");
  EXPECT_THAT(options.optimizer->check(options.options).error().message, ::testing::HasSubstr("no automatic codec"));
  options = coordinate_descent_options_of(1, 1);
  options.options.algorithm = peer::AlgorithmId::kGtopk;
  EXPECT_THAT(options.optimizer->check(options.options).error().message, ::testing::HasSubstr("no --algorithm"));
}

TEST(FeatureColumns, AreTheRowsTransposed) {
  const Dataset data = toy_data(20, kCoordinateDescentDimension, 25);
  std::vector<uint32_t> features(kCoordinateDescentDimension + 1);
  std::iota(features.begin(), features.end(), 0U);
  const FeatureColumns columns(data, features);
  size_t entries = 0;
  for (size_t at = 0; at < columns.count(); ++at) {
    const auto column = columns.column(at);
    entries += column.rows.size();
    for (size_t i = 0; i < column.rows.size(); ++i) {
      if (at == kCoordinateDescentDimension) {
        EXPECT_EQ(column.rows[i], i);
        EXPECT_EQ(column.values[i], 1.0F);
        continue;
      }
      const RowView row = data.row(column.rows[i]);
      const auto entry = std::ranges::find(row.indices, columns.feature(at));
      ASSERT_NE(entry, row.indices.end());
      EXPECT_EQ(row.values[static_cast<size_t>(entry - row.indices.begin())], column.values[i]);
    }
  }
  EXPECT_EQ(entries, data.indices.size() + data.rows());
  EXPECT_EQ(columns.position_of(3), 3u);
  EXPECT_EQ(columns.position_of(kCoordinateDescentDimension + 1), columns.count());
}

}  // namespace
}  // namespace millrace::training
