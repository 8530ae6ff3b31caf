// SketchML's and SKCompress's value codecs: bytes against the definitions in protocol/wire/sketch_codecs.md, and the
// papers' claims.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "tests/support/bucket_mean.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/huffman_oracle.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::HuffmanOracle;
using testing::kPatterns;
using testing::low_bits;
using testing::mean_rounded_down;
using testing::packed;
using testing::Pattern;
using testing::values_of;

constexpr ValueCodecId kSketchml{15};
constexpr ValueCodecId kSkcompress{16};
constexpr ValueCodecId kSketchmlMean{17};
constexpr ValueCodecId kSkcompressMean{18};
constexpr ValueCodecId kBoth[] = {kSketchml, kSkcompress};
constexpr ValueCodecId kSketches[] = {kSketchml, kSkcompress, kSketchmlMean, kSkcompressMean};

struct SketchCoded {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;
};

SketchCoded encode_sketch(ValueCodecId id, IndexSpan indices, const std::vector<float>& values, uint64_t seed = 3) {
  SketchCoded coded;
  coded.decoded.resize(values.size());
  ByteBuffer bytes;
  EncodeOptions options;
  options.random = RandomKey::from(seed);
  const Status done = find_value_codec(id)->encode(indices, std::span<const float>(values), options, bytes,
                                                   std::span<float>(coded.decoded));
  EXPECT_TRUE(done) << done.error().message;
  coded.bytes.assign(bytes.begin(), bytes.end());
  return coded;
}

Status decode_sketch(ValueCodecId id, const std::vector<uint8_t>& bytes, IndexSpan indices, std::vector<float>& out) {
  return find_value_codec(id)->decode(bytes, indices, std::span<float>(out));
}

bool sketch_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/// The code as protocol/wire/sketch_codecs.md words it, with tables as maps and bits as text.
struct Oracle {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;
  std::vector<uint32_t> tags;      // of values that are not 0
  std::vector<uint32_t> inserted;  // their buckets, in the group
  std::vector<uint32_t> queried;

  Oracle(ValueCodecId id, uint64_t seed, IndexSpan indices, const std::vector<float>& values)
      : decoded(values.size(), 0.0F) {
    if (values.empty()) return;
    std::string which;
    for (const float value : values) which += value == 0 ? '0' : '1';
    const bool zeros = which.find('0') != std::string::npos;
    const bool means = id == kSketchmlMean || id == kSkcompressMean;
    for (size_t sign = 0; sign < 2; ++sign) {
      bounds[sign] = bounds_of(values, sign == 1);
      stands_for[sign] = bounds[sign];
      for (size_t j = 0; means && j < bounds[sign].size(); ++j) {
        const bool is_last = j + 1 == bounds[sign].size();
        const float high = is_last ? largest_of(values, sign == 1) : bounds[sign][j + 1];
        stands_for[sign][j] = mean_rounded_down(bounds[sign][j], high);
      }
    }
    place(values);
    fill(seed, indices, values);
    append(&seed, sizeof(seed));
    for (const uint8_t byte : {static_cast<uint8_t>(bounds[0].size()), static_cast<uint8_t>(bounds[1].size()),
                               static_cast<uint8_t>(zeros), uint8_t{0}}) {
      bytes.push_back(byte);
    }
    if (zeros) append_bits(which);
    for (const auto& of_sign : stands_for) append(of_sign.data(), of_sign.size() * sizeof(float));
    std::string tag_bits;
    for (const uint32_t tag : tags) tag_bits += low_bits(tag, 3);
    append_bits(tag_bits);
    id == kSketchml || id == kSketchmlMean ? append_plain() : append_huffman();
  }

  uint32_t first(uint32_t tag) const {
    return static_cast<uint32_t>(std::ceil(static_cast<double>(tag % 4 * bounds[tag / 4].size()) / 4));
  }

  std::vector<float> bounds[2];
  std::vector<float> stands_for[2];

 private:
  static float largest_of(const std::vector<float>& values, bool negative) {
    float largest = 0;
    for (const float value : values) {
      if ((value < 0) == negative) largest = std::max(largest, std::abs(value));
    }
    return largest;
  }

  static std::vector<float> bounds_of(const std::vector<float>& values, bool negative) {
    std::vector<float> magnitudes;
    for (const float value : values) {
      if (value != 0 && (value < 0) == negative) magnitudes.push_back(std::abs(value));
    }
    std::ranges::sort(magnitudes);
    const size_t m = magnitudes.size();
    const size_t buckets = std::min<size_t>(128, (m + 15) / 16);
    std::set<float> distinct;
    for (size_t j = 0; j < buckets; ++j) distinct.insert(magnitudes[j * m / buckets]);
    return {distinct.begin(), distinct.end()};
  }

  void place(const std::vector<float>& values) {
    for (const float value : values) {
      if (value == 0) continue;
      const uint32_t sign = value < 0 ? 1 : 0;
      uint32_t bucket = 0;
      while (bucket + 1 < bounds[sign].size() && bounds[sign][bucket + 1] <= std::abs(value)) ++bucket;
      uint32_t tag = sign * 4;
      while (tag % 4 < 3 && first(tag + 1) <= bucket) ++tag;
      tags.push_back(tag);
      inserted.push_back(bucket - first(tag));
      ++members[tag];
    }
  }

  uint64_t columns(uint32_t tag) const { return (3 * members[tag] + 9) / 10; }

  void fill(uint64_t seed, IndexSpan indices, const std::vector<float>& values) {
    const auto offsets = random_words(RandomKey::from(seed), 0);
    const auto cell = [&](uint32_t tag, size_t i, uint32_t row) {
      const uint32_t index = indices.empty() ? static_cast<uint32_t>(i) : indices[i];
      return row * columns(tag) + (uint64_t{mix(index + offsets[row])} * columns(tag) >> 32);
    };
    for (uint32_t tag = 0; tag < 8; ++tag) tables[tag].assign(2 * columns(tag), 999);
    for (const bool query : {false, true}) {
      size_t j = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == 0) continue;
        const uint32_t tag = tags[j];
        uint32_t& one = tables[tag][cell(tag, i, 0)];
        uint32_t& two = tables[tag][cell(tag, i, 1)];
        if (query) {
          queried.push_back(std::max(one, two));
          const float magnitude = stands_for[tag / 4][first(tag) + queried.back()];
          decoded[i] = values[i] < 0 ? -magnitude : magnitude;
        } else {
          one = std::min(one, inserted[j]);
          two = std::min(two, inserted[j]);
        }
        ++j;
      }
    }
    for (auto& table : tables) std::ranges::replace(table, 999u, 0u);
  }

  void append(const void* from, size_t size) {
    const size_t at = bytes.size();
    bytes.resize(at + size);
    if (size > 0) std::memcpy(bytes.data() + at, from, size);
  }
  void append_bits(const std::string& bits) {
    const auto more = packed(bits);
    append(more.data(), more.size());
  }

  void append_plain() {
    std::string bits;
    for (uint32_t tag = 0; tag < 8; ++tag) {
      const uint64_t largest = (bounds[tag / 4].size() + 3) / 4;  // buckets of a group
      uint64_t width = 0;
      while ((uint64_t{1} << width) < largest) ++width;
      for (const uint32_t cell : tables[tag]) bits += low_bits(cell, width);
    }
    append_bits(bits);
  }

  void append_huffman() {
    std::vector<uint64_t> counts;
    for (const auto& table : tables) {
      for (const uint32_t cell : table) {
        if (cell >= counts.size()) counts.resize(cell + 1, 0);
        ++counts[cell];
      }
    }
    bytes.push_back(static_cast<uint8_t>(counts.size()));
    const HuffmanOracle huffman(counts);
    std::string lengths;
    for (const uint32_t length : huffman.lengths) lengths += low_bits(length, 5);
    append_bits(lengths);
    std::string bits;
    for (const auto& table : tables) {
      for (const uint32_t cell : table) bits += huffman.codes[cell];
    }
    append_bits(bits);
  }

  uint64_t members[8] = {};
  std::vector<uint32_t> tables[8];
};

uint64_t seed_of(const std::vector<uint8_t>& bytes) {
  uint64_t seed = 0;
  if (bytes.size() >= sizeof(seed)) std::memcpy(&seed, bytes.data(), sizeof(seed));
  return seed;
}

TEST(SketchCodec, BytesAndValuesAreThoseOfTheDefinitions) {
  for (const ValueCodecId id : kSketches) {
    const ValueCodec& codec = *find_value_codec(id);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {0, 1, 2, 15, 17, 33, 100, 1000, 6000}) {
        SCOPED_TRACE(std::string(codec.name()) + ", pattern " + std::to_string(static_cast<int>(pattern)) + ", n " +
                     std::to_string(n));
        const auto values = values_of(pattern, n, n);
        IndexBuffer sparse = testing::uniform_indices(uint64_t{1} << 32, 3e-6, n);
        sparse.resize(n);
        for (const IndexSpan indices : {IndexSpan(), IndexSpan(sparse)}) {
          const auto coded = encode_sketch(id, indices, values);
          const Oracle wanted(id, seed_of(coded.bytes), indices, values);
          ASSERT_EQ(coded.bytes, wanted.bytes);
          ASSERT_TRUE(sketch_same_bits(coded.decoded, wanted.decoded));
          ASSERT_LE(coded.bytes.size(), codec.bytes_max(n, {}));
          ASSERT_TRUE(codec.check(coded.bytes, n));
          std::vector<float> received(n, 42);
          ASSERT_TRUE(decode_sketch(id, coded.bytes, indices, received));
          ASSERT_TRUE(sketch_same_bits(received, coded.decoded));
        }
      }
    }
  }
}

TEST(SketchCodec, SpecialValuesAreRefusedAndNothingIsWritten) {
  using Limits = std::numeric_limits<float>;
  for (const ValueCodecId id : kBoth) {
    for (const float bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      std::vector<float> values(100, 1);
      values[70] = bad;
      std::vector<float> decoded(100, 42);
      ByteBuffer out = {7};
      const Status done =
          find_value_codec(id)->encode({}, std::span<const float>(values), {}, out, std::span<float>(decoded));
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::kNonFinite);
      EXPECT_EQ(out.size(), 1u);
      EXPECT_EQ(decoded[0], 42);
    }
  }
}

// ---- The papers' claims.

/// As published a bucket stands for the mean of its bounds: nearer to its values than its smallest one, where no cell
/// collides.
TEST(SketchClaims, TheMeansOfBucketsAreAsGoodAsTheirValuesAreAlike) {
  const auto values = values_of(Pattern::kGaussian, 40'000, 8);
  const auto smallest = encode_sketch(kSketchml, {}, values);
  const auto mean = encode_sketch(kSketchmlMean, {}, values);
  const Oracle oracle(kSketchmlMean, seed_of(mean.bytes), {}, values);
  EXPECT_EQ(mean.bytes.size(), smallest.bytes.size());
  double shrinks_by = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_GE(std::abs(mean.decoded[i]), std::abs(smallest.decoded[i]));
    shrinks_by += static_cast<double>(std::abs(mean.decoded[i])) - static_cast<double>(std::abs(smallest.decoded[i]));
  }
  EXPECT_GT(shrinks_by, 0);
  for (size_t sign = 0; sign < 2; ++sign) {
    EXPECT_TRUE(std::ranges::is_sorted(oracle.stands_for[sign], std::less_equal<>())) << "strictly increasing";
  }
  for (const ValueCodecId id : {kSketchmlMean, kSkcompressMean}) {
    EXPECT_FALSE(find_value_codec(id)->contraction({}));
    EXPECT_FALSE(find_value_codec(id)->unbiased({}));
  }
}

TEST(SketchCodec, MagnitudesShrinkNoneVanishesAndNoSignChanges) {
  for (const Pattern pattern : kPatterns) {
    const auto values = values_of(pattern, 5000, 8);
    const auto coded = encode_sketch(kSketchml, {}, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(coded.decoded[i]), std::abs(values[i]));
      ASSERT_EQ(coded.decoded[i] == 0, values[i] == 0);
      ASSERT_EQ(coded.decoded[i] < 0, values[i] < 0);
    }
  }
}

TEST(SketchClaims, AQueriedBucketIsAtMostTheInsertedOneAndInItsGroup) {
  // [SketchML18, 3.3]: with g groups of q buckets the error is q / g buckets at most, always towards 0.
  const auto values = values_of(Pattern::kGaussian, 40'000, 8);
  const auto coded = encode_sketch(kSketchml, {}, values);
  const Oracle oracle(kSketchml, seed_of(coded.bytes), {}, values);
  ASSERT_EQ(oracle.bounds[0].size(), 128u);
  uint64_t smaller = 0;
  for (size_t j = 0; j < oracle.tags.size(); ++j) {
    ASSERT_LE(oracle.queried[j], oracle.inserted[j]);
    ASSERT_LT(oracle.inserted[j], 32u);
    smaller += oracle.queried[j] < oracle.inserted[j] ? 1 : 0;
  }
  EXPECT_GT(smaller, 0u) << "nothing collided: the bias is not seen";
}

TEST(SketchClaims, BucketsHoldEquallyManyValues) {
  const auto values = values_of(Pattern::kGaussian, 51'200, 2);
  const auto coded = encode_sketch(kSketchml, {}, values);
  const Oracle oracle(kSketchml, seed_of(coded.bytes), {}, values);
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> held;
  std::map<uint32_t, uint64_t> of_sign;
  for (size_t j = 0; j < oracle.tags.size(); ++j) {
    ++held[{oracle.tags[j], oracle.inserted[j]}];
    ++of_sign[oracle.tags[j] / 4];
  }
  EXPECT_EQ(held.size(), 256u);
  for (const auto& [where, count] : held) {
    // Gaussian f32 have a few equal ones.
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(of_sign[where.first / 4]) / 128, 3);
  }
}

TEST(SketchClaims, AQueryIsExactAsOftenAsTheHashTablesLetExpect) {
  // A value is exact unless in both rows its cell holds a smaller value of its group. With w columns and s smaller
  // values, the probability of that is (1 - (1 - 1/w)^s)^2.
  double expected = 0;
  double exact = 0;
  double variance = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto values = values_of(Pattern::kGaussian, 20'000, seed);
    const auto coded = encode_sketch(kSketchml, {}, values, seed + 100);
    const Oracle oracle(kSketchml, seed_of(coded.bytes), {}, values);
    std::map<uint32_t, std::map<uint32_t, uint64_t>> members;
    for (size_t j = 0; j < oracle.tags.size(); ++j) ++members[oracle.tags[j]][oracle.inserted[j]];
    std::map<uint32_t, uint64_t> totals;
    for (const auto& [tag, buckets] : members) {
      for (const auto& [bucket, count] : buckets) totals[tag] += count;
    }
    std::map<std::pair<uint32_t, uint32_t>, double> chance;
    for (const auto& [tag, buckets] : members) {
      double smaller = 0;
      const double columns = std::ceil(0.3 * static_cast<double>(totals[tag]));
      for (const auto& [bucket, count] : buckets) {
        chance[{tag, bucket}] = 1 - std::pow(1 - std::pow(1 - 1 / columns, smaller), 2);
        smaller += static_cast<double>(count);
      }
    }
    for (size_t j = 0; j < oracle.tags.size(); ++j) {
      const double p = chance[{oracle.tags[j], oracle.inserted[j]}];
      expected += p;
      variance += p * (1 - p);
      exact += oracle.queried[j] == oracle.inserted[j] ? 1 : 0;
    }
  }
  // Values that share cells are found, or not, together: five deviations of independent ones, times two.
  EXPECT_NEAR(exact, expected, 10 * std::sqrt(variance));
  EXPECT_GT(expected / (20 * 20'000), 0.3);
  EXPECT_LT(expected / (20 * 20'000), 0.6);
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

TEST(SketchClaims, BucketDecoding_MeanOfBoundsEnlargesTheNormSmallestDoesNot) {
  std::vector<float> values(16, 0.01F);
  values[5] = 1;
  double of_mean = 0;
  for (const float value : values) of_mean += std::pow((0.01 + 1) / 2 - value, 2);
  const auto published = encode_sketch(kSketchmlMean, {}, values);
  for (const float value : published.decoded) EXPECT_NEAR(value, (0.01 + 1) / 2, 1e-6);
  EXPECT_GT(of_mean, 3 * norm_of(values));
  const auto coded = encode_sketch(kSketchml, {}, values);
  std::vector<float> error;
  for (size_t i = 0; i < values.size(); ++i) error.push_back(values[i] - coded.decoded[i]);
  EXPECT_LT(norm_of(error), norm_of(values));
}

TEST(SketchClaims, EntryFarAboveAllOthers_StaysInResidualSoNoContraction) {
  constexpr size_t kCount = 4000;
  constexpr int kSteps = 50;
  for (const ValueCodecId id : kBoth) {
    EXPECT_FALSE(find_value_codec(id)->contraction({}));
    std::vector<float> accumulator(kCount, 0.0F);
    for (uint64_t step = 0; step < kSteps; ++step) {
      const auto gradient = values_of(Pattern::kGaussian, kCount, step);
      for (size_t i = 0; i < kCount; ++i) accumulator[i] += gradient[i];
      accumulator[7] += 1000;
      const auto coded = encode_sketch(id, {}, accumulator, step);
      for (size_t i = 0; i < kCount; ++i) accumulator[i] -= coded.decoded[i];
    }
    EXPECT_GT(accumulator[7], 0.9 * 1000 * kSteps);
  }
}

TEST(SketchClaims, AResidualOfLikeEntriesSettles) {
  constexpr size_t kCount = 4000;
  for (const ValueCodecId id : kBoth) {
    std::vector<float> accumulator(kCount, 0.0F);
    double largest = 0;
    double late = 0;
    for (uint64_t step = 0; step < 400; ++step) {
      const auto gradient = values_of(Pattern::kGaussian, kCount, step);
      for (size_t i = 0; i < kCount; ++i) accumulator[i] += gradient[i];
      const auto coded = encode_sketch(id, {}, accumulator, step);
      for (size_t i = 0; i < kCount; ++i) accumulator[i] -= coded.decoded[i];
      const double ratio = std::sqrt(norm_of(accumulator) / norm_of(gradient));
      largest = std::max(largest, ratio);
      if (step >= 300) late = std::max(late, ratio);
    }
    EXPECT_LT(late, 1.0);
    EXPECT_LT(largest, 1.0);
  }
}

TEST(SketchClaims, AHuffmanCodeOfTheSketchSavesWhatCellsAreSmallerThanBuckets) {
  const auto values = values_of(Pattern::kGaussian, 100'000, 8);
  const auto plain = encode_sketch(kSketchml, {}, values);
  const auto coded = encode_sketch(kSkcompress, {}, values);
  EXPECT_EQ(plain.decoded, coded.decoded);
  // 3 bits of tag, 0.6 cells of 5 bits; the tables are 0.08 bits a value here.
  EXPECT_NEAR(static_cast<double>(plain.bytes.size()) * 8 / 100'000, 6.08, 0.02);
  EXPECT_LT(static_cast<double>(coded.bytes.size()), 0.95 * static_cast<double>(plain.bytes.size()));
}

// ---- Hostile bytes.

TEST(SketchCodec, OtherLengthsAreErrors) {
  for (const ValueCodecId id : kBoth) {
    const ValueCodec& codec = *find_value_codec(id);
    for (const Pattern pattern : {Pattern::kGaussian, Pattern::kMostlyZero, Pattern::kAllZero}) {
      const auto coded = encode_sketch(id, {}, values_of(pattern, 300, 3));
      std::vector<float> out(300);
      for (size_t length = 0; length < coded.bytes.size(); ++length) {
        const std::vector<uint8_t> cut(coded.bytes.begin(), coded.bytes.begin() + static_cast<std::ptrdiff_t>(length));
        ASSERT_FALSE(decode_sketch(id, cut, {}, out)) << length;
      }
      auto longer = coded.bytes;
      longer.push_back(0);
      EXPECT_FALSE(decode_sketch(id, longer, {}, out));
      for (const uint64_t count : {uint64_t{0}, uint64_t{4000}, uint64_t{1} << 32, ~uint64_t{0}}) {
        EXPECT_FALSE(codec.check(coded.bytes, count)) << count;
      }
      std::vector<float> fewer(100);
      EXPECT_FALSE(decode_sketch(id, coded.bytes, {}, fewer));
    }
    std::vector<float> none;
    EXPECT_TRUE(decode_sketch(id, {}, {}, none));
    EXPECT_FALSE(decode_sketch(id, {0}, {}, none));
  }
}

TEST(SketchCodec, EveryCorruptionOfAByteIsAnErrorOrFiniteValues) {
  for (const ValueCodecId id : kBoth) {
    for (const Pattern pattern : {Pattern::kGaussian, Pattern::kFewDistinct}) {
      constexpr size_t kCount = 90;
      const auto coded = encode_sketch(id, {}, values_of(pattern, kCount, 7));
      size_t errors = 0;
      for (size_t at = 0; at < coded.bytes.size(); ++at) {
        for (int byte = 0; byte < 256; ++byte) {
          auto broken = coded.bytes;
          broken[at] = static_cast<uint8_t>(byte);
          std::vector<float> out(kCount);
          const Status done = decode_sketch(id, broken, {}, out);
          if (!done) {
            ASSERT_EQ(done.error().code, ErrorCode::kMalformed);
            ++errors;
            continue;
          }
          ASSERT_TRUE(find_value_codec(id)->check(broken, kCount));
          for (const float value : out) ASSERT_TRUE(std::isfinite(value));
        }
      }
      EXPECT_GT(errors, 0u);
    }
  }
}

TEST(SketchBytes, WhatCannotBeIsMalformedByName) {
  const auto values = values_of(Pattern::kGaussian, 4000, 7);
  const auto coded = encode_sketch(kSketchml, {}, values);
  std::vector<float> out(values.size());
  const auto refusal = [&](size_t at, uint8_t byte) {
    auto broken = coded.bytes;
    broken[at] = byte;
    const Status done = decode_sketch(kSketchml, broken, {}, out);
    return done ? std::string("none") : done.error().message;
  };
  EXPECT_EQ(refusal(8, 129), "sketchml: parameters that cannot be, or cut off");
  EXPECT_EQ(refusal(10, 2), "sketchml: parameters that cannot be, or cut off");
  EXPECT_EQ(refusal(11, 1), "sketchml: parameters that cannot be, or cut off");
  EXPECT_EQ(refusal(15, 0x7f), "sketchml: buckets that are no magnitudes in order");
  EXPECT_EQ(refusal(15, 0xff), "sketchml: buckets that are no magnitudes in order");
}

}  // namespace
}  // namespace millrace
