#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "kernels/cuda/k_to_2k.h"
#include "kernels/cuda/top_k.h"
#include "kernels/select/binary_search.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "tests/support/oracles/select_oracle.h"

/// One suite for both queues, of host_under_test.h and device_under_test.h. Kernels give the results of the host's
/// selections.
namespace millrace::cuda {

/// An array in the queue's memory, `offset` entries behind an aligned place.
template <class Queue>
struct Array {
  Array(Queue& queue, std::span<const float> values, size_t offset = 0)
      : memory(queue.template allocate<float>(values.size() + offset + 1)), data(memory.data() + offset) {
    queue.upload(data, values);
  }
  MemoryOf<Queue, float> memory;
  float* data;
};

template <class Queue>
std::vector<uint32_t> on_host(Queue& queue, const Positions<Queue>& from) {
  std::vector<uint32_t> positions(from.count);
  queue.download(std::span(positions), static_cast<const uint32_t*>(from.positions.data()));
  return positions;
}

template <class Under>
class CudaSelect : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  void expect_as_host(std::span<const float> values, uint64_t k, size_t offset = 0) {
    SCOPED_TRACE("n " + std::to_string(values.size()) + " k " + std::to_string(k));
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values, offset);
      for (const Zeros zeros : {Zeros::kSelected, Zeros::kSkipped}) {
        IndexBuffer wanted;
        const Status host =
            zeros == Zeros::kSelected ? select_top_k(values, k, wanted) : select_top_k_nonzero(values, k, wanted);
        const auto found = top_k(*queue, array.data, values.size(), k, zeros);
        ASSERT_EQ(found.has_value(), host.has_value()) << (found ? "" : found.error().message);
        if (!found) {
          ASSERT_EQ(found.error().code, host.error().code) << found.error().message;
          continue;
        }
        ASSERT_EQ(on_host(*queue, *found), testing::listed(wanted));
      }
      const Status end = queue->finish();
      ASSERT_TRUE(end.has_value()) << end.error().message;
    }
  }

  void expect_radix_as_host(std::span<const float> values, uint64_t k) {
    const auto selector =
        make_selector({.selection = SelectionId::kRadix, .k = k}, std::max<size_t>(values.size(), 1)).value();
    IndexBuffer wanted;
    const Status host =
        selector->select({.dimension = values.size(), .dense = true, .indices = {}, .values = values}, {}, wanted);
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values);
      const auto found = radix_top_k(*queue, array.data, values.size(), k);
      ASSERT_EQ(found.has_value(), host.has_value()) << (found ? "" : found.error().message);
      if (!found) {
        ASSERT_EQ(found.error().code, host.error().code);
        continue;
      }
      ASSERT_EQ(on_host(*queue, *found), testing::listed(wanted));
      const Status end = queue->finish();
      ASSERT_TRUE(end.has_value()) << end.error().message;
    }
  }

  void expect_k_to_2k_as_host(std::span<const float> values, uint64_t k) {
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values);
      IndexBuffer wanted;
      const auto host = select_k_to_2k(values, k, wanted);
      const auto found = k_to_2k(*queue, array.data, values.size(), k);
      ASSERT_EQ(found.has_value(), host.has_value()) << (found ? "" : found.error().message);
      if (!found) {
        ASSERT_EQ(found.error().code, host.error().code);
        continue;
      }
      ASSERT_EQ(on_host(*queue, found->selected), testing::listed(wanted));
      ASSERT_EQ(found->key, *host);
      const Status end = queue->finish();
      ASSERT_TRUE(end.has_value()) << end.error().message;
    }
  }

  void expect_threshold_as_host(std::span<const float> values, float at, uint64_t count_max) {
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values);
      IndexBuffer wanted;
      const Status host = select_threshold(values, at, count_max, wanted);
      const auto found = threshold(*queue, array.data, values.size(), at, count_max, 10);
      ASSERT_EQ(found.has_value(), host.has_value()) << (found ? "" : found.error().message);
      if (!found) {
        ASSERT_EQ(found.error().code, host.error().code);
        continue;
      }
      ASSERT_EQ(on_host(*queue, *found), testing::listed(wanted));
      const Status end = queue->finish();
      ASSERT_TRUE(end.has_value()) << end.error().message;
    }
  }
};

TYPED_TEST_SUITE(CudaSelect, QueuesUnderTest);

TYPED_TEST(CudaSelect, TopKEqualsTheHostOnEveryPattern) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{1}, size_t{31}, size_t{1000}, size_t{4096}, size_t{8193}, size_t{70'001}}) {
      const auto values = testing::values_of(pattern, n, n);
      for (const uint64_t k : std::set<uint64_t>{0, 1, n / 100, n / 3, n - 1, n}) {
        SCOPED_TRACE(testing::name_of(pattern, n, k));
        this->expect_as_host(values, k);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaSelect, TopKTakesValuesAtAnyAlignment) {
  const auto values = testing::values_of(testing::Pattern::kGaussian, 20'003, 7);
  for (const size_t offset : {0, 1, 2, 3}) this->expect_as_host(values, 200, offset);
}

TYPED_TEST(CudaSelect, TopKCutsTiesByTheLowerIndex) {
  std::vector<float> values(30'000, 1.0F);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = i % 2 == 0 ? -2.0F : 2.0F;
  for (const uint64_t k : {uint64_t{10}, uint64_t{4286}, uint64_t{4287}, uint64_t{4288}, uint64_t{20'000}}) {
    this->expect_as_host(values, k);
  }
}

TYPED_TEST(CudaSelect, NanAndInfinityAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t n : {size_t{5}, size_t{5000}, size_t{50'000}}) {
      auto values = testing::values_of(testing::Pattern::kGaussian, n, 3);
      values[n - 1] = bad;
      for (const uint64_t k : {uint64_t{0}, uint64_t{1}, n / 2, n}) this->expect_as_host(values, k);
      this->expect_threshold_as_host(values, 0.5F, n);
    }
  }
}

TYPED_TEST(CudaSelect, MoreThanThereAreIsAnError) { this->expect_as_host(std::vector<float>{1.0F, 2.0F}, 3); }

TYPED_TEST(CudaSelect, ThresholdEqualsTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1025}, size_t{33'000}}) {
      const auto values = testing::values_of(pattern, n, n + 1);
      for (const float at :
           {std::numeric_limits<float>::denorm_min(), 0.1F, 2.0F, 1e30F, std::numeric_limits<float>::infinity()}) {
        for (const uint64_t count_max : {uint64_t{0}, uint64_t{3}, uint64_t{n}}) {
          SCOPED_TRACE(testing::name_of(pattern, n, count_max) + " at " + std::to_string(at));
          this->expect_threshold_as_host(values, at, count_max);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(CudaSelect, BisectionEqualsTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{1}, size_t{1000}, size_t{4096}, size_t{70'001}}) {
      auto values = testing::values_of(pattern, n, n + 2);
      for (const uint64_t k : std::set<uint64_t>{1, n / 100 + 1, n / 3 + 1, n}) {
        for (const bool is_finite : {true, false}) {
          SCOPED_TRACE(testing::name_of(pattern, n, k));
          if (!is_finite) values[n / 3] = std::numeric_limits<float>::infinity();
          this->expect_k_to_2k_as_host(values, k);
          if (::testing::Test::HasFatalFailure()) return;
        }
        values[n / 3] = 0.25F;
      }
    }
  }
}

TYPED_TEST(CudaSelect, RadixEqualsTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{8193}}) {
      auto values = testing::values_of(pattern, n, n + 8);
      for (const uint64_t k : std::set<uint64_t>{1, n / 100 + 1, n / 3 + 1, std::max<uint64_t>(n, 1)}) {
        SCOPED_TRACE(testing::name_of(pattern, n, k));
        this->expect_radix_as_host(values, k);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (n == 0) continue;
      values[n / 2] = std::numeric_limits<float>::infinity();
      this->expect_radix_as_host(values, 3);
    }
  }
}

TYPED_TEST(CudaSelect, AThresholdIsAboveZero) {
  for (const float at : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    this->expect_threshold_as_host(std::vector<float>{1.0F}, at, 1);
  }
}

}  // namespace millrace::cuda
