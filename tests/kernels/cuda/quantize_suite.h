#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/cuda/quantize.h"
#include "tests/kernels/cuda/select_suite.h"

namespace millrace::cuda {

/// Returns the bits of values: NaN is compared, too, and the zeros differ.
inline std::vector<uint32_t> bits_of_values(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

template <class T, class Queue>
std::vector<T> downloaded(Queue& queue, const T* from, size_t count) {
  std::vector<T> values(count);
  queue.download(std::span(values), from);
  return values;
}

/// Values that quantizers meet, of every pattern, and some that are not finite or have no magnitude.
inline std::vector<std::vector<float>> values_to_code(size_t n) {
  std::vector<std::vector<float>> all;
  for (const testing::Pattern pattern : testing::kPatterns) all.push_back(testing::values_of(pattern, n, n));
  if (n == 0) return all;
  all.push_back(testing::values_of(testing::Pattern::kGaussian, n, 1));
  all.back()[n / 2] = std::numeric_limits<float>::quiet_NaN();
  all.push_back(testing::values_of(testing::Pattern::kGaussian, n, 2));
  all.back()[n - 1] = -std::numeric_limits<float>::infinity();
  all.push_back(std::vector<float>(n, -std::numeric_limits<float>::max()));
  all.push_back(std::vector<float>(n, std::numeric_limits<float>::min()));
  return all;
}

inline constexpr size_t kCodedSizes[] = {0, 1, 5, 129, 511, 512, 513, 4099};

template <class Under>
class CudaQuantize : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  void expect_qsgd_as_host(std::span<const float> values, const QsgdOptions& options, size_t offset = 0) {
    SCOPED_TRACE("bits " + std::to_string(options.bits) + " bucket " + std::to_string(options.bucket_size) + " n " +
                 std::to_string(values.size()));
    ByteBuffer wanted;
    std::vector<float> meant(values.size());
    const Status host = qsgd_encode(values, options, wanted, meant);
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, values, offset);
      const size_t bytes = qsgd_encoded_bytes(values.size(), options.bits, options.bucket_size);
      auto out = queue->template allocate<uint8_t>(bytes);
      auto decoded = queue->template allocate<float>(values.size());
      const Status done = qsgd(*queue, array.data, values.size(), options, out.data(), decoded.data());
      ASSERT_EQ(done.has_value(), host.has_value()) << (done ? "" : done.error().message);
      if (!host) {
        ASSERT_EQ(done.error().code, host.error().code);
        continue;
      }
      ASSERT_EQ(downloaded(*queue, out.data(), bytes), std::vector<uint8_t>(wanted.begin(), wanted.end()));
      ASSERT_EQ(bits_of_values(downloaded(*queue, decoded.data(), values.size())), bits_of_values(meant));
      ASSERT_TRUE(qsgd(*queue, array.data, values.size(), options, out.data(), nullptr).has_value());
      ASSERT_EQ(downloaded(*queue, out.data(), bytes), std::vector<uint8_t>(wanted.begin(), wanted.end()));
    }
  }

  /// Calls code(queue, values, out, decoded) and compares with a codec of the host behind `header` bytes.
  template <class Code>
  void expect_as_codec(const std::string& name, size_t header, uint64_t index_base, const Code& code) {
    SCOPED_TRACE(name);
    const CodecSpec spec = codec_from_text("raw+" + name).value();
    EncodeOptions options{spec, RandomKey::from(77), index_base};
    for (const size_t n : kCodedSizes) {
      for (const std::vector<float>& values : values_to_code(n)) {
        ByteBuffer wanted;
        std::vector<float> meant(n);
        const Status host = find_value_codec(spec.value)->encode({}, values, options, wanted, meant);
        const size_t bytes = wanted.size() < header ? 0 : wanted.size() - header;
        for (const auto& queue : Under::queues()) {
          const Array<Queue> array(*queue, values);
          auto out = queue->template allocate<uint16_t>(4 * n + 16);
          auto decoded = queue->template allocate<float>(n);
          const Status done = code(*queue, array.data, n, spec, out.data(), decoded.data());
          ASSERT_EQ(done.has_value(), host.has_value()) << (done ? "" : done.error().message);
          if (!host) {
            ASSERT_EQ(done.error().code, host.error().code);
            continue;
          }
          const auto found = downloaded(*queue, reinterpret_cast<const uint8_t*>(out.data()), bytes);
          ASSERT_EQ(found, std::vector<uint8_t>(wanted.begin() + static_cast<ptrdiff_t>(header), wanted.end())) << n;
          ASSERT_EQ(bits_of_values(downloaded(*queue, decoded.data(), n)), bits_of_values(meant));
        }
      }
    }
  }
};

TYPED_TEST_SUITE(CudaQuantize, QueuesUnderTest);

TYPED_TEST(CudaQuantize, QsgdEqualsTheHostAtEverySizeAndWidth) {
  for (const size_t n : kCodedSizes) {
    for (const std::vector<float>& values : values_to_code(n)) {
      for (const uint32_t bits : {2u, 4u, 8u}) {
        this->expect_qsgd_as_host(values, {.bits = bits, .random = RandomKey::from(5), .counter_base = 4096});
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaQuantize, QsgdTakesEveryBucketSizeScaleAndAlignment) {
  const auto values = testing::values_of(testing::Pattern::kHeavyTail, 3000, 9);
  for (const uint32_t bits : {2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    for (const uint32_t bucket_size : {1u, 7u, 100u, 512u, 1024u, 5000u}) {
      for (const QsgdBucketScale scale : {QsgdBucketScale::kMax, QsgdBucketScale::kL2}) {
        const QsgdOptions options{bits, bucket_size, scale, RandomKey::from(6), 3};
        this->expect_qsgd_as_host(values, options, 1);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaQuantize, AFractionThatEqualsItsRandomNumberRoundsDown) {
  // Two bits and a scale of 1 have a unit of 1: each value is its own fraction.
  std::vector<float> values(600);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random_words(RandomKey::from(5), i / 4)[i % 4] >> 8) * 0x1p-24F;
  }
  values[0] = values[512] = 1;
  for (const uint32_t bucket_size : {512u, 100u}) {
    this->expect_qsgd_as_host(values, {.bits = 2, .bucket_size = bucket_size, .random = RandomKey::from(5)});
  }
}

TYPED_TEST(CudaQuantize, QsgdRefusesTheWidthsThatTheHostRefuses) {
  const std::vector<float> values(10, 1.0F);
  for (const uint32_t bits : {0u, 1u, 9u}) this->expect_qsgd_as_host(values, {.bits = bits});
}

TYPED_TEST(CudaQuantize, TernaryEqualsTheHost) {
  const auto code = [](auto& queue, const float* values, size_t n, const CodecSpec& spec, uint16_t* out,
                       float* decoded) {
    const WordSource words = words_of(RandomKey::from(77), 10);
    return ternary(queue, values, n, spec.bucket_size, words, reinterpret_cast<uint8_t*>(out), decoded);
  };
  for (const char* name : {"terngrad", "terngrad:7", "terngrad:2048"}) this->expect_as_codec(name, 4, 10, code);
}

TYPED_TEST(CudaQuantize, OneBitEqualsTheHost) {
  const auto code = [](auto& queue, const float* values, size_t n, const CodecSpec& spec, uint16_t* out,
                       float* decoded) {
    return one_bit(queue, values, n, spec.bucket_size, reinterpret_cast<uint8_t*>(out), decoded);
  };
  for (const char* name : {"onebit", "onebit:13", "onebit:2048"}) this->expect_as_codec(name, 4, 0, code);
}

TYPED_TEST(CudaQuantize, SignMeanEqualsTheHost) {
  const auto code = [](auto& queue, const float* values, size_t n, const CodecSpec&, uint16_t* out, float* decoded) {
    const auto head = sign_mean(queue, values, n, reinterpret_cast<uint8_t*>(out), decoded);
    return head ? Status{} : std::unexpected(head.error());
  };
  this->expect_as_codec("sign_mean", 8, 0, code);
}

TYPED_TEST(CudaQuantize, SignMeanOfOneSignHasNoBits) {
  for (const float value : {1.5F, -1.5F, 0.0F}) {
    for (const auto& queue : TypeParam::queues()) {
      const std::vector<float> values(1000, value);
      const Array<typename TypeParam::Queue> array(*queue, values);
      auto decoded = queue->template allocate<float>(values.size());
      const auto head = sign_mean(*queue, array.data, values.size(), nullptr, decoded.data());
      ASSERT_TRUE(head.has_value());
      EXPECT_EQ(head->signs, value < 0 ? 1 : 0);
      EXPECT_EQ(head->mean, std::abs(value));
      EXPECT_EQ(downloaded(*queue, decoded.data(), values.size()), values);
    }
  }
}

TYPED_TEST(CudaQuantize, HalvesEqualTheHost) {
  for (const uint64_t base : {uint64_t{0}, uint64_t{3}}) {
    const auto bf16_code = [&](auto& queue, const float* values, size_t n, const CodecSpec&, uint16_t* out,
                               float* decoded) {
      return bf16(queue, values, n, words_of(RandomKey::from(77), base), out, decoded);
    };
    const auto f16_code = [&](auto& queue, const float* values, size_t n, const CodecSpec&, uint16_t* out,
                              float* decoded) {
      const auto exponent = f16(queue, values, n, words_of(RandomKey::from(77), base), out, decoded);
      return exponent ? Status{} : std::unexpected(exponent.error());
    };
    this->expect_as_codec("bf16", 0, base, bf16_code);
    this->expect_as_codec("f16", 4, base, f16_code);
  }
}

}  // namespace millrace::cuda
