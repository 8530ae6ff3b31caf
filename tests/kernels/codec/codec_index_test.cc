#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/codec/codec_list.h"
#include "kernels/codec/entropy_bound.h"
#include "kernels/codec/index/gap_blocks.h"
#include "tests/support/index_sets.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

using testing::IndexSet;

constexpr uint64_t kBitmapDimensionMax = 1 << 20;  // of the tests: a bitmap of 2^32 is 512 MiB

std::vector<IndexSet> sets_for(const IndexCodec& codec) {
  const uint64_t dimension_max = codec.id() == IndexCodecId::kBitmap ? kBitmapDimensionMax : uint64_t{1} << 32;
  std::vector<IndexSet> sets = testing::awkward_index_sets(dimension_max);
  for (auto& set : testing::random_index_sets(50'000, 11)) sets.push_back(std::move(set));
  return sets;
}

ByteBuffer index_encoded(const IndexCodec& codec, const IndexSet& set) {
  ByteBuffer bytes;
  EXPECT_TRUE(codec.encode(set.indices, set.dimension, {}, bytes, nullptr)) << set.name;
  return bytes;
}

class LosslessIndexCodec : public ::testing::TestWithParam<const IndexCodec*> {};

TEST_P(LosslessIndexCodec, DecodesTheEncodedSetOnEveryInstructionSet) {
  const IndexCodec& codec = *GetParam();
  for (const IndexSet& set : sets_for(codec)) {
    ByteBuffer first;
    testing::for_each_isa([&](const std::string& isa) {
      SCOPED_TRACE(set.name + " on " + isa);
      const ByteBuffer bytes = index_encoded(codec, set);
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << "instruction sets disagree about the bytes";
      IndexBuffer decoded;
      const Status status = codec.decode(bytes, set.dimension, set.indices.size(), decoded);
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(decoded, set.indices);
    });
  }
}

TEST_P(LosslessIndexCodec, AppendsToExistingBytes) {
  const IndexSet set{"", 1000, testing::uniform_indices(1000, 0.4, 5)};
  const ByteBuffer alone = index_encoded(*GetParam(), set);
  ByteBuffer out{1, 2, 3};
  ASSERT_TRUE(GetParam()->encode(set.indices, set.dimension, {}, out, nullptr));
  ASSERT_EQ(out.size(), alone.size() + 3);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), out.begin() + 3));
  EXPECT_EQ(out[2], 3);
}

/// Anything that decode() accepts must be a strictly increasing set of the right size.
void expect_error_or_valid_index(const IndexCodec& codec, ByteSpan bytes, uint64_t dimension, uint64_t count) {
  const Buffer<uint8_t> exact(bytes.begin(), bytes.end());  // so that a sanitizer sees a read behind the end
  IndexBuffer decoded;
  const Status status = codec.decode(exact, dimension, count, decoded);
  if (!status) {
    EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
    return;
  }
  ASSERT_EQ(decoded.size(), count);
  for (size_t j = 1; j < decoded.size(); ++j) ASSERT_LT(decoded[j - 1], decoded[j]);
  if (count > 0) {
    ASSERT_LT(decoded.back(), dimension);
  }
}

TEST_P(LosslessIndexCodec, EveryTruncationIsAnError) {
  const IndexCodec& codec = *GetParam();
  for (const uint64_t count : {1, 100, 256, 300, 600}) {
    const IndexSet set{"", 2000, testing::clustered_indices(2000, count, count)};
    const ByteBuffer bytes = index_encoded(codec, set);
    testing::for_each_isa([&](const std::string& isa) {
      for (size_t length = 0; length < bytes.size(); ++length) {
        const ByteBuffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
        IndexBuffer decoded;
        EXPECT_FALSE(codec.decode(cut, set.dimension, set.indices.size(), decoded)) << length << " on " << isa;
      }
      ByteBuffer longer = bytes;
      longer.push_back(0);
      IndexBuffer decoded;
      EXPECT_FALSE(codec.decode(longer, set.dimension, set.indices.size(), decoded));
    });
  }
}

TEST_P(LosslessIndexCodec, EveryCorruptByteIsAnErrorOrAValidSet) {
  const IndexCodec& codec = *GetParam();
  const IndexSet set{"", 3000, testing::clustered_indices(3000, 600, 3)};
  const ByteBuffer bytes = index_encoded(codec, set);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint32_t flip : {0x01, 0x10, 0x80, 0xff}) {
      ByteBuffer broken = bytes;
      broken[at] = static_cast<uint8_t>(broken[at] ^ flip);
      expect_error_or_valid_index(codec, broken, set.dimension, set.indices.size());
    }
  }
}

TEST_P(LosslessIndexCodec, RandomBytesAreAnErrorOrAValidSetTheSameOnEveryInstructionSet) {
  RandomSequence random(RandomKey::from(99));
  for (int round = 0; round < 300; ++round) {
    ByteBuffer bytes(random.next_below(1500));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random.next_u32() & (round % 2 == 0 ? 0xffu : 0x11u));
    const uint64_t count = random.next_below(800);
    const uint64_t dimension =
        round % 3 == 0 ? bytes.size() * 8 + 1 : 1 + (random.next_u64() >> (32 + random.next_below(30)));
    std::optional<bool> accepted;
    testing::for_each_isa([&](const std::string& isa) {
      expect_error_or_valid_index(*GetParam(), bytes, dimension, count);
      IndexBuffer decoded;
      const bool now = GetParam()->decode(bytes, dimension, count, decoded).has_value();
      EXPECT_EQ(accepted.value_or(now), now) << isa;
      accepted = now;
    });
  }
}

TEST_P(LosslessIndexCodec, AnotherCountOrDimensionIsAnError) {
  const IndexCodec& codec = *GetParam();
  const IndexSet set{"", 1001, {3, 4, 900, 1000}};
  const ByteBuffer bytes = index_encoded(codec, set);
  IndexBuffer decoded;
  EXPECT_FALSE(codec.decode(bytes, set.dimension, 3, decoded));
  EXPECT_FALSE(codec.decode(bytes, set.dimension, 5, decoded));
  if (codec.name() == "huffman") {  // its code follows the dimension: other indices may stand there
    expect_error_or_valid_index(codec, bytes, 1000, 4);
  } else {
    EXPECT_FALSE(codec.decode(bytes, 1000, 4, decoded));
  }
}

TEST_P(LosslessIndexCodec, ClaimsTooLargeForTheBytesTakeNoMemory) {
  const ByteBuffer bytes(100, 0xff);
  for (const uint64_t count : {uint64_t{10'000}, uint64_t{1} << 32, ~uint64_t{0}}) {
    IndexBuffer decoded;
    EXPECT_FALSE(GetParam()->decode(bytes, uint64_t{1} << 32, count, decoded));
    EXPECT_LE(decoded.capacity(), 1024u);
  }
}

std::vector<const IndexCodec*> lossless_codecs() {
  std::vector<const IndexCodec*> codecs;
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->lossless()) codecs.push_back(codec);
  }
  return codecs;
}

INSTANTIATE_TEST_SUITE_P(Codecs, LosslessIndexCodec, ::testing::ValuesIn(lossless_codecs()),
                         [](const auto& param) { return std::string(param.param->name()); });

TEST(GapCode, StaysWithinThreePercentOfTheEntropyOfUniformIndices) {
  const uint64_t n = 1 << 22;
  for (const double density : {0.0001, 0.001, 0.01, 0.1}) {
    const IndexSet set{"", n, testing::uniform_indices(n, density, 17)};
    const double k = static_cast<double>(set.indices.size());
    ASSERT_NEAR(k, density * static_cast<double>(n), 5 * std::sqrt(density * static_cast<double>(n)));
    const double bits = 8.0 * static_cast<double>(index_encoded(gap_index_codec(), set).size()) / k;
    EXPECT_LE(bits, 1.03 * entropy_bits_per_index(n, set.indices.size())) << density;
  }
}

TEST(GapCode, TakesFewerBitsThanUniformIndicesWouldWhereTheDensityVaries) {
  const uint64_t n = 1 << 20;
  IndexSet set{"", n, testing::uniform_indices(n / 10, 0.1, 3)};
  for (const uint32_t index : testing::uniform_indices(n, 0.001, 4)) {
    if (index > set.indices.back()) set.indices.push_back(index);
  }
  const double k = static_cast<double>(set.indices.size());
  const double bits = 8.0 * static_cast<double>(index_encoded(gap_index_codec(), set).size()) / k;
  EXPECT_LT(bits, 0.75 * entropy_bits_per_index(n, set.indices.size()));
}

TEST(GapCode, ConsecutiveIndicesTakeABitEach) {
  const uint64_t n = 256 * 8;
  EXPECT_EQ(index_encoded(gap_index_codec(), {"", n, testing::uniform_indices(n, 1.0, 1)}).size(),
            n / 8 + n / kGapBlock);
}

TEST(GapCode, BytesAreAsDocumented) {
  // Gaps 3, 0, 5 in a block of three: parameter 1 (cost 3 + 1 + 0 + 2 = 6; 0 costs 8, 2 costs 7).
  // Low bits: 1 0 1. Quotients 1 0 2 in unary: 0 1, 1, 0 0 1 from the lowest bit.
  EXPECT_EQ(index_encoded(gap_index_codec(), {"", 100, {3, 4, 10}}), (ByteBuffer{1, 0b101, 0b100110}));
  // A full block of gaps 3: parameters 1 and 2 cost 512, the smaller is taken; low bits and quotients all 1.
  IndexBuffer fourths;
  for (uint32_t i = 0; i < kGapBlock; ++i) fourths.push_back(3 + 4 * i);
  ByteBuffer expected{1};
  expected.insert(expected.end(), 32, 0xff);
  expected.insert(expected.end(), 64, 0xaa);
  EXPECT_EQ(index_encoded(gap_index_codec(), {"", 1024, fourths}), expected);
}

TEST(GapCode, LowBitsOfAFullBlockAreInterleavedByEight) {
  // Only row 5 (indices 40..47) has low bits that are not 0.
  IndexBuffer indices;
  uint32_t at = 0;
  for (uint32_t i = 0; i < kGapBlock; ++i) {
    at += i / 8 == 5 ? 100 : 64;
    indices.push_back(at++);
  }
  const ByteBuffer bytes = index_encoded(gap_index_codec(), {"", 1 << 20, indices});
  const uint32_t shift = bytes[0];
  ASSERT_EQ(shift, 6u);  // 64 = 1 << 6 + 0; 100 = 1 << 6 + 36
  for (size_t lane = 0; lane < 8; ++lane) {
    // Row 5 starts at bit 30 of the lane: two bits in word 0, four in word 1.
    uint32_t word0 = 0;
    uint32_t word1 = 0;
    std::memcpy(&word0, &bytes[1 + 4 * lane], 4);
    std::memcpy(&word1, &bytes[1 + 32 + 4 * lane], 4);
    EXPECT_EQ(word0, (36u & 3) << 30);
    EXPECT_EQ(word1, 36u >> 2);
  }
}

TEST(GapCode, RefusesAParameterOver31AndUnarySequencesOver8192Bits) {
  IndexBuffer decoded;
  EXPECT_FALSE(gap_index_codec().decode(ByteBuffer{32, 0, 0, 0, 0, 1}, uint64_t{1} << 32, 1, decoded));
  EXPECT_TRUE(gap_index_codec().decode(ByteBuffer{31, 0, 0, 0, 0, 1}, uint64_t{1} << 32, 1, decoded));
  ByteBuffer zeros(1 + 1024, 0);
  zeros.back() = 0x80;  // quotient 8191: the longest
  EXPECT_TRUE(gap_index_codec().decode(zeros, 10'000, 1, decoded));
  zeros.back() = 0;
  zeros.push_back(1);
  EXPECT_FALSE(gap_index_codec().decode(zeros, 10'000, 1, decoded));
}

TEST(GapCode, FullBlockThatWrapsAroundTheDimension_IsAnError) {
  // Lows of 2^24 - 1 in every lane make the last index 2^32 - 1; more must not wrap to a small one.
  for (const uint32_t shift : {24, 25, 31}) {
    ByteBuffer bytes{static_cast<uint8_t>(shift)};
    bytes.insert(bytes.end(), 32 * shift, 0xff);
    bytes.insert(bytes.end(), 32, 0xff);
    testing::for_each_isa([&](const std::string& isa) {
      IndexBuffer decoded;
      EXPECT_EQ(gap_index_codec().decode(bytes, uint64_t{1} << 32, 256, decoded).has_value(), shift == 24) << isa;
      EXPECT_FALSE(gap_index_codec().decode(bytes, (uint64_t{1} << 32) - 1, 256, decoded)) << isa;
      EXPECT_FALSE(gap_index_codec().decode(bytes, 5'000'000, 256, decoded)) << isa;
    });
  }
}

TEST(GapCode, EveryParameterDecodesAsBitByBit) {
  constexpr uint64_t kDimension = uint64_t{1} << 32;
  RandomSequence random(RandomKey::from(31));
  for (uint32_t shift = 1; shift <= kGapShiftMax; ++shift) {
    uint32_t accepted = 0;
    for (int trial = 0; trial < 40; ++trial) {
      ByteBuffer bytes(1 + 32 * shift, 0);
      bytes[0] = static_cast<uint8_t>(shift);
      for (int i = 0; i < 6; ++i) bytes[1 + random.next_below(32 * shift)] = static_cast<uint8_t>(random.next_u32());
      bytes.insert(bytes.end(), 32, 0xff);
      IndexBuffer expected(kGapBlock);
      const uint8_t* const end = bytes.data() + bytes.size();
      const GapDecoded scalar = gap_decode_blocks_scalar(bytes.data(), end, 1, 0, kDimension, expected.data());
      accepted += scalar.at != nullptr ? 1 : 0;
      testing::for_each_isa([&](const std::string& isa) {
        IndexBuffer decoded;
        ASSERT_EQ(gap_index_codec().decode(bytes, kDimension, kGapBlock, decoded).has_value(), scalar.at != nullptr)
            << isa << shift;
        if (scalar.at != nullptr) {
          EXPECT_EQ(decoded, expected) << isa << ' ' << shift;
        }
      });
    }
    EXPECT_GT(accepted, 4u) << shift;
  }
}

}  // namespace
}  // namespace millrace
