#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/oracles/select_oracle.h"
#include "worker/core/residual/idle_tensor.h"

/// With a saved residual and the retained numbers, a later job has the bits of one without an interruption.
namespace millrace::worker {
namespace {

constexpr uint64_t kRetainedDimension = 6'000;
constexpr uint64_t kRetainedSteps = 12;
constexpr uint64_t kRetainedSavedAfter = 5;

enum class RetainedKind : uint8_t { kPlain, kReproducible };

protocol::JobSpec retained_spec_of(const std::string& select, RetainedKind kind) {
  protocol::JobSpec spec;
  spec.name = "retained";
  spec.workers = 3;
  spec.tensors.push_back({.name = "w", .dimension = kRetainedDimension});
  spec.select = selection_from_text(select).value();
  spec.parts_per_shard = 3;
  spec.reproducible = kind == RetainedKind::kReproducible;
  spec.grid.block_indices = 64;
  return spec;
}

/// One worker's bucket in a job whose other workers send nothing.
class RetainedJob {
 public:
  explicit RetainedJob(const protocol::JobSpec& spec, uint64_t first_step = 0)
      : spec_(spec), layout_(protocol::plan_layout(spec_, 1)), steps_(first_step) {
    bucket_ = std::make_unique<Bucket>(spec_, layout_.buckets.at(0), layout_.parts);
  }

  IdleTensor tensor(size_t slot = 0) { return {bucket_.get(), &bucket_->slot(slot)}; }

  /// Returns the entries that the job's next step sends, of the run's `step`.
  Stream step(uint64_t step) {
    std::vector<float> gradient = testing::values_of(testing::Pattern::kGaussian, kRetainedDimension, step);
    // Growing gradients move thresholds and exponents, slowly enough that a threshold is reused.
    for (float& value : gradient) value *= 1 + 0.02f * static_cast<float>(step);
    for (size_t slot = 0; slot < bucket_->slot_count(); ++slot) {
      EXPECT_TRUE(bucket_->slot(slot).add_dense(std::span(gradient).first(spec_.tensors[slot].dimension), 1));
    }
    EXPECT_TRUE(bucket_->select(steps_++));
    Stream sent = Stream::empty(bucket_->dimension());
    for (size_t at = 0; at < layout_.parts.size(); ++at) {
      EncodeOptions options;
      options.spec = spec_.codec_up;
      const auto coded = bucket_->code(at, options);
      EXPECT_TRUE(coded);
      const StreamView& stream = coded->sent.view;
      for (size_t i = 0; i < stream.values.size(); ++i) {
        const uint64_t index = stream.dense ? i : stream.indices[i];
        sent.indices.push_back(static_cast<uint32_t>(layout_.parts[at].begin + index));
        sent.values.push_back(stream.values[i]);
      }
      if (!bucket_->on_grid()) continue;
      bucket_->resolve_on_grid(at, nullptr);
      bucket_->observe_update(at, stream);
    }
    return sent;
  }

 private:
  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  std::unique_ptr<Bucket> bucket_;
  uint64_t steps_;
};

enum class RetainedRun : uint8_t { kWhole, kSaved, kForgotten };

/// Returns the entries that each step sends, of a run with or without an interruption.
std::vector<std::pair<IndexBuffer, Buffer<float>>> retained_run(const protocol::JobSpec& spec, RetainedRun run) {
  auto job = std::make_unique<RetainedJob>(spec);
  std::vector<std::pair<IndexBuffer, Buffer<float>>> sent;
  for (uint64_t step = 0; step < kRetainedSteps; ++step) {
    if (step == kRetainedSavedAfter && run != RetainedRun::kWhole) {
      const Retained numbers = job->tensor().retained();
      Stream residual = job->tensor().take_residual();
      job = std::make_unique<RetainedJob>(spec);
      EXPECT_TRUE(job->tensor().restore(std::move(residual), Stream::empty(kRetainedDimension).view()));
      if (run == RetainedRun::kSaved) {
        EXPECT_TRUE(job->tensor().restore_retained(numbers).value_or(false));
        EXPECT_EQ(job->tensor().retained(), numbers);
      }
    }
    Stream entries = job->step(step);
    sent.emplace_back(std::move(entries.indices), std::move(entries.values));
  }
  return sent;
}

TEST(BucketRetained, SavedAndRestoredRunHasTheBitsOfAWholeOne) {
  for (const auto kind : {RetainedKind::kPlain, RetainedKind::kReproducible}) {
    for (const std::string select :
         {"topk:0.05", "threshold_reuse:0.3:9", "sampled:0.05:9", "topk:0.01:warm_up=8",
          "threshold_reuse:0.01:9:warm_up=8", "topk:0.05:dense=7", "topk:0.05:signs", "none"}) {
      SCOPED_TRACE(select + (kind == RetainedKind::kPlain ? "" : ", reproducible"));
      const protocol::JobSpec spec = retained_spec_of(select, kind);
      const auto whole = retained_run(spec, RetainedRun::kWhole);
      EXPECT_EQ(retained_run(spec, RetainedRun::kSaved), whole);
      const bool keeps_nothing = kind == RetainedKind::kPlain && (select == "topk:0.05" || select == "none");
      EXPECT_EQ(retained_run(spec, RetainedRun::kForgotten) == whole, keeps_nothing);
    }
  }
}

/// A worker that joins a running job has its numbers of steps, and not those of its own saved state.
TEST(BucketRetained, WorkerThatJoinsARunningJobFollowsItsSteps) {
  const protocol::JobSpec spec = retained_spec_of("topk:0.01:warm_up=8", RetainedKind::kPlain);
  RetainedJob saved(spec);
  for (uint64_t step = 0; step < 4; ++step) saved.step(step);
  RetainedJob joins(spec, 20);
  ASSERT_TRUE(joins.tensor().restore_retained(saved.tensor().retained()).value_or(false));
  EXPECT_EQ(joins.step(20).values.size(), kRetainedDimension / 100) << "the warm-up of 8 steps is over";
}

/// A state of an earlier step replaces that of a running job.
TEST(BucketRetained, LoadedInTheMiddleOfTrainingTheStepsAreRepeated) {
  const protocol::JobSpec spec = retained_spec_of("threshold_reuse:0.01:9:warm_up=8", RetainedKind::kReproducible);
  RetainedJob job(spec);
  for (uint64_t step = 0; step < 5; ++step) job.step(step);
  const Retained numbers = job.tensor().retained();
  Stream residual = job.tensor().take_residual();
  EXPECT_TRUE(job.tensor().restore(Stream(residual), Stream::empty(kRetainedDimension).view()));
  std::vector<Stream> first;
  for (uint64_t step = 5; step < 9; ++step) first.push_back(job.step(step));
  job.tensor().take_residual();
  EXPECT_TRUE(job.tensor().restore(std::move(residual), Stream::empty(kRetainedDimension).view()));
  ASSERT_TRUE(job.tensor().restore_retained(numbers).value_or(false));
  for (uint64_t step = 5; step < 9; ++step) {
    const Stream again = job.step(step);
    EXPECT_EQ(again.indices, first[step - 5].indices);
    EXPECT_EQ(again.values, first[step - 5].values);
  }
}

/// Tensors that travel together have one state: each of them restores it.
TEST(BucketRetained, FusedTensorsHaveTheNumbersOfTheirBucket) {
  protocol::JobSpec spec = retained_spec_of("none", RetainedKind::kReproducible);
  spec.tensors.push_back({.name = "v", .dimension = 300});
  RetainedJob job(spec);
  job.step(1);
  const Retained numbers = job.tensor(0).retained();
  EXPECT_EQ(job.tensor(1).retained(), numbers);
  RetainedJob later(spec);
  EXPECT_NE(later.tensor().retained(), numbers);
  for (const size_t slot : {0, 1}) EXPECT_TRUE(later.tensor(slot).restore_retained(numbers).value_or(false));
  EXPECT_EQ(later.tensor(1).retained(), numbers);
}

TEST(BucketRetained, NumbersOfOtherSettingsChangeNothing) {
  const protocol::JobSpec spec = retained_spec_of("threshold_reuse:0.05:4", RetainedKind::kReproducible);
  RetainedJob job(spec);
  for (uint64_t step = 0; step < 3; ++step) job.step(step);
  const Retained numbers = job.tensor().retained();
  std::vector<protocol::JobSpec> others(6, spec);
  others[0].workers = 2;
  others[1].select.density = 0.06;
  others[2].grid.block_indices = 128;
  others[3].reproducible = false;
  others[4].seed = 2;
  others[5].path = protocol::Path::kSwitch;
  for (const protocol::JobSpec& other : others) {
    RetainedJob later(other);
    const Retained before = later.tensor().retained();
    EXPECT_FALSE(later.tensor().restore_retained(numbers).value_or(true));
    EXPECT_FALSE(later.tensor().restore_retained({}).value_or(true));
    EXPECT_EQ(later.tensor().retained(), before);
  }
}

TEST(BucketRetained, DamagedNumbersAreRefusedAndChangeNothing) {
  RetainedJob job(retained_spec_of("threshold_reuse:0.05:4:warm_up=3", RetainedKind::kReproducible));
  for (uint64_t step = 0; step < 6; ++step) job.step(step);
  const Retained numbers = job.tensor().retained();
  for (size_t at = 1; at <= numbers.size(); ++at) {
    SCOPED_TRACE(at);
    Retained damaged(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(at));
    if (at < numbers.size()) {
      EXPECT_EQ(job.tensor().restore_retained(damaged).error().code, ErrorCode::kInvalidArgument);
      damaged = numbers;
      damaged[at] = UINT64_MAX;
    } else {
      damaged.push_back(0);
    }
    EXPECT_EQ(job.tensor().restore_retained(damaged).error().code, ErrorCode::kInvalidArgument);
    ASSERT_EQ(job.tensor().retained(), numbers);
  }
}

}  // namespace
}  // namespace millrace::worker
