#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec/codec.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::kPatterns;
using testing::values_of;

constexpr const char* kGsparNames[] = {"gspar_hybrid", "gspar_entropy"};

const ValueCodec& gspar_codec_of(std::string_view name) {
  return *find_value_codec(codec_from_text("gap+" + std::string(name)).value().value);
}

ByteBuffer gspar_code_of(const std::string& name, const std::vector<float>& values) {
  ByteBuffer bytes;
  const Status done = gspar_codec_of(name).encode({}, std::span<const float>(values), {}, bytes, std::span<float>());
  EXPECT_TRUE(done.has_value());
  return bytes;
}

std::vector<int> gspar_listed(const ByteBuffer& bytes) { return {bytes.begin(), bytes.end()}; }

/// What GSpar draws of Gaussian gradients: entries of [0, dimension) with p = min(lambda |g|, 1), as g / p. Proposition
/// 1.
struct GsparDraw {
  uint64_t dimension = 0;
  IndexBuffer indices;
  std::vector<float> values;
  double exact = 0;
  double minus = 0;
  double plus = 0;
};

GsparDraw draw_of(uint64_t dimension, double lambda, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  GsparDraw draw{dimension, {}, {}};
  const auto scale = static_cast<float>(1 / lambda);
  for (uint64_t i = 0; i < dimension; ++i) {
    const auto gradient = static_cast<float>(std::pow(random.next_normal(), 3));
    const float size = std::abs(gradient);
    if (random.next_unit() >= size / scale) continue;
    draw.indices.push_back(static_cast<uint32_t>(i));
    draw.values.push_back(size > scale ? gradient : std::copysign(scale, gradient));
    (size > scale ? draw.exact : gradient < 0 ? draw.minus : draw.plus) += 1;
  }
  return draw;
}

TEST(GsparHybrid, GoldenBytesOfEveryMode) {
  // Nothing repeats; a bitmap; few exact entries; few of the sign part.
  EXPECT_EQ(gspar_listed(gspar_code_of("gspar_hybrid", {1, -2})),
            (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}));
  EXPECT_EQ(
      gspar_listed(gspar_code_of("gspar_hybrid", {1, -2, -1, 1, 4, -1})),
      (std::vector<int>{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x80, 0x3f, 0b010010, 0b1010, 0, 0, 0, 0xc0, 0, 0, 0x80, 0x40}));
  std::vector<float> values(40, -0.5F);
  values[33] = 3;
  EXPECT_EQ(
      gspar_listed(gspar_code_of("gspar_hybrid", values)),
      (std::vector<int>{2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x3f, 33, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0x40, 0x40}));
  for (size_t i = 0; i < 40; ++i) values[i] = static_cast<float>(i + 2);
  values[3] = 1;
  values[39] = -1;
  const auto few = gspar_listed(gspar_code_of("gspar_hybrid", values));
  EXPECT_EQ(std::vector<int>(few.begin(), few.begin() + 15),
            (std::vector<int>{3, 0, 0, 0, 38, 0, 0, 0, 0, 0, 0x80, 0x3f, 0xc3, 0x09, 2}));
  EXPECT_EQ(few.size(), 15u + 38 * 4);
}

TEST(GsparHybrid, OfAllModesTheSmallestIsTaken) {
  for (const size_t count : {20, 100, 1000}) {
    for (size_t exact = 0; exact <= count; exact += count / 20) {
      std::vector<float> values(count, 0.25F);
      for (size_t j = 0; j < exact; ++j) values[j * count / std::max<size_t>(exact, 1)] = 1 + static_cast<float>(j);
      const auto width = static_cast<size_t>(std::ceil(std::log2(count)));
      const size_t marks = std::min({(count + 7) / 8, (exact * width + 7) / 8, ((count - exact) * width + 7) / 8});
      const size_t parts = 12 + marks + (count - exact + 7) / 8 + 4 * exact;
      EXPECT_EQ(gspar_code_of("gspar_hybrid", values).size(), std::min(parts, 8 + 4 * count)) << count << ' ' << exact;
    }
  }
}

TEST(GsparEntropy, GoldenBytes) {
  // Of 32 entries 5 each are -1 and +1 (2560 of 16384), 22 exact.
  const std::vector<float> values = {1,  2,  3,  -1, 4,  5,  1,  6,  7, -1, 8,  9,  1,  10, 11, -1,
                                     12, 13, 14, 1,  15, -1, 16, 17, 1, 18, 19, -1, 20, 21, 22, 23};
  ASSERT_EQ(values.size(), 32u);
  const auto bytes = gspar_listed(gspar_code_of("gspar_entropy", values));
  EXPECT_EQ(std::vector<int>(bytes.begin(), bytes.begin() + 16),
            (std::vector<int>{1, 0, 0, 0x0a, 0, 0x0a, 0, 0, 22, 0, 0, 0, 0, 0, 0x80, 0x3f}));
}

/// The code read as protocol/wire/fitted_codecs.md says it, in the plainest way. Empty: it is none of `count` values.
std::vector<float> entropy_oracle(const ByteBuffer& bytes, size_t count) {
  const auto number = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t b = 0; b < size; ++b) value += uint64_t{bytes.at(at + b)} << 8 * b;
    return value;
  };
  const auto value_at = [&](size_t at) { return std::bit_cast<float>(static_cast<uint32_t>(number(at, 4))); };
  std::vector<float> values;
  if (number(0, 1) == 0) {
    for (size_t i = 0; i < count; ++i) values.push_back(value_at(12 + 4 * i));
    return values;
  }
  const uint64_t minus = number(2, 2);
  const uint64_t plus = number(4, 2);
  uint64_t x = number(16, 4);
  size_t word = 20;
  size_t exact = bytes.size() - 4 * number(8, 4);
  const size_t words_end = exact;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t slot = x % 16384;
    if (slot < minus) {
      values.push_back(-value_at(12));
      x = minus * (x / 16384) + slot;
    } else if (slot < minus + plus) {
      values.push_back(value_at(12));
      x = plus * (x / 16384) + slot - minus;
    } else {
      values.push_back(value_at(exact));
      exact += 4;
      x = (16384 - minus - plus) * (x / 16384) + slot - minus - plus;
    }
    if (x < 65536) {
      x = x * 65536 + number(word, 2);
      word += 2;
    }
  }
  EXPECT_EQ(x, 65536u);
  EXPECT_EQ(word, words_end);
  EXPECT_EQ(exact, bytes.size());
  return values;
}

TEST(GsparEntropy, IsReadAsTheWireFormatSaysIt) {
  for (const double lambda : {0.1, 0.5, 2.0}) {
    const GsparDraw draw = draw_of(20'000, lambda, 5);
    ASSERT_GT(draw.exact, 10);
    const auto bytes = gspar_code_of("gspar_entropy", draw.values);
    ASSERT_EQ(bytes[0], 1);
    EXPECT_EQ(entropy_oracle(bytes, draw.values.size()), draw.values);
  }
}

bool gspar_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void expect_gspar_round_trip(const std::string& name, const std::vector<float>& values) {
  const ValueCodec& codec = gspar_codec_of(name);
  const ByteBuffer bytes = gspar_code_of(name, values);
  EXPECT_LE(bytes.size(), codec.bytes_max(values.size(), {}));
  ASSERT_TRUE(codec.check(bytes, values.size()));
  std::vector<float> decoded(values.size(), 7.0F);
  const Status done = codec.decode(bytes, {}, std::span<float>(decoded));
  ASSERT_TRUE(done.has_value()) << done.error().message;
  EXPECT_TRUE(gspar_same_bits(decoded, values));
}

TEST(GsparCodec, GivesBackEveryBitOfAnyFiniteStream) {
  for (const char* name : kGsparNames) {
    SCOPED_TRACE(name);
    for (const auto pattern : kPatterns) {
      for (const size_t n : {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 97, 1000, 4097}) {
        expect_gspar_round_trip(name, values_of(pattern, n, n));
        if (this->HasFatalFailure()) return;
      }
    }
    for (const double lambda : {0.05, 0.3, 1.0, 5.0}) {
      const GsparDraw draw = draw_of(10'000, lambda, 2);
      expect_gspar_round_trip(name, std::vector<float>(draw.values.begin(), draw.values.end()));
    }
  }
}

TEST(GsparCodec, StreamsWithoutARepeatedMagnitudeAreAsTheyAre) {
  std::vector<float> values(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1) * (i % 2 == 0 ? 1 : -1);
  EXPECT_EQ(gspar_code_of("gspar_hybrid", values).size(), 8 + 100 * sizeof(float));
  EXPECT_EQ(gspar_code_of("gspar_entropy", values).size(), 12 + 100 * sizeof(float));
}

TEST(GsparCodec, TheScaleIsFoundBelowSmallerEntriesWhereHalfHaveIt) {
  // The effect of a Bloom filter with policy P0 on the stream: it adds entries that were not drawn.
  std::vector<float> values(300, -0.5F);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = static_cast<float>(0.0001 * static_cast<double>(i + 1));
  EXPECT_LT(gspar_code_of("gspar_hybrid", values).size(), 100 * sizeof(float) + 100);
  EXPECT_LT(gspar_code_of("gspar_entropy", values).size(), 100 * sizeof(float) + 100);
}

TEST(GsparCodec, NanAndInfinityAreRefused) {
  using Limits = std::numeric_limits<float>;
  for (const char* name : kGsparNames) {
    for (const float bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      std::vector<float> values(50, 1.0F);
      values[49] = bad;
      ByteBuffer bytes;
      const Status done =
          gspar_codec_of(name).encode({}, std::span<const float>(values), {}, bytes, std::span<float>());
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kNonFinite);
    }
  }
}

/// Streams that take every mode of both codes.
std::vector<std::vector<float>> streams_of_every_mode() {
  std::vector<std::vector<float>> streams;
  for (const size_t step : {1, 2, 20, 1000}) {
    std::vector<float> values(61);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = (i % step == 0 ? static_cast<float>(i + 2) : 1.0F) * (i % 3 == 0 ? -1.0F : 1.0F);
    }
    streams.push_back(values);
  }
  for (size_t i = 0; i < 61; ++i) streams[0][i] = static_cast<float>(i % 30 == 5 ? 1 : i + 2);
  streams.push_back({});
  for (size_t i = 0; i < 61; ++i) streams.back().push_back(static_cast<float>(i + 1));
  return streams;
}

TEST(GsparCodec, EveryModeOccursAndAnyOtherLengthIsAnError) {
  std::vector<bool> seen(4);
  for (const char* name : kGsparNames) {
    for (const auto& values : streams_of_every_mode()) {
      const ValueCodec& codec = gspar_codec_of(name);
      ByteBuffer bytes = gspar_code_of(name, values);
      if (name == kGsparNames[0]) seen[bytes[0]] = true;
      std::vector<float> out(values.size());
      for (size_t length = 0; length < bytes.size(); ++length) {
        const ByteBuffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
        ASSERT_FALSE(codec.decode(cut, {}, std::span<float>(out))) << name << ' ' << length;
      }
      for (const uint64_t count : {uint64_t{1} << 32, (uint64_t{1} << 32) + 1, ~uint64_t{0}}) {
        EXPECT_FALSE(codec.check(bytes, count)) << name << ' ' << count;
      }
      for (const size_t more : {0, 0, 0, 0, 0, 0, 0, 0}) {
        bytes.push_back(static_cast<uint8_t>(more));
        ASSERT_FALSE(codec.decode(bytes, {}, std::span<float>(out))) << name;
      }
    }
  }
  EXPECT_EQ(seen, std::vector<bool>(4, true));
}

TEST(GsparCodec, EveryCorruptionOfAByteIsAnErrorOrFiniteValues) {
  for (const char* name : kGsparNames) {
    const ValueCodec& codec = gspar_codec_of(name);
    size_t errors = 0;
    for (const auto& values : streams_of_every_mode()) {
      const ByteBuffer bytes = gspar_code_of(name, values);
      for (size_t at = 0; at < bytes.size(); ++at) {
        for (int value = 0; value < 256; value += at < 24 ? 1 : 5) {
          ByteBuffer broken = bytes;
          broken[at] = static_cast<uint8_t>(value);
          std::vector<float> out(values.size());
          const Status done = codec.decode(broken, {}, std::span<float>(out));
          if (!done) {
            ASSERT_EQ(done.error().code, ErrorCode::kMalformed);
            ++errors;
            continue;
          }
          ASSERT_TRUE(codec.check(broken, values.size()));
          for (const float entry : out) ASSERT_TRUE(std::isfinite(entry));
        }
      }
    }
    EXPECT_GT(errors, 1000u) << name;
  }
}

TEST(GsparCodec, InvalidHeadersAreMalformed) {
  const auto refused = [](const char* name, size_t at, int value) {
    const auto values = streams_of_every_mode()[2];
    ByteBuffer bytes = gspar_code_of(name, values);
    bytes.at(at) = static_cast<uint8_t>(value);
    std::vector<float> out(values.size());
    return !gspar_codec_of(name).decode(bytes, {}, std::span<float>(out)).has_value();
  };
  const size_t sign_of_scale = sizeof(float) - 1;
  for (const auto& [at, value] :
       {std::pair<size_t, int>{0, 4}, {1, 1}, {2, 1}, {3, 1}, {7, 1}, {8 + sign_of_scale, 0xbf}}) {
    EXPECT_TRUE(refused("gspar_hybrid", at, value)) << at;
  }
  for (const auto& [at, value] : {std::pair<size_t, int>{0, 2},
                                  {1, 1},
                                  {3, 0x40},
                                  {5, 0x40},
                                  {6, 1},
                                  {7, 1},
                                  {11, 1},
                                  {12 + sign_of_scale, 0xbf}}) {
    EXPECT_TRUE(refused("gspar_entropy", at, value)) << at;
  }
}

double plogp(double part, double all) { return part == 0 ? 0 : part * std::log2(all / part); }

TEST(GsparSizes, EntropyCodedVector_SizeOfThePaperAndAtMostTwoBitsACoordinate) {
  for (const double lambda : {0.02, 0.1, 1.0}) {
    const GsparDraw draw = draw_of(400'000, lambda, 11);
    const auto d = static_cast<double>(draw.dimension);
    const auto k = static_cast<double>(draw.values.size());
    const double paper = plogp(d - k, d) + plogp(draw.minus, d) + plogp(draw.plus, d) + plogp(draw.exact, d);
    const double symbols = plogp(draw.minus, k) + plogp(draw.plus, k) + plogp(draw.exact, k);
    EXPECT_NEAR(paper, plogp(d - k, d) + plogp(k, d) + symbols, 1e-6 * paper);
    EXPECT_LE(paper, 2 * d);

    const double code = 8 * static_cast<double>(gspar_code_of("gspar_entropy", draw.values).size()) - 32 * draw.exact;
    EXPECT_LE(code, 1.001 * symbols + 8 * (12 + 4 + 4)) << lambda;
    EXPECT_GE(code, symbols) << lambda;  // no code is below the entropy
    ByteBuffer index_bytes;
    const EncodeOptions golomb{codec_from_text("golomb").value(), {}, 0};
    ASSERT_TRUE(find_index_codec(golomb.spec.index)
                    ->encode(draw.indices, draw.dimension, golomb, index_bytes, nullptr)
                    .has_value());
    EXPECT_LE(8 * static_cast<double>(index_bytes.size()) + code, 1.03 * paper + 400) << lambda;
  }
}

TEST(GsparSizes, NoFourShareOfTheDimensionTakeMoreThanTwoBits) {
  RandomSequence random(RandomKey::from(3));
  for (int trial = 0; trial < 1000; ++trial) {
    double counts[4];
    double d = 0;
    for (double& count : counts) d += count = static_cast<double>(random.next_below(trial % 2 == 0 ? 10 : 100'000));
    double bits = 0;
    for (const double count : counts) bits += plogp(count, d);
    EXPECT_LE(bits, 2 * d * (1 + 1e-12));
  }
}

TEST(GsparSizes, OneSymbolAloneTakesAFiftiethOfABitAndPassesTheCheck) {
  for (const float sign : {-1.0F, 1.0F}) {
    const std::vector<float> values(1'000'000, 3 * sign);
    const auto bytes = gspar_code_of("gspar_entropy", values);
    EXPECT_LE(bytes.size(), 0.0228 * 1e6 / 8 + 40);
    expect_gspar_round_trip("gspar_entropy", values);
  }
}

// Theorem 4 counts s (b + log2 d) + min(rho s log2 d, d) + b bits for s exact entries and rho s others. It omits their
// signs. With an entropy-near index code the hybrid is below its first form (coordinates for both parts), the signs
// included.
TEST(GsparSizes, TheHybridWithAnIndexCodeIsBelowTheCoordinatesOfThePaper) {
  for (const double lambda : {0.02, 0.1, 1.0}) {
    const GsparDraw draw = draw_of(400'000, lambda, 12);
    const double log_d = std::log2(static_cast<double>(draw.dimension));
    const double signed_part = draw.minus + draw.plus;
    const double theorem = draw.exact * (32 + log_d) + signed_part * log_d + 32;
    ByteBuffer index_bytes;
    const EncodeOptions golomb{codec_from_text("golomb").value(), {}, 0};
    ASSERT_TRUE(find_index_codec(golomb.spec.index)
                    ->encode(draw.indices, draw.dimension, golomb, index_bytes, nullptr)
                    .has_value());
    const size_t hybrid = gspar_code_of("gspar_hybrid", draw.values).size();
    EXPECT_LE(8 * static_cast<double>(index_bytes.size() + hybrid), theorem + signed_part) << lambda;
    EXPECT_GT(signed_part, 1000);
    // The entropy code saves on marks and signs, both of which the hybrid writes out.
    EXPECT_LE(gspar_code_of("gspar_entropy", draw.values).size(), hybrid + 16) << lambda;
  }
}

}  // namespace
}  // namespace millrace
