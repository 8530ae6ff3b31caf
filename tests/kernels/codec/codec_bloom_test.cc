#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/codec/codec_list.h"
#include "tests/support/index_sets.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/bloom_oracle.h"

namespace millrace {
namespace {

using testing::bloom_options;
using testing::field;
using BloomCoded = testing::BloomCode;

BloomCoded bloom_encoded(IndexSpan indices, uint64_t dimension, const EncodeOptions& options) {
  return testing::bloom_code(bloom_p0_index_codec(), indices, dimension, options);
}

IndexBuffer oracle_scan(const ByteBuffer& bytes, uint64_t dimension) {
  return testing::BloomOracle(bytes, dimension, 8).positives;
}

TEST(BloomCodec, EveryInstructionSetDecodesTheSetThatTheEncoderReports) {
  const uint64_t dimension = 20'011;
  for (const double rate : {0.99, 0.6, 0.5, 0.05, 0.001}) {
    for (const double density : {0.0, 0.002, 0.2, 1.0}) {
      const IndexBuffer indices = testing::uniform_indices(dimension, density, 3);
      const BloomCoded first = bloom_encoded(indices, dimension, bloom_options(rate));
      const IndexBuffer expected = oracle_scan(first.bytes, dimension);
      testing::for_each_isa([&](const std::string& isa) {
        SCOPED_TRACE(isa + ", rate " + std::to_string(rate) + ", density " + std::to_string(density));
        const BloomCoded coded = bloom_encoded(indices, dimension, bloom_options(rate));
        EXPECT_EQ(coded.bytes, first.bytes);
        EXPECT_EQ(coded.decoded, expected);
        EXPECT_TRUE(std::includes(expected.begin(), expected.end(), indices.begin(), indices.end()));
        IndexBuffer decoded;
        ASSERT_TRUE(bloom_p0_index_codec().decode(coded.bytes, dimension, expected.size(), decoded));
        EXPECT_EQ(decoded, expected);
      });
    }
  }
}

TEST(BloomCodec, SizeFollowsTheOptimalFormula) {
  const IndexBuffer indices = testing::uniform_indices(1 << 18, 0.01, 4);
  const double n = static_cast<double>(indices.size());
  for (const double rate : {0.5, 0.1, 0.01, 0.001, 1e-6}) {
    const ByteBuffer bytes = bloom_encoded(indices, 1 << 18, bloom_options(rate)).bytes;
    const double optimal = -n * std::log(rate) / (std::log(2.0) * std::log(2.0));
    EXPECT_GE(field<uint32_t>(bytes, 8), optimal);
    EXPECT_LE(field<uint32_t>(bytes, 8), optimal + 33);
    EXPECT_EQ(field<uint32_t>(bytes, 12), std::round(-std::log2(rate)));
    EXPECT_EQ(bytes.size(), 16 + field<uint32_t>(bytes, 8) / 8);
  }
}

TEST(BloomCodec, OverARateOfAHalfOneHashFunctionHasTheFewestBitsThatGiveIt) {
  const uint64_t dimension = 1 << 18;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.05, 4);
  const double n = static_cast<double>(indices.size());
  for (const double rate : {0.500001, 0.6, 0.75, 0.9, 0.99, 0.999999, 1 - 0x1p-53}) {
    const BloomCoded coded = bloom_encoded(indices, dimension, bloom_options(rate));
    const double bits = field<uint32_t>(coded.bytes, 8);
    EXPECT_EQ(field<uint32_t>(coded.bytes, 12), 1u) << rate;
    EXPECT_GE(bits, -n / std::log(1 - rate)) << rate;
    EXPECT_LE(bits, -n / std::log(1 - rate) + 32) << rate;
    const double expected = (static_cast<double>(dimension) - n) * rate;
    const double found = static_cast<double>(coded.decoded.size()) - n;
    EXPECT_NEAR(found, expected, 0.02 * expected) << rate;
    IndexBuffer decoded;
    ASSERT_TRUE(bloom_p0_index_codec().decode(coded.bytes, dimension, coded.decoded.size(), decoded)) << rate;
    EXPECT_EQ(decoded, coded.decoded);
    const CodecSpec spec{.bloom_false_positive_rate = rate};
    EXPECT_EQ(bloom_p0_index_codec().bytes_estimate(indices.size(), dimension, spec), coded.bytes.size()) << rate;
  }
}

/// Every codec with a rate, at both of its ends and around 1/2, of no indices, one, some and all.
TEST(BloomCodec, EveryRateRoundTripsWithAtLeastOneWordAndOneHashFunction) {
  for (const IndexCodec* codec : index_codecs()) {
    if (!codec->takes_rate()) continue;
    for (const double rate : {1e-9, 0.4999999, 0.5, 0.5000001, 0.6, 0.99, 1 - 0x1p-53}) {
      const BloomShape shape = BloomShape::optimal(0, rate);
      EXPECT_GE(shape.bits, 32u) << rate;
      EXPECT_GE(shape.probes, 1u) << rate;
      for (const double density : {0.0, 0.0005, 0.1, 1.0}) {
        SCOPED_TRACE(std::string(codec->name()) + ", rate " + std::to_string(rate) + ", density " +
                     std::to_string(density));
        const uint64_t dimension = 2003;
        const IndexBuffer indices = testing::uniform_indices(dimension, density, 3);
        const BloomCoded coded = testing::bloom_code(*codec, indices, dimension, bloom_options(rate));
        IndexBuffer decoded;
        ASSERT_TRUE(codec->decode(coded.bytes, dimension, coded.decoded.size(), decoded));
        EXPECT_EQ(decoded, coded.decoded);
      }
    }
  }
}

TEST(BloomCodec, RatesThatCannotBeAreRefusedAndTheErrorSaysWhichCan) {
  for (const char* rate : {"0.6", "0.99", "0.9999999999", "1e-9", "0.5"}) {
    const auto spec = codec_from_text(std::string("bloom_p0:") + rate);
    ASSERT_TRUE(spec) << rate;
    EXPECT_EQ(codec_from_text(codec_text(*spec)).value(), *spec) << codec_text(*spec);
  }
  for (const char* rate : {"1", "1.5", "0.99999999999999999999", "0", "-0.1", "9e-10", "nan", "-nan", "inf"}) {
    const auto spec = codec_from_text(std::string("bloom_p0:") + rate);
    ASSERT_FALSE(spec) << rate;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(spec.error().message.find("loom"), std::string::npos) << spec.error().message;
  }
  for (const double rate : {1.0, 2.0, 0.0, -0.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Status valid = validate(CodecSpec{.bloom_false_positive_rate = rate});
    ASSERT_FALSE(valid) << rate;
    EXPECT_NE(valid.error().message.find("at least 1e-9 and below 1"), std::string::npos) << valid.error().message;
  }
}

/// Sets whose regularity a weak hash would show.
std::vector<testing::IndexSet> patterned_sets(uint64_t dimension) {
  IndexBuffer consecutive;
  IndexBuffer strided;
  for (uint32_t i = 0; i < 8000; ++i) consecutive.push_back(100'000 + i);
  for (uint32_t i = 0; i < 8000; ++i) strided.push_back(64 * i);
  return {{"uniform", dimension, testing::uniform_indices(dimension, 0.01, 8)},
          {"clustered", dimension, testing::clustered_indices(dimension, 8000, 9)},
          {"consecutive", dimension, consecutive},
          {"strided", dimension, strided}};
}

TEST(BloomCodec, FalsePositivesComeAtTheFormulasRate) {
  const uint64_t dimension = 1 << 20;
  for (const auto& set : patterned_sets(dimension)) {
    for (const double rate : {0.1, 0.01, 0.001}) {
      double found = 0;
      double expected = 0;
      for (const uint64_t seed : {1, 2, 3}) {
        const BloomCoded coded = bloom_encoded(set.indices, dimension, bloom_options(rate, seed));
        const double n = static_cast<double>(set.indices.size());
        const double bits = field<uint32_t>(coded.bytes, 8);
        const double probes = field<uint32_t>(coded.bytes, 12);
        const double formula = std::pow(1 - std::exp(-probes * n / bits), probes);  // [DeepReduce21, 2]
        EXPECT_NEAR(formula, rate, 0.05 * rate);
        found += static_cast<double>(coded.decoded.size()) - n;
        expected += (static_cast<double>(dimension) - n) * formula;
      }
      // Counting noise, and 2 % for the variation of the filters' fill.
      EXPECT_NEAR(found, expected, 4.5 * std::sqrt(expected) + 0.02 * expected) << set.name << " at " << rate;
    }
  }
}

TEST(BloomCodec, AnotherSeedGivesOtherFalsePositives) {
  const IndexBuffer indices = testing::uniform_indices(1 << 16, 0.02, 4);
  const BloomCoded one = bloom_encoded(indices, 1 << 16, bloom_options(0.01, 1));
  const BloomCoded two = bloom_encoded(indices, 1 << 16, bloom_options(0.01, 2));
  const BloomCoded again = bloom_encoded(indices, 1 << 16, bloom_options(0.01, 1));
  EXPECT_NE(one.decoded, two.decoded);
  EXPECT_EQ(one.bytes, again.bytes);
  EncodeOptions elsewhere = bloom_options(0.01, 1);
  elsewhere.index_base = 1 << 16;
  EXPECT_NE(bloom_encoded(indices, 1 << 16, elsewhere).decoded, one.decoded);
}

TEST(BloomCodec, DimensionsOver2To28AreRefusedBothWays) {
  IndexBuffer decoded;
  ByteBuffer bytes;
  const IndexBuffer indices{7};
  const Status status =
      bloom_p0_index_codec().encode(indices, (uint64_t{1} << 28) + 1, bloom_options(0.01), bytes, &decoded);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kLimitExceeded);
  const BloomCoded coded = bloom_encoded(indices, 100, bloom_options(0.01));
  EXPECT_FALSE(bloom_p0_index_codec().decode(coded.bytes, (uint64_t{1} << 28) + 1, coded.decoded.size(), decoded));
}

TEST(BloomCodec, AFilterOfAllOnesTakesNoMemoryBeyondTheCount) {
  const IndexBuffer indices = testing::uniform_indices(1 << 20, 0.001, 4);
  ByteBuffer bytes = bloom_encoded(indices, 1 << 20, bloom_options(0.01)).bytes;
  std::fill(bytes.begin() + 16, bytes.end(), 0xff);
  IndexBuffer decoded;
  EXPECT_FALSE(bloom_p0_index_codec().decode(bytes, 1 << 20, indices.size(), decoded));
  EXPECT_LE(decoded.capacity(), indices.size() + 2 * kBloomStrip);
  EXPECT_FALSE(bloom_p0_index_codec().decode(bytes, 1 << 14, 1 << 14, decoded)) << "no encoder sets as many bits";
}

TEST(BloomCodec, FilterOfTooManyIndicesOrTooFull_Refused) {
  const uint64_t dimension = 1 << 16;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.01, 4);
  BloomCoded coded = bloom_encoded(indices, dimension, bloom_options(0.01));
  IndexBuffer decoded;
  for (const uint32_t probes : {1, 2, 5, 6, 8, 9, 16, 32}) {  // of 7: the shape is another rate's, for other counts
    ByteBuffer other = coded.bytes;
    std::memcpy(other.data() + 12, &probes, sizeof(probes));
    std::fill(other.begin() + 16, other.end(), 0);
    EXPECT_FALSE(bloom_p0_index_codec().decode(other, dimension, 0, decoded)) << probes;
  }
  // As many bits as its indices can set, and one more.
  const BloomShape shape{field<uint32_t>(coded.bytes, 8), 7};
  const uint64_t most = shape.set_most(shape.counts().most);
  ByteBuffer full = coded.bytes;
  std::fill(full.begin() + 16, full.end(), 0);
  const auto set = [&](uint64_t bit) { full[16 + bit / 8] |= static_cast<uint8_t>(1u << (bit % 8)); };
  for (uint64_t bit = 0; bit < most; ++bit) set(bit);
  const uint64_t known = oracle_scan(full, dimension).size();
  ASSERT_GT(known, shape.counts().most);
  EXPECT_TRUE(bloom_p0_index_codec().decode(full, dimension, known, decoded));
  set(most);
  EXPECT_FALSE(bloom_p0_index_codec().decode(full, dimension, oracle_scan(full, dimension).size(), decoded));
}

TEST(BloomShapes, FiltersSetNoMoreBitsThanTheirBound) {
  for (const uint64_t count : {0, 1, 2, 5, 30, 400, 20'000}) {
    for (const double rate : {0.99, 0.6, 0.5, 0.36, 0.35, 0.18, 0.17, 0.02, 1e-9}) {
      const IndexBuffer indices = testing::uniform_indices(count, 1.0, 1);
      const BloomShape shape = BloomShape::optimal(count, rate);
      double mean = 0;
      for (uint64_t seed = 0; seed < 40; ++seed) {
        const BloomFilter filter = BloomFilter::of(indices, rate, seed).value();
        uint64_t set = 0;
        for (const uint32_t word : filter.words) set += static_cast<uint64_t>(std::popcount(word));
        EXPECT_LE(set, shape.set_most(count)) << count << ' ' << rate << ' ' << seed;
        mean += static_cast<double>(set) / 40;
      }
      // And not far fewer: four standard deviations of a filter are 1.3 sqrt(bits), of a mean of 40 a sixth of that.
      EXPECT_GE(mean, static_cast<double>(shape.set_most(count)) - 4.3 * std::sqrt(static_cast<double>(shape.bits)));
    }
  }
}

TEST(BloomShapes, AreOptimalForTheCountsThatTheyAreMadeOf) {
  std::vector<double> rates = {0.5, 0.4999, 1e-9, 1.0001e-9};
  for (int k = 1; k < 30; ++k) {
    for (const double off : {-1e-12, 0.0, 1e-12}) rates.push_back(std::max(1e-9, std::exp2(-(k + 0.5)) * (1 + off)));
  }
  RandomSequence random(RandomKey::from(3));
  for (int i = 0; i < 50; ++i) rates.push_back(std::exp2(-1 - 28.8 * random.next_unit()));
  for (const double rate : {0.5 + 1e-12, 0.6, 0.75, 0.99, 1 - 1e-12, 1 - 0x1p-53}) rates.push_back(rate);
  for (const double rate : rates) {
    for (const uint64_t count : {1, 2, 3, 7, 22, 23, 100, 5000, 1'000'003, 90'000'000}) {
      const BloomShape shape = BloomShape::optimal(count, rate);
      const auto [least, most] = shape.counts();
      EXPECT_LE(least, count) << rate;
      EXPECT_GE(most, count) << rate;
      // And of few others: half a hash function more or less, and what rounding to 32 bits adds.
      const double k = shape.probes;
      if (k == 1) {  // any rate from 2^-1.5 to 1
        EXPECT_LE(static_cast<double>(most), 53 * std::log(2.0) * static_cast<double>(shape.bits) + 1);
        EXPECT_LE(static_cast<double>(least), static_cast<double>(count));
        continue;
      }
      EXPECT_LE(static_cast<double>(most), (k + 0.5) / (k - 0.5) * static_cast<double>(count) + 24);
      EXPECT_GE(static_cast<double>(least), (k - 0.5) / (k + 0.5) * static_cast<double>(count) - 24);
    }
  }
}

TEST(BloomCodec, EveryTruncationAndHeaderCorruptionIsAnErrorOrAValidSet) {
  const uint64_t dimension = 3000;
  const BloomCoded coded = bloom_encoded(testing::uniform_indices(dimension, 0.02, 4), dimension, bloom_options(0.01));
  IndexBuffer decoded;
  for (size_t length = 0; length < coded.bytes.size(); ++length) {
    const ByteBuffer cut(coded.bytes.begin(), coded.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(bloom_p0_index_codec().decode(cut, dimension, coded.decoded.size(), decoded)) << length;
  }
  for (size_t at = 0; at < coded.bytes.size(); ++at) {
    for (uint32_t bit = 0; bit < 8; ++bit) {
      ByteBuffer broken = coded.bytes;
      broken[at] = static_cast<uint8_t>(broken[at] ^ 1u << bit);
      if (!bloom_p0_index_codec().decode(broken, dimension, coded.decoded.size(), decoded)) continue;
      ASSERT_EQ(decoded, oracle_scan(broken, dimension));
      ASSERT_EQ(decoded.size(), coded.decoded.size());
    }
  }
}

TEST(BloomCodec, AnotherCountIsAnError) {
  const BloomCoded coded = bloom_encoded(testing::uniform_indices(5000, 0.02, 4), 5000, bloom_options(0.01));
  IndexBuffer decoded;
  for (const uint64_t count : {uint64_t{0}, coded.decoded.size() - 1, coded.decoded.size() + 1, uint64_t{5001}}) {
    EXPECT_FALSE(bloom_p0_index_codec().decode(coded.bytes, 5000, count, decoded)) << count;
  }
}

TEST(BloomBlocked, AFilterOverItsLimitIsRefused) {
  // 2^28 indices at the least rate. Nothing but the last one is read, so the memory stays unused.
  constexpr size_t kCount = size_t{1} << 28;
  void* const memory =
      mmap(nullptr, kCount * sizeof(uint32_t), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const IndexSpan indices(static_cast<const uint32_t*>(memory), kCount);
  ByteBuffer bytes;
  IndexBuffer decoded;
  const Status status =
      bloom_blocked_index_codec().encode(indices, kCount, bloom_options(kBloomRateMin), bytes, &decoded);
  munmap(memory, kCount * sizeof(uint32_t));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kLimitExceeded);
  EXPECT_TRUE(bytes.empty());
}

}  // namespace
}  // namespace millrace
