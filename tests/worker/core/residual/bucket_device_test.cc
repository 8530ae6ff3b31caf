#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/select_kernels.h"
#include "tests/worker/core/residual/device_buckets.h"

/// A bucket whose gradients are in a device's memory sends and keeps the bits of one whose gradients are the host's.
namespace millrace::worker {
namespace {

using BucketOnDevice = OnDevice;
using ResidualOnDevice = OnDevice;

TEST_F(BucketOnDevice, SendsAndKeepsTheBitsOfTheHost) {
  for (const std::string select : {"topk:0.03", "topk:50:dense=2", "topk:0.02:warm_up=3", "threshold:0.9"}) {
    for (const std::string codec : {"gap+qsgd4", "raw", "bitmap+f16"}) {
      SCOPED_TRACE(select + " " + codec);
      protocol::JobSpec spec = job_of(select, codec);
      if (codec == "raw") spec.codec_error = protocol::CodecError::kDrop;
      BucketPair pair(spec, 9);
      for (uint64_t step = 0; step < 5; ++step) {
        const auto pattern = step == 3 ? testing::Pattern::kFewDistinct : testing::Pattern::kGaussian;
        pair.push(testing::values_of(pattern, kDeviceDimension, step), step == 2 ? 0.3f : 1.0f);
        pair.step(step);
        if (::testing::Test::HasFatalFailure()) return;
      }
      pair.settle();
      pair.take_and_restore();
      pair.rejoin();
      pair.push(testing::values_of(testing::Pattern::kDenormal, kDeviceDimension, 8));
      pair.step(5);
    }
  }
}

/// Their state stays from step to step: thresholds are reused, and end with a stage of the warm-up.
TEST_F(BucketOnDevice, SelectionsByThresholdsHaveThePositionsOfTheHost) {
  for (const std::string select :
       {"trimmed:0.02", "radix:0.02", "threshold_reuse:0.02:3", "threshold_reuse:0.01:9:warm_up=4",
        "binary_search:0.02", "sampled:0.02:2", "sampled:0.02:dense=2", "gaussian:0.02", "by_size:0.02",
        "bucket_topk:0.02:64", "bucket_topk:0.5", "bucket_topk:0.01:4096:dense=2"}) {
    SCOPED_TRACE(select);
    BucketPair pair(job_of(select, "gap+qsgd4"), 9);
    for (uint64_t step = 0; step < 6; ++step) {
      const auto pattern = step == 3 ? testing::Pattern::kFewDistinct : testing::Pattern::kGaussian;
      pair.push(testing::values_of(pattern, kDeviceDimension, step));
      pair.step(step);
      if (::testing::Test::HasFatalFailure()) return;
    }
    pair.settle();
  }
}

/// Wherever the memory ends in a step, the host selects for it once, with the state of before.
TEST_F(ResidualOnDevice, AShortageWithinASelectionLeavesItsStateAsItWas) {
  constexpr uint64_t kShortStep = 2, kSteps = 6;
  for (const std::string select :
       {"sampled:0.02:4", "sampled:0.02:4:warm_up=4", "threshold_reuse:0.02:4", "trimmed:0.02"}) {
    const SelectionSpec spec = selection_from_text(select).value();
    uint64_t shortages = 0;
    for (uint64_t allocations = 0; allocations < 24; ++allocations) {
      SCOPED_TRACE(select + ", memory for " + std::to_string(allocations) + " arrays");
      ResidualSum there(spec, kDeviceDimension), here(spec, kDeviceDimension);
      for (uint64_t step = 0; step < kSteps; ++step) {
        const auto values = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step);
        for (ResidualSum* sum : {&there, &here}) {
          sum->add(Stream{kDeviceDimension, true, {}, {values.begin(), values.end()}});
        }
        ASSERT_TRUE(there.move_to_device(make_there));
        ScarceMemory::left = step == kShortStep ? allocations : ScarceMemory::kPlenty;
        Stream spare_there, spare_here;
        const Result<Stream> sent = there.take_selected({.step = step}, spare_there);
        ScarceMemory::left = ScarceMemory::kPlenty;
        const Result<Stream> expected = here.take_selected({.step = step}, spare_here);
        ASSERT_TRUE(sent.has_value() && expected.has_value()) << step;
        ASSERT_EQ(sent->indices, expected->indices) << step;
        ASSERT_EQ(sent->values, expected->values) << step;
        ASSERT_EQ(there.retained(), here.retained()) << step;
        shortages += step == kShortStep && there.adds_in_push() ? 1 : 0;
      }
    }
    EXPECT_GT(shortages, 1u) << select;
    EXPECT_LT(shortages, 24u) << select << ": the last ones have memory enough";
  }
}

/// Buckets with fewer entries than their k leave holes, which are closed.
TEST_F(BucketOnDevice, BucketsOfFewEntriesHaveThePositionsOfTheHost) {
  for (const std::string select :
       {"bucket_topk:1:64", "bucket_topk:0.1:100", "bucket_topk:0.01:4096", "bucket_topk:50"}) {
    SCOPED_TRACE(select);
    BucketPair pair(job_of(select, "gap"), 4);
    uint64_t step = 0;
    for (const auto pattern : {testing::Pattern::kMostlyZero, testing::Pattern::kAllZero,
                               testing::Pattern::kFewDistinct, testing::Pattern::kDenormal}) {
      pair.push(testing::values_of(pattern, kDeviceDimension, step));
      pair.step(step++);
      if (::testing::Test::HasFatalFailure()) return;
    }
    pair.settle();
  }
}

TEST_F(BucketOnDevice, GradientsOfTheHostsMemoryJoinTheResidual) {
  for (const std::string select : {"topk:0.02", "bucket_topk:0.02:64"}) {
    SCOPED_TRACE(select);
    BucketPair pair(job_of(select, "gap"), 3);
    push_from_both(pair);
  }
}

TEST_F(BucketOnDevice, ValuesThatAreNotFiniteAreRefusedOrDroppedAsOnTheHost) {
  for (const auto rule : {protocol::NonFinite::kRefuse, protocol::NonFinite::kDropAndCount}) {
    protocol::JobSpec spec = job_of("topk:0.02", "gap");
    spec.non_finite = rule;
    BucketPair pair(spec, 3);
    auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
    gradient[17] = std::numeric_limits<float>::quiet_NaN();
    gradient[4'000] = -std::numeric_limits<float>::infinity();
    pair.push(gradient);
    if (rule == protocol::NonFinite::kRefuse) {
      gradient[17] = gradient[4'000] = 0;
      pair.push(gradient);
    }
    pair.step(0);
  }
}

TEST_F(BucketOnDevice, SumsThatOverflowAreAnErrorOfTheStep) {
  for (const std::string select : {"topk:0.03", "topk:50:dense=9", "bucket_topk:0.02:64", "none"}) {
    DeviceJob job(job_of(select, select == "none" ? "raw+qsgd4" : "gap"));
    const std::vector<float> gradient(kDeviceDimension, std::numeric_limits<float>::max());
    const GradientThere there(gradient);
    ASSERT_TRUE(job.bucket->slot(0).add_device(there, 2, make_there).has_value());
    EXPECT_EQ(job.bucket->select(0).error().code, ErrorCode::kNonFinite);
  }
}

/// Whichever allocation fails: of the entries that return, or of the selection.
TEST_F(BucketOnDevice, DeviceWithoutMemoryForTheSelectionSelectsOnTheHost) {
  for (const std::string select : {"topk:0.03", "threshold:0.9", "threshold_reuse:0.02:5", "sampled:0.02:5:dense=1",
                                   "bucket_topk:0.02:64", "bucket_topk:1:64"}) {
    uint64_t allocations = 0;
    for (; allocations < 40; allocations += allocations < 6 ? 1 : 5) {
      SCOPED_TRACE(select + " " + std::to_string(allocations));
      BucketPair pair(job_of(select, "gap+qsgd4"), 5 + allocations);
      for (uint64_t step = 0; step < 4; ++step) {
        pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step));
        pair.step(step, step % 2 == 0 ? allocations : ScarceMemory::kPlenty);
        if (::testing::Test::HasFatalFailure()) return;
      }
      pair.settle();
    }
  }
}

/// The error of a value code is computed where the sum is, so that nothing returns over the bus. Codes that the device
/// does not have return their errors, of 8 bytes an entry.
TEST_F(BucketOnDevice, SelectedEntriesAloneCrossTheBus) {
  constexpr uint64_t kSize = 50'003, kSteps = 4;
  struct Case {
    const char* codec;
    uint64_t up;  ///< bytes an entry
  };
  for (const auto& [codec, up] : std::vector<Case>{{"raw", 0},
                                                   {"gap", 0},
                                                   {"gap+qsgd4", 0},
                                                   {"gap+qsgd2:max:100", 0},
                                                   {"bitmap+f16", 0},
                                                   {"gap+bf16", 0},
                                                   {"gap+onebit", 0},
                                                   {"raw+terngrad", 0},
                                                   {"gap+qsgd_elias4", 8},
                                                   {"gap+sign_mean", 8}}) {
    for (const std::string select : {"topk:0.03", "bucket_topk:0.02:1000"}) {
      SCOPED_TRACE(select + " " + codec);
      DeviceJob job(job_of(select, codec, kSize));
      for (uint64_t step = 0; step < kSteps; ++step) {
        const auto gradient = testing::values_of(testing::Pattern::kGaussian, kSize, step);
        ASSERT_TRUE(job.bucket->slot(0).add_device(GradientThere(gradient), 1, make_there).has_value());
        ASSERT_TRUE(job.bucket->select(step).has_value());
        for (size_t at = 0; at < job.layout.parts.size(); ++at) {
          const EncodeOptions options{job.spec.codec_up, random_key(at, step), job.layout.parts[at].begin};
          ASSERT_TRUE(job.bucket->code(at, options).has_value());
        }
      }
      const uint64_t entries = job.bucket->counters().entries_sent;
      ASSERT_GT(entries, kSteps * kSize / 60);
      // A step's checks and the state of its selection; a part's flag, or exponent, of the code.
      const uint64_t counters = kSteps * (16 + 4 * sizeof(cuda::SelectState) + job.layout.parts.size() * 8);
      EXPECT_GE(bytes_down(), 8 * entries);
      EXPECT_LE(bytes_down(), 8 * entries + counters);
      EXPECT_LE(bytes_up(), up * entries);
      EXPECT_EQ(bytes_up() == 0, up == 0);
    }
  }
}

TEST_F(BucketOnDevice, PushWithoutMemoryTakesNothing) {
  DeviceJob job(job_of("topk:0.03", "gap"));
  PushSlot& slot = job.bucket->slot(0);
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  const GradientThere there(gradient);
  // There is none for the sum, for the first counter, and with the sum in place for the second counter.
  for (const uint64_t allocations : {0, 1, 1}) {
    ScarceMemory::left = allocations;
    const Status done = slot.add_device(there, 1, make_there);
    ScarceMemory::left = ScarceMemory::kPlenty;
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kLimitExceeded);
    EXPECT_TRUE(slot.device_status().has_value());
    EXPECT_FALSE(slot.filled());
  }
  ASSERT_TRUE(slot.add_device(there, 1, make_there).has_value());
  EXPECT_EQ(residual_bits_of(job.bucket->residual().values), residual_bits_of(gradient));
}

TEST_F(BucketOnDevice, FailedDeviceIsAnErrorOfTheStepAndOfTheSlot) {
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  const GradientThere there(gradient);
  for (const auto call : {FailingResidual::Call::kAdd, FailingResidual::Call::kSelect}) {
    DeviceJob job(job_of("topk:0.03", "gap"));
    PushSlot& slot = job.bucket->slot(0);
    ASSERT_TRUE(slot.add_device(there, 1, FailingResidual::make).has_value());
    // An entry returns: where the device fails then, the selection has the error.
    job.bucket->give_back(1, Stream{job.layout.parts[1].end - job.layout.parts[1].begin, false, {3}, {1.0f}});
    FailingResidual::fails_at = call;
    const Status selected = job.bucket->select(0);
    FailingResidual::fails_at = FailingResidual::Call::kNone;
    ASSERT_FALSE(selected.has_value());
    EXPECT_EQ(selected.error().code, ErrorCode::kInternal);
    EXPECT_EQ(slot.device_status().error().message, "the device has failed");
  }
}

TEST_F(BucketOnDevice, FailedDeviceIsAnErrorOfTheCodeOfASelection) {
  DeviceJob job(job_of("topk:0.03", "gap+qsgd4"));
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  ASSERT_TRUE(job.bucket->slot(0).add_device(GradientThere(gradient), 1, FailingResidual::make));
  ASSERT_TRUE(job.bucket->select(0).has_value());
  FailingResidual::fails_at = FailingResidual::Call::kCode;
  const auto coded = job.bucket->code(0, {job.spec.codec_up, {}, 0});
  FailingResidual::fails_at = FailingResidual::Call::kNone;
  ASSERT_FALSE(coded.has_value());
  EXPECT_EQ(coded.error().code, ErrorCode::kInternal);
}

TEST_F(BucketOnDevice, ObserverSeesTheValuesThatEnter) {
  DeviceEntered observer;
  protocol::JobSpec spec = job_of("topk:0.03", "gap");
  spec.non_finite = protocol::NonFinite::kDropAndCount;
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  Bucket bucket(spec, layout.buckets.at(0), layout.parts, &observer);
  auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  gradient[7] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(bucket.slot(0).add_device(GradientThere(gradient), 0.5f, make_there).has_value());
  EXPECT_EQ(residual_bits_of(observer.sum), residual_bits_of(bucket.residual().values));
}

TEST_F(BucketOnDevice, RulesThatNeedTheHostsMemoryAreNamed) {
  const auto why_not = [](const protocol::JobSpec& spec) {
    DeviceJob job(spec);
    const std::vector<float> gradient(kDeviceDimension, 1);
    const Status done = job.bucket->slot(0).add_device(GradientThere(gradient), 1, make_there);
    if (done) return std::string();
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(done.error().message.find("select by topk"), std::string::npos) << done.error().message;
    return done.error().message;
  };
  EXPECT_EQ(why_not(job_of("topk:0.01", "gap")), "");
  EXPECT_EQ(why_not(job_of("none", "gap+bf16")), "");
  for (const std::string codec : {"gap", "auto", "gap+sign_mean", "gap+qsgd_elias4", "gap+deflate"}) {
    EXPECT_NE(why_not(job_of("none", codec)).find("selection none with codec " + codec), std::string::npos) << codec;
  }
  EXPECT_NE(why_not(job_of("none", "gap+onebit:1", kDimensionMax)).find("too many buckets"), std::string::npos);
  for (const std::string buckets : {":4097", ":512:warm_up=3"}) {
    EXPECT_NE(why_not(job_of("bucket_topk:0.01" + buckets, "gap")).find("selection bucket_topk"), std::string::npos);
  }
  EXPECT_NE(why_not(job_of("bucket_topk:0.51:512", "gap")).find("selection bucket_topk"), std::string::npos);
  EXPECT_NE(why_not(job_of("random:0.01", "gap")).find("selection random"), std::string::npos);
  EXPECT_NE(why_not(job_of("topk:0.01:signs", "gap")).find("alternating signs"), std::string::npos);
  EXPECT_NE(why_not(job_of("topk:0.01", "bloom:0.01")).find("index code"), std::string::npos);
  protocol::JobSpec spec = job_of("topk:0.01", "gap");
  spec.audit = true;
  EXPECT_NE(why_not(spec).find("audits"), std::string::npos);
  spec = job_of("topk:0.01", "gap");
  spec.clip = 1;
  spec.momentum = {.momentum = protocol::Momentum::kCorrection, .factor = 0.9};
  EXPECT_EQ(why_not(spec), "");
  spec = job_of("none", "gap+qsgd4");
  spec.reproducible = true;
  spec.workers = 2;
  EXPECT_NE(why_not(spec).find("reproducible"), std::string::npos);
  spec = job_of("none", "gap+qsgd4");
  spec.path = protocol::Path::kSwitch;
  EXPECT_NE(why_not(spec).find("not over servers"), std::string::npos);
}

TEST_F(BucketOnDevice, GradientsOfAnotherSizeOrDeviceAreRefused) {
  DeviceJob job(job_of("topk:0.03", "gap"));
  const std::vector<float> gradient(kDeviceDimension, 1);
  const GradientThere array(gradient);
  const DeviceGradient there = array;
  PushSlot& slot = job.bucket->slot(0);
  EXPECT_EQ(slot.add_device({there.values, 7, 0}, 1, make_there).error().code, ErrorCode::kInvalidArgument);
  const Status other = slot.add_device({there.values, there.count, 1}, 1, make_there);
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(other.error().message.find("device 1"), std::string::npos) << other.error().message;
  const MakeDeviceResidual none = [](const SelectionSpec&, uint64_t) -> Result<std::unique_ptr<DeviceResidual>> {
    return fail(ErrorCode::kUnavailable, "no device");
  };
  DeviceJob without(job_of("topk:0.03", "gap"));
  EXPECT_EQ(without.bucket->slot(0).add_device(GradientThere(gradient), 1, none).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(without.bucket->slot(0).add_dense(gradient, 1).has_value()) << "the host's memory remains possible";
}

}  // namespace
}  // namespace millrace::worker
