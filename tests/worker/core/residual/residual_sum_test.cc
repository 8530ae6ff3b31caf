#include "worker/core/residual/residual_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/queue/host_queue.h"
#include "kernels/reduce/reduce.h"
#include "tests/support/oracles/select_oracle.h"
#include "worker/core/residual/queue_residual.h"

/// The norm of a sum and its other entries, in both places. bucket_device_test compares all other operations.
namespace millrace::worker {
namespace {

constexpr uint64_t kSumDimension = 5'003;

/// A queue that its test can watch after a ResidualSum has taken it.
struct WatchedQueue {
  cuda::HostQueue* queue = nullptr;

  MakeDeviceResidual maker() {
    return [this](const SelectionSpec& spec, uint64_t dimension) -> Result<std::unique_ptr<DeviceResidual>> {
      auto made = std::make_unique<cuda::HostQueue>();
      queue = made.get();
      return std::make_unique<QueueResidual<cuda::HostQueue>>(std::move(made), spec, dimension);
    };
  }
};

Stream dense_of(const std::vector<float>& values) { return {values.size(), true, {}, {values.begin(), values.end()}}; }

Stream sparse_of(const std::vector<float>& values, uint32_t stride) {
  Stream out = Stream::empty(values.size());
  for (uint32_t i = 1; i < values.size(); i += stride) {
    out.indices.push_back(i);
    out.values.push_back(values[i]);
  }
  return out;
}

double norm_of(const StreamView& sum, const StreamView& more) {
  const Stream together = to_dense(sum_two(sum, more)->view());
  double squares = 0;
  for (const float value : together.values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

TEST(ResidualNorm, IsThatOfTheSumAndTheOtherEntriesInBothPlaces) {
  const SelectionSpec select = selection_from_text("topk:0.02").value();
  const auto values = testing::values_of(testing::Pattern::kGaussian, kSumDimension, 1);
  const auto others = testing::values_of(testing::Pattern::kGaussian, kSumDimension, 2);
  std::vector<float> opposite = values;
  for (float& value : opposite) value = -value;
  for (const Stream& sum : {Stream::empty(kSumDimension), sparse_of(values, 7), dense_of(values)}) {
    for (const Stream& more : {Stream::empty(kSumDimension), sparse_of(others, 11), dense_of(others),
                               sparse_of(opposite, 1), dense_of(opposite)}) {
      ResidualSum on_host(select, kSumDimension);
      ResidualSum on_device(select, kSumDimension);
      WatchedQueue watched;
      ASSERT_TRUE(on_device.move_to_device(watched.maker()));
      for (ResidualSum* one : {&on_host, &on_device}) one->add(Stream(sum));
      const double wanted = norm_of(sum.view(), more.view());
      for (const ResidualSum* one : {&on_host, &on_device}) {
        EXPECT_NEAR(one->norm(more.view()), wanted,
                    1e-6 * (1 + norm_of(sum.view(), Stream::empty(kSumDimension).view())));
      }
    }
  }
}

TEST(ResidualNorm, OfADeviceCrossesTheBusWithTheOtherEntriesAlone) {
  ResidualSum sum(selection_from_text("topk:0.02").value(), kSumDimension);
  WatchedQueue watched;
  ASSERT_TRUE(sum.move_to_device(watched.maker()));
  const auto values = testing::values_of(testing::Pattern::kGaussian, kSumDimension, 3);
  sum.add(dense_of(values));
  const Stream more = sparse_of(values, 500);
  const uint64_t before = watched.queue->bytes_down();
  const double norm = sum.norm(more.view());
  EXPECT_LT(watched.queue->bytes_down() - before, 200U + 4 * more.count());
  // Without memory there the values are copied, and the norm is the same one.
  watched.queue->let_allocations_fail_after(0);
  EXPECT_NEAR(sum.norm(more.view()), norm, 1e-9 * norm);
  EXPECT_GE(watched.queue->bytes_down() - before, 4 * kSumDimension);
}

TEST(ResidualNorm, OfSumsThatAreNotFinite) {
  const SelectionSpec select = selection_from_text("topk:0.02").value();
  std::vector<float> values(kSumDimension, 1.0f);
  values[17] = std::numeric_limits<float>::infinity();
  ResidualSum on_host(select, kSumDimension);
  ResidualSum on_device(select, kSumDimension);
  WatchedQueue watched;
  ASSERT_TRUE(on_device.move_to_device(watched.maker()));
  for (ResidualSum* one : {&on_host, &on_device}) {
    one->add(dense_of(values));
    EXPECT_EQ(one->norm(Stream::empty(kSumDimension).view()), std::numeric_limits<double>::infinity());
    values[18] = std::numeric_limits<float>::quiet_NaN();
    one->add(dense_of(values));
    EXPECT_TRUE(std::isnan(one->norm(Stream::empty(kSumDimension).view())));
    values[18] = 1;
  }
}

}  // namespace
}  // namespace millrace::worker
