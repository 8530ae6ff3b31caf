// f16, bf16 and terngrad: values rounded at random.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec_list.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/qsgd_oracle.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/support/value_codec_cases.h"

namespace millrace {
namespace {

using testing::code_values;
using testing::decode_values;
using testing::listed;
using testing::Pattern;
using testing::values_of;

uint32_t word_at(RandomKey key, uint64_t word) { return random_words(key, word / 4)[word % 4]; }

/// The value that a half stands for, from the definition.
double half_value(uint32_t code) {
  const auto exponent = static_cast<int>(code >> 10 & 31);
  const double mantissa = code & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

/// The code of value * 2^-exponent by rounding its multiple of f16's unit there.
uint16_t half_code(float value, int exponent, uint32_t word) {
  const double magnitude = static_cast<float>(std::ldexp(std::abs(double{value}), -exponent));
  const int power = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double units = std::ldexp(magnitude, 10 - power);
  const double floor = std::floor(units);
  // As many bits of the word as there are below the unit; 24 below f16's smallest normal.
  const double drawn = magnitude < 0x1p-14 ? (word >> 8) * 0x1p-24 : (word >> 19) * 0x1p-13;
  const bool up = magnitude < 0x1p-14 ? drawn < units - floor : drawn + (units - floor) >= 1;
  const auto count = static_cast<uint32_t>(floor) + (up ? 1 : 0);
  const uint32_t code = magnitude < 0x1p-14 ? count : (static_cast<uint32_t>(power + 14) << 10) + count;
  return static_cast<uint16_t>(code | (std::signbit(value) ? 0x8000u : 0));
}

testing::CodedValues coded(const ValueCodec& codec, const std::vector<float>& values, uint64_t index_base = 0) {
  return code_values(codec, {.value = codec.id()}, values, {5, 6}, index_base);
}

int exponent_of(const ByteBuffer& bytes) {
  int16_t exponent;
  std::memcpy(&exponent, bytes.data(), 2);
  return exponent;
}

uint16_t code_at(const ByteBuffer& bytes, size_t begin, size_t i) {
  uint16_t code;
  std::memcpy(&code, bytes.data() + begin + 2 * i, 2);
  return code;
}

TEST(F16, EqualsTheDefinitionBitForBitOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : testing::kPatterns) {
      if (pattern == Pattern::kHuge) continue;
      for (const size_t n : {1, 7, 16, 33, 1500}) {
        const auto values = values_of(pattern, n, 2);
        const auto got = coded(f16_value_codec(), values, 77);
        ASSERT_EQ(got.bytes.size(), 4 + 2 * n);
        const int exponent = exponent_of(got.bytes);
        for (size_t i = 0; i < n; ++i) {
          const uint16_t wanted = half_code(values[i], exponent, word_at({5, 6}, 77 + i));
          ASSERT_EQ(code_at(got.bytes, 4, i), wanted) << testing::name_of(pattern, n, i) << " value " << values[i];
          ASSERT_EQ(double{got.said[i]}, std::ldexp(half_value(wanted), exponent));
        }
      }
    }
  });
}

TEST(F16, EveryCodeAndEveryExponentDecodesExactly) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const int exponent : {-101, -100, -17, 0, 5, 111, 112}) {
      std::vector<uint16_t> codes;
      for (uint32_t code = 0; code < 65'536; ++code) {
        if ((code >> 10 & 31) != 31) codes.push_back(static_cast<uint16_t>(code));
      }
      ByteBuffer bytes;
      ByteWriter writer(bytes);
      writer.put(static_cast<int16_t>(exponent));
      writer.put(uint16_t{0});
      writer.put_array(std::span<const uint16_t>(codes));
      std::vector<float> values(codes.size());
      ASSERT_TRUE(decode_values(f16_value_codec(), bytes, values));
      for (size_t i = 0; i < codes.size(); ++i) {
        ASSERT_EQ(double{values[i]}, std::ldexp(half_value(codes[i]), exponent)) << codes[i];
      }
    }
  });
}

TEST(F16, TheExponentIsTheSmallestThatHoldsTheLargestValue) {
  const auto exponent = [](std::vector<float> values) { return exponent_of(coded(f16_value_codec(), values).bytes); };
  EXPECT_EQ(exponent({}), 0);
  EXPECT_EQ(exponent({0, -0.0F}), 0);
  EXPECT_EQ(exponent({1, 65504, -3}), 0);
  EXPECT_EQ(exponent({-65505}), 1);
  EXPECT_EQ(exponent({65535}), 1);
  EXPECT_EQ(exponent({65536}), 1);
  EXPECT_EQ(exponent({1}), -15);
  EXPECT_EQ(exponent({std::numeric_limits<float>::denorm_min()}), -101);
  const float largest = std::ldexp(65504.0F, 112);
  EXPECT_EQ(exponent({largest}), 112);
  const auto beyond = coded(f16_value_codec(), {std::nextafter(largest, std::numeric_limits<float>::infinity())});
  ASSERT_FALSE(beyond.status);
  EXPECT_EQ(beyond.status.error().code, ErrorCode::kLimitExceeded);
}

TEST(F16, AnExponentThatDoesNotFitF32IsMalformed) {
  for (const int exponent : {-102, 113, -1051, 1009, 32'767, -32'768}) {
    const ByteBuffer bytes = {static_cast<uint8_t>(exponent), static_cast<uint8_t>(exponent >> 8), 0, 0, 1, 0};
    std::vector<float> one(1);
    EXPECT_FALSE(decode_values(f16_value_codec(), bytes, one)) << exponent;
  }
}

TEST(F16, TheErrorIsBelowItsBoundAndNoValueIsDenormal) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kOneSpike, Pattern::kPeriodic}) {
    const auto values = values_of(pattern, 3000, 3);
    const auto got = coded(f16_value_codec(), values);
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(double{value}));
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(double{got.said[i]} - double{values[i]});
      ASSERT_LE(error, std::max(std::abs(double{values[i]}) * 0x1p-10, largest * 0x1p-38)) << values[i];
    }
  }
  const auto denormals = values_of(Pattern::kDenormal, 500, 3);
  for (const float value : coded(f16_value_codec(), denormals).said) {
    EXPECT_TRUE(value == 0 || std::abs(value) == 0x1p-125F) << value;
  }
}

TEST(Bf16, EqualsTheDefinitionBitForBitOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : testing::kPatterns) {
      if (pattern == Pattern::kHuge) continue;
      for (const size_t n : {1, 7, 16, 33, 1500}) {
        const auto values = values_of(pattern, n, 2);
        const auto got = coded(bf16_value_codec(), values, 77);
        ASSERT_EQ(got.bytes.size(), 2 * n);
        for (size_t i = 0; i < n; ++i) {
          const auto bits = std::bit_cast<uint32_t>(values[i]);
          // Rounded up with the probability of the truncated bits, over 2^16.
          const uint32_t drawn = word_at({5, 6}, 77 + i) >> 16;
          const uint32_t wanted = (bits >> 16) + (drawn + (bits & 0xFFFF) > 0xFFFF ? 1 : 0);
          ASSERT_EQ(code_at(got.bytes, 0, i), wanted) << testing::name_of(pattern, n, i);
          ASSERT_EQ(std::bit_cast<uint32_t>(got.said[i]), wanted << 16);
        }
      }
    }
  });
}

TEST(Bf16, TheErrorIsBelowAUnitInTheLastOfEightBits) {
  const auto values = values_of(Pattern::kHeavyTail, 3000, 3);
  const auto got = coded(bf16_value_codec(), values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LT(std::abs(got.said[i] - values[i]), std::abs(values[i]) * 0x1p-7F);
  }
}

TEST(Bf16, ItsLargestValueIsKeptAndTheNextIsRefused) {
  EXPECT_EQ(coded(bf16_value_codec(), {0x1.FEp127F, -0x1.FEp127F}).said,
            (std::vector<float>{0x1.FEp127F, -0x1.FEp127F}));
  EXPECT_EQ(coded(bf16_value_codec(), {0x1.FE0002p127F}).status.error().code, ErrorCode::kLimitExceeded);
  for (const uint8_t high : {uint8_t{0x7F}, uint8_t{0xFF}}) {
    const ByteBuffer bytes = {0x80, high};
    std::vector<float> one(1);
    EXPECT_EQ(decode_values(bf16_value_codec(), bytes, one).error().code, ErrorCode::kMalformed);
  }
}

CodecSpec ternary(uint32_t bucket_size) { return {.value = terngrad_value_codec().id(), .bucket_size = bucket_size}; }

TEST(TernGrad, GoldenBytes) {
  // Values that are levels: the drawn numbers do not matter. Digits 1 2 0 0 1 | 2, then a bucket of zeros.
  const auto got = code_values(terngrad_value_codec(), ternary(6), {2, -2, 0, 0, 2, -2, 0});
  EXPECT_EQ(listed(got.bytes), (std::vector<uint8_t>{6, 0, 0, 0, 0, 0, 0, 0x40, 1 + 2 * 3 + 81, 2, 0, 0, 0, 0, 0}));
}

TEST(TernGrad, ItsValuesAreThoseOfQsgdWithTwoBitsAndTheMaximum) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kMostlyZero, Pattern::kDenormal}) {
    for (const uint32_t bucket_size : {1u, 64u, 3000u}) {
      const auto values = values_of(pattern, 4001, 7);
      const auto got = code_values(terngrad_value_codec(), ternary(bucket_size), values, {8, 9}, 1000);
      const testing::QsgdOracle wanted(values,
                                       {.bits = 2, .bucket_size = bucket_size, .random = {8, 9}, .counter_base = 1000});
      ASSERT_TRUE(testing::same_value_bits(got.said, wanted.decoded));
      const size_t rest = 4001 % bucket_size;
      const size_t buckets = 4001 / bucket_size;
      EXPECT_EQ(got.bytes.size(), 4 + buckets * (4 + (bucket_size + 4) / 5) + (rest == 0 ? 0 : 4 + (rest + 4) / 5));
    }
  }
}

TEST(TernGrad, TheVarianceEqualsThatOfTheDraw) {
  // Of a value v of a bucket with the maximum s: |v| (s - |v|).
  const auto values = values_of(Pattern::kGaussian, 256, 3);
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  double wanted = 0;
  for (const float value : values) wanted += std::abs(double{value}) * (largest - std::abs(double{value}));
  constexpr int kTrials = 2000;
  double error = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto got =
        code_values(terngrad_value_codec(), ternary(256), values, random_key(4, static_cast<uint64_t>(trial)));
    for (size_t i = 0; i < values.size(); ++i) error += std::pow(double{got.said[i]} - double{values[i]}, 2);
  }
  EXPECT_NEAR(error / kTrials / wanted, 1, 0.01);
}

TEST(TernGrad, InvalidDigitsAndHeadersAreMalformed) {
  const ByteBuffer good = {8, 0, 0, 0, 0, 0, 0x80, 0x3F, 242, 26};
  std::vector<float> values(8);
  ASSERT_TRUE(decode_values(terngrad_value_codec(), good, values));
  EXPECT_EQ(values, std::vector<float>(8, -1.0F));
  for (const auto& [at, byte] : {std::pair<size_t, uint8_t>{8, 243}, {8, 255}, {9, 27}, {9, 81}, {7, 0xBF}, {0, 0}}) {
    ByteBuffer broken = good;
    broken[at] = byte;
    EXPECT_EQ(decode_values(terngrad_value_codec(), broken, values).error().code, ErrorCode::kMalformed) << at;
  }
}

}  // namespace
}  // namespace millrace
