#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "protocol/layout.h"
#include "tests/support/replaced_new.h"
#include "worker/core/bucket.h"

/// Memory that ends while a gradient is taken: nothing of it was taken, and the same push can be tried again.
namespace millrace::worker {
namespace {

using millrace::testing::FailingAllocation;

constexpr uint64_t kMemoryDimension = 500;
constexpr uint64_t kAllocationsMax = 100;

struct OneTensor {
  OneTensor() {
    spec.name = "starved";
    spec.tensors.push_back({.name = "w", .dimension = kMemoryDimension});
    spec.select.selection = Selection::kNone;
    layout = protocol::plan_layout(spec, 1);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts, LedgerMode::kPerIndex);
  }
  PushSlot& slot() { return bucket->slot(0); }
  double entered() const {
    double sum = 0;
    for (const double value : bucket->entered()) sum += value;
    return sum;
  }
  double held() const {
    const Stream residual = bucket->residual();
    double sum = 0;
    for (const float value : residual.values) sum += static_cast<double>(value);
    return sum;
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;
};

/// `push` onto what `before` left there, with memory ending at every allocation in turn.
template <typename Before, typename Push>
void expect_all_or_nothing(Before before, Push push, double amount) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    OneTensor tensor;
    before(tensor);
    const double held = tensor.held();
    ASSERT_EQ(tensor.entered(), held);
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      EXPECT_TRUE(push(tensor.slot()));
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(tensor.slot().filled()) << at;
      EXPECT_EQ(tensor.entered(), held) << at;
      EXPECT_EQ(tensor.held(), held) << at;
      EXPECT_TRUE(push(tensor.slot()));
    }
    EXPECT_EQ(tensor.entered(), held + amount) << at;
    EXPECT_EQ(tensor.held(), held + amount) << at;
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST(StarvedPush, TakesAllOrNothing) {
  const std::vector<float> dense(kMemoryDimension, 1.0f);
  const std::vector<uint32_t> indices = {400, 3, 3, 70};  // unsorted, with a duplicate
  const std::vector<float> values = {1, 2, 4, 8};
  const auto nothing = [](OneTensor&) {};
  const auto something_sparse = [&](OneTensor& tensor) {
    ASSERT_TRUE(tensor.slot().add_sparse(std::vector<uint32_t>{5}, std::vector<float>{16}, 1));
    ASSERT_TRUE(tensor.bucket->select(0));
    for (size_t at = 0; at < tensor.layout.parts.size(); ++at) {
      auto coded = tensor.bucket->code(at, {});
      ASSERT_TRUE(coded);
      tensor.bucket->give_back(at, coded->sent.copy());
    }
  };
  const auto push_dense = [&](PushSlot& slot) { return slot.add_dense(dense, 1).has_value(); };
  const auto push_sparse = [&](PushSlot& slot) { return slot.add_sparse(indices, values, 1).has_value(); };
  expect_all_or_nothing(nothing, push_dense, kMemoryDimension);
  expect_all_or_nothing(nothing, push_sparse, 15);
  expect_all_or_nothing(something_sparse, push_dense, kMemoryDimension);
  expect_all_or_nothing(something_sparse, push_sparse, 15);
}

}  // namespace
}  // namespace millrace::worker
