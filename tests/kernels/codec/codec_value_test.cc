// What holds for every value codec of the registry.
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/support/replaced_new.h"
#include "tests/support/value_codec_cases.h"

namespace millrace {
namespace {

using testing::code_values;
using testing::decode_values;
using testing::for_each_value_codec;
using testing::kPatterns;
using testing::Pattern;
using testing::same_value_bits;
using testing::values_of;

void expect_value_round_trip(const ValueCodec& codec, const CodecSpec& spec, const std::vector<float>& values) {
  const auto coded = code_values(codec, spec, values);
  ASSERT_TRUE(coded.status) << coded.status.error().message;
  EXPECT_LE(coded.bytes.size(), codec.bytes_max(values.size(), spec));
  EXPECT_TRUE(codec.check(coded.bytes, values.size()));
  std::vector<float> received(values.size());
  const Status done = decode_values(codec, coded.bytes, received);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_TRUE(same_value_bits(received, coded.said));
}

TEST(ValueCodecs, DecodesTheValuesThatTheEncoderReportsBitForBit) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    for (const Pattern pattern : kPatterns) {
      if (pattern == Pattern::kHuge) continue;
      for (const size_t n : {0, 1, 2, 3, 5, 8, 9, 64, 515, 1300}) {
        SCOPED_TRACE(testing::name_of(pattern, n, 0));
        expect_value_round_trip(codec, spec, values_of(pattern, n, n + 1));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(ValueCodecs, HugeValuesAreCodedOrRefused) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for_each_value_codec([&](const ValueCodec& codec, const CodecSpec& spec) {
    for (const auto& values : {std::vector<float>{kMax, -kMax, kMax / 2}, std::vector<float>(600, kMax),
                               std::vector<float>(600, -kMax / 3), values_of(Pattern::kHuge, 700, 1)}) {
      const auto coded = code_values(codec, spec, values);
      if (!coded.status) {
        EXPECT_TRUE(coded.status.error().code == ErrorCode::kLimitExceeded ||
                    coded.status.error().code == ErrorCode::kNonFinite)
            << coded.status.error().message;
        continue;
      }
      for (const float value : coded.said) ASSERT_TRUE(std::isfinite(value));
      expect_value_round_trip(codec, spec, values);
    }
  });
}

TEST(ValueCodecs, NonFiniteValuesAreRefusedUnlessTheCodecIsLossless) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (const size_t at : {0, 299, 599}) {
        std::vector<float> values(600, 1.5F);
        values[at] = bad;
        const auto coded = code_values(codec, spec, values);
        if (codec.lossless(spec) && coded.status) {
          expect_value_round_trip(codec, spec, values);
          continue;
        }
        ASSERT_FALSE(coded.status);
        EXPECT_EQ(coded.status.error().code, ErrorCode::kNonFinite);
      }
    }
  });
}

TEST(ValueCodecs, TheCodeIsAppendedAndTheSameWhereverItBegins) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    const auto values = values_of(Pattern::kGaussian, 100, 2);
    const auto apart = code_values(codec, spec, values);
    ByteBuffer out = {9, 8, 7};
    std::vector<float> said(codec.lossless(spec) ? 0 : values.size());
    ASSERT_TRUE(codec.encode(testing::some_indices(100), std::span<const float>(values), {spec, {3, 4}, 0}, out,
                             std::span<float>(said)));
    std::vector<uint8_t> wanted = {9, 8, 7};
    wanted.insert(wanted.end(), apart.bytes.begin(), apart.bytes.end());
    EXPECT_EQ(testing::listed(out), wanted);
  });
}

TEST(ValueCodecs, DecodingTakesNoMoreMemoryThanTheValues) {
  constexpr size_t kValues = 1 << 17;
  for (const ValueCodec* codec : value_codecs()) {
    const CodecSpec spec = testing::specs_of(*codec).front();
    for (const auto& values : {values_of(Pattern::kGaussian, kValues, 5), std::vector<float>(kValues, 1.5F)}) {
      const auto coded = code_values(*codec, spec, values);
      ASSERT_TRUE(coded.status) << codec->name();
      const IndexBuffer indices = testing::some_indices(kValues);
      std::vector<float> received(kValues);
      const size_t before = testing::allocated_bytes();
      ASSERT_TRUE(codec->decode(coded.bytes, indices, received)) << codec->name();
      EXPECT_LE(testing::allocated_bytes() - before, kValues * sizeof(float) + (64 << 10)) << codec->name();
    }
  }
}

/// Returns whether decode() accepts only bytes that check() accepts, and whether the decoded values are finite.
bool decodes_safely(const ValueCodec& codec, const CodecSpec& spec, ByteSpan bytes, size_t count) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());  // a sanitizer sees a read behind the end
  std::vector<float> values(count);
  const Status sized = codec.check(exact, count);
  const Status done = decode_values(codec, exact, values);
  EXPECT_TRUE(sized || !done);
  if (!sized) {
    EXPECT_EQ(sized.error().code, ErrorCode::kMalformed);
  }
  if (!done) {
    EXPECT_EQ(done.error().code, ErrorCode::kMalformed) << done.error().message;
    return false;
  }
  if (codec.lossless(spec)) return true;
  for (const float value : values) EXPECT_TRUE(std::isfinite(value));
  return true;
}

TEST(ValueCodecs, EveryTruncationAndEveryByteTooMuchIsMalformed) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    for (const size_t n : {0, 1, 37}) {
      const auto coded = code_values(codec, spec, values_of(Pattern::kGaussian, n, 4));
      for (size_t length = 0; length < coded.bytes.size(); ++length) {
        ASSERT_FALSE(decodes_safely(codec, spec, ByteSpan(coded.bytes).first(length), n)) << length;
      }
      for (const size_t more : {1, 4, 64}) {
        for (const uint8_t fill : {uint8_t{0}, uint8_t{0xFF}}) {
          ByteBuffer longer = coded.bytes;
          longer.resize(coded.bytes.size() + more);
          std::fill(longer.end() - static_cast<ptrdiff_t>(more), longer.end(), fill);
          ASSERT_FALSE(decodes_safely(codec, spec, longer, n)) << more;
        }
      }
    }
  });
}

TEST(ValueCodecs, EveryFlippedBitAndEveryOtherCountIsSafe) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    const size_t n = 37;
    const auto coded = code_values(codec, spec, values_of(Pattern::kGaussian, n, 4));
    for (size_t bit = 0; bit < 8 * coded.bytes.size(); ++bit) {
      ByteBuffer flipped = coded.bytes;
      flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ 1u << bit % 8);
      decodes_safely(codec, spec, flipped, n);
    }
    for (const size_t count : {0, 1, 36, 38, 45, 1000, 70'000}) {
      decodes_safely(codec, spec, coded.bytes, count);
    }
    EXPECT_FALSE(codec.check(coded.bytes, kDimensionMax + 1));
  });
}

TEST(ValueCodecs, RandomBytesAreSafe) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    RandomSequence random(random_key(8));
    const auto coded = code_values(codec, spec, values_of(Pattern::kGaussian, 40, 4));
    for (int trial = 0; trial < 300; ++trial) {
      ByteBuffer bytes = coded.bytes;  // a good beginning, then noise
      const size_t from = random.next_below(std::min<size_t>(bytes.size(), 24) + 1);
      for (size_t i = from; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.next_u32());
      decodes_safely(codec, spec, bytes, 40);
      bytes.resize(random.next_below(bytes.size() + 1));
      decodes_safely(codec, spec, bytes, random.next_below(80));
    }
  });
}

TEST(ValueCodecs, EveryInstructionSetGivesTheSameBytes) {
  struct Case {
    const ValueCodec& codec;
    CodecSpec spec;
    size_t n;
  };
  std::vector<Case> cases;
  for_each_value_codec([&](const ValueCodec& codec, const CodecSpec& spec) {
    for (const size_t n : {7, 1301}) cases.push_back({codec, spec, n});
  });
  std::vector<ByteBuffer> first;
  testing::for_each_isa([&](const std::string& isa) {
    SCOPED_TRACE(isa);
    std::vector<ByteBuffer> codes;
    for (const Case& of : cases) {
      SCOPED_TRACE(of.codec.text(of.spec));
      const auto values = values_of(Pattern::kHeavyTail, of.n, 6);
      const auto coded = code_values(of.codec, of.spec, values);
      std::vector<float> received(of.n);
      ASSERT_TRUE(decode_values(of.codec, coded.bytes, received));
      ASSERT_TRUE(same_value_bits(received, coded.said));
      codes.push_back(coded.bytes);
    }
    if (first.empty()) first = codes;
    for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(codes[i], first[i]) << cases[i].codec.text(cases[i].spec);
  });
}

TEST(ValueCodecs, TheNumberOfThreadsDoesNotChangeTheResult) {
  const auto values = values_of(Pattern::kGaussian, 150'007, 9);
  for (const ValueCodec* codec : value_codecs()) {
    SCOPED_TRACE(codec->name());
    CodecSpec spec;
    spec.value = codec->id();
    std::vector<ByteBuffer> codes;
    std::vector<std::vector<float>> received;
    for (const size_t threads : {4, 1}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      codes.push_back(code_values(*codec, spec, values).bytes);
      received.emplace_back(values.size());
      ASSERT_TRUE(decode_values(*codec, codes.back(), received.back()));
    }
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_TRUE(same_value_bits(received[0], received[1]));
  }
}

TEST(ValueCodecs, AWordIsOfOneCodecAndReadsAsItIsWritten) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    for (const ValueCodec* other : value_codecs()) {
      CodecSpec read;
      EXPECT_EQ(other->parse(codec.text(spec), read), other == &codec) << other->name();
      if (other == &codec) {
        EXPECT_EQ(codec.text(read), codec.text(spec));
      }
    }
  });
}

/// Returns whether the mean over draws is the value: at each position within 5 standard errors, and over all of them
/// with the expected deviation. Rounding to nearest, or always up, fails both.
bool looks_unbiased(const ValueCodec& codec, const CodecSpec& spec, const std::vector<float>& values) {
  constexpr int kTrials = 2000;
  std::vector<double> sums(values.size());
  std::vector<double> squares(values.size());
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto coded = code_values(codec, spec, values, random_key(11, static_cast<uint64_t>(trial)));
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = double{coded.said[i]} - double{values[i]};
      sums[i] += error;
      squares[i] += error * error;
    }
  }
  double chi_square = 0;
  double freedom = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (squares[i] < kTrials * std::pow(1e-6 * largest, 2)) continue;  // as near as f32's rounding permits
    const double z = sums[i] / std::sqrt(squares[i]);
    if (std::abs(z) > 5) return false;
    chi_square += z * z;
    freedom += 1;
  }
  EXPECT_GT(freedom, 50);
  return std::abs(chi_square - freedom) < 5 * std::sqrt(2 * freedom);
}

TEST(ValueCodecs, WhatClaimsToBeUnbiasedIsAndTheDeterministicOnesAreNot) {
  const auto values = values_of(Pattern::kGaussian, 128, 3);
  int claimed = 0;
  for_each_value_codec([&](const ValueCodec& codec, const CodecSpec& spec) {
    if (codec.lossless(spec)) return;
    const bool deterministic = codec.name() == "sign_mean" || codec.name() == "onebit";
    if (!deterministic && !codec.unbiased(spec)) return;
    EXPECT_EQ(looks_unbiased(codec, spec, values), codec.unbiased(spec));
    claimed += codec.unbiased(spec) ? 1 : 0;
  });
  EXPECT_GT(claimed, 20);
}

TEST(ValueCodecs, WhatClaimsToBeAContractionShrinksEveryPatternInSomeNorm) {
  int claimed = 0;
  for_each_value_codec([&](const ValueCodec& codec, const CodecSpec& spec) {
    if (codec.lossless(spec) || !codec.contraction(spec)) return;
    ++claimed;
    bool in_l2 = true;
    bool in_maximum = true;
    for (const Pattern pattern : {Pattern::kGaussian, Pattern::kAllEqual, Pattern::kMostlyZero, Pattern::kFewDistinct,
                                  Pattern::kHeavyTail, Pattern::kOneSpike, Pattern::kPeriodic, Pattern::kIncreasing}) {
      const auto values = values_of(pattern, 600, 5);
      constexpr int kTrials = 20;
      double error_squares = 0;
      double squares = 0;
      double error_largest = 0;
      double largest = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        const auto coded = code_values(codec, spec, values, random_key(12, static_cast<uint64_t>(trial)));
        double of_trial = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          const double error = std::abs(double{coded.said[i]} - double{values[i]});
          error_squares += error * error;
          squares += double{values[i]} * double{values[i]};
          of_trial = std::max(of_trial, error);
          largest = std::max(largest, std::abs(double{values[i]}));
        }
        error_largest += of_trial;
      }
      in_l2 = in_l2 && error_squares < squares * (1 - 1e-6);
      in_maximum = in_maximum && error_largest / kTrials < largest * (1 - 1e-6);
    }
    EXPECT_TRUE(in_l2 || in_maximum);
  });
  EXPECT_GT(claimed, 10);
}

/// Returns the residual's norm over a gradient's after `steps` steps of error feedback; infinite where it becomes
/// impossible to code.
double value_residual_after(const ValueCodec& codec, const CodecSpec& spec, int steps) {
  constexpr size_t kCount = 512;
  RandomSequence random(random_key(5));
  std::vector<float> accumulator(kCount);
  double gradient_squares = 0;
  for (int step = 0; step < steps; ++step) {
    for (float& value : accumulator) {
      const auto gradient = static_cast<float>(random.next_normal());
      gradient_squares += double{gradient} * double{gradient} / steps;
      value += gradient;
    }
    const auto coded = code_values(codec, spec, accumulator, random_key(9, static_cast<uint64_t>(step)));
    if (!coded.status) return std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < kCount; ++i) accumulator[i] -= coded.said[i];
  }
  double squares = 0;
  for (const float value : accumulator) squares += double{value} * double{value};
  return std::sqrt(squares / gradient_squares);
}

TEST(ValueCodecs, AContractionsErrorMayBeFedBackAndTheL2NormsExplodes) {
  for_each_value_codec([](const ValueCodec& codec, const CodecSpec& spec) {
    if (codec.lossless(spec)) return;
    if (codec.contraction(spec)) {
      EXPECT_LT(value_residual_after(codec, spec, 200), 20);
    }
    const bool by_norm = codec.name().starts_with("qsgd") && !spec.qsgd_scale_max && spec.bucket_size == 512;
    if (by_norm && spec.qsgd_bits <= 4) {
      EXPECT_GT(value_residual_after(codec, spec, 200), 100);
    }
  });
}

}  // namespace
}  // namespace millrace
