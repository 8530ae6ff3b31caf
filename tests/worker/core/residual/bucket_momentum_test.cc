#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/watched_core.h"
#include "tests/worker/core/residual/momentum_oracle.h"
#include "tests/worker/core/scripted_core.h"
#include "tests/worker/toys/toy_cluster.h"
#include "worker/core/residual/local_clip.h"

/// Momentum and clipping in a worker's core: the values that enter, the mask of updates, the saved state.
namespace millrace::worker {
namespace {

using protocol::Combine;
using protocol::Contribution;
using protocol::Momentum;
using testing::Algorithm4;
using EnteringEntries = std::vector<std::pair<uint32_t, float>>;

std::vector<float> entering_dense_of(const StreamView& stream) {
  const Stream dense = to_dense(stream);
  return {dense.values.begin(), dense.values.end()};
}

/// A cluster whose shards leave out workers and carry a part, beside an oracle for each worker and bucket.
class ClusterAndOracles {
 public:
  explicit ClusterAndOracles(uint64_t seed) : random_(random_key(seed)) {
    options_.spec = testing::toy_spec(3, {700, 90, 64});
    options_.spec.fuse_below = 100;
    options_.spec.select = {.selection = SelectionId::kTopK, .k = 9};
    options_.spec.momentum = {Momentum::kCorrection, 0.5, true};
    options_.spec.parts_per_shard = 2;
    options_.shards = 2;
    options_.seed = seed;
    options_.settle_rate = 0.01;
    cluster_ = std::make_unique<testing::ToyCluster>(options_);
    for (uint32_t shard = 0; shard < options_.shards; ++shard) {
      cluster_->shard(shard).count = [seed](uint32_t part, uint64_t step, const std::set<uint32_t>& in) {
        std::set<uint32_t> counted = in;
        counted.erase(static_cast<uint32_t>((part + step + seed) % 5));
        return counted;
      };
      cluster_->shard(shard).carry = [seed](uint32_t, uint64_t step, uint64_t index) {
        return (index * 7 + step + seed) % 3 != 0;
      };
    }
    for (uint32_t worker = 0; worker < options_.spec.workers; ++worker) {
      for (const protocol::BucketLayout& bucket : layout().buckets) {
        oracles_[{worker, bucket.bucket}] = std::make_unique<Algorithm4>(bucket.dimension, bucket.select.k, 0.5f);
      }
    }
    while (cluster_->core(0).phase() != Phase::kRunning || cluster_->core(1).phase() != Phase::kRunning ||
           cluster_->core(2).phase() != Phase::kRunning) {
      cluster_->step();
    }
  }

  void step(uint64_t step) {
    std::map<std::pair<uint32_t, uint32_t>, std::map<uint64_t, float>> sent;
    for (uint32_t worker = 0; worker < options_.spec.workers; ++worker) {
      for (const protocol::BucketLayout& bucket : layout().buckets) {
        Algorithm4& oracle = *oracles_[{worker, bucket.bucket}];
        oracle.push(push(worker, bucket));
        sent[{worker, bucket.bucket}] = oracle.send();
      }
    }
    ASSERT_TRUE(cluster_->settle());
    for (auto& [who, entries] : sent) update(step, who.first, who.second, entries);
    for (uint32_t worker = 0; worker < options_.spec.workers; ++worker) compare(worker);
  }

 private:
  const protocol::JobLayout& layout() const { return cluster_->table().layout; }

  std::vector<float> push(uint32_t worker, const protocol::BucketLayout& bucket) {
    std::vector<float> whole;
    for (const protocol::BucketMember& member : bucket.members) {
      std::vector<float> gradient(options_.spec.tensors[member.tensor].dimension, 0.0f);
      for (float& value : gradient) {
        if (random_.next_below(6) == 0)
          value = static_cast<float>(static_cast<int64_t>(random_.next_below(65)) - 32) / 8;
      }
      EXPECT_TRUE(cluster_->core(worker).push_dense(member.tensor, gradient, 1, cluster_->now()));
      whole.insert(whole.end(), gradient.begin(), gradient.end());
    }
    return whole;
  }

  void update(uint64_t step, uint32_t worker, uint32_t bucket, const std::map<uint64_t, float>& sent) {
    Algorithm4& oracle = *oracles_[{worker, bucket}];
    for (const auto& [index, value] : sent) {
      for (const protocol::PartLayout& part : layout().parts) {
        if (part.bucket != bucket || index < part.begin || index >= part.end) continue;
        const testing::ToyDecision& decision = cluster_->shard(part.shard).log(part.part).at(step);
        if (decision.counted.contains(worker) && decision.carried.contains(index)) {
          oracle.applied(index);
          ++masked;
        } else {
          oracle.returned(index, value);
          ++returned;
        }
      }
    }
  }

  void compare(uint32_t worker) {
    const SessionCore& core = cluster_->core(worker);
    const SavedState saved = core.saved_state();
    for (const protocol::BucketLayout& bucket : layout().buckets) {
      const Algorithm4& oracle = *oracles_[{worker, bucket.bucket}];
      EXPECT_EQ(entering_dense_of(core.residual(bucket.bucket).view()), oracle.residual);
      std::vector<float> velocity;
      for (const protocol::BucketMember& member : bucket.members) {
        ASSERT_TRUE(saved.tensors[member.tensor].momentum.has_value());
        const std::vector<float> own = entering_dense_of(saved.tensors[member.tensor].momentum->view());
        velocity.insert(velocity.end(), own.begin(), own.end());
      }
      EXPECT_EQ(velocity, oracle.velocity);
    }
  }

  testing::ToyClusterOptions options_;
  RandomSequence random_;
  std::unique_ptr<testing::ToyCluster> cluster_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Algorithm4>> oracles_;

 public:
  uint64_t masked = 0;
  uint64_t returned = 0;
};

TEST(MomentumOfACluster, FollowsTheUpdatesOfLoneAndFusedTensors) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ClusterAndOracles cluster(seed);
    for (uint64_t step = 0; step < 12 && !::testing::Test::HasFailure(); ++step) cluster.step(step);
    EXPECT_GT(cluster.masked, 300u);
    EXPECT_GT(cluster.returned, 300u);
  }
}

struct MomentumCore : testing::ScriptedCore {
  MomentumCore() {
    config_.spec.select = {.selection = SelectionId::kTopK, .k = 1};
    config_.spec.momentum = {Momentum::kCorrection, 0.5, true};
    config_.spec.audit = true;
  }
  EnteringEntries velocity() const {
    const Stream all = to_sparse(core_->saved_state().tensors[0].momentum->view());
    EnteringEntries entries;
    for (size_t i = 0; i < all.values.size(); ++i) entries.emplace_back(all.indices[i], all.values[i]);
    return entries;
  }
};

TEST_F(MomentumCore, LateContribution_KeepsItsVelocityAndAnAppliedOneEndsIt) {
  config_.spec.mode = protocol::Mode::kBoundedStaleness;
  config_.spec.staleness = 1;
  config_.spec.quorum = 1;
  make_running();
  push({5, 6}, {4, 1});
  push({6}, {1});
  EXPECT_EQ(velocity(), (EnteringEntries{{5, 2}, {6, 1.5f}}));
  // Step 0 was decided without this worker: 5 is returned, with its velocity.
  protocol::Update late = update_of(0, 0);
  late.contributors = {{1, 1}};
  hear(0, late, sum_of({{9, 1}}, part_dimension(0)));
  hear_update(1, 0, {});
  EXPECT_EQ(velocity(), (EnteringEntries{{5, 2}, {6, 1.5f}}));
  // Step 1 counted it: 6 was sent (1 + 1.5), nothing else.
  hear_update(0, 1, {{6, 2.5f}});
  hear_update(1, 1, {});
  EXPECT_EQ(velocity(), (EnteringEntries{{5, 2}}));
  EXPECT_EQ(residual(), (EnteringEntries{{5, 6}})) << "4 returned, 2 entered with the second push";
}

TEST_F(MomentumCore, AnUpdateThatComesAfterTheNextPushMasksThatPushToo) {
  config_.spec.staleness = 1;
  make_running();
  push({5}, {4});
  push({5}, {1});  // U = 3, sent at once; step 0 is not answered yet
  EXPECT_EQ(velocity(), (EnteringEntries{{5, 3}}));
  hear_update(0, 0, {{5, 4}});
  hear_update(1, 0, {});
  EXPECT_EQ(velocity(), EnteringEntries()) << "the update says that 5 was applied";
  push({5}, {1});
  EXPECT_EQ(velocity(), (EnteringEntries{{5, 1}}));
}

TEST_F(MomentumCore, TheAuditCountsWhatEntersAfterMomentum) {
  make_running();
  push({5, 150'000}, {4, 1});
  double entered = 0;
  for (const auto& [shard, message] : take_sent<Contribution>())
    entered += std::get<Contribution>(message.body).entered;
  EXPECT_EQ(entered, 5.0);
  hear_update(0, 0, {{5, 4}});
  hear_update(1, 0, {});
  push({6}, {1});  // with it enters half of the velocity of 150,000; that of 5 is masked
  entered = 0;
  for (const auto& [shard, message] : take_sent<Contribution>())
    entered += std::get<Contribution>(message.body).entered;
  EXPECT_EQ(entered, 5.0 + 1.0 + 0.5);
}

TEST_F(MomentumCore, TheSavedStateIncludesPushesThatHaveNotEntered) {
  make_running();
  push({5}, {4});
  protocol::Update nothing = update_of(0, 0);  // counted, not carried: it is returned
  nothing.whole_sum = false;
  hear(0, nothing, sum_of({}, part_dimension(0)));
  hear_update(1, 0, {});
  ASSERT_TRUE(core().slot(0).add_sparse(std::vector<uint32_t>{5, 6}, std::vector<float>{1, 2}, 1));
  EXPECT_EQ(residual(), (EnteringEntries{{5, 4}})) << "before the selection nothing has entered";
  const SavedState saved = core().saved_state();
  EXPECT_EQ(saved.tensors[0].residual.indices, (IndexBuffer{5, 6}));
  EXPECT_EQ(saved.tensors[0].residual.values, (Buffer<float>{4 + 3, 2}));
  EXPECT_EQ(saved.tensors[0].momentum->indices, (IndexBuffer{5, 6}));
  EXPECT_EQ(saved.tensors[0].momentum->values, (Buffer<float>{3, 2}));
  EXPECT_EQ(residual(), (EnteringEntries{{5, 4}})) << "saving changes nothing";
}

protocol::JobSpec clipped_spec() {
  protocol::JobSpec spec = testing::toy_spec(4, {100, 100});
  spec.fuse_below = 0;
  spec.clip = 5;
  return spec;
}

TEST(LocalClip, ScalesASumByTheNormOverAllTensorsAndTheRootOfTheWorkers) {
  LocalClip clip(clipped_spec());
  EXPECT_FALSE(clip.complete(0));
  clip.pushed(0, 0, 9);
  EXPECT_FALSE(clip.complete(0));
  clip.pushed(0, 1, 16);
  ASSERT_TRUE(clip.complete(0));
  EXPECT_EQ(clip.factor(0), 0.5f) << "5 / sqrt(4) over 5";
  clip.taken(0, 2);
  clip.pushed(1, 1, 4);  // the first bucket may run ahead
  clip.taken(0, 2);
  clip.pushed(1, 0, 2.25);
  EXPECT_EQ(clip.factor(1), 1.0f) << "2.5 is not over 2.5";
  protocol::JobSpec sampled = clipped_spec();
  sampled.mode = protocol::Mode::kPartial;
  sampled.participants = 1;
  LocalClip of_one(sampled);
  of_one.pushed(0, 0, 100);
  EXPECT_EQ(of_one.factor(0), 0.5f) << "one worker a step: the whole threshold";
  EXPECT_TRUE(LocalClip(testing::toy_spec(2, {5})).complete(7)) << "jobs that do not clip wait for nothing";
}

/// Returns the update of a dense job of these gradients: combined, then scaled down to a norm of `clip`.
std::vector<double> combined_and_clipped(const std::vector<std::vector<float>>& gradients, Combine combine,
                                         double clip) {
  std::vector<double> all(gradients.front().size());
  const double divisor = combine == Combine::kSum ? 1 : static_cast<double>(gradients.size());
  for (const std::vector<float>& gradient : gradients)
    for (size_t i = 0; i < all.size(); ++i) all[i] += gradient[i] / divisor;
  const double norm = std::sqrt(std::inner_product(all.begin(), all.end(), all.begin(), 0.0));
  for (double& value : all) value *= std::min(1.0, clip / norm);
  return all;
}

TEST(LocalClip, NoiseOfAllWorkersCombinedIsClippedAsInADenseJob) {
  constexpr size_t kNoise = 40'000;
  for (const Combine combine : {Combine::kSum, Combine::kMean, Combine::kWeightedMean}) {
    for (const uint32_t workers : {1u, 2u, 5u, 16u}) {
      SCOPED_TRACE(fmt::format("{} workers, combine {}", workers, static_cast<int>(combine)));
      std::mt19937 random(workers);
      std::normal_distribution<float> normal(0, 1);
      protocol::JobSpec spec = testing::toy_spec(workers, {kNoise});
      spec.combine = combine;
      spec.clip = 3;
      std::vector<std::vector<float>> gradients(workers, std::vector<float>(kNoise)), clipped;
      for (std::vector<float>& gradient : gradients) {
        std::ranges::generate(gradient, [&] { return normal(random); });
        LocalClip clip(spec);
        clip.pushed(0, 0, squared_norm_of(gradient));
        clipped.push_back(gradient);
        for (float& value : clipped.back()) value *= clip.factor(0);
      }
      const std::vector<double> expected = combined_and_clipped(gradients, combine, spec.clip);
      const std::vector<double> found = combined_and_clipped(clipped, combine, std::numeric_limits<double>::infinity());
      double squares = 0, apart = 0;
      for (size_t i = 0; i < kNoise; ++i) {
        squares += found[i] * found[i];
        apart += (found[i] - expected[i]) * (found[i] - expected[i]);
      }
      EXPECT_NEAR(std::sqrt(squares), 3, 0.06);
      EXPECT_LE(std::sqrt(apart), 0.06);
    }
  }
}

TEST(LocalClip, AStepOfAsynchronousJobsIsOneWorkers) {
  for (const Combine combine : {Combine::kSum, Combine::kMean}) {
    protocol::JobSpec spec = testing::toy_spec(4, {5});
    spec.mode = protocol::Mode::kAsynchronous;
    spec.combine = combine;
    spec.clip = 5;
    LocalClip clip(spec);
    clip.pushed(0, 0, 100);
    EXPECT_EQ(clip.factor(0), 0.5f);
  }
}

struct ClippedCore : testing::ScriptedCore {
  ClippedCore() {
    config_.spec = clipped_spec();
    config_.spec.workers = 2;
    config_.spec.workers_min = 1;
    config_.spec.clip = 3.53553390593273762200422181052;  // 2.5 sqrt(2)
    config_.spec.parts_per_shard = 1;
  }
  void make_running_two_tensors() {
    core_ = std::make_unique<testing::WatchedCore>(config_);
    core_->start(now_, actions_);
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core_->on_connected(shard, now_, actions_);
      welcome(shard);
    }
    ASSERT_EQ(core_->phase(), Phase::kRunning);
    actions_.clear();
  }
  void push_into(uint32_t tensor, const EnteringEntries& entries, float weight = 1) {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    for (const auto& [index, value] : entries) indices.push_back(index), values.push_back(value);
    ASSERT_TRUE(core_->push_sparse(tensor, indices, values, weight, now_));
    while (core_->work(now_, actions_)) {
    }
  }
  /// Returns the sent entries, by bucket.
  std::map<uint32_t, EnteringEntries> sent() {
    std::map<uint32_t, EnteringEntries> all;
    for (uint32_t bucket = 0; bucket < 2; ++bucket) {
      for (const OutstandingView& out : core_->outstanding(bucket)) {
        for (size_t i = 0; i < out.sent.values.size(); ++i)
          all[bucket].emplace_back(out.sent.indices[i], out.sent.values[i]);
      }
    }
    return all;
  }
};

TEST_F(ClippedCore, AStepGoesOutWhenEveryTensorIsPushedScaledByTheNormOfAll) {
  make_running_two_tensors();
  push_into(0, {{1, 3}});
  EXPECT_TRUE(sent().empty()) << "the norm is not known yet";
  EXPECT_EQ(core().residual(0).count(), 0u);
  EXPECT_EQ(core().entered(0)[1], 0.0);
  EXPECT_NE(core().waiting_for().find("tensor 't1' has not been pushed for step 0"), std::string::npos)
      << core().waiting_for();
  const Status early = core().finish(now_, actions_);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kInvalidArgument);
  push_into(1, {{2, -4}});
  EXPECT_EQ(sent(), (std::map<uint32_t, EnteringEntries>{{0, {{1, 1.5f}}}, {1, {{2, -2}}}}));
  EXPECT_EQ(core().entered(0)[1], 1.5);
  EXPECT_EQ(core().entered(1)[2], -2.0);
  EXPECT_EQ(core().waiting_for().find("has not been pushed"), std::string::npos);
}

TEST_F(ClippedCore, AShortGradientIsLeftAsItIsAndTheWeightComesAfterTheNorm) {
  config_.spec.combine = protocol::Combine::kWeightedMean;
  make_running_two_tensors();
  push_into(0, {{1, 1.5f}}, 8);
  push_into(1, {{2, 2}}, 8);
  EXPECT_EQ(sent(), (std::map<uint32_t, EnteringEntries>{{0, {{1, 12}}}, {1, {{2, 16}}}}));
}

TEST_F(ClippedCore, MomentumComesAfterClipping) {
  config_.spec.momentum = {Momentum::kCorrection, 0.5, true};
  make_running_two_tensors();
  for (uint64_t step = 0; step < 2; ++step) {
    push_into(0, {{1, 3}});
    push_into(1, {{2, 4}});
    if (step == 1) break;
    for (uint32_t part = 0; part < 2; ++part) {
      hear(core().layout().parts[part].shard, update_of(part, 0), sum_of({{1, 1}}, part_dimension(part)));
    }
  }
  EXPECT_EQ(sent(), (std::map<uint32_t, EnteringEntries>{{0, {{1, 1.5f + 0.75f}}}, {1, {{2, 2 + 1}}}}));
}

}  // namespace
}  // namespace millrace::worker
