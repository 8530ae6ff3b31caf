#include "kernels/quantize/qsgd.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/quantize/qsgd_kernels.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/qsgd_oracle.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::Pattern;
using testing::QsgdOracle;
using testing::values_of;

constexpr uint32_t kBits[] = {2, 3, 4, 5, 6, 7, 8};
constexpr QsgdBucketScale kScales[] = {QsgdBucketScale::kL2, QsgdBucketScale::kMax};

std::vector<uint8_t> qsgd_listed(const ByteBuffer& bytes) { return {bytes.begin(), bytes.end()}; }

struct Encoded {
  ByteBuffer bytes;
  std::vector<float> decoded;
};

Encoded encode_qsgd(const std::vector<float>& values, const QsgdOptions& options) {
  Encoded encoded;
  encoded.decoded.resize(values.size());
  const Status done = qsgd_encode(values, options, encoded.bytes, encoded.decoded);
  EXPECT_TRUE(done.has_value()) << done.error().message;
  return encoded;
}

// Compares bits: 0 and -0 differ.
void expect_same_bits(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(wanted[i])) << "at " << i;
  }
}

void expect_as_oracle(const std::vector<float>& values, const QsgdOptions& options) {
  const QsgdOracle wanted(values, options);
  const auto encoded = encode_qsgd(values, options);
  ASSERT_EQ(qsgd_listed(encoded.bytes), wanted.bytes);
  ASSERT_EQ(encoded.bytes.size(), qsgd_encoded_bytes(values.size(), options.bits, options.bucket_size));
  expect_same_bits(encoded.decoded, wanted.decoded);
  std::vector<float> received(values.size());
  ASSERT_TRUE(qsgd_decode(encoded.bytes, options.bits, options.bucket_size, received).has_value());
  expect_same_bits(received, wanted.decoded);
}

TEST(Qsgd, EqualsTheOracleBitForBitOnEveryInstructionSet) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const uint32_t bits : kBits) {
      for (const QsgdBucketScale scale : kScales) {
        for (const size_t n : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 200}) {
          for (const uint32_t bucket_size : {1, 5, 64, 512}) {
            SCOPED_TRACE("bits " + std::to_string(bits) + " n " + std::to_string(n) + " bucket " +
                         std::to_string(bucket_size));
            expect_as_oracle(
                values_of(Pattern::kGaussian, n, n),
                {.bits = bits, .bucket_size = bucket_size, .scale = scale, .random = {3, 4}, .counter_base = n});
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(Qsgd, EqualsTheOracleOnEveryPatternAndAcrossChunks) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const QsgdBucketScale scale : kScales) {
        SCOPED_TRACE(testing::name_of(pattern, 2050, 0));
        expect_as_oracle(values_of(pattern, 2050, 1),
                         {.bits = 4, .bucket_size = 2049, .scale = scale, .random = {1, 2}});
        expect_as_oracle(values_of(pattern, 1100, 1), {.bits = 8, .bucket_size = 96, .scale = scale, .random = {1, 2}});
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(Qsgd, GoldenBytesOfExactLevels) {
  // Values that are levels: the drawn numbers do not matter.
  const auto four = encode_qsgd({7, -3, 0, 1, -14}, {.bits = 4, .bucket_size = 4, .scale = QsgdBucketScale::kMax});
  EXPECT_EQ(qsgd_listed(four.bytes),
            (std::vector<uint8_t>{0x00, 0x00, 0xE0, 0x40, 0xB7, 0x10, 0x00, 0x00, 0x60, 0x41, 0x0F}));
  EXPECT_EQ(four.decoded, (std::vector<float>{7, -3, 0, 1, -14}));
  const auto two = encode_qsgd({1, -1, 0, 1, 1}, {.bits = 2, .bucket_size = 512, .scale = QsgdBucketScale::kMax});
  EXPECT_EQ(qsgd_listed(two.bytes), (std::vector<uint8_t>{0x00, 0x00, 0x80, 0x3F, 0x4D, 0x01}));
  const auto eight =
      encode_qsgd({127, -127, 64, -1, 0}, {.bits = 8, .bucket_size = 512, .scale = QsgdBucketScale::kMax});
  EXPECT_EQ(qsgd_listed(eight.bytes), (std::vector<uint8_t>{0x00, 0x00, 0xFE, 0x42, 0x7F, 0xFF, 0x40, 0x81, 0x00}));
  const auto three = encode_qsgd({3, -3, 2, -1, 0, 3, 1, 1, -2}, {.bits = 3, .bucket_size = 512});
  EXPECT_EQ(qsgd_listed(three.bytes), (std::vector<uint8_t>{0x00, 0x00, 0x40, 0x40, 0xBB, 0x8A, 0x25, 0x06}));
  const auto norm =
      encode_qsgd({3, -4}, {.bits = 2, .bucket_size = 512, .scale = QsgdBucketScale::kL2, .random = {1, 2}});
  EXPECT_EQ(std::vector<uint8_t>(norm.bytes.begin(), norm.bytes.begin() + 4),
            (std::vector<uint8_t>{0x00, 0x00, 0xA0, 0x40}));
}

TEST(Qsgd, RandomRoundingGivesTheGoldenBytes) {
  std::vector<float> values(16, -2.5f);
  values[0] = 7;
  const auto encoded = encode_qsgd(
      values, {.bits = 4, .bucket_size = 16, .scale = QsgdBucketScale::kMax, .random = {1, 2}, .counter_base = 5});
  EXPECT_EQ(qsgd_listed(encoded.bytes),
            (std::vector<uint8_t>{0x00, 0x00, 0xE0, 0x40, 0xB7, 0xBA, 0xBB, 0xBA, 0xBB, 0xAB, 0xAB, 0xAB}));
}

// Checks that the mean over many draws is the value: at each position within 5 standard errors. Over all positions, the
// squared deviations add up to their expectation. Rounding to nearest, or always up, fails both.
void expect_qsgd_unbiased(const QsgdOptions& options_in, const std::vector<float>& values) {
  constexpr int kTrials = 3000;
  QsgdOptions options = options_in;
  std::vector<double> sums(values.size()), squares(values.size());
  for (int trial = 0; trial < kTrials; ++trial) {
    options.random = random_key(11, static_cast<uint64_t>(trial));
    const auto encoded = encode_qsgd(values, options);
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(encoded.decoded[i]) - static_cast<double>(values[i]);
      sums[i] += error;
      squares[i] += error * error;
    }
  }
  double chi_square = 0;
  double freedom = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (squares[i] < 1e-6) continue;  // a level, but for rounding
    const double z = sums[i] / std::sqrt(squares[i]);
    EXPECT_LT(std::abs(z), 5) << "at " << i;
    chi_square += z * z;
    freedom += 1;
  }
  ASSERT_GT(freedom, 50);
  EXPECT_NEAR(chi_square, freedom, 5 * std::sqrt(2 * freedom));
}

TEST(Qsgd, IsUnbiasedWithEitherScale) {
  const auto values = values_of(Pattern::kGaussian, 128, 3);
  for (const uint32_t bits : kBits) {
    for (const QsgdBucketScale scale : kScales) {
      SCOPED_TRACE("bits " + std::to_string(bits) + " scale " + std::to_string(static_cast<int>(scale)));
      expect_qsgd_unbiased({.bits = bits, .bucket_size = 64, .scale = scale}, values);
    }
  }
}

/// Returns the expectation of each decoded value over all words. A value rounds up below a limit of the word's 24 bits.
std::vector<double> qsgd_expectations(const QsgdBucket& bucket, const std::vector<float>& values) {
  const size_t count = values.size();
  std::vector<uint8_t> codes(count);
  const auto rounded_by = [&](const std::vector<uint32_t>& words) {
    std::vector<float> rounded(count);
    qsgd_quantize(bucket, values.data(), words.data(), count, codes.data(), rounded.data());
    return rounded;
  };
  const std::vector<float> up = rounded_by(std::vector<uint32_t>(count, 0));
  const std::vector<float> down = rounded_by(std::vector<uint32_t>(count, UINT32_MAX));
  std::vector<uint32_t> limits(count);
  for (uint32_t bit = 1u << 23; bit != 0; bit /= 2) {
    std::vector<uint32_t> words(count);
    for (size_t i = 0; i < count; ++i) words[i] = (limits[i] + bit - 1) << 8;
    const std::vector<float> rounded = rounded_by(words);
    for (size_t i = 0; i < count; ++i) limits[i] += rounded[i] == up[i] ? bit : 0;
  }
  std::vector<double> means(count);
  for (size_t i = 0; i < count; ++i) means[i] = std::lerp(double{down[i]}, double{up[i]}, limits[i] * 0x1p-24);
  return means;
}

TEST(Qsgd, ItsBiasIsWithinTheLimitOfTheCodecsContract) {
  RandomSequence random(random_key(17));
  for (const uint32_t bits : kBits) {
    double worst = 0;
    for (int trial = 0; trial < 300; ++trial) {
      QsgdBucket bucket{.scale = static_cast<float>(1 + random.next_unit()), .bits = bits};
      bucket.unit = bucket.scale / static_cast<float>(bucket.levels());
      std::vector<float> values(63);
      for (float& value : values) value = bucket.scale * static_cast<float>(2 * random.next_unit() - 1);
      values[0] = bucket.scale;
      const std::vector<double> means = qsgd_expectations(bucket, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const double bias = std::abs(means[i] - double{values[i]});
        ASSERT_LE(bias, 0x1p-24 * double{bucket.unit} + 0x1p-22 * std::abs(double{values[i]})) << bits << ": " << i;
        worst = std::max(worst, bias / double{bucket.unit});
      }
    }
    if (bits == 8) {
      EXPECT_GT(worst, 0x1p-20) << "the rounding of products shows";
    }
  }
}

TEST(Qsgd, NoValueMovesByMoreThanAUnitAndTheLargestStays) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kPeriodic}) {
    for (const uint32_t bits : kBits) {
      const auto values = values_of(pattern, 512, 9);
      const auto encoded = encode_qsgd(values, {.bits = bits, .scale = QsgdBucketScale::kMax, .random = {5, 6}});
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      const float unit = largest / static_cast<float>((1 << (bits - 1)) - 1);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(std::abs(encoded.decoded[i] - values[i]), unit * 1.00001f);
        if (std::abs(values[i]) == largest) {
          ASSERT_EQ(encoded.decoded[i], values[i]);
        }
      }
    }
  }
}

TEST(Qsgd, VarianceIsWithinThePapersBound) {
  // [QSGD17, lemma 3.1]: E|Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2.
  for (const uint32_t bits : kBits) {
    const auto values = values_of(Pattern::kGaussian, 256, 9);
    double norm = 0;
    for (const float value : values) norm += static_cast<double>(value) * value;
    double error = 0;
    constexpr int kTrials = 500;
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto encoded = encode_qsgd(values, {.bits = bits,
                                                .bucket_size = 256,
                                                .scale = QsgdBucketScale::kL2,
                                                .random = random_key(2, static_cast<uint64_t>(trial))});
      for (size_t i = 0; i < values.size(); ++i)
        error += std::pow(static_cast<double>(encoded.decoded[i]) - values[i], 2);
    }
    const double s = (1 << (bits - 1)) - 1;
    EXPECT_LE(error / kTrials, std::min(256 / (s * s), 16 / s) * norm);
    EXPECT_GT(error, 0);
  }
}

// The largest residual of the last steps, gradient after gradient fed back; infinite once it overflows.
float qsgd_residual_after(const QsgdOptions& options_in, int steps, float& gradient_max) {
  constexpr size_t kCount = 1024;
  QsgdOptions options = options_in;
  RandomSequence random(random_key(5));
  std::vector<float> residual(kCount), accumulator(kCount), decoded(kCount);
  float largest = 0;
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < kCount; ++i) {
      const float gradient = static_cast<float>(random.next_normal());
      gradient_max = std::max(gradient_max, std::abs(gradient));
      accumulator[i] = residual[i] + gradient;
    }
    options.random = random_key(9, static_cast<uint64_t>(step));
    ByteBuffer bytes;
    if (!qsgd_encode(accumulator, options, bytes, decoded)) return std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < kCount; ++i) {
      residual[i] = accumulator[i] - decoded[i];
      if (step > steps / 2) largest = std::max(largest, std::abs(residual[i]));
    }
  }
  return largest;
}

TEST(Qsgd, TheErrorMayBeFedBackWithTheMaximumAndExplodesWithTheNorm) {
  for (const uint32_t bits : {3u, 4u, 5u, 6u, 7u, 8u}) {
    float gradient_max = 0;
    const float residual = qsgd_residual_after({.bits = bits, .scale = QsgdBucketScale::kMax}, 200, gradient_max);
    const float s = static_cast<float>((1 << (bits - 1)) - 1);
    EXPECT_LE(residual, gradient_max / (s - 1));
  }
  float gradient_max = 0;
  EXPECT_GT(qsgd_residual_after({.bits = 4, .scale = QsgdBucketScale::kL2}, 100, gradient_max), 100 * gradient_max);
}

TEST(Qsgd, PiecesThatEndOnBucketsAreThePartsOfTheWhole) {
  const auto values = values_of(Pattern::kGaussian, 1000, 9);
  const QsgdOptions options{.bits = 4, .bucket_size = 64, .random = {7, 8}, .counter_base = 1'000'003};
  const auto whole = encode_qsgd(values, options);
  ByteBuffer pieces;
  std::vector<float> decoded(values.size());
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 192}, {192, 640}, {640, 1000}}) {
    QsgdOptions piece = options;
    piece.counter_base += begin;
    ASSERT_TRUE(qsgd_encode(std::span(values).subspan(begin, end - begin), piece, pieces,
                            std::span(decoded).subspan(begin, end - begin)));
  }
  EXPECT_EQ(qsgd_listed(pieces), qsgd_listed(whole.bytes));
  EXPECT_EQ(decoded, whole.decoded);
}

TEST(Qsgd, ValuesMayBeDecodedInPlaceAndTheCodeIsAppended) {
  auto values = values_of(Pattern::kGaussian, 777, 9);
  const auto apart = encode_qsgd(values, {.random = {1, 1}});
  ByteBuffer out = {9, 9};
  ASSERT_TRUE(qsgd_encode(values, {.random = {1, 1}}, out, values).has_value());
  EXPECT_EQ(values, apart.decoded);
  std::vector<uint8_t> wanted = {9, 9};
  wanted.insert(wanted.end(), apart.bytes.begin(), apart.bytes.end());
  EXPECT_EQ(qsgd_listed(out), wanted);
}

TEST(Qsgd, TheNumberOfThreadsDoesNotChangeTheResult) {
  const auto values = values_of(Pattern::kGaussian, 300'007, 9);
  const tbb::global_control four(tbb::global_control::max_allowed_parallelism, 4);
  const auto together = encode_qsgd(values, {.bits = 2, .scale = QsgdBucketScale::kL2, .random = {1, 1}});
  std::vector<float> received(values.size());
  ASSERT_TRUE(qsgd_decode(together.bytes, 2, 512, received).has_value());
  EXPECT_EQ(received, together.decoded);
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  const auto alone = encode_qsgd(values, {.bits = 2, .scale = QsgdBucketScale::kL2, .random = {1, 1}});
  EXPECT_EQ(qsgd_listed(alone.bytes), qsgd_listed(together.bytes));
  EXPECT_EQ(alone.decoded, together.decoded);
}

TEST(Qsgd, ZerosAndValuesTooSmallForAScaleAreSentAsZeros) {
  for (const QsgdBucketScale scale : kScales) {
    for (const float value : {0.0f, -0.0f, 1e-40f, -1e-38f}) {
      const auto encoded = encode_qsgd(std::vector<float>(5, value), {.bits = 4, .bucket_size = 8, .scale = scale});
      EXPECT_EQ(qsgd_listed(encoded.bytes), std::vector<uint8_t>(7, 0));
      expect_same_bits(encoded.decoded, std::vector<float>(5, 0.0f));
    }
  }
}

TEST(Qsgd, TheLargestFloatsStayFinite) {
  std::vector<float> values(512, std::numeric_limits<float>::max());
  values[3] = -values[3];
  for (const uint32_t bits : kBits) {
    for (const QsgdBucketScale scale : kScales) {
      const auto encoded = encode_qsgd(values, {.bits = bits, .scale = scale});
      EXPECT_EQ(encoded.decoded, values);
    }
  }
}

TEST(Qsgd, WhatCannotBeEncodedIsRefusedAndNothingIsWritten) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, -nan, infinity, -infinity}) {
    for (const size_t at : {0, 511, 512, 599}) {
      std::vector<float> values(600, 1.5f);
      values[at] = bad;
      std::vector<float> decoded(600, 42);
      ByteBuffer out = {1};
      EXPECT_EQ(qsgd_encode(values, {}, out, decoded).error().code, ErrorCode::kNonFinite);
      EXPECT_EQ(qsgd_listed(out), std::vector<uint8_t>{1});
      EXPECT_EQ(decoded, std::vector<float>(600, 42));
    }
  }
  std::vector<float> one = {1};
  ByteBuffer out;
  for (const uint32_t bits : {0u, 1u, 9u, 16u, 32u}) {
    EXPECT_EQ(qsgd_encode(one, {.bits = bits}, out, one).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(qsgd_decode({}, bits, 512, one).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(qsgd_encode(one, {.bucket_size = 0}, out, one).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(qsgd_decode({}, 4, 0, one).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

TEST(Qsgd, AnyOtherLengthIsMalformed) {
  for (const uint32_t bits : kBits) {
    auto bytes = encode_qsgd(values_of(Pattern::kGaussian, 21, 9), {.bits = bits, .bucket_size = 8}).bytes;
    std::vector<float> out(21, 42);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_EQ(qsgd_decode(ByteSpan(bytes).first(length), bits, 8, out).error().code, ErrorCode::kMalformed);
    }
    bytes.push_back(0);
    EXPECT_EQ(qsgd_decode(bytes, bits, 8, out).error().code, ErrorCode::kMalformed);
    EXPECT_EQ(out, std::vector<float>(21, 42));
  }
}

TEST(Qsgd, AScaleThatIsNotAMagnitudeIsMalformedInAnyBucket) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto bytes = encode_qsgd(values_of(Pattern::kGaussian, 21, 9), {.bucket_size = 8}).bytes;
  for (const float scale : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, -1.0f, -0.0f}) {
    for (size_t bucket = 0; bucket < 3; ++bucket) {
      ByteBuffer broken = bytes;
      std::memcpy(broken.data() + 8 * bucket, &scale, 4);
      std::vector<float> out(21, 42);
      EXPECT_EQ(qsgd_decode(broken, 4, 8, out).error().code, ErrorCode::kMalformed);
      EXPECT_EQ(out, std::vector<float>(21, 42));
    }
  }
}

TEST(Qsgd, EveryCorruptionOfAByteIsAnErrorOrAFiniteValueWithinTheScale) {
  for (const uint32_t bits : kBits) {
    const auto bytes = encode_qsgd(values_of(Pattern::kGaussian, 21, 9), {.bits = bits, .bucket_size = 9}).bytes;
    size_t padding_errors = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        ByteBuffer broken = bytes;
        broken[at] = static_cast<uint8_t>(value);
        std::vector<float> out(21);
        const Status done = qsgd_decode(broken, bits, 9, out);
        if (!done) {
          ASSERT_EQ(done.error().code, ErrorCode::kMalformed);
          padding_errors += done.error().message.find("padding") != std::string::npos ? 1 : 0;
          continue;
        }
        for (size_t i = 0; i < out.size(); ++i) {
          float scale;
          std::memcpy(&scale, broken.data() + i / 9 * qsgd_encoded_bytes(9, bits, 9), 4);
          ASSERT_LE(std::abs(out[i]), scale);
        }
      }
    }
    EXPECT_EQ(padding_errors > 0, bits != 8);
  }
}

TEST(Qsgd, TheSmallestAndTheLargestScalesDecodeAndNoneBelow) {
  const float smallest = std::numeric_limits<float>::min() * 127;
  for (const float scale : {smallest, std::numeric_limits<float>::max(), std::nextafter(smallest, 0.0f),
                            std::numeric_limits<float>::denorm_min()}) {
    ByteBuffer bytes(4 + 16);
    std::memcpy(bytes.data(), &scale, 4);
    for (size_t i = 0; i < 16; ++i) bytes[4 + i] = static_cast<uint8_t>(i * 17);
    std::vector<float> out(16);
    const bool decodes = qsgd_decode(bytes, 8, 16, out).has_value();
    ASSERT_EQ(decodes, scale >= smallest) << scale;
    if (!decodes) continue;
    for (const float value : out) ASSERT_LE(std::abs(value), scale);
    EXPECT_EQ(out[15], -scale);
  }
}

}  // namespace
}  // namespace millrace
