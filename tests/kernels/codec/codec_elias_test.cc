// qsgd_elias: QSGD's levels in Elias codes.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/codec/codec_list.h"
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

CodecSpec elias(uint32_t bits, bool scale_max, uint32_t bucket_size) {
  return {.value = qsgd_elias_value_codec().id(),
          .qsgd_bits = bits,
          .bucket_size = bucket_size,
          .qsgd_scale_max = scale_max};
}

/// Bits one by one.
struct EliasBits {
  std::vector<bool> bits;

  void put(uint64_t value, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) bits.push_back((value >> i & 1) != 0);
  }
  void gamma(uint64_t value) {
    uint32_t n = 0;
    while (value >> (n + 1) != 0) ++n;
    put(uint64_t{1} << n, n + 1);
    put(value - (uint64_t{1} << n), n);
  }
  void add(const EliasBits& more) { bits.insert(bits.end(), more.bits.begin(), more.bits.end()); }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all((bits.size() + 7) / 8);
    for (size_t i = 0; i < bits.size(); ++i) all[i / 8] = static_cast<uint8_t>(all[i / 8] | (bits[i] ? 1 : 0) << i % 8);
    return all;
  }
};

/// Returns the code in the wording of protocol/wire/value_codecs.md, from the values that the oracle of QSGD decodes.
std::vector<uint8_t> slow_code(const std::vector<float>& values, const CodecSpec& spec, RandomKey random,
                               uint64_t base) {
  const QsgdBucketScale scale = spec.qsgd_scale_max ? QsgdBucketScale::kMax : QsgdBucketScale::kL2;
  EliasBits all;
  all.put(spec.qsgd_bits, 8);
  all.put(static_cast<uint8_t>(scale), 8);
  all.put(0, 16);
  all.put(spec.bucket_size, 32);
  for (size_t begin = 0; begin < values.size(); begin += spec.bucket_size) {
    const size_t size = std::min<size_t>(spec.bucket_size, values.size() - begin);
    const std::span<const float> all_values(values);
    const testing::QsgdOracle bucket(all_values.subspan(begin, size),
                                     {spec.qsgd_bits, spec.bucket_size, scale, random, base + begin});
    uint32_t scale_bits;
    std::memcpy(&scale_bits, bucket.bytes.data(), 4);
    const auto sign_bit = 1u << (spec.qsgd_bits - 1);
    EliasBits every;
    EliasBits gaps;
    uint64_t zeros = 0;
    for (size_t i = 0; i < size; ++i) {
      uint32_t code = 0;
      for (uint32_t bit = 0; bit < spec.qsgd_bits; ++bit) {
        const size_t at = i * spec.qsgd_bits + bit;
        code |= (bucket.bytes[4 + at / 8] >> at % 8 & 1u) << bit;
      }
      const uint32_t level = code & (sign_bit - 1);
      every.gamma(level + 1);
      if (level == 0) {
        ++zeros;
        continue;
      }
      every.put((code & sign_bit) != 0 ? 1 : 0, 1);
      gaps.gamma(zeros + 1);
      gaps.gamma(level);
      gaps.put((code & sign_bit) != 0 ? 1 : 0, 1);
      zeros = 0;
    }
    if (zeros > 0) gaps.gamma(zeros + 1);
    all.put(scale_bits, 32);
    const bool by_gaps = gaps.bits.size() < every.bits.size();
    all.put(by_gaps ? 1 : 0, 1);
    all.add(by_gaps ? gaps : every);
  }
  return all.bytes();
}

/// A code with 4 values a bucket, from the parameters on.
std::vector<uint8_t> with_parameters(uint32_t bits, uint32_t scale, const std::string& text) {
  EliasBits wanted;
  wanted.put(bits | 2 << 8, 32);
  wanted.put(4, 32);
  wanted.put(scale, 32);
  for (const char bit : text) wanted.put(bit == '1' ? 1 : 0, 1);
  return wanted.bytes();
}

TEST(QsgdElias, GoldenBytesOfBothForms) {
  // Levels 1 0 -1 0: form 0, 010 and sign 0; 1; 010 and 1; 1.
  const auto every = code_values(qsgd_elias_value_codec(), elias(2, true, 4), {2, 0, -2, 0});
  EXPECT_EQ(listed(every.bytes), with_parameters(2, 0x40000000,
                                                 "0"
                                                 "0100"
                                                 "1"
                                                 "0101"
                                                 "1"));
  EXPECT_EQ(every.said, (std::vector<float>{2, 0, -2, 0}));
  // Levels 7 -3 0 1: form 1, gap 1, 00111 and sign 0; gap 1, 011 and 1; gap 2, 1 and 0.
  const auto gaps = code_values(qsgd_elias_value_codec(), elias(4, true, 4), {7, -3, 0, 1});
  EXPECT_EQ(listed(gaps.bytes), with_parameters(4, 0x40E00000,
                                                "1"
                                                "1"
                                                "001110"
                                                "1"
                                                "0111"
                                                "010"
                                                "10"));
  EXPECT_EQ(gaps.said, (std::vector<float>{7, -3, 0, 1}));
}

TEST(QsgdElias, EqualsTheSlowFormAndHasTheValuesOfQsgd) {
  for (const uint32_t bits : {2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    for (const bool scale_max : {true, false}) {
      for (const uint32_t bucket_size : {1u, 7u, 512u, 3000u}) {
        for (const Pattern pattern :
             {Pattern::kGaussian, Pattern::kMostlyZero, Pattern::kOneSpike, Pattern::kAllZero}) {
          const CodecSpec spec = elias(bits, scale_max, bucket_size);
          SCOPED_TRACE(codec_text(spec) + testing::name_of(pattern, 4001, 0));
          const auto values = values_of(pattern, 4001, 3);
          const auto got = code_values(qsgd_elias_value_codec(), spec, values, {7, 8}, 99);
          ASSERT_EQ(listed(got.bytes), slow_code(values, spec, {7, 8}, 99));
          CodecSpec packed = spec;
          packed.value = ValueCodecId::kQsgd;
          ASSERT_TRUE(
              testing::same_value_bits(got.said, code_values(qsgd_value_codec(), packed, values, {7, 8}, 99).said));
        }
      }
    }
  }
}

TEST(QsgdElias, GapsAcrossChunksAndAtTheEndOfABucket) {
  for (const size_t at : {0, 1278, 1279, 1280, 1281, 2559, 2560, 4998, 4999}) {
    for (const size_t n : {5000, 5001, 7000}) {
      std::vector<float> values(n, 0.0F);
      values[at] = -2;
      values[n - 2] = 2;
      const auto got = code_values(qsgd_elias_value_codec(), elias(4, true, 6000), values);
      EXPECT_LT(got.bytes.size(), 40u);
      std::vector<float> received(n);
      ASSERT_TRUE(decode_values(qsgd_elias_value_codec(), got.bytes, received)) << at << " of " << n;
      EXPECT_EQ(received, values);
    }
  }
}

/// Bits of one bucket of n Gaussian values scaled by their norm, without the parameters; the mean of some draws.
double bits_of_bucket(uint32_t bits, uint32_t n) {
  constexpr int kTrials = 20;
  double sum = 0;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const auto values = values_of(Pattern::kGaussian, n, trial);
    sum += 8.0 *
           static_cast<double>(
               code_values(qsgd_elias_value_codec(), elias(bits, false, n), values, random_key(3, trial)).bytes.size() -
               8);
  }
  return sum / kTrials;
}

TEST(QsgdElias, FewLevelsTakeNoMoreBitsThanThePapersBoundForSparseCodes) {
  // [QSGD17, theorem 3.2], with o(1) = 0: (3 + 3/2 log2(2 (s^2 + n) / (s (s + sqrt n)))) s (s + sqrt n) + 32; and a
  // byte's rest.
  for (const auto& [bits, n] :
       {std::pair<uint32_t, uint32_t>{2, 512}, {2, 4096}, {3, 4096}, {2, 65'536}, {4, 65'536}}) {
    const double s = (1 << (bits - 1)) - 1;
    const double expected = s * (s + std::sqrt(n));
    const double bound = (3 + 1.5 * std::log2(2 * (s * s + n) / expected)) * expected + 32;
    EXPECT_LE(bits_of_bucket(bits, n), bound + 8) << bits << " bits, n " << n;
  }
}

TEST(QsgdElias, AsManyLevelsAsTheRootOfNTakeNoMoreThanThePapersBits) {
  // [QSGD17, corollary 3.3]: 2.8 n + 32 for s = sqrt(n); and a byte's rest. A Gaussian value is at level 0, at 1 or 2,
  // and over 2 with probabilities 0.369, 0.615 and 0.016. Form 0, and the paper's code of every level, would take 1, 4
  // and 6 bits or more, 2.93 in the mean. The corollary omits the bits that Elias codes take over a logarithm. Form 1
  // compensates for them.
  for (const uint32_t bits : {4u, 5u, 6u, 7u, 8u}) {
    const uint32_t s = (1u << (bits - 1)) - 1;
    EXPECT_LE(bits_of_bucket(bits, s * s), 2.8 * s * s + 32 + 8) << bits;
  }
}

TEST(QsgdElias, ALevelOverTheLargestAndAGapOverTheEndAreMalformed) {
  const auto code_of = [](const char* text) {
    EliasBits code;
    code.put(3 | 2 << 8, 32);
    code.put(16, 32);
    code.put(0x3F800000, 32);
    for (; *text != 0; ++text) code.put(*text == '1', 1);
    const auto bytes = code.bytes();
    return ByteBuffer(bytes.begin(), bytes.end());
  };
  std::vector<float> two(2);
  // 3 bits: levels to 3, coded as 4, 00100b, with a sign; 5 is over them.
  EXPECT_TRUE(decode_values(qsgd_elias_value_codec(),
                            code_of("0"
                                    "00100"
                                    "1"
                                    "1"),
                            two));
  EXPECT_EQ(two, (std::vector<float>{-1, 0}));
  EXPECT_FALSE(decode_values(qsgd_elias_value_codec(),
                             code_of("0"
                                     "00110"
                                     "1"
                                     "1"),
                             two));
  // Gaps: two zeros; one and a level; three zeros are one too many; level 4 too.
  EXPECT_TRUE(decode_values(qsgd_elias_value_codec(),
                            code_of("1"
                                    "011"),
                            two));
  EXPECT_EQ(two, (std::vector<float>{0, 0}));
  EXPECT_TRUE(decode_values(qsgd_elias_value_codec(),
                            code_of("1"
                                    "010"
                                    "011"
                                    "0"),
                            two));
  EXPECT_EQ(two, (std::vector<float>{0, 1}));
  EXPECT_FALSE(decode_values(qsgd_elias_value_codec(),
                             code_of("1"
                                     "00100"),
                             two));
  EXPECT_FALSE(decode_values(qsgd_elias_value_codec(),
                             code_of("1"
                                     "010"
                                     "00100"
                                     "0"),
                             two));
}

}  // namespace
}  // namespace millrace
