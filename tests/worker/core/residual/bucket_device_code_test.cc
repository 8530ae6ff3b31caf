#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/draw_kernels.h"
#include "tests/worker/core/residual/device_buckets.h"

/// Jobs that select nothing, and code all values where they are: payload, residual and accounts are the host's.
namespace millrace::worker {
namespace {

using DenseCodeOnDevice = OnDevice;

const std::vector<std::string> kDenseCodecs = {"gap+qsgd4",    "gap+qsgd2:max:100", "gap+qsgd8:l2", "raw+qsgd3:l2:7",
                                               "gap+f16",      "raw+bf16",          "gap+onebit",   "gap+onebit:33",
                                               "raw+terngrad", "gap+terngrad:1000"};

/// Pushes patterns of values for some steps. Where errors are dropped, the mostly zero ones travel as entries.
void train_there(BucketPair& pair, uint64_t steps, uint64_t allocations = ScarceMemory::kPlenty) {
  const std::vector<testing::Pattern> patterns = {testing::Pattern::kGaussian,  testing::Pattern::kFewDistinct,
                                                  testing::Pattern::kGaussian,  testing::Pattern::kMostlyZero,
                                                  testing::Pattern::kHeavyTail, testing::Pattern::kAllZero,
                                                  testing::Pattern::kDenormal,  testing::Pattern::kGaussian};
  for (uint64_t step = 0; step < steps; ++step) {
    pair.push(testing::values_of(patterns[step % patterns.size()], pair.dimension(), step), step == 2 ? 0.3F : 1.0F);
    pair.step(step, allocations);
    if (::testing::Test::HasFatalFailure()) return;
  }
  pair.settle();
}

TEST_F(DenseCodeOnDevice, SendsAndKeepsTheBitsOfTheHost) {
  for (const std::string& codec : kDenseCodecs) {
    for (const auto errors : {protocol::CodecError::kRetain, protocol::CodecError::kDrop}) {
      SCOPED_TRACE(codec + (errors == protocol::CodecError::kDrop ? " drop" : ""));
      protocol::JobSpec spec = job_of("none", codec);
      spec.codec_error = errors;
      BucketPair pair(spec, 9);
      train_there(pair, 8);
      if (::testing::Test::HasFatalFailure()) return;
      pair.take_and_restore();
      pair.rejoin();
      pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 8));
      pair.step(8);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(DenseCodeOnDevice, TakesEverySize) {
  for (const uint64_t dimension : {1, 2, 7, 65, 191, 513, 1'535, 12'289}) {
    for (const std::string& codec : kDenseCodecs) {
      SCOPED_TRACE(codec + " " + std::to_string(dimension));
      BucketPair pair(job_of("none", codec, dimension), dimension);
      train_there(pair, 6);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

/// A gradient of zeros that are negative, and one that the code decodes to exactly.
TEST_F(DenseCodeOnDevice, KeepsTheSignsOfZeros) {
  for (const std::string codec : {"gap+onebit", "raw+qsgd4", "gap+f16"}) {
    SCOPED_TRACE(codec);
    BucketPair pair(job_of("none", codec), 3);
    for (uint64_t step = 0; step < 5; ++step) {
      std::vector<float> gradient(kDeviceDimension, step % 2 == 0 ? 1.0F : -1.0F);
      for (size_t at = step; at < gradient.size(); at += 3) gradient[at] = -0.0F;
      pair.push(gradient);
      pair.step(step);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(DenseCodeOnDevice, PartsThatAreSkippedReturn) {
  BucketPair pair(job_of("none", "gap+qsgd4"), 5);
  for (const size_t skipped : {0, 2, 7}) {
    pair.skip(skipped);
    train_there(pair, 4);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(DenseCodeOnDevice, GradientsOfTheHostsMemoryJoinTheResidual) {
  BucketPair pair(job_of("none", "gap+qsgd4"), 3);
  push_from_both(pair);
}

TEST_F(DenseCodeOnDevice, MomentumAndClippingHaveTheBitsOfTheHost) {
  for (const auto momentum : {protocol::Momentum::kNone, protocol::Momentum::kNesterov}) {
    protocol::JobSpec spec = momentum_job("none", momentum);
    spec.clip = 20;
    BucketPair pair(spec, 4);
    train_there(pair, 5);
    train_there(pair, 5, 3);
  }
}

/// Whichever allocation fails: of the check, of a code, of its sums, or of entries.
TEST_F(DenseCodeOnDevice, WithoutMemoryThereTheHostCodesThePart) {
  for (const std::string codec : {"gap+qsgd4", "gap+f16", "gap+onebit"}) {
    for (uint64_t allocations = 0; allocations < 40; allocations += allocations < 8 ? 1 : 4) {
      for (const auto errors : {protocol::CodecError::kRetain, protocol::CodecError::kDrop}) {
        SCOPED_TRACE(codec + " " + std::to_string(allocations) +
                     (errors == protocol::CodecError::kDrop ? " drop" : ""));
        protocol::JobSpec spec = job_of("none", codec);
        spec.codec_error = errors;
        BucketPair pair(spec, 5 + allocations);
        train_there(pair, 5, allocations);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(DenseCodeOnDevice, CodedBytesAloneCrossTheBus) {
  for (const std::string& codec : kDenseCodecs) {
    SCOPED_TRACE(codec);
    DeviceJob job(job_of("none", codec));
    uint64_t sent = 0;
    for (uint64_t step = 0; step < 4; ++step) {
      const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step);
      ASSERT_TRUE(job.bucket->slot(0).add_device(GradientThere(gradient), 1, make_there).has_value());
      ASSERT_TRUE(job.bucket->select(step).has_value());
      for (size_t at = 0; at < job.layout.parts.size(); ++at) {
        const EncodeOptions options{job.spec.codec_up, random_key(at, step), job.layout.parts[at].begin};
        const auto coded = job.bucket->code(at, options);
        ASSERT_TRUE(coded.has_value());
        sent += coded->container.bytes.size();
      }
    }
    // A check and a count a push, and a count, a flag and 32 bytes of sums a part; twice those of dropped errors.
    const uint64_t counters = 4 * (16 + 3 * (8 + 8 + 2 * sizeof(cuda::ChunkSums)));
    EXPECT_LE(bytes_down(), sent + counters);
    EXPECT_EQ(bytes_up(), 0u);
  }
}

/// Sums the lost values of each index.
struct LostValues : LedgerObserver {
  void lost(uint32_t, uint64_t begin, const StreamView& values) override {
    for (size_t at = 0; at < values.count(); ++at) {
      sum[begin + (values.dense ? at : values.indices[at])] += static_cast<double>(values.values[at]);
    }
  }
  void lost(uint32_t, uint64_t index, double amount) override { sum[index] += amount; }
  std::map<uint64_t, double> sum;
};

TEST_F(DenseCodeOnDevice, ObserverSeesTheLostValuesOfTheHost) {
  for (const auto errors : {protocol::CodecError::kRetain, protocol::CodecError::kDrop}) {
    protocol::JobSpec spec = job_of("none", "gap+qsgd4");
    spec.codec_error = errors;
    const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
    LostValues on_host, there;
    Bucket host(spec, layout.buckets.at(0), layout.parts, &on_host);
    Bucket device(spec, layout.buckets.at(0), layout.parts, &there);
    for (uint64_t step = 0; step < 3; ++step) {
      const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step);
      ASSERT_TRUE(host.slot(0).add_dense(gradient, 1).has_value());
      ASSERT_TRUE(device.slot(0).add_device(GradientThere(gradient), 1, make_there).has_value());
      for (Bucket* bucket : {&host, &device}) {
        ASSERT_TRUE(bucket->select(step).has_value());
        for (size_t at = 0; at < layout.parts.size(); ++at) {
          ASSERT_TRUE(bucket->code(at, {spec.codec_up, random_key(at, step), layout.parts[at].begin}).has_value());
        }
        while (bucket->resolve_one_deferred()) {
        }
      }
    }
    EXPECT_EQ(there.sum, on_host.sum);
    EXPECT_FALSE(there.sum.empty());
  }
}

TEST_F(DenseCodeOnDevice, ValueThatTheCodeCannotHoldIsTheHostsError) {
  DeviceJob job(job_of("none", "gap+bf16"));
  const std::vector<float> gradient(kDeviceDimension, std::numeric_limits<float>::max());
  ASSERT_TRUE(job.bucket->slot(0).add_device(GradientThere(gradient), 1, make_there).has_value());
  ASSERT_TRUE(job.bucket->select(0).has_value());
  EXPECT_EQ(job.bucket->code(0, {job.spec.codec_up, {}, 0}).error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(residual_bits_of(job.bucket->residual().values), residual_bits_of(gradient)) << "none is lost";
}

TEST_F(DenseCodeOnDevice, FailedDeviceIsAnErrorOfTheCode) {
  DeviceJob job(job_of("none", "gap+qsgd4"));
  const std::vector<float> gradient(kDeviceDimension, 1);
  ASSERT_TRUE(job.bucket->slot(0).add_device(GradientThere(gradient), 1, FailingResidual::make));
  ASSERT_TRUE(job.bucket->select(0).has_value());
  FailingResidual::fails_at = FailingResidual::Call::kCode;
  const auto coded = job.bucket->code(0, {job.spec.codec_up, {}, 0});
  FailingResidual::fails_at = FailingResidual::Call::kNone;
  ASSERT_FALSE(coded.has_value());
  EXPECT_EQ(coded.error().code, ErrorCode::kInternal);
  job.bucket->skip_part(1);
  EXPECT_EQ(job.bucket->slot(0).device_status().error().message, "the device has failed");
}

}  // namespace
}  // namespace millrace::worker
