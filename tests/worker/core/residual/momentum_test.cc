#include "worker/core/residual/momentum.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/magnitude/value_chunks.h"
#include "tests/support/index_ledger.h"
#include "tests/worker/core/residual/momentum_oracle.h"
#include "tests/worker/core/scripted_core.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/idle_tensor.h"

/// Momentum and masking against [RedSync19, algorithm 4]. Gradients lie on a binary grid, the factor is 1/2 and runs
/// are short, so that every sum is exact and equality is asked for.
namespace millrace::worker {
namespace {

using protocol::Momentum;
using testing::Algorithm4;
using testing::Nesterov;

constexpr float kFactor = 0.5f;
constexpr uint64_t kMomentumSteps = 12;

std::vector<float> momentum_dense_of(const StreamView& stream) {
  const Stream dense = to_dense(stream);
  return {dense.values.begin(), dense.values.end()};
}

/// The pushes of a bucket, and the outcome of its contributions.
struct Run {
  const char* name;
  Momentum momentum = Momentum::kCorrection;
  bool masked = true;
  std::vector<uint64_t> dimensions = {700};
  double dense_rate = 0.5;
  double carried_rate = 1;   ///< the share of the sent entries that an update carries
  double counted_rate = 1;   ///< of contributions
  size_t in_flight_max = 1;  ///< steps that are pushed before the oldest update comes
  uint32_t dense_steps = 0;  ///< of the warm-up: they send everything and mask nothing
  bool restores = false;     ///< residual and velocity are taken and restored between steps
};

Nesterov nesterov_of(Momentum momentum) {
  return momentum == Momentum::kNesterov          ? Nesterov::kLookAhead
         : momentum == Momentum::kNesterovPrinted ? Nesterov::kPrinted
                                                  : Nesterov::kNo;
}

void PrintTo(const Run& run, std::ostream* out) { *out << run.name; }

/// A bucket and its oracle, driven alike.
class Twin {
 public:
  Twin(const Run& run, uint64_t seed) : run_(run), random_(random_key(seed)) {
    spec_ = testing::toy_spec(1, run.dimensions);
    spec_.select = {.selection = SelectionId::kTopK, .k = 9};
    if (run.dense_steps > 0) spec_.select.warm_up = WarmUp::kDense;
    spec_.select.warm_up_steps = run.dense_steps;
    spec_.momentum = {run.momentum, kFactor, run.masked};
    spec_.parts_per_shard = 3;
    EXPECT_TRUE(protocol::validate(spec_));
    layout_ = protocol::plan_layout(spec_, 1);
    EXPECT_EQ(layout_.buckets.size(), 1u) << "all tensors of a run travel together";
    const protocol::BucketLayout& planned = layout_.buckets.at(0);
    ledger_ = std::make_unique<testing::IndexLedger>(layout_);
    bucket_ = std::make_unique<Bucket>(spec_, planned, layout_.parts, ledger_.get());
    oracle_ = std::make_unique<Algorithm4>(planned.dimension, planned.select.k, kFactor, nesterov_of(run.momentum));
    entered_.assign(planned.dimension, 0.0);
  }

  void step(uint64_t step) {
    push();
    ASSERT_TRUE(bucket_->select(step));
    send(step);
    while (in_flight_.size() >= run_.in_flight_max + random_.next_below(2) && !in_flight_.empty()) update();
    for (uint64_t pieces = random_.next_below(4); pieces > 0; --pieces) bucket_->resolve_one_deferred();
    if (run_.restores && in_flight_.empty()) take_and_restore();
    compare();
  }
  /// Algorithm 4 as printed: the mask at the selection. Everything is applied before the next push.
  void step_as_printed(uint64_t step, Algorithm4& printed) {
    const std::vector<float> gradient = push();
    printed.push(gradient);
    ASSERT_TRUE(bucket_->select(step));
    send(step);
    EXPECT_EQ(in_flight_.back().sent, printed.send_and_mask());
    update();
    compare();
    EXPECT_EQ(oracle_->velocity, printed.velocity);
    EXPECT_EQ(oracle_->residual, printed.residual);
  }
  uint64_t k() const { return layout_.buckets.at(0).select.k; }
  uint64_t dimension() const { return layout_.buckets.at(0).dimension; }
  uint64_t returned() const { return returned_; }

 private:
  struct InFlight {
    uint64_t step = 0;
    std::vector<SharedStream> parts;
    std::map<uint64_t, float> sent;
  };

  void take_and_restore() {
    std::vector<std::pair<Stream, Stream>> taken;
    for (size_t slot = 0; slot < bucket_->slot_count(); ++slot) {
      const IdleTensor tensor{bucket_.get(), &bucket_->slot(slot)};
      taken.emplace_back(tensor.take_residual(), tensor.take_velocity());
    }
    EXPECT_EQ(bucket_->residual().count(), 0u);
    EXPECT_EQ(to_sparse(bucket_->state(1).velocity->view()).count(), 0u);
    for (size_t slot = 0; slot < taken.size(); ++slot) {
      auto& [residual, velocity] = taken[slot];
      EXPECT_TRUE((IdleTensor{bucket_.get(), &bucket_->slot(slot)}.restore(std::move(residual), velocity.view())));
    }
  }

  std::vector<float> push() {
    std::vector<float> whole;
    const bool all_dense = random_.next_unit() < run_.dense_rate;
    for (size_t slot = 0; slot < run_.dimensions.size(); ++slot) {
      std::vector<float> gradient(run_.dimensions[slot], 0.0f);
      Stream entries = Stream::empty(gradient.size());
      for (uint32_t i = 0; i < gradient.size(); ++i) {
        if (random_.next_below(8) != 0) continue;
        gradient[i] = static_cast<float>(static_cast<int64_t>(random_.next_below(65)) - 32) / 8;
        entries.indices.push_back(i);
        entries.values.push_back(gradient[i]);
      }
      const bool dense = all_dense || random_.next_unit() < run_.dense_rate;
      EXPECT_TRUE(dense ? bucket_->slot(slot).add_dense(gradient, 1)
                        : bucket_->slot(slot).add_sparse(entries.indices, entries.values, 1));
      whole.insert(whole.end(), gradient.begin(), gradient.end());
    }
    const std::vector<float> before = oracle_->residual;
    oracle_->push(whole);
    for (size_t i = 0; i < whole.size(); ++i) {
      entered_[i] += static_cast<double>(oracle_->residual[i]) - static_cast<double>(before[i]);
    }
    return whole;
  }

  void send(uint64_t step) {
    InFlight flight;
    flight.step = step;
    std::map<uint64_t, float> decoded;
    for (size_t at = 0; at < layout_.parts.size(); ++at) {
      auto coded = bucket_->code(at, {});
      ASSERT_TRUE(coded);
      const StreamView& sent = coded->sent.view;
      for (size_t i = 0; i < sent.values.size(); ++i) {
        if (sent.values[i] != 0) decoded[layout_.parts[at].begin + (sent.dense ? i : sent.indices[i])] = sent.values[i];
      }
      flight.parts.push_back(std::move(coded->sent));
    }
    flight.sent = step < run_.dense_steps ? oracle_->send_everything() : oracle_->send();
    EXPECT_EQ(decoded, flight.sent);
    in_flight_.push_back(std::move(flight));
  }

  /// Of the oldest step: counted or not, carried in part.
  void update() {
    InFlight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (size_t at = 0; at < layout_.parts.size(); ++at) {
      const protocol::PartLayout& part = layout_.parts[at];
      SharedStream sent = std::move(flight.parts[at]);
      const bool counted = random_.next_unit() < run_.counted_rate;
      const bool whole = run_.carried_rate == 1;
      Stream carried = Stream::empty(part.end - part.begin);
      for (auto entry = flight.sent.lower_bound(part.begin); entry != flight.sent.lower_bound(part.end); ++entry) {
        const bool goes = counted && random_.next_unit() < run_.carried_rate;
        if (goes && run_.masked && flight.step >= run_.dense_steps) oracle_->applied(entry->first);
        if (!goes) oracle_->returned(entry->first, entry->second), ++returned_;
        if (!goes) continue;
        carried.indices.push_back(static_cast<uint32_t>(entry->first - part.begin));
        carried.values.push_back(1);
      }
      const auto held = SharedStream::from(std::move(carried));
      if (counted) bucket_->mask_applied(at, flight.step, sent, whole ? nullptr : &held);
      if (!counted) {
        bucket_->give_back(at, sent.copy());
      } else if (!whole) {
        bucket_->return_uncarried(at, std::move(sent), held);
      }
    }
  }

  void compare() {
    EXPECT_EQ(momentum_dense_of(bucket_->residual().view()), oracle_->residual);
    const BucketState state = bucket_->state(1);
    ASSERT_TRUE(state.velocity.has_value());
    EXPECT_EQ(momentum_dense_of(state.velocity->view()), oracle_->velocity);
    EXPECT_EQ(momentum_dense_of(state.residual.view()), oracle_->residual);
    EXPECT_TRUE(std::ranges::equal(ledger_->entered(0), entered_)) << "what enters is the gradient after momentum";
  }

  Run run_;
  RandomSequence random_;
  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  std::unique_ptr<testing::IndexLedger> ledger_;
  std::unique_ptr<Bucket> bucket_;
  std::unique_ptr<Algorithm4> oracle_;
  std::deque<InFlight> in_flight_;
  std::vector<double> entered_;
  uint64_t returned_ = 0;
};

class MomentumRuns : public ::testing::TestWithParam<Run> {};

TEST_P(MomentumRuns, AreTheAlgorithmsStepByStep) {
  uint64_t returned = 0;
  for (uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    Twin twin(GetParam(), seed);
    for (uint64_t step = 0; step < kMomentumSteps && !HasFailure(); ++step) twin.step(step);
    returned += twin.returned();
  }
  const bool some_return = GetParam().carried_rate < 1 || GetParam().counted_rate < 1;
  EXPECT_EQ(returned > 100, some_return);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, MomentumRuns,
    ::testing::Values(
        Run{.name = "Correction"}, Run{.name = "CorrectionSparseOnly", .dense_rate = 0},
        Run{.name = "CorrectionDenseOnly", .dense_rate = 1}, Run{.name = "Nesterov", .momentum = Momentum::kNesterov},
        Run{.name = "NesterovSparseOnly", .momentum = Momentum::kNesterov, .dense_rate = 0},
        Run{.name = "NesterovPrinted", .momentum = Momentum::kNesterovPrinted},
        Run{.name = "NesterovPrintedSparseOnly", .momentum = Momentum::kNesterovPrinted, .dense_rate = 0},
        Run{.name = "Unmasked", .masked = false}, Run{.name = "DenseFirstSteps", .dense_steps = 5},
        Run{.name = "DenseFirstStepsSparseOnly", .dense_rate = 0, .dense_steps = 5},
        Run{.name = "DenseFirstStepsNesterov", .momentum = Momentum::kNesterov, .dense_steps = 5},
        Run{.name = "DenseFirstStepsFused", .dimensions = {300, 90, 64}, .dense_rate = 0.3, .dense_steps = 5},
        Run{.name = "DenseFirstStepsLate", .counted_rate = 0.5, .dense_steps = 5},
        Run{.name = "DenseFirstStepsAhead", .counted_rate = 0.8, .in_flight_max = 3, .dense_steps = 5},
        Run{.name = "Fused", .dimensions = {300, 90, 64}, .dense_rate = 0.3}, Run{.name = "Restored", .restores = true},
        Run{.name = "RestoredSparseOnly", .dense_rate = 0, .restores = true},
        Run{.name = "RestoredFusedReselection",
            .dimensions = {90, 300, 64},
            .dense_rate = 0.3,
            .carried_rate = 0.5,
            .restores = true},
        Run{.name = "FusedReselection", .dimensions = {90, 300, 64}, .carried_rate = 0.5},
        Run{.name = "Reselection", .carried_rate = 0.4},
        Run{.name = "ReselectionSparseOnly", .dense_rate = 0, .carried_rate = 0.4},
        Run{.name = "LateContributions", .counted_rate = 0.5},
        Run{.name = "StepsAhead", .carried_rate = 0.6, .counted_rate = 0.8, .in_flight_max = 3},
        Run{.name = "StepsAheadSparseOnly",
            .momentum = Momentum::kNesterov,
            .dense_rate = 0,
            .carried_rate = 0.6,
            .counted_rate = 0.8,
            .in_flight_max = 3}),
    [](const auto& of_run) { return std::string(of_run.param.name); });

TEST(Momentum, WithEverythingAppliedItIsAlgorithm4AsPrinted) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Twin twin({.name = "as printed"}, seed);
    Algorithm4 printed(twin.dimension(), twin.k(), kFactor);
    for (uint64_t step = 0; step < kMomentumSteps; ++step) twin.step_as_printed(step, printed);
  }
}

/// Returns the contributions of one worker alone.
std::vector<std::vector<float>> all_sent(Momentum momentum, const char* select,
                                         const std::vector<std::vector<float>>& gradients) {
  protocol::JobSpec spec = testing::toy_spec(1, {gradients[0].size()});
  spec.momentum = {momentum, kFactor, true};
  spec.select = selection_from_text(select).value();
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  Bucket bucket(spec, layout.buckets.at(0), layout.parts);
  std::vector<std::vector<float>> sent;
  for (size_t step = 0; step < gradients.size(); ++step) {
    EXPECT_TRUE(bucket.slot(0).add_dense(gradients[step], 1));
    EXPECT_TRUE(bucket.select(step));
    const auto coded = bucket.code(0, {});
    EXPECT_TRUE(coded);
    sent.push_back(momentum_dense_of(coded->sent.view));
    bucket.mask_applied(0, step, coded->sent, nullptr);
  }
  return sent;
}

TEST(Momentum, AStepThatSendsEverythingIsNotMaskedAndIsMomentumSgds) {
  // One index, by hand: U = 1, 2.5, 1.25; Nesterov's enters G + U / 2, as printed G + U.
  const std::vector<std::vector<float>> gradients = {{1}, {2}, {0}};
  // However it comes to that: no selection, an amount that is all, dense first steps, a size that by_size leaves alone.
  for (const char* select :
       {"none", "topk:1", "topk:7", "trimmed:1", "binary_search:1", "sampled:1", "radix:1", "bucket_topk:1", "random:1",
        "topk:0.5:dense=3", "threshold:100:dense=3", "gaussian:0.1:dense=3", "trimmed:0.5:signs:dense=3",
        "by_size:0.001", "by_size:0.001:signs"}) {
    SCOPED_TRACE(select);
    using Sent = std::vector<std::vector<float>>;
    EXPECT_EQ(all_sent(Momentum::kCorrection, select, gradients), (Sent{{1}, {2.5f}, {1.25f}}));
    EXPECT_EQ(all_sent(Momentum::kNesterov, select, gradients), (Sent{{1.5f}, {3.25f}, {0.625f}}));
    EXPECT_EQ(all_sent(Momentum::kNesterovPrinted, select, gradients), (Sent{{2}, {4.5f}, {1.25f}}));
  }
}

TEST(Momentum, ALongGradientEntersAlikeOnAnyNumberOfThreads) {
  constexpr size_t kEntries = 4 * kValueChunk + 3;
  const auto gradient_of = [](size_t index, uint32_t step) { return static_cast<float>((index + 7 * step) % 64); };
  for (const size_t threads : {1, 2, 4}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    Velocity velocity({Momentum::kNesterov, kFactor, true}, kEntries);
    for (uint32_t step = 0; step < 2; ++step) {
      std::vector<float> gradient(kEntries);
      for (size_t i = 0; i < kEntries; ++i) gradient[i] = gradient_of(i, step);
      const Stream entering = velocity.enter(std::span<const float>(gradient));
      ASSERT_EQ(entering.values.size(), kEntries);
      size_t wrong = 0;
      for (size_t i = 0; i < kEntries; ++i) {
        const float moved = step == 0 ? gradient[i] : kFactor * gradient_of(i, 0) + gradient[i];
        if (entering.values[i] != gradient[i] + kFactor * moved) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << threads << " threads, step " << step;
    }
  }
}

TEST(Momentum, ReselectedUpdatesAreMaskedExceptInDenseSteps) {
  for (const bool dense_steps : {false, true}) {
    protocol::JobSpec spec = testing::toy_spec(1, {2});
    spec.momentum = {Momentum::kCorrection, kFactor, true};
    spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 1};
    if (dense_steps) spec.select = selection_from_text("topk:0.5:dense=2").value();
    const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
    Bucket bucket(spec, layout.buckets.at(0), layout.parts);
    EXPECT_EQ(bucket.masks(0), !dense_steps) << "updates of dense first steps carry all";
    EXPECT_EQ(bucket.masks(1), !dense_steps);
    EXPECT_TRUE(bucket.masks(2));
  }
}

TEST(Momentum, OfATensorPushedSparseTakesNoMemoryByItsDimension) {
  protocol::JobSpec spec = testing::toy_spec(1, {kDimensionMax});
  spec.select = {.selection = SelectionId::kTopK, .k = 2};
  spec.momentum = {Momentum::kCorrection, kFactor, true};
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  Bucket bucket(spec, layout.buckets.at(0), layout.parts);
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<uint32_t> indices = {7, 4'000'000'000u, 4'294'967'295u};
    ASSERT_TRUE(bucket.slot(0).add_sparse(indices, std::vector<float>{0.5f, 8, 4}, 1));
    ASSERT_TRUE(bucket.select(step));
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      const auto coded = bucket.code(at, {});
      ASSERT_TRUE(coded);
      bucket.mask_applied(at, step, coded->sent, nullptr);
    }
  }
  const BucketState state = bucket.state(1);
  EXPECT_FALSE(state.velocity->dense);
  EXPECT_EQ(state.velocity->indices, (IndexBuffer{7}));
  EXPECT_EQ(state.velocity->values, (Buffer<float>{0.875f}));
  EXPECT_EQ(state.residual.indices, (IndexBuffer{7}));
  EXPECT_EQ(state.residual.values, (Buffer<float>{2.125f})) << "1/2 + 3/4 + 7/8";
}

TEST(Momentum, AVelocityThatHasFadedIsForgotten) {
  Velocity velocity({Momentum::kCorrection, kFactor, true}, 10);
  Stream gradient = Stream::empty(10);
  gradient.indices = {3};
  gradient.values = {std::numeric_limits<float>::min() * 2};
  EXPECT_EQ(velocity.enter(Stream(gradient)).count(), 1u);
  EXPECT_EQ(velocity.enter(Stream::empty(10)).count(), 1u);
  EXPECT_EQ(velocity.enter(Stream::empty(10)).count(), 0u) << "below the least normal number";
  EXPECT_EQ(velocity.values().count(), 0u);
}

TEST(Momentum, AnEntryOfWhichNothingWasAppliedKeepsItsVelocity) {
  for (const bool dense : {false, true}) {
    Velocity velocity({Momentum::kCorrection, kFactor, true}, 4);
    velocity.enter({4, true, {}, {8, 4, 2, 1}});
    // A quantizer sent index 1 as 0; a dense stream has 0 where nothing was selected.
    Stream sent = dense ? Stream{4, true, {}, {8, 0, 0, 0}} : Stream{4, false, {0, 1}, {8, 0}};
    velocity.applied(0, SharedStream::from(std::move(sent)), nullptr);
    EXPECT_EQ(momentum_dense_of(velocity.values().view()), (std::vector<float>{0, 4, 2, 1})) << dense;
  }
}

TEST(Momentum, TurnsDenseWhereThatIsSmaller) {
  Velocity velocity({Momentum::kCorrection, kFactor, true}, 8);
  Stream gradient = Stream::empty(8);
  gradient.indices = {0, 2, 4, 5, 7};
  gradient.values = {1, 1, 1, 1, 1};
  velocity.enter(std::move(gradient));
  Stream next = Stream::empty(8);
  next.indices = {1};
  next.values = {2};
  EXPECT_EQ(momentum_dense_of(velocity.enter(std::move(next)).view()),
            (std::vector<float>{.5f, 2, .5f, 0, .5f, .5f, 0, .5f}));
  EXPECT_TRUE(velocity.values().dense);
}

}  // namespace
}  // namespace millrace::worker
