// sign_mean and onebit: signs and means of magnitudes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/codec/codec_list.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/support/value_codec_cases.h"

namespace millrace {
namespace {

using testing::code_values;
using testing::decode_values;
using testing::listed;
using testing::Pattern;
using testing::values_of;

constexpr Pattern kSome[] = {Pattern::kGaussian, Pattern::kHeavyTail,     Pattern::kMostlyZero, Pattern::kFewDistinct,
                             Pattern::kAllEqual, Pattern::kLargeAtTheEnd, Pattern::kPeriodic,   Pattern::kDenormal};

testing::CodedValues same_sign(const std::vector<float>& values) {
  return code_values(sign_mean_value_codec(), {.value = sign_mean_value_codec().id()}, values);
}

testing::CodedValues one_bit(const std::vector<float>& values, uint32_t bucket_size) {
  return code_values(onebit_value_codec(), {.value = onebit_value_codec().id(), .bucket_size = bucket_size}, values);
}

/// Sums in f64 in the order of the eight lanes.
template <typename Of>
double sum_of(std::span<const float> values, const Of& of) {
  double lanes[8] = {};
  for (size_t i = 0; i < values.size(); ++i) lanes[i % 8] += of(values[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double squares_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

double sign_error_of(std::span<const float> values, std::span<const float> said) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += std::pow(double{values[i]} - double{said[i]}, 2);
  return sum;
}

TEST(SignMean, GoldenBytesOfOneSignAndOfBoth) {
  EXPECT_EQ(listed(same_sign({1, 3, 0, 4}).bytes), (std::vector<uint8_t>{0, 0, 0, 0, 0, 0, 0, 0x40}));
  EXPECT_EQ(listed(same_sign({-1, -3, 0, -4}).bytes), (std::vector<uint8_t>{1, 0, 0, 0, 0, 0, 0, 0x40}));
  EXPECT_EQ(listed(same_sign({1, -3, 0, -4, 1, 3, 0, 2, -4}).bytes),
            (std::vector<uint8_t>{2, 0, 0, 0, 0, 0, 0, 0x40, 0x0A, 0x01}));
  EXPECT_EQ(same_sign({-1, -3, 0, -4}).said, (std::vector<float>{-2, -2, -2, -2}));
  EXPECT_EQ(same_sign({1, -3, 0, -4}).said, (std::vector<float>{2, -2, 2, -2}));
}

TEST(SignMean, AStreamOfOneSignTakesEightBytes) {
  auto values = values_of(Pattern::kGaussian, 100'000, 3);
  for (float& value : values) value = std::abs(value);
  EXPECT_EQ(same_sign(values).bytes.size(), 8u);
  for (float& value : values) value = -value;
  EXPECT_EQ(same_sign(values).bytes.size(), 8u);
  values[5] = 1;
  EXPECT_EQ(same_sign(values).bytes.size(), 8u + 12'500u);
}

TEST(SignMean, EqualsTheSlowFormOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kSome) {
      for (const size_t n : {1, 7, 8, 17, 64, 1003}) {
        SCOPED_TRACE(testing::name_of(pattern, n, 0));
        const auto values = values_of(pattern, n, 5);
        const double positive = sum_of(values, [](float v) { return v > 0 ? double{v} : 0; });
        const double negative = sum_of(values, [](float v) { return v < 0 ? -double{v} : 0; });
        const auto mean = static_cast<float>((positive + negative) / static_cast<double>(n));
        const auto got = same_sign(values);
        for (size_t i = 0; i < n; ++i) {
          if (values[i] != 0) {
            ASSERT_EQ(got.said[i], values[i] < 0 ? -mean : mean) << i;
          }
          ASSERT_EQ(std::abs(got.said[i]), mean);
        }
      }
    }
  });
}

TEST(SignMean, TheErrorIsTheSquaresLessTheMeansSquare) {
  // |v - decoded|^2 = |v|^2 - n mean^2 for all values: a contraction, by no less than 1 - 1/n.
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kMostlyZero, Pattern::kOneSpike,
                                Pattern::kPeriodic, Pattern::kFewDistinct, Pattern::kIncreasing}) {
    const auto values = values_of(pattern, 2000, 5);
    const auto said = same_sign(values).said;
    const double mean = std::abs(said[0]);
    const double squares = squares_of(values);
    EXPECT_NEAR(sign_error_of(values, said) / squares, 1 - 2000 * mean * mean / squares, 1e-6);
    EXPECT_LE(sign_error_of(values, said), squares * (1 - 1.0 / 2000 + 1e-6));
  }
}

TEST(SignMean, TheMeanOfTheLargestValuesDoesNotOverflow) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(same_sign({kMax, kMax, -kMax}).said, (std::vector<float>{kMax, kMax, -kMax}));
}

TEST(SignMean, OtherSignsMeansAndPaddingAreMalformed) {
  const ByteBuffer good = {2, 0, 0, 0, 0, 0, 0, 0x40, 0x0A};
  std::vector<float> values(4);
  ASSERT_TRUE(decode_values(sign_mean_value_codec(), good, values));
  for (const auto& [at, byte] : {std::pair<size_t, uint8_t>{0, 3}, {0, 0}, {1, 1}, {3, 9}, {7, 0xC0}, {8, 0x1A}}) {
    ByteBuffer broken = good;
    broken[at] = byte;
    EXPECT_EQ(decode_values(sign_mean_value_codec(), broken, values).error().code, ErrorCode::kMalformed) << at;
  }
}

TEST(OneBit, GoldenBytes) {
  const auto got = one_bit({1, 3, -4, 0, -2, 8}, 5);
  // Means 4/3 and 3 of the first five, signs 10100b; 8 alone.
  EXPECT_EQ(listed(got.bytes), (std::vector<uint8_t>{5,    0,    0, 0, 0xAB, 0xAA, 0xAA, 0x3F, 0, 0, 0x40,
                                                     0x40, 0x14, 0, 0, 0,    0x41, 0,    0,    0, 0, 0}));
  EXPECT_EQ(got.said, (std::vector<float>{4.0F / 3, 4.0F / 3, -3, 4.0F / 3, -3, 8}));
}

TEST(OneBit, EqualsTheSlowFormOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kSome) {
      for (const uint32_t bucket_size : {1u, 13u, 64u, 5000u}) {
        const auto values = values_of(pattern, 1003, 5);
        const auto got = one_bit(values, bucket_size);
        for (size_t begin = 0; begin < values.size(); begin += bucket_size) {
          const auto bucket = std::span(values).subspan(begin, std::min<size_t>(bucket_size, values.size() - begin));
          const auto below = static_cast<double>(std::ranges::count_if(bucket, [](float v) { return v < 0; }));
          const double above = static_cast<double>(bucket.size()) - below;
          const double positive = sum_of(bucket, [](float v) { return v > 0 ? double{v} : 0; });
          const double negative = sum_of(bucket, [](float v) { return v < 0 ? -double{v} : 0; });
          for (size_t i = 0; i < bucket.size(); ++i) {
            const auto wanted = static_cast<float>(bucket[i] < 0 ? -(negative / below) : positive / above);
            ASSERT_EQ(got.said[begin + i], wanted) << testing::name_of(pattern, begin + i, bucket_size);
          }
        }
      }
    }
  });
}

TEST(OneBit, TheErrorIsTheSquaresLessThoseOfTheMeansInEveryBucket) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kMostlyZero, Pattern::kOneSpike}) {
    const auto values = values_of(pattern, 1024, 5);
    const auto said = one_bit(values, 128).said;
    for (size_t begin = 0; begin < values.size(); begin += 128) {
      const auto bucket = std::span(values).subspan(begin, 128);
      const auto of_bucket = std::span(said).subspan(begin, 128);
      const double squares = squares_of(bucket);
      EXPECT_NEAR(sign_error_of(bucket, of_bucket), squares - squares_of(of_bucket), 1e-6 * squares);
      EXPECT_LE(sign_error_of(bucket, of_bucket), squares * (1 - 1.0 / 128 + 1e-6));
    }
  }
}

TEST(OneBit, TwoMeansAreNoWorseThanOneForAll) {
  for (const Pattern pattern : kSome) {
    if (pattern == Pattern::kDenormal) continue;
    const auto values = values_of(pattern, 900, 5);
    EXPECT_LE(sign_error_of(values, one_bit(values, 1024).said),
              sign_error_of(values, same_sign(values).said) * (1 + 1e-6));
  }
}

}  // namespace
}  // namespace millrace
