#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/accumulate/add_and_collect.h"
#include "protocol/job/layout.h"
#include "tests/support/index_ledger.h"
#include "tests/support/replaced_new.h"
#include "tests/worker/core/residual/device_buckets.h"
#include "tests/worker/core/residual/scarce_queue.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/queue_residual.h"

/// Memory that ends while a gradient is taken: nothing of it was taken, and the same push can be tried again. Memory
/// that ends while a part is coded: the residual has its values.
namespace millrace::worker {
namespace {

using millrace::testing::FailingAllocation;

constexpr uint64_t kMemoryDimension = 500;
constexpr uint64_t kAllocationsMax = 100;

/// The settings of a job that choose a gradient's way into the residual, and that count it.
struct StarvedJob {
  const char* name;
  bool audit = false;
  SelectionSpec select = {};
  uint64_t dimension = kMemoryDimension;
  const char* codec = "raw+raw";
  protocol::CodecError errors = protocol::CodecError::kRetain;
};

struct OneTensor {
  explicit OneTensor(const StarvedJob& job) {
    spec.name = job.name;
    spec.tensors.push_back({.name = "w", .dimension = job.dimension});
    spec.select = job.select;
    spec.audit = job.audit;
    spec.codec_up = codec_from_text(job.codec).value();
    spec.codec_error = job.errors;
    spec.non_finite = protocol::NonFinite::kDropAndCount;
    spec.parts_per_shard = 4;
    layout = protocol::plan_layout(spec, 1);
    ledger = std::make_unique<testing::IndexLedger>(layout);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts, ledger.get());
  }
  PushSlot& slot() { return bucket->slot(0); }
  double entered() const {
    double sum = 0;
    for (const double value : ledger->entered(0)) sum += value;
    return sum;
  }
  double held() const {
    const Stream residual = bucket->residual();
    double sum = 0;
    for (const float value : residual.values) sum += static_cast<double>(value);
    return sum;
  }
  /// Sends a step and takes all of it back.
  void send_and_take_back() {
    ASSERT_TRUE(bucket->select(0));
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      auto coded = bucket->code(at, {});
      ASSERT_TRUE(coded);
      bucket->give_back(at, coded->sent.copy());
    }
  }
  void expect_books(double amount) {
    double in_books = 0;
    for (size_t at = 0; spec.audit && at < layout.parts.size(); ++at) {
      const PartAccounts books = bucket->audit(at);
      EXPECT_EQ(books.entered.value(), books.in_residual.value() + books.lost.value()) << "part " << at;
      in_books += books.entered.value();
    }
    EXPECT_EQ(in_books, spec.audit ? amount : 0);
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<testing::IndexLedger> ledger;
  std::unique_ptr<Bucket> bucket;
};

/// `push` onto what `before` left there, with memory ending at every allocation in turn. The push drops two values.
template <typename Before, typename Push>
void expect_all_or_nothing(const StarvedJob& job, Before before, Push push, double amount) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    SCOPED_TRACE(std::string(job.name) + ", allocation " + std::to_string(at));
    OneTensor tensor(job);
    before(tensor);
    const double held = tensor.held();
    const double entered = tensor.entered();
    const uint64_t dropped = tensor.slot().non_finite_dropped();
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      EXPECT_TRUE(push(tensor.slot()));
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(tensor.slot().filled());
      EXPECT_EQ(tensor.entered(), entered);
      EXPECT_EQ(tensor.held(), held);
      EXPECT_EQ(tensor.slot().non_finite_dropped(), dropped);
      tensor.expect_books(held);
      EXPECT_TRUE(push(tensor.slot()));
    }
    EXPECT_EQ(tensor.held(), held + amount);
    EXPECT_EQ(tensor.slot().non_finite_dropped(), dropped + 2);
    EXPECT_EQ(tensor.entered(), entered + amount);
    tensor.expect_books(held + amount);
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST(StarvedPush, TakesAllOrNothing) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> dense(kMemoryDimension, 1.0f);
  dense[7] = dense[490] = kNaN;
  const std::vector<uint32_t> unsorted = {400, 3, 3, 70, 9, 8};  // with a duplicate
  const std::vector<uint32_t> sorted = {3, 70, 130, 260, 400, 499};
  const std::vector<float> values = {1, 2, 4, 8, kNaN, kNaN};
  const auto nothing = [](OneTensor&) {};
  const auto something_sparse = [&](OneTensor& tensor) {
    ASSERT_TRUE(tensor.slot().add_sparse(std::vector<uint32_t>{5}, std::vector<float>{16}, 1));
    tensor.send_and_take_back();
  };
  const auto something_dense = [&](OneTensor& tensor) {
    ASSERT_TRUE(tensor.slot().add_dense(std::vector<float>(kMemoryDimension, 2.0f), 1));
    tensor.send_and_take_back();
  };
  const auto push_dense = [&](PushSlot& slot) { return slot.add_dense(dense, 1).has_value(); };
  const auto push_unsorted = [&](PushSlot& slot) { return slot.add_sparse(unsorted, values, 1).has_value(); };
  const auto push_sorted = [&](PushSlot& slot) { return slot.add_sparse(sorted, values, 1).has_value(); };
  constexpr SelectionSpec kTop = {.selection = SelectionId::kTopK, .k = 5};
  for (const StarvedJob& job : {StarvedJob{"plain"}, StarvedJob{.name = "plain, top k", .select = kTop},
                                StarvedJob{.name = "audited", .audit = true},
                                StarvedJob{.name = "audited, top k", .audit = true, .select = kTop}}) {
    for (const auto& before :
         std::vector<std::function<void(OneTensor&)>>{nothing, something_sparse, something_dense}) {
      expect_all_or_nothing(job, before, push_dense, kMemoryDimension - 2);
      expect_all_or_nothing(job, before, push_unsorted, 15);
      expect_all_or_nothing(job, before, push_sorted, 15);
    }
  }
}

TEST(StarvedPush, OfALargeTensorTakesAllOrNothing) {
  std::vector<float> dense(kCollectFrom, 1.0f);
  for (size_t i = 0; i < dense.size(); i += 32) dense[i] = 2;
  dense[7] = dense[490] = std::numeric_limits<float>::quiet_NaN();
  const auto before = [](OneTensor& tensor) {
    ASSERT_TRUE(tensor.slot().add_dense(std::vector<float>(kCollectFrom, 2.0f), 1));
    tensor.send_and_take_back();
  };
  const auto push = [&](PushSlot& slot) { return slot.add_dense(dense, 1).has_value(); };
  constexpr SelectionSpec kTop = {.selection = SelectionId::kTopK, .k = 4000};
  expect_all_or_nothing({.name = "large, top k", .select = kTop, .dimension = kCollectFrom}, before, push,
                        kCollectFrom + kCollectFrom / 32 - 2);
}

/// A device whose own memory does not end: the session's does.
class SparedQueue : public ScarceQueue {
 public:
  template <class T>
  cuda::HostMemory<T> allocate(size_t count) {
    const testing::SparedAllocations spared;
    return ScarceQueue::allocate<T>(count);
  }
  template <class Kernel>
  void launch(const Kernel& kernel, uint64_t blocks) {
    const testing::SparedAllocations spared;
    ScarceQueue::launch(kernel, blocks);
  }
};

/// Codes a part with memory ending at an allocation. Returns whether memory ended.
///
/// there  allocations that succeed on the device. Without any the host codes the part.
bool memory_ends_in_code(const std::string& selection, protocol::CodecError errors, uint64_t there, uint64_t at) {
  protocol::JobSpec spec = job_of(selection, "gap+qsgd4");
  spec.codec_error = errors;
  DeviceJob job(spec);
  const MakeDeviceResidual make = [](const SelectionSpec& select, uint64_t dimension) {
    return Result<std::unique_ptr<DeviceResidual>>(
        std::make_unique<QueueResidual<SparedQueue>>(std::make_unique<SparedQueue>(), select, dimension));
  };
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  EXPECT_TRUE(job.bucket->slot(0).add_device({gradient.data(), gradient.size(), 0}, 1, make).has_value());
  EXPECT_TRUE(job.bucket->select(0).has_value());
  const EncodeOptions options{job.spec.codec_up, random_key(1, 0), job.layout.parts[0].begin};
  bool is_coded = false;
  bool memory_ended = false;
  ScarceMemory::left = there;
  try {
    const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
    is_coded = job.bucket->code(0, options).has_value();
    memory_ended = failing.failed();
    EXPECT_TRUE(is_coded || memory_ended);
  } catch (const std::bad_alloc&) {
    memory_ended = true;
  }
  ScarceMemory::left = ScarceMemory::kPlenty;
  if (!is_coded) {
    EXPECT_EQ(residual_bits_of(job.bucket->residual().values), residual_bits_of(gradient));
    EXPECT_TRUE(job.bucket->code(0, options).has_value());
  }
  return memory_ended;
}

/// Codes a part where memory ends at the given allocation. Returns whether it ended.
bool memory_ends_in_code(const StarvedJob& job, uint64_t at) {
  OneTensor tensor(job);
  std::vector<float> gradient(kMemoryDimension);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(1 + i % 7);
  EXPECT_TRUE(tensor.slot().add_dense(gradient, 1));
  EXPECT_TRUE(tensor.bucket->select(0));
  const double entered = tensor.entered();
  const double held = tensor.held();
  const EncodeOptions options{tensor.spec.codec_up, random_key(1, 0), tensor.layout.parts[0].begin};
  bool is_coded = false;
  bool memory_ended = false;
  try {
    const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
    is_coded = tensor.bucket->code(0, options).has_value();
    memory_ended = failing.failed();
    EXPECT_TRUE(is_coded || memory_ended);
  } catch (const std::bad_alloc&) {
    memory_ended = true;
  }
  if (!is_coded) {
    EXPECT_EQ(tensor.held(), held);
    EXPECT_EQ(tensor.bucket->counters().false_positives, 0u);
    tensor.expect_books(entered);
    EXPECT_TRUE(tensor.bucket->code(0, options).has_value());
  }
  return memory_ended;
}

TEST(StarvedCode, LosesNothingOfTheHostsSelection) {
  constexpr SelectionSpec kTop = {.selection = SelectionId::kTopK, .k = 50};
  for (const char* codec : {"raw+raw", "gap+qsgd4", "bloom_p0+raw", "bloom_p0+qsgd4"}) {
    for (const auto errors : {protocol::CodecError::kRetain, protocol::CodecError::kDrop}) {
      for (const SelectionSpec& select : {SelectionSpec{}, kTop}) {
        SCOPED_TRACE(codec);
        const StarvedJob job{.name = "coded", .audit = true, .select = select, .codec = codec, .errors = errors};
        uint64_t at = 0;
        while (at < kAllocationsMax && memory_ends_in_code(job, at)) ++at;
        EXPECT_GT(at, 0u);
        EXPECT_LT(at, kAllocationsMax);
      }
    }
  }
}

TEST(StarvedCode, LosesNothingOfASumOnADevice) {
  for (const auto errors : {protocol::CodecError::kRetain, protocol::CodecError::kDrop}) {
    for (const uint64_t there : {ScarceMemory::kPlenty, uint64_t{0}}) {
      for (const std::string select : {"none", "topk:0.1"}) {
        uint64_t at = 0;
        while (at < kAllocationsMax && memory_ends_in_code(select, errors, there, at)) ++at;
        EXPECT_GT(at, 3u) << "payload, values and their owners";
        EXPECT_LT(at, kAllocationsMax);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::worker
