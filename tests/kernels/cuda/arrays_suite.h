#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/bloom.h"
#include "kernels/cuda/bucket_top_k.h"
#include "kernels/select/select.h"
#include "tests/kernels/cuda/quantize_suite.h"

namespace millrace::cuda {

template <class Under>
class CudaArrays : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  static constexpr RandomKey kKey = RandomKey::from(8);

  /// The result of four steps of the host: add, select, code, keep the error.
  struct Wanted {
    bool finite = true;
    std::vector<uint32_t> positions;
    std::vector<float> values, kept;
    std::vector<uint8_t> code;
  };

  static Wanted by_host(std::span<const float> residual, std::span<const float> gradient, const BucketJob& job) {
    Wanted wanted;
    wanted.kept.assign(residual.begin(), residual.end());
    for (size_t i = 0; i < gradient.size(); ++i) wanted.kept[i] += gradient[i];
    SelectionSpec spec{.selection = SelectionId::kBucketTopK, .bucket_size = job.bucket_size};
    spec.density = static_cast<double>(job.k) / job.bucket_size;
    auto selector = make_selector(spec, std::max<uint64_t>(job.n, 1)).value();
    IndexBuffer positions;
    wanted.finite =
        selector->select({.dimension = job.n, .dense = true, .indices = {}, .values = wanted.kept}, {}, positions)
            .has_value();
    if (!wanted.finite) return wanted;
    for (const uint32_t position : positions) wanted.values.push_back(wanted.kept[position]);
    wanted.positions = testing::listed(positions);
    std::vector<float> sent = wanted.values;
    if (job.bits != 0) {
      ByteBuffer code;
      const QsgdOptions options{job.bits, job.k, QsgdBucketScale::kMax, kKey, job.words.first};
      EXPECT_TRUE(qsgd_encode(wanted.values, options, code, sent).has_value());
      wanted.code.assign(code.begin(), code.end());
    }
    for (size_t i = 0; i < sent.size(); ++i) wanted.kept[positions[i]] -= sent[i];
    return wanted;
  }

  void expect_buckets_as_host(std::span<const float> residual, std::span<const float> gradient, BucketJob job) {
    SCOPED_TRACE("n " + std::to_string(residual.size()) + " bucket " + std::to_string(job.bucket_size) + " k " +
                 std::to_string(job.k) + " bits " + std::to_string(job.bits));
    job.n = residual.size();
    job.words = words_of(kKey, 12);
    const Wanted wanted = by_host(residual, gradient, job);
    for (const auto& queue : Under::queues()) {
      const Array<Queue> before(*queue, residual);
      const Array<Queue> added(*queue, gradient);
      job.residual = job.kept = before.data;
      job.gradient = gradient.empty() ? nullptr : added.data;
      const auto found = bucket_top_k(*queue, job);
      ASSERT_EQ(found.has_value(), wanted.finite) << (found ? "" : found.error().message);
      if (!found) continue;
      const size_t count = found->selected.count;
      ASSERT_EQ(on_host(*queue, found->selected), wanted.positions);
      ASSERT_EQ(bits_of_values(downloaded(*queue, found->values.data(), count)), bits_of_values(wanted.values));
      ASSERT_EQ(downloaded(*queue, found->code.data(), found->code_bytes), wanted.code);
      ASSERT_EQ(bits_of_values(downloaded(*queue, before.data, job.n)), bits_of_values(wanted.kept));
      const Status end = queue->finish();
      ASSERT_TRUE(end.has_value()) << end.error().message;
    }
  }
};

TYPED_TEST_SUITE(CudaArrays, QueuesUnderTest);

TYPED_TEST(CudaArrays, BucketTopKEqualsAddSelectCodeAndKeep) {
  for (const std::vector<float>& residual : values_to_code(3 * 4096)) {
    const auto gradient = testing::values_of(testing::Pattern::kGaussian, residual.size(), 4);
    for (const uint32_t bits : {0u, 2u, 5u}) {
      this->expect_buckets_as_host(residual, gradient, {.bits = bits});
      this->expect_buckets_as_host(residual, {}, {.bits = bits});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(CudaArrays, BucketTopKTakesEveryBucketSizeAndK) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{63}, size_t{513}, size_t{9001}}) {
    for (const testing::Pattern pattern : {testing::Pattern::kGaussian, testing::Pattern::kMostlyZero,
                                           testing::Pattern::kFewDistinct, testing::Pattern::kDenormal}) {
      const auto residual = testing::values_of(pattern, n, 6);
      for (const uint32_t bucket_size : {1u, 30u, 512u, 1000u, 4096u}) {
        for (const uint32_t k : {1u, 6u, 200u, 256u}) {
          if (k <= bucket_size)
            this->expect_buckets_as_host(residual, {}, {.bucket_size = bucket_size, .k = k, .bits = 4});
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(CudaArrays, BucketsThatAreTooLargeAreUnsupported) {
  for (const auto& queue : TypeParam::queues()) {
    EXPECT_EQ(bucket_top_k(*queue, {.bucket_size = 4097}).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(bucket_top_k(*queue, {.k = 257}).error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(bucket_top_k(*queue, {.k = 0}).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(bucket_top_k(*queue, {.bits = 9}).error().code, ErrorCode::kInvalidArgument);
  }
}

TYPED_TEST(CudaArrays, BloomFilterAndQueryEqualTheHost) {
  for (const size_t dimension : {size_t{1}, size_t{1000}, size_t{8192}, size_t{50'001}}) {
    for (const double rate : {0.9, 0.5, 0.1, 0.01, 1e-6}) {
      const auto values = testing::values_of(testing::Pattern::kGaussian, dimension, 5);
      IndexBuffer indices;
      ASSERT_TRUE(select_top_k(values, dimension / 50 + 1, indices).has_value());
      const BloomFilter filter = BloomFilter::of(indices, rate, 99).value();
      std::vector<uint32_t> wanted;
      filter.scan(dimension, [&](IndexSpan some) {
        wanted.insert(wanted.end(), some.begin(), some.end());
        return true;
      });
      for (const auto& queue : TypeParam::queues()) {
        auto words = queue->template allocate<uint32_t>(filter.words.size());
        auto known = queue->template allocate<uint32_t>(indices.size());
        queue->clear(words.data(), filter.words.size() * sizeof(uint32_t));
        queue->upload(known.data(), std::span<const uint32_t>(indices));
        bloom_insert(*queue, filter.hashes, known.data(), indices.size(), words.data());
        ASSERT_EQ(downloaded(*queue, words.data(), words.size()), testing::listed(filter.words));
        const auto found = bloom_query(*queue, filter.hashes, words.data(), dimension, indices.size());
        ASSERT_TRUE(found.has_value()) << found.error().message;
        ASSERT_EQ(on_host(*queue, *found), wanted);
      }
    }
  }
}

TYPED_TEST(CudaArrays, AddCountsDigitsAndRefusesNonFiniteSums) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{1023}, size_t{20'003}}) {
    for (const float weight : {1.0F, -0.3F}) {
      for (const std::vector<float>& values : values_to_code(n)) {
        auto wanted = testing::values_of(testing::Pattern::kGaussian, n, 10);
        for (const auto& queue : TypeParam::queues()) {
          const Array<typename TypeParam::Queue> added(*queue, values), sums(*queue, wanted);
          auto bins = queue->template allocate<uint64_t>(kBins);
          queue->clear(bins.data(), kBins * sizeof(uint64_t));
          const Status done = add(*queue, added.data, sums.data, n, weight, bins.data());
          std::vector<uint64_t> counted(kBins);
          std::vector<float> expected = wanted;
          bool finite = true;
          for (size_t i = 0; i < n; ++i) {
            expected[i] += weight * values[i];
            finite = finite && std::isfinite(expected[i]);
            ++counted[magnitude_key(expected[i]) >> 20];
          }
          ASSERT_EQ(done.has_value(), finite);
          if (!finite) continue;
          ASSERT_EQ(bits_of_values(downloaded(*queue, sums.data, n)), bits_of_values(expected));
          ASSERT_EQ(downloaded(*queue, bins.data(), kBins), counted);
          ASSERT_TRUE(queue->finish().has_value());
        }
      }
    }
  }
}

TYPED_TEST(CudaArrays, ScatterAddRestoresTheTakenEntries) {
  const auto values = testing::values_of(testing::Pattern::kGaussian, 10'000, 2);
  for (const auto& queue : TypeParam::queues()) {
    const Array<typename TypeParam::Queue> array(*queue, values);
    const auto selected = top_k(*queue, array.data, values.size(), 300, Zeros::kSkipped);
    ASSERT_TRUE(selected.has_value());
    auto taken = queue->template allocate<float>(300);
    take(*queue, array.data, selected->positions.data(), 300, taken.data());
    std::vector<float> wanted = values, wanted_taken;
    for (const uint32_t position : on_host(*queue, *selected))
      wanted_taken.push_back(std::exchange(wanted[position], 0.0F));
    EXPECT_EQ(downloaded(*queue, taken.data(), 300), wanted_taken);
    EXPECT_EQ(downloaded(*queue, array.data, values.size()), wanted);
    scatter_add(*queue, array.data, selected->positions.data(), taken.data(), 300);
    EXPECT_EQ(downloaded(*queue, array.data, values.size()), values);
    EXPECT_TRUE(queue->finish().has_value());
  }
}

}  // namespace millrace::cuda
