#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/thresholds.h"
#include "kernels/select/select.h"
#include "tests/kernels/cuda/select_suite.h"

namespace millrace::cuda {

template <class Under>
class CudaThresholds : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  static Status select_on_host(Selector& selector, std::span<const float> values, IndexBuffer& positions) {
    return selector.select({.dimension = values.size(), .dense = true, .indices = {}, .values = values}, {}, positions);
  }

  void expect_same(Queue& queue, const Result<Positions<Queue>>& found, const Status& host, const IndexBuffer& wanted) {
    ASSERT_EQ(found.has_value(), host.has_value()) << (found ? "" : found.error().message);
    if (found) {
      ASSERT_EQ(on_host(queue, *found), testing::listed(wanted));
    } else {
      ASSERT_EQ(found.error().code, host.error().code);
    }
    const Status end = queue.finish();
    ASSERT_TRUE(end.has_value()) << end.error().message;
  }

  /// Compares a selector of the device with the host's over steps.
  template <class Selecting>
  void expect_steps_as_host(const SelectionSpec& spec, const std::vector<std::vector<float>>& steps) {
    for (const auto& queue : Under::queues()) {
      const auto selector = make_selector(spec, std::max<size_t>(steps[0].size(), 1)).value();
      Selecting selecting(spec.k, spec.period);
      for (size_t step = 0; step < steps.size(); ++step) {
        SCOPED_TRACE("step " + std::to_string(step) + " k " + std::to_string(spec.k));
        const Array<Queue> array(*queue, steps[step], step % 4);
        IndexBuffer wanted;
        const Status host = select_on_host(*selector, steps[step], wanted);
        expect_same(*queue, selecting.select(*queue, array.data, steps[step].size()), host, wanted);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  void expect_reuse_as_host(const std::vector<std::vector<float>>& steps, uint64_t k, uint32_t period) {
    expect_steps_as_host<ThresholdReuse<Queue>>({.selection = SelectionId::kThresholdReuse, .k = k, .period = period},
                                                steps);
    if (::testing::Test::HasFatalFailure()) return;
    expect_steps_as_host<Sampled<Queue>>({.selection = SelectionId::kSampled, .k = k, .period = period}, steps);
  }

  void expect_gaussian_as_host(std::span<const float> values, uint64_t k) {
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values);
      const auto selector =
          make_selector({.selection = SelectionId::kGaussian, .k = k}, std::max<size_t>(values.size(), 1)).value();
      IndexBuffer wanted;
      const Status host = select_on_host(*selector, values, wanted);
      expect_same(*queue, gaussian(*queue, array.data, values.size(), k), host, wanted);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  void expect_sums_as_host(std::span<const float> values, MagnitudeKey cut) {
    const TailSums wanted = millrace::tail_sums(values, cut);
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values, 1);
      const auto found = tail_sums(*queue, array.data, values.size(), cut);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      ASSERT_EQ(found->above, wanted.above);
      ASSERT_EQ(std::bit_cast<uint64_t>(found->sum), std::bit_cast<uint64_t>(wanted.sum));
      ASSERT_EQ(std::bit_cast<uint64_t>(found->magnitude), std::bit_cast<uint64_t>(wanted.magnitude));
      ASSERT_EQ(std::bit_cast<uint64_t>(found->squares), std::bit_cast<uint64_t>(wanted.squares));
    }
  }
};

/// Steps of one pattern whose scale drifts, and then jumps both ways; one of them is not finite, one is all zeros.
inline std::vector<std::vector<float>> drifting_steps(testing::Pattern pattern, size_t n) {
  std::vector<std::vector<float>> steps;
  float scale = 0.25F;
  for (const float factor : {1.0F, 1.01F, 1.04F, 0.9F, 3.0F, 1.0F, 0.2F, 1.0F, 1.1F, 1.0F}) {
    scale *= factor;
    steps.push_back(testing::values_of(pattern, n, steps.size()));
    for (float& value : steps.back()) value *= scale;
  }
  if (n == 0) return steps;
  steps[2][n / 2] = std::numeric_limits<float>::quiet_NaN();
  steps[8][n - 1] = -std::numeric_limits<float>::infinity();
  steps.insert(steps.begin() + 7, std::vector<float>(n, -0.0F));
  return steps;
}

TYPED_TEST_SUITE(CudaThresholds, QueuesUnderTest);

TYPED_TEST(CudaThresholds, ReuseEqualsTheHostStepByStep) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{1}, size_t{30}, size_t{1000}, size_t{4097}}) {
      const auto steps = drifting_steps(pattern, n);
      for (const uint64_t k : std::set<uint64_t>{1, n / 100 + 1, n / 3 + 1, n}) {
        SCOPED_TRACE(testing::name_of(pattern, n, k));
        this->expect_reuse_as_host(steps, k, 4);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaThresholds, APeriodOfOneAndALongOneEqualTheHost) {
  const auto steps = drifting_steps(testing::Pattern::kGaussian, 9'000);
  for (const uint32_t period : {1u, 2u, 32u}) this->expect_reuse_as_host(steps, 90, period);
}

TYPED_TEST(CudaThresholds, NothingIsSelectedOfNothing) {
  this->expect_reuse_as_host({{}, {}}, 5, 3);
  for (const auto& queue : TypeParam::queues()) {
    ThresholdReuse<typename TypeParam::Queue> reuse(0, 3);
    Sampled<typename TypeParam::Queue> sampled(0, 3);
    const Array<typename TypeParam::Queue> array(*queue, std::vector<float>{1.0F, 2.0F});
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(reuse.select(*queue, array.data, 2)->count, 0);
      EXPECT_EQ(sampled.select(*queue, array.data, 2)->count, 0);
    }
    EXPECT_EQ(gaussian(*queue, array.data, 2, 0).error().code, ErrorCode::kInvalidArgument);
  }
}

TYPED_TEST(CudaThresholds, SumsHaveTheBitsOfTheHost) {
  constexpr size_t kChunk = SumTails::kChunk;
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{15}, size_t{17}, size_t{1025}, size_t{5'003}}) {
      auto values = testing::values_of(pattern, n, n);
      for (const MagnitudeKey cut : {MagnitudeKey{0}, MagnitudeKey{1}, magnitude_key(0.5F), kInfinityKey}) {
        SCOPED_TRACE(testing::name_of(pattern, n, cut));
        this->expect_sums_as_host(values, cut);
        if (::testing::Test::HasFatalFailure()) return;
        if (n > 0) values[n / 2] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  for (const size_t n : {kChunk - 1, kChunk, kChunk + 1, 2 * kChunk + 77}) {
    this->expect_sums_as_host(testing::values_of(testing::Pattern::kHeavyTail, n, n), kInfinityKey);
  }
}

TYPED_TEST(CudaThresholds, GaussianEqualsTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{8193}}) {
      auto values = testing::values_of(pattern, n, n + 3);
      for (const uint64_t k : std::set<uint64_t>{1, n / 100 + 1, n / 3 + 1, std::max<uint64_t>(n, 1)}) {
        SCOPED_TRACE(testing::name_of(pattern, n, k));
        this->expect_gaussian_as_host(values, k);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (n == 0) continue;
      values[n / 3] = std::numeric_limits<float>::infinity();
      this->expect_gaussian_as_host(values, n / 10 + 1);
    }
  }
}

}  // namespace millrace::cuda
