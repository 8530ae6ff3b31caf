#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/reduce/reduce.h"
#include "tests/worker/toys/toy_cluster.h"
#include "worker/core/residual/bucket.h"

/// The benefit of momentum correction: logistic regression on generated rows of a few frequent and many rare features
/// (as w8a's). It trains with 4 workers, in every way at the best of its learning rates. Fixed seeds.
namespace millrace::worker {
namespace {

constexpr uint64_t kFeatures = 2'000;
constexpr uint64_t kRows = 6'000;
constexpr uint64_t kRowFeatures = 12;
constexpr uint64_t kBatch = 16;
constexpr uint32_t kMomentumConvergenceWorkers = 4;
constexpr uint64_t kMomentumConvergenceSteps = 300;
constexpr double kMomentum = 0.9;

struct Row {
  std::vector<uint32_t> features;
  float label = 0;
};

float sigmoid(float margin) { return 1 / (1 + std::exp(-margin)); }

float margin_of(const Row& row, const std::vector<float>& weights) {
  float margin = 0;
  for (const uint32_t feature : row.features) margin += weights[feature];
  return margin;
}

std::vector<Row> rows_of(uint64_t seed) {
  RandomSequence random(random_key(seed));
  std::vector<float> truth(kFeatures);
  for (float& weight : truth) weight = 2 * static_cast<float>(random.next_normal());
  std::vector<Row> rows(kRows);
  for (Row& row : rows) {
    for (uint64_t i = 0; i < kRowFeatures; ++i) {
      row.features.push_back(static_cast<uint32_t>(std::pow(random.next_unit(), 3.0) * kFeatures));
    }
    std::ranges::sort(row.features);
    row.features.erase(std::unique(row.features.begin(), row.features.end()), row.features.end());
    row.label = random.next_unit() < static_cast<double>(sigmoid(margin_of(row, truth))) ? 1.0f : -1.0f;
  }
  return rows;
}

double momentum_convergence_mean_loss(const std::vector<Row>& rows, const std::vector<float>& weights) {
  double sum = 0;
  for (const Row& row : rows) {
    const auto margin = static_cast<double>(row.label * margin_of(row, weights));
    sum += std::max(0.0, -margin) + std::log1p(std::exp(-std::abs(margin)));
  }
  return sum / static_cast<double>(rows.size());
}

enum class Way {
  kPlain,       ///< no momentum
  kOnTheSums,   ///< momentum at the receivers, on the sparse sums: what
                ///< correction corrects
  kCorrection,  ///< momentum in each worker's contributions, masked
};

/// The loss after kSteps.
double train(const std::vector<Row>& rows, Way way, double density, double rate) {
  protocol::JobSpec spec = testing::toy_spec(kMomentumConvergenceWorkers, {kFeatures});
  spec.select = {.selection = SelectionId::kTopK, .density = density};
  spec.parts_per_shard = 1;
  if (way == Way::kCorrection) spec.momentum = {protocol::Momentum::kCorrection, kMomentum, true};
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<RandomSequence> draws;
  for (uint32_t worker = 0; worker < kMomentumConvergenceWorkers; ++worker) {
    buckets.push_back(std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts));
    draws.emplace_back(random_key(worker));
  }
  std::vector<float> weights(kFeatures, 0.0f);
  std::vector<float> velocity(kFeatures, 0.0f);
  for (uint64_t step = 0; step < kMomentumConvergenceSteps; ++step) {
    std::vector<float> sum(kFeatures, 0.0f);
    for (uint32_t worker = 0; worker < kMomentumConvergenceWorkers; ++worker) {
      std::vector<float> gradient(kFeatures, 0.0f);
      for (uint64_t i = 0; i < kBatch; ++i) {
        const Row& row = rows[draws[worker].next_below(rows.size())];
        const float slope = -row.label * sigmoid(-row.label * margin_of(row, weights)) / kBatch;
        for (const uint32_t feature : row.features) gradient[feature] += slope;
      }
      EXPECT_TRUE(buckets[worker]->slot(0).add_dense(gradient, 1));
      EXPECT_TRUE(buckets[worker]->select(step));
      const auto coded = buckets[worker]->code(0, {});
      EXPECT_TRUE(coded);
      add_scaled(sum, coded->sent.view, 1.0f / kMomentumConvergenceWorkers);
      buckets[worker]->mask_applied(0, step, coded->sent, nullptr);
    }
    for (uint64_t i = 0; i < kFeatures; ++i) {
      velocity[i] = (way == Way::kOnTheSums ? static_cast<float>(kMomentum) * velocity[i] : 0.0f) + sum[i];
      weights[i] -= static_cast<float>(rate) * velocity[i];
    }
  }
  return momentum_convergence_mean_loss(rows, weights);
}

/// Over the seeds, at the best of the rates.
double best(Way way, double density, std::initializer_list<double> rates) {
  static const std::vector<std::vector<Row>> kData = {rows_of(1), rows_of(2), rows_of(3)};
  double least = 1e9;
  double least_at = 0;
  for (const double rate : rates) {
    double loss = 0;
    for (const std::vector<Row>& rows : kData)
      loss += train(rows, way, density, rate) / static_cast<double>(kData.size());
    if (loss < least) least = loss, least_at = rate;
  }
  // The best lies within the grid: a rate at its end could have been better still.
  EXPECT_NE(least_at, *rates.begin());
  EXPECT_NE(least_at, *(rates.end() - 1));
  return least;
}

struct Density {
  double density = 0;
  bool beats_none = false;  ///< below 1 %, plain error feedback at its own best rate is as good in this number of steps
};

void PrintTo(const Density& density, std::ostream* out) { *out << density.density; }

class MomentumCorrection : public ::testing::TestWithParam<Density> {};

TEST_P(MomentumCorrection, ReachesALowerLossThanMomentumOnTheSums) {
  const double density = GetParam().density;
  const double on_sums = best(Way::kOnTheSums, density, {0.25, 0.5, 1, 2, 4});
  const double corrected = best(Way::kCorrection, density, {0.5, 1, 2, 4, 8});
  RecordProperty("losses", std::to_string(on_sums) + " " + std::to_string(corrected));
  EXPECT_LT(corrected, on_sums);
  if (GetParam().beats_none) {
    EXPECT_LT(corrected, best(Way::kPlain, density, {8, 16, 32}));
  }
}

INSTANTIATE_TEST_SUITE_P(Densities, MomentumCorrection,
                         ::testing::Values(Density{0.01, true}, Density{0.003, false}, Density{0.001, false}));

}  // namespace
}  // namespace millrace::worker
