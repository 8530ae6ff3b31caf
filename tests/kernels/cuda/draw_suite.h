#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/draw.h"
#include "kernels/select/select.h"
#include "tests/kernels/cuda/quantize_suite.h"

namespace millrace::cuda {

template <class Under>
class CudaDraws : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;
  static constexpr RandomKey kKey = RandomKey::from(0x1234567890ABCDEF);

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  void expect_same(Queue& queue, const Result<Drawn<Queue>>& found, const IndexBuffer& positions,
                   const Buffer<float>& drawn) {
    ASSERT_TRUE(found.has_value()) << found.error().message;
    ASSERT_EQ(on_host(queue, found->selected), testing::listed(positions));
    ASSERT_EQ(bits_of_values(downloaded(queue, found->values.data(), drawn.size())), bits_of_values(drawn));
    const Status end = queue.finish();
    ASSERT_TRUE(end.has_value()) << end.error().message;
  }

  void expect_draw_as_host(std::span<const float> values, float magnitude) {
    IndexBuffer positions;
    Buffer<float> drawn;
    millrace::draw_by_size(values, magnitude, kKey, positions, drawn);
    for (const auto& queue : Under::queues()) {
      for (const size_t offset : {size_t{0}, size_t{3}}) {
        const Array<Queue> array(*queue, values, offset);
        expect_same(*queue, draw_by_size(*queue, array.data, values.size(), magnitude, kKey, 5), positions, drawn);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  void expect_gspar_as_host(std::span<const float> values, uint64_t k, uint32_t iterations) {
    const auto selector = make_selector({.selection = SelectionId::kGspar, .k = k, .iterations = iterations},
                                        std::max<size_t>(values.size(), 1))
                              .value();
    IndexBuffer positions;
    Buffer<float> drawn;
    const Status host = selector->draw({.dimension = values.size(), .dense = true, .indices = {}, .values = values},
                                       {.random = kKey}, positions, drawn);
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values);
      const auto found = gspar(*queue, array.data, values.size(), k, iterations, kKey);
      if (!host) {
        ASSERT_FALSE(found.has_value());
        ASSERT_EQ(found.error().code, host.error().code);
        continue;
      }
      expect_same(*queue, found, positions, drawn);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
};

TYPED_TEST_SUITE(CudaDraws, QueuesUnderTest);

TYPED_TEST(CudaDraws, DrawsBySizeEqualTheHostAtEveryMagnitude) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{9001}}) {
      const auto values = testing::values_of(pattern, n, n + 4);
      for (const float magnitude : {std::numeric_limits<float>::denorm_min(), 0x1p-130F, 0x1p-125F, 0.3F, 50.0F,
                                    0x1p125F, std::numeric_limits<float>::max()}) {
        SCOPED_TRACE(testing::name_of(pattern, n, 0) + " magnitude " + std::to_string(magnitude));
        this->expect_draw_as_host(values, magnitude);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaDraws, ProbabilitiesAtTheRandomNumberAreDecidedAsOnTheHost) {
  // The share of each value is its random word, a half more or less: f64 decides, and for some the next 32 bits.
  std::vector<uint32_t> words(40'000);
  random_fill(this->kKey, 0, words, kDrawStream);
  for (const double more : {0.0, 0.5, -0.5, 1.0}) {
    for (const float magnitude : {1.0F, 0x1p-127F, 3.0F}) {
      std::vector<float> values(words.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const double share = (static_cast<double>(words[i]) + more) * 0x1p-32;
        values[i] = static_cast<float>(share * static_cast<double>(magnitude)) * (i % 3 == 0 ? -1.0F : 1.0F);
      }
      this->expect_draw_as_host(values, magnitude);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(CudaDraws, GsparEqualsTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{9001}}) {
      auto values = testing::values_of(pattern, n, n + 5);
      for (const uint64_t k : std::set<uint64_t>{1, n / 100 + 1, n / 3 + 1, std::max<uint64_t>(n, 1)}) {
        for (const uint32_t iterations : {1u, 2u, 30u}) {
          SCOPED_TRACE(testing::name_of(pattern, n, k));
          this->expect_gspar_as_host(values, k, iterations);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
      if (n == 0) continue;
      values[n - 1] = std::numeric_limits<float>::quiet_NaN();
      this->expect_gspar_as_host(values, 1, 2);
    }
  }
}

TYPED_TEST(CudaDraws, GsparOfSeveralChunksEqualsTheHost) {
  this->expect_gspar_as_host(testing::values_of(testing::Pattern::kGaussian, SumTails::kChunk + 5, 6), 3'000, 2);
}

TYPED_TEST(CudaDraws, NoEntriesAndNoIterationsAreRefused) {
  for (const auto& queue : TypeParam::queues()) {
    EXPECT_EQ(gspar(*queue, nullptr, 0, 0, 2, this->kKey).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(gspar(*queue, nullptr, 0, 1, 0, this->kKey).error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace millrace::cuda
