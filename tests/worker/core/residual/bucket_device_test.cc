#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/cuda/host_queue.h"
#include "tests/support/oracles/select_oracle.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/idle_tensor.h"
#include "worker/core/residual/local_clip.h"
#include "worker/core/residual/queue_residual.h"

/// A bucket whose gradients are in a device's memory sends and keeps the bits of one whose gradients are the host's.
/// HostQueue takes the card's place: the code is the same.
namespace millrace::worker {
namespace {

constexpr uint64_t kDeviceDimension = 5'003;

/// A HostQueue with a limit on its allocations: a device whose memory others use.
class ScarceQueue : public cuda::HostQueue {
 public:
  static constexpr uint64_t kPlenty = std::numeric_limits<uint64_t>::max();
  static inline uint64_t left = kPlenty;  ///< of all queues

  template <class T>
  cuda::HostMemory<T> allocate(size_t count) {
    let_allocations_fail_after(left == 0 ? 0 : kPlenty);
    if (left != 0 && left != kPlenty && count != 0) --left;
    return cuda::HostQueue::allocate<T>(count);
  }
};

const MakeDeviceResidual kOnHostQueue = [](const SelectionSpec& spec,
                                           uint64_t dimension) -> Result<std::unique_ptr<DeviceResidual>> {
  return std::make_unique<QueueResidual<ScarceQueue>>(std::make_unique<ScarceQueue>(), spec, dimension);
};

/// A device that works until a test sets `fails_at`, as one whose memory has an error.
class FailingResidual final : public DeviceResidual {
 public:
  enum class Call : uint8_t { kNone, kAdd, kSelect };
  static inline Call fails_at = Call::kNone;

  FailingResidual(const SelectionSpec& spec, uint64_t dimension) : works_(kOnHostQueue(spec, dimension).value()) {}
  static Result<std::unique_ptr<DeviceResidual>> make(const SelectionSpec& spec, uint64_t dimension) {
    return std::make_unique<FailingResidual>(spec, dimension);
  }

  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (auto whole = at(Call::kAdd); !whole) return std::unexpected(whole.error());
    return works_->add(gradient, weight, rule);
  }
  Status add(const StreamView& stream, uint64_t begin) override {
    if (auto whole = at(Call::kAdd); !whole) return whole;
    return works_->add(stream, begin);
  }
  Result<Stream> take_selected(uint64_t step, Stream&& arrays) override {
    if (auto whole = at(Call::kSelect); !whole) return std::unexpected(whole.error());
    return works_->take_selected(step, std::move(arrays));
  }
  Result<Stream> copy() const override {
    if (!status_) return std::unexpected(status_.error());
    return works_->copy();
  }
  Result<Buffer<float>> read_at(IndexSpan indices) const override { return works_->read_at(indices); }
  Result<double> norm() const override {
    if (!status_) return std::unexpected(status_.error());
    return works_->norm();
  }
  Result<Stream> copy(const DeviceGradient& gradient) const override { return works_->copy(gradient); }
  void forget() override { works_->forget(); }
  Retained retained() const override { return works_->retained(); }
  Status restore_retained(std::span<const uint64_t> numbers) override { return works_->restore_retained(numbers); }
  Status status() const override { return status_; }

 private:
  Status at(Call call) {
    if (status_ && call == fails_at) status_ = fail(ErrorCode::kInternal, "the device has failed");
    return status_;
  }

  std::unique_ptr<DeviceResidual> works_;
  Status status_;
};

struct DeviceJob {
  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;

  explicit DeviceJob(const protocol::JobSpec& of) : spec(of), layout(protocol::plan_layout(spec, 1)) {
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts);
  }
};

protocol::JobSpec job_of(const std::string& select, const std::string& codec) {
  protocol::JobSpec spec;
  spec.name = "device";
  spec.tensors.push_back({.name = "w", .dimension = kDeviceDimension});
  spec.select = selection_from_text(select).value();
  spec.parts_per_shard = 3;
  spec.codec_up = codec_from_text(codec).value();
  spec.codec_error = protocol::CodecError::kRetain;
  return spec;
}

/// Returns the bits without the sign of zeros.
std::vector<uint32_t> residual_bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value + 0.0f));
  return bits;
}

/// Two buckets of one job, to which the same happens.
class BucketPair {
 public:
  explicit BucketPair(const protocol::JobSpec& spec, uint64_t seed)
      : host_(spec), device_(spec), random_(random_key(seed)), in_flight_(host_.layout.parts.size()) {}

  void push(std::span<const float> gradient, float weight = 1) {
    const Status wanted = host_.bucket->slot(0).add_dense(gradient, weight);
    const Status done =
        device_.bucket->slot(0).add_device({gradient.data(), gradient.size(), 0, nullptr}, weight, kOnHostQueue);
    ASSERT_EQ(done.has_value(), wanted.has_value());
    if (!done) {
      ASSERT_EQ(done.error().code, wanted.error().code);
    }
    ASSERT_EQ(device_.bucket->slot(0).non_finite_dropped(), host_.bucket->slot(0).non_finite_dropped());
    compare();
  }
  /// Pushes from the host's memory in both.
  void push_host(std::span<const float> gradient) {
    for (DeviceJob* job : {&host_, &device_}) ASSERT_TRUE(job->bucket->slot(0).add_dense(gradient, 0.5f).has_value());
    compare();
  }
  void push_sparse(const Stream& gradient) {
    for (DeviceJob* job : {&host_, &device_}) {
      ASSERT_TRUE(job->bucket->slot(0).add_sparse(gradient.indices, gradient.values, 1).has_value());
    }
    compare();
  }

  /// Selects and codes a step, with updates of earlier steps in between.
  ///
  /// allocations  that succeed on the device during the selection.
  void step(uint64_t step, uint64_t allocations = ScarceQueue::kPlenty) {
    const Status wanted = host_.bucket->select(step);
    ScarceQueue::left = allocations;
    const Status done = device_.bucket->select(step);
    ScarceQueue::left = ScarceQueue::kPlenty;
    ASSERT_TRUE(wanted.has_value()) << wanted.error().message;
    ASSERT_TRUE(done.has_value()) << done.error().message;
    compare();
    for (size_t at = 0; at < in_flight_.size(); ++at) {
      EncodeOptions options;
      options.spec = host_.spec.codec_up;
      auto expected = host_.bucket->code(at, options);
      auto found = device_.bucket->code(at, options);
      ASSERT_TRUE(expected.has_value() && found.has_value());
      ASSERT_TRUE(std::ranges::equal(found->container.bytes, expected->container.bytes)) << "part " << at;
      in_flight_[at].push_back({std::move(expected->sent), std::move(found->sent)});
      if (random_.next_below(2) == 0) update(at);
    }
    compare();
  }

  /// The oldest step in flight of a part was not counted, or its update carries some of it.
  void update(size_t at) {
    if (in_flight_[at].empty()) return;
    auto [of_host, of_device] = std::move(in_flight_[at].front());
    in_flight_[at].pop_front();
    if (random_.next_below(3) == 0) {
      host_.bucket->give_back(at, of_host.copy());
      device_.bucket->give_back(at, of_device.copy());
      return;
    }
    Stream carried = Stream::empty(of_host.view.dimension);
    for (uint32_t index = 0; index < carried.dimension; ++index) {
      if (random_.next_below(2) != 0) continue;
      carried.indices.push_back(index);
      carried.values.push_back(1);
    }
    const SharedStream shared = SharedStream::from(std::move(carried));
    host_.bucket->return_uncarried(at, std::move(of_host), shared);
    device_.bucket->return_uncarried(at, std::move(of_device), shared);
  }

  void settle() {
    for (size_t at = 0; at < in_flight_.size(); ++at) {
      while (!in_flight_[at].empty()) update(at);
    }
    compare();
  }

  void rejoin() {
    for (DeviceJob* job : {&host_, &device_}) ASSERT_TRUE(job->bucket->quarantine_residual());
    compare();
    for (DeviceJob* job : {&host_, &device_}) {
      job->bucket->drop_quarantined(1);
      job->bucket->merge_quarantined();
    }
    compare();
  }

  void take_and_restore() {
    Stream taken[2];
    for (DeviceJob* job : {&host_, &device_}) taken[job == &device_] = job->bucket->take_residual(0, kDeviceDimension);
    ASSERT_EQ(testing::listed(taken[1].indices), testing::listed(taken[0].indices));
    ASSERT_EQ(residual_bits_of(taken[1].values), residual_bits_of(taken[0].values));
    ASSERT_EQ(device_.bucket->residual().count() == 0 ||
                  residual_bits_of(device_.bucket->residual().values) == std::vector<uint32_t>(kDeviceDimension, 0),
              true);
    host_.bucket->slot(0).restore(taken[0].view());
    device_.bucket->slot(0).restore(taken[1].view());
    compare();
  }

  void compare() const {
    const Stream wanted = to_dense(host_.bucket->state(1).residual.view());
    const Stream found = to_dense(device_.bucket->state(1).residual.view());
    ASSERT_EQ(residual_bits_of(found.values), residual_bits_of(wanted.values));
    const double norm = std::sqrt(squared_norm_of(host_.bucket->residual().values));
    for (const DeviceJob* job : {&host_, &device_}) ASSERT_NEAR(job->bucket->residual_norm(), norm, 1e-5);
    const BucketCounters of_host = host_.bucket->counters();
    const BucketCounters of_device = device_.bucket->counters();
    ASSERT_EQ(of_device.entries_sent, of_host.entries_sent);
    ASSERT_EQ(of_device.entries_returned, of_host.entries_returned);
    ASSERT_EQ(of_device.dropped_error, of_host.dropped_error);
    const auto retained = [](const DeviceJob& job) {
      return IdleTensor{job.bucket.get(), &job.bucket->slot(0)}.retained();
    };
    ASSERT_EQ(retained(device_), retained(host_));
    ASSERT_TRUE(device_.bucket->slot(0).device_status().has_value());
  }

 private:
  DeviceJob host_;
  DeviceJob device_;
  RandomSequence random_;
  std::vector<std::deque<std::pair<SharedStream, SharedStream>>> in_flight_;
};

TEST(BucketOnDevice, SendsAndKeepsTheBitsOfTheHost) {
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
TEST(BucketOnDevice, SelectionsByThresholdsHaveThePositionsOfTheHost) {
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

/// Buckets with fewer entries than their k leave holes, which are closed.
TEST(BucketOnDevice, BucketsOfFewEntriesHaveThePositionsOfTheHost) {
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

void join_residual_of(const std::string& select) {
  BucketPair pair(job_of(select, "gap"), 3);
  Stream sparse = Stream::empty(kDeviceDimension);
  for (uint32_t index = 3; index < kDeviceDimension; index += 91) {
    sparse.indices.push_back(index);
    sparse.values.push_back(static_cast<float>(index) * 1e-3f);
  }
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  pair.push_sparse(sparse);
  pair.step(0);
  pair.push(gradient);
  pair.step(1);
  pair.push_host(gradient);
  pair.step(2);
  pair.push_sparse(sparse);
  pair.step(3);
  pair.settle();
}

TEST(BucketOnDevice, GradientsOfTheHostsMemoryJoinTheResidual) {
  for (const std::string select : {"topk:0.02", "bucket_topk:0.02:64"}) {
    SCOPED_TRACE(select);
    join_residual_of(select);
  }
}

TEST(BucketOnDevice, ValuesThatAreNotFiniteAreRefusedOrDroppedAsOnTheHost) {
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

TEST(BucketOnDevice, SumsThatOverflowAreAnErrorOfTheStep) {
  for (const std::string select : {"topk:0.03", "topk:50:dense=9", "bucket_topk:0.02:64"}) {
    DeviceJob job(job_of(select, "gap"));
    const std::vector<float> gradient(kDeviceDimension, std::numeric_limits<float>::max());
    const DeviceGradient there{gradient.data(), gradient.size(), 0, nullptr};
    ASSERT_TRUE(job.bucket->slot(0).add_device(there, 2, kOnHostQueue).has_value());
    EXPECT_EQ(job.bucket->select(0).error().code, ErrorCode::kNonFinite);
  }
}

/// Whichever allocation fails: of the entries that return, or of the selection.
TEST(BucketOnDevice, DeviceWithoutMemoryForTheSelectionSelectsOnTheHost) {
  for (const std::string select : {"topk:0.03", "threshold:0.9", "threshold_reuse:0.02:5", "sampled:0.02:5:dense=1",
                                   "bucket_topk:0.02:64", "bucket_topk:1:64"}) {
    uint64_t allocations = 0;
    for (; allocations < 40; allocations += allocations < 6 ? 1 : 5) {
      SCOPED_TRACE(select + " " + std::to_string(allocations));
      BucketPair pair(job_of(select, "gap+qsgd4"), 5 + allocations);
      for (uint64_t step = 0; step < 4; ++step) {
        pair.push(testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, step));
        pair.step(step, step % 2 == 0 ? allocations : ScarceQueue::kPlenty);
        if (::testing::Test::HasFatalFailure()) return;
      }
      pair.settle();
    }
  }
}

TEST(BucketOnDevice, PushWithoutMemoryTakesNothing) {
  DeviceJob job(job_of("topk:0.03", "gap"));
  PushSlot& slot = job.bucket->slot(0);
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  const DeviceGradient there{gradient.data(), gradient.size(), 0, nullptr};
  // There is none for the sum, for the first counter, and with the sum in place for the second counter.
  for (const uint64_t allocations : {0, 1, 1}) {
    ScarceQueue::left = allocations;
    const Status done = slot.add_device(there, 1, kOnHostQueue);
    ScarceQueue::left = ScarceQueue::kPlenty;
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kLimitExceeded);
    EXPECT_TRUE(slot.device_status().has_value());
    EXPECT_FALSE(slot.filled());
  }
  ASSERT_TRUE(slot.add_device(there, 1, kOnHostQueue).has_value());
  EXPECT_EQ(residual_bits_of(job.bucket->residual().values), residual_bits_of(gradient));
}

TEST(BucketOnDevice, StreamThatIsNoneLeavesTheResidualAsItIs) {
  DeviceJob job(job_of("topk:0.03", "gap"));
  PushSlot& slot = job.bucket->slot(0);
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  ASSERT_TRUE(slot.add_device({gradient.data(), gradient.size(), 0, nullptr}, 1, kOnHostQueue).has_value());
  ASSERT_TRUE(job.bucket->select(0).has_value());
  for (size_t at = 0; at < job.layout.parts.size(); ++at) job.bucket->skip_part(at);
  const Stream before = job.bucket->residual();
  const DeviceGradient of_no_stream{gradient.data(), gradient.size(), 0, cuda::HostQueue::no_stream()};
  const Status done = slot.add_device(of_no_stream, 1, kOnHostQueue);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(slot.device_status().has_value());
  EXPECT_EQ(residual_bits_of(job.bucket->residual().values), residual_bits_of(before.values));
  EXPECT_TRUE(slot.add_device({gradient.data(), gradient.size(), 0, nullptr}, 1, kOnHostQueue).has_value());
}

TEST(BucketOnDevice, FailedDeviceIsAnErrorOfTheStepAndOfTheSlot) {
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  const DeviceGradient there{gradient.data(), gradient.size(), 0, nullptr};
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

/// The law is checked index by index through an observer.
TEST(BucketOnDevice, ObserverSeesTheValuesThatEnter) {
  struct Entered : LedgerObserver {
    void entered(uint32_t, uint64_t begin, const StreamView& gradient, float weight) override {
      for (size_t at = 0; at < gradient.count(); ++at) {
        sum[begin + (gradient.dense ? at : gradient.indices[at])] += weight * gradient.values[at];
      }
    }
    std::vector<float> sum = std::vector<float>(kDeviceDimension);
  };
  Entered observer;
  protocol::JobSpec spec = job_of("topk:0.03", "gap");
  spec.non_finite = protocol::NonFinite::kDropAndCount;
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  Bucket bucket(spec, layout.buckets.at(0), layout.parts, &observer);
  auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  gradient[7] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(
      bucket.slot(0).add_device({gradient.data(), gradient.size(), 0, nullptr}, 0.5f, kOnHostQueue).has_value());
  EXPECT_EQ(residual_bits_of(observer.sum), residual_bits_of(bucket.residual().values));
}

TEST(BucketOnDevice, RulesThatNeedTheHostsMemoryAreNamed) {
  const auto why_not = [](const protocol::JobSpec& spec) {
    DeviceJob job(spec);
    const std::vector<float> gradient(kDeviceDimension, 1);
    const Status done = job.bucket->slot(0).add_device({gradient.data(), gradient.size(), 0, nullptr}, 1, kOnHostQueue);
    if (done) return std::string();
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(done.error().message.find("select by topk"), std::string::npos) << done.error().message;
    return done.error().message;
  };
  EXPECT_EQ(why_not(job_of("topk:0.01", "gap")), "");
  EXPECT_NE(why_not(job_of("none", "gap")).find("selection none"), std::string::npos);
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
  EXPECT_NE(why_not(spec).find("clips"), std::string::npos);
  spec = job_of("topk:0.01", "gap");
  spec.momentum = {.momentum = protocol::Momentum::kCorrection, .factor = 0.9};
  EXPECT_NE(why_not(spec).find("momentum"), std::string::npos);
}

TEST(BucketOnDevice, GradientsOfAnotherSizeOrDeviceAreRefused) {
  DeviceJob job(job_of("topk:0.03", "gap"));
  const std::vector<float> gradient(kDeviceDimension, 1);
  PushSlot& slot = job.bucket->slot(0);
  EXPECT_EQ(slot.add_device({gradient.data(), 7, 0, nullptr}, 1, kOnHostQueue).error().code,
            ErrorCode::kInvalidArgument);
  const Status other = slot.add_device({gradient.data(), gradient.size(), 1, nullptr}, 1, kOnHostQueue);
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(other.error().message.find("device 1"), std::string::npos) << other.error().message;
  const MakeDeviceResidual none = [](const SelectionSpec&, uint64_t) -> Result<std::unique_ptr<DeviceResidual>> {
    return fail(ErrorCode::kUnavailable, "no device");
  };
  DeviceJob without(job_of("topk:0.03", "gap"));
  EXPECT_EQ(without.bucket->slot(0).add_device({gradient.data(), gradient.size(), 0, nullptr}, 1, none).error().code,
            ErrorCode::kUnavailable);
  EXPECT_TRUE(without.bucket->slot(0).add_dense(gradient, 1).has_value()) << "the host's memory remains possible";
}

}  // namespace
}  // namespace millrace::worker
