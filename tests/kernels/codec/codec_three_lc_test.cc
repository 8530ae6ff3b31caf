// 3LC's value codec against its paper, digit by digit.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::Pattern;
using testing::values_of;

const ValueCodec& codec() { return *find_value_codec(ValueCodecId{14}); }

EncodeOptions options_of(double multiplier) {
  EncodeOptions options;
  options.spec.value = ValueCodecId{14};
  options.spec.sparsity_multiplier = multiplier;
  return options;
}

struct ThreeLcCoded {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;
};

ThreeLcCoded encode_three_lc(const std::vector<float>& values, double multiplier) {
  ThreeLcCoded coded;
  coded.decoded.resize(values.size());
  ByteBuffer bytes;
  const Status done = codec().encode({}, std::span<const float>(values), options_of(multiplier), bytes,
                                     std::span<float>(coded.decoded));
  EXPECT_TRUE(done) << done.error().message;
  coded.bytes.assign(bytes.begin(), bytes.end());
  return coded;
}

Status decode_three_lc(const std::vector<uint8_t>& bytes, std::vector<float>& out) {
  return codec().decode(bytes, {}, std::span<float>(out));
}

/// The paper's steps one after the other: equations 1 to 3, quartic encoding, zero-run encoding.
ThreeLcCoded oracle(const std::vector<float>& values, double multiplier) {
  ThreeLcCoded coded;
  if (values.empty()) return coded;
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const long double product = static_cast<long double>(multiplier) * largest;
  constexpr float kMax = std::numeric_limits<float>::max();
  float scale = product > kMax ? kMax : static_cast<float>(static_cast<double>(product));
  if (largest <= kMax / 2) scale = std::min(scale, std::nextafter(2 * largest, 0.0F));
  std::vector<int> digits;
  for (const float value : values) {
    const int sign = scale == 0 || 2 * static_cast<long double>(std::abs(value)) < scale ? 0 : value < 0 ? -1 : 1;
    coded.decoded.push_back(sign == 0 ? 0.0F : static_cast<float>(sign) * scale);
    digits.push_back(sign + 1);
  }
  while (digits.size() % 5 != 0) digits.push_back(1);
  const size_t length = digits.size() / 5;
  std::vector<uint8_t> quartic;
  for (size_t j = 0; j < length; ++j) {
    quartic.push_back(static_cast<uint8_t>(81 * digits[j] + 27 * digits[length + j] + 9 * digits[2 * length + j] +
                                           3 * digits[3 * length + j] + digits[4 * length + j]));
  }
  coded.bytes.resize(sizeof(float));
  std::memcpy(coded.bytes.data(), &scale, sizeof(float));
  for (size_t j = 0; j < quartic.size();) {
    size_t run = 0;
    while (run < 14 && j + run < quartic.size() && quartic[j + run] == 121) ++run;
    coded.bytes.push_back(run < 2 ? quartic[j] : static_cast<uint8_t>(243 + run - 2));
    j += std::max<size_t>(run, 1);
  }
  return coded;
}

bool three_lc_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(ThreeLc, EqualsThePapersStepsOnEveryInstructionSet) {
  for_each_isa([](const std::string& isa) {
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {0, 1, 2, 4, 5, 6, 9, 31, 64, 83, 400, 5131}) {
        for (const double multiplier : {1.0, 1.75, 1.999}) {
          SCOPED_TRACE(isa + ", pattern " + std::to_string(static_cast<int>(pattern)) + ", n " + std::to_string(n));
          const auto values = values_of(pattern, n, n);
          const auto wanted = oracle(values, multiplier);
          const auto coded = encode_three_lc(values, multiplier);
          ASSERT_EQ(coded.bytes, wanted.bytes);
          ASSERT_TRUE(three_lc_same_bits(coded.decoded, wanted.decoded));
          ASSERT_LE(coded.bytes.size(), codec().bytes_max(n, {}));
          ASSERT_TRUE(codec().check(coded.bytes, n));
          std::vector<float> received(n, 42);
          ASSERT_TRUE(decode_three_lc(coded.bytes, received));
          ASSERT_TRUE(three_lc_same_bits(received, wanted.decoded));
        }
      }
    }
  });
}

TEST(ThreeLc, SpecialValuesAreRefusedAndNothingIsWritten) {
  using Limits = std::numeric_limits<float>;
  for (const float bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    for (const size_t at : {0, 63, 99}) {
      std::vector<float> values(100, 1);
      values[at] = bad;
      std::vector<float> decoded(100, 42);
      ByteBuffer out = {7};
      const Status done =
          codec().encode({}, std::span<const float>(values), options_of(1), out, std::span<float>(decoded));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kNonFinite);
      EXPECT_EQ(out.size(), 1u);
      EXPECT_EQ(decoded[0], 42);
    }
  }
}

TEST(ThreeLc, TheSmallestAndTheLargestMagnitudesAreKept) {
  using Limits = std::numeric_limits<float>;
  for (const float largest : {Limits::denorm_min(), 3 * Limits::denorm_min(), Limits::min(), Limits::max()}) {
    for (const double multiplier : {1.0, 1.75, std::nextafter(2.0, 0.0)}) {
      const auto coded = encode_three_lc({largest, -largest, 0}, multiplier);
      EXPECT_GE(coded.decoded[0], largest);
      EXPECT_TRUE(std::isfinite(coded.decoded[0]));
      EXPECT_LT(coded.decoded[0] - largest, largest) << "no contraction";
      EXPECT_EQ(coded.decoded[1], -coded.decoded[0]);
      EXPECT_EQ(coded.decoded[2], 0);
    }
  }
}

TEST(ThreeLcBytes, GoldenBytes) {
  std::vector<float> values(80, 0.0F);
  values[0] = 0.3F;
  values[16] = -0.3F;
  const auto coded = encode_three_lc(values, 1);
  // 16 bytes: 2 * 81 + 0 * 27 + 9 + 3 + 1, then a run of 14 and one of 1.
  EXPECT_EQ(coded.bytes, (std::vector<uint8_t>{0x9a, 0x99, 0x99, 0x3e, 175, 255, 121}));
}

TEST(ThreeLcBytes, ZerosTakeABytePerSeventyValuesAndNoneTakesOverABytePerFive) {
  // The paper's 280 times less than f32, for a tensor of zeros.
  const auto coded = encode_three_lc(std::vector<float>(70'000, 0.0F), 1.75);
  EXPECT_EQ(coded.bytes.size(), 4u + 1000);
  const auto dense = encode_three_lc(std::vector<float>(70'000, 1.0F), 1.75);
  EXPECT_EQ(dense.bytes.size(), 4u + 14'000);  // 1.6 bits a value
}

TEST(ThreeLcClaims, NoErrorIsOverHalfTheScaleNorOverTheValue) {
  // Section 3.1: max |T - T'| <= M / 2 < max |T|.
  for (const Pattern pattern : kPatterns) {
    for (const double multiplier : {1.0, 1.5, 1.9}) {
      const auto values = values_of(pattern, 3000, 5);
      const auto coded = encode_three_lc(values, multiplier);
      float scale;
      std::memcpy(&scale, coded.bytes.data(), sizeof(scale));
      double error = 0;
      double norm = 0;
      float largest = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double off = static_cast<double>(values[i]) - coded.decoded[i];
        ASSERT_LE(std::abs(off), static_cast<double>(scale) / 2);
        ASSERT_LE(std::abs(off), std::abs(values[i]));
        error += off * off;
        norm += static_cast<double>(values[i]) * values[i];
        largest = std::max(largest, std::abs(values[i]));
      }
      const double s = scale / largest;
      if (norm == 0) continue;
      EXPECT_LE(error, norm - s * (2 - s) * largest * static_cast<double>(largest) * (1 - 1e-6));
    }
  }
}

TEST(ThreeLcClaims, AGreaterMultiplierSendsFewerValuesInFewerBytes) {
  const auto values = values_of(Pattern::kGaussian, 50'000, 3);
  size_t bytes = SIZE_MAX;
  int64_t sent = INT64_MAX;
  for (const double multiplier : {1.0, 1.25, 1.5, 1.75, 1.9}) {
    const auto coded = encode_three_lc(values, multiplier);
    const int64_t kept = std::ranges::count_if(coded.decoded, [](float value) { return value != 0; });
    EXPECT_LT(coded.bytes.size(), bytes);
    EXPECT_LT(kept, sent);
    bytes = coded.bytes.size();
    sent = kept;
  }
}

TEST(ThreeLcClaims, LargeValues_ResidualReachesMostOfItsBoundAndStaysWithin) {
  constexpr size_t kCount = 500;
  for (const double s : {1.0, 1.5, 1.75}) {
    RandomSequence random(random_key(5));
    std::vector<float> accumulator(kCount, 0.0F);
    float gradient_max = 0;
    float residual_max = 0;
    for (int step = 0; step < 600; ++step) {
      for (float& value : accumulator) {
        const float gradient = static_cast<float>(random.next_unit() * 2 - 1);
        gradient_max = std::max(gradient_max, std::abs(gradient));
        value += gradient;
      }
      const auto coded = encode_three_lc(accumulator, s);
      for (size_t i = 0; i < kCount; ++i) {
        accumulator[i] -= coded.decoded[i];
        residual_max = std::max(residual_max, std::abs(accumulator[i]));
      }
    }
    EXPECT_LE(residual_max, s / (2 - s) * gradient_max * 1.0001);
    EXPECT_GE(residual_max, 0.5 * s / (2 - s) * gradient_max) << "the bound says little";
  }
}

TEST(ThreeLcText, TheMultiplierIsInTheText) {
  EXPECT_EQ(codec_text(codec_from_text("gap+three_lc").value()), "gap+three_lc");
  EXPECT_EQ(codec_from_text("gap+three_lc")->sparsity_multiplier, 1.75);
  EXPECT_EQ(codec_text(codec_from_text("gap+three_lc:1").value()), "gap+three_lc:1");
  EXPECT_EQ(codec_from_text("gap+three_lc:1.5")->sparsity_multiplier, 1.5);
  for (const char* bad : {"gap+three_lc:", "gap+three_lc:0.99", "gap+three_lc:2", "gap+three_lc:nan",
                          "gap+three_lc:1.5:1", "gap+three_lc1", "three_lc"}) {
    EXPECT_FALSE(codec_from_text(bad)) << bad;
  }
}

TEST(ThreeLc, OtherLengthsAreErrors) {
  for (const size_t n : {1, 4, 5, 23, 150}) {
    const auto coded = encode_three_lc(values_of(Pattern::kMostlyZero, n, 3), 1);
    std::vector<float> out(n);
    for (size_t length = 0; length < coded.bytes.size(); ++length) {
      EXPECT_FALSE(
          decode_three_lc({coded.bytes.begin(), coded.bytes.begin() + static_cast<std::ptrdiff_t>(length)}, out));
    }
    for (const int more : {0, 121, 242, 243, 255}) {
      auto longer = coded.bytes;
      longer.push_back(static_cast<uint8_t>(more));
      EXPECT_FALSE(decode_three_lc(longer, out));
    }
    for (const uint64_t count : {uint64_t{0}, uint64_t{n} * 80, uint64_t{1} << 32, ~uint64_t{0}}) {
      EXPECT_FALSE(codec().check(coded.bytes, count)) << n << ' ' << count;
    }
  }
  std::vector<float> none;
  EXPECT_TRUE(decode_three_lc({}, none));
  EXPECT_FALSE(decode_three_lc({0}, none));
}

TEST(ThreeLc, EveryCorruptionOfAByteIsAnErrorOrValuesOfOneMagnitude) {
  const auto coded = encode_three_lc(values_of(Pattern::kMostlyZero, 43, 7), 1);
  size_t errors = 0;
  for (size_t at = 0; at < coded.bytes.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      auto broken = coded.bytes;
      broken[at] = static_cast<uint8_t>(byte);
      std::vector<float> out(43, 42);
      const Status done = decode_three_lc(broken, out);
      if (!done) {
        ASSERT_EQ(done.error().code, ErrorCode::kMalformed);
        ++errors;
        continue;
      }
      ASSERT_TRUE(codec().check(broken, 43));
      float scale;
      std::memcpy(&scale, broken.data(), sizeof(scale));
      for (const float value : out) ASSERT_TRUE(value == 0 || std::abs(value) == scale);
    }
  }
  EXPECT_GT(errors, 0u);
}

TEST(ThreeLc, BadScaleOrPaddingOrDigitsWithoutScale_Malformed) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> out(7);
  for (const float scale : {Limits::quiet_NaN(), Limits::infinity(), -1.0F, -0.0F}) {
    std::vector<uint8_t> bytes(sizeof(scale) + 2, 121);
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    EXPECT_FALSE(decode_three_lc(bytes, out));
  }
  // Values 6 and 7 are digits 3 of bytes 0 and 1; digit 3 of byte 1 and digits 4 are padding.
  auto bytes = encode_three_lc(std::vector<float>{1, -1, 1, -1, 1, -1, 1}, 1).bytes;
  EXPECT_TRUE(decode_three_lc(bytes, out));
  bytes[sizeof(float)] += 1;
  EXPECT_EQ(decode_three_lc(bytes, out).error().message, "three_lc: padding that is not 0");
  std::vector<uint8_t> zero(sizeof(float) + 2, 0);
  EXPECT_EQ(decode_three_lc(zero, out).error().message, "three_lc: digits without a scale");
}

}  // namespace
}  // namespace millrace
