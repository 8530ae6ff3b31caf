#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/core/residual/device_buckets.h"

/// Jobs with momentum or clipping, whose residual and velocity are in a device's memory.
namespace millrace::worker {
namespace {

using ClippingOnDevice = OnDevice;
using MomentumOnDevice = OnDevice;

constexpr protocol::Momentum kMomenta[] = {protocol::Momentum::kCorrection, protocol::Momentum::kNesterov,
                                           protocol::Momentum::kNesterovPrinted};

TEST_F(MomentumOnDevice, HasTheBitsOfTheHost) {
  for (const protocol::Momentum momentum : kMomenta) {
    for (const std::string select : {"topk:0.03", "topk:50:dense=2", "threshold_reuse:0.02:3", "bucket_topk:0.02:64"}) {
      for (const bool masked : {true, false}) {
        SCOPED_TRACE(select + " " + std::to_string(static_cast<int>(momentum)));
        BucketPair pair(momentum_job(select, momentum, masked), 9);
        for (uint64_t step = 0; step < 6; ++step) {
          const auto pattern = step == 3 ? testing::Pattern::kDenormal : testing::Pattern::kGaussian;
          pair.push(testing::values_of(pattern, kDeviceDimension, step), step == 2 ? 0.3f : 1.0f);
          pair.step(step);
          if (::testing::Test::HasFatalFailure()) return;
        }
        pair.settle();
        pair.take_and_restore();
        pair.take_and_restore_velocity();
        pair.rejoin();
        pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 8));
        pair.step(6);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(ClippingOnDevice, HasTheBitsOfTheHost) {
  for (const bool has_momentum : {false, true}) {
    protocol::JobSpec spec = momentum_job("topk:0.03", protocol::Momentum::kNesterov);
    if (!has_momentum) spec.momentum = {};
    spec.clip = 20;  // the gradients' norms are about 70
    spec.non_finite = protocol::NonFinite::kDropAndCount;
    BucketPair pair(spec, 4);
    for (uint64_t step = 0; step < 6; ++step) {
      auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step);
      if (step == 1) gradient[33] = std::numeric_limits<float>::infinity();
      step == 3 ? pair.push_host(gradient) : pair.push(gradient, step == 2 ? 0.3f : 1.0f);
      pair.step(step, step == 4 ? 0 : ScarceMemory::kPlenty);
      if (::testing::Test::HasFatalFailure()) return;
    }
    pair.settle();
  }
}

TEST_F(MomentumOnDevice, GradientsOfTheHostsMemoryEnterThere) {
  BucketPair pair(momentum_job("topk:0.02", protocol::Momentum::kNesterov), 3);
  push_from_both(pair);
}

TEST_F(MomentumOnDevice, ValuesThatAreNotFiniteAreRefusedOrDroppedAsOnTheHost) {
  for (const auto rule : {protocol::NonFinite::kRefuse, protocol::NonFinite::kDropAndCount}) {
    protocol::JobSpec spec = momentum_job("topk:0.02", protocol::Momentum::kCorrection);
    spec.non_finite = rule;
    BucketPair pair(spec, 3);
    auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
    gradient[17] = std::numeric_limits<float>::quiet_NaN();
    pair.push(gradient);
    if (rule == protocol::NonFinite::kRefuse) {
      gradient[17] = 0;
      pair.push(gradient);
    }
    pair.step(0);
  }
}

/// Whichever allocation fails: of the velocity, of a mask, of entries that return, or of the selection.
TEST_F(MomentumOnDevice, WithoutMemoryTheStepIsTheHosts) {
  for (uint64_t allocations = 0; allocations < 24; ++allocations) {
    SCOPED_TRACE(allocations);
    BucketPair pair(momentum_job("topk:0.03", protocol::Momentum::kCorrection), 5 + allocations);
    for (uint64_t step = 0; step < 5; ++step) {
      pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step));
      pair.step(step, step % 2 == 0 ? allocations : ScarceMemory::kPlenty);
      if (::testing::Test::HasFatalFailure()) return;
    }
    pair.settle();
  }
}

/// The velocity is read without memory there. Restored entries move it to the host, until the next gradient.
TEST_F(MomentumOnDevice, WithoutMemoryTheVelocityIsTakenAndRestored) {
  for (const uint64_t allocations : {0, 1, 2}) {
    SCOPED_TRACE(allocations);
    BucketPair pair(momentum_job("topk:0.03", protocol::Momentum::kNesterov), 5 + allocations);
    for (uint64_t step = 0; step < 3; ++step) {
      pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step));
      pair.step(step);
    }
    pair.settle();
    pair.take_and_restore_velocity(allocations);
    pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 3));
    pair.step(3);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(MomentumOnDevice, PushWithoutMemoryTakesNothing) {
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  const GradientThere there(gradient);
  DeviceJob job(momentum_job("topk:0.03", protocol::Momentum::kCorrection));
  PushSlot& slot = job.bucket->slot(0);
  // There is none for the sum, for the staged gradient, and for a counter.
  for (const uint64_t allocations : {0, 1, 2}) {
    ScarceMemory::left = allocations;
    const Status done = slot.add_device(there, 1, make_there);
    ScarceMemory::left = ScarceMemory::kPlenty;
    ASSERT_FALSE(done.has_value()) << allocations;
    EXPECT_EQ(done.error().code, ErrorCode::kLimitExceeded);
    EXPECT_FALSE(slot.filled());
    EXPECT_EQ(residual_bits_of(to_dense(job.bucket->state(1).residual.view()).values),
              std::vector<uint32_t>(kDeviceDimension, 0));
  }
  ASSERT_TRUE(slot.add_device(there, 1, make_there).has_value());
  EXPECT_EQ(residual_bits_of(job.bucket->state(1).residual.values), residual_bits_of(gradient));
}

TEST_F(MomentumOnDevice, FailedDeviceIsAnErrorOfTheStepAndOfTheSlot) {
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  DeviceJob job(momentum_job("topk:0.03", protocol::Momentum::kCorrection));
  PushSlot& slot = job.bucket->slot(0);
  ASSERT_TRUE(slot.add_device(GradientThere(gradient), 1, FailingResidual::make).has_value());
  FailingResidual::fails_at = FailingResidual::Call::kEnter;
  const Status selected = job.bucket->select(0);
  FailingResidual::fails_at = FailingResidual::Call::kNone;
  ASSERT_FALSE(selected.has_value());
  EXPECT_EQ(selected.error().code, ErrorCode::kInternal);
  EXPECT_EQ(slot.device_status().error().message, "the device has failed");
}

TEST_F(MomentumOnDevice, ObserverSeesTheValuesThatEnter) {
  DeviceEntered observer;
  const protocol::JobSpec spec = momentum_job("topk:0.5:dense=9", protocol::Momentum::kNesterovPrinted, false);
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  Bucket bucket(spec, layout.buckets.at(0), layout.parts, &observer);
  std::vector<float> sent(kDeviceDimension);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step);
    if (step == 1) {
      ASSERT_TRUE(bucket.slot(0).add_dense(gradient, 1).has_value());
    } else {
      ASSERT_TRUE(bucket.slot(0).add_device(GradientThere(gradient), 1, make_there).has_value());
    }
    ASSERT_TRUE(bucket.select(step).has_value());
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      const auto coded = bucket.code(at, EncodeOptions{});
      ASSERT_TRUE(coded.has_value());
      const StreamView& part = coded->sent.view;
      for (size_t i = 0; i < part.count(); ++i)
        sent[layout.parts[at].begin + (part.dense ? i : part.indices[i])] += part.values[i];
    }
  }
  EXPECT_EQ(residual_bits_of(observer.sum), residual_bits_of(sent)) << "uncompressed steps send what enters";
}

}  // namespace
}  // namespace millrace::worker
