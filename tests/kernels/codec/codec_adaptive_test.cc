// The adaptive code: against a decoder that follows protocol/wire/adaptive_codec.md step by step, and against its
// claims about sizes.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>

#include "kernels/codec/codec_list.h"
#include "kernels/codec/entropy_bound.h"
#include "kernels/codec/index/adaptive_blocks.h"
#include "tests/support/index_sets.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

using testing::IndexSet;

ByteBuffer adaptive_encoded(const IndexSet& set) {
  ByteBuffer bytes;
  EXPECT_TRUE(adaptive_index_codec().encode(set.indices, set.dimension, {}, bytes, nullptr)) << set.name;
  return bytes;
}

double bits_per_index(const IndexSet& set) {
  return 8.0 * static_cast<double>(adaptive_encoded(set).size()) / static_cast<double>(set.indices.size());
}

TEST(AdaptiveTables, EveryAlphabetStandsForEveryGapAndFillsTheStates) {
  for (uint32_t shape = 0; shape < kAdaptiveShapes; ++shape) {
    for (uint32_t context = 0; context < kAdaptiveContexts; ++context) {
      SCOPED_TRACE("shape " + std::to_string(shape) + ", context " + std::to_string(context));
      const AdaptiveAlphabet alphabet = adaptive_alphabet(shape, context);
      uint32_t states = 0;
      uint32_t next_bin = 0;
      for (size_t i = 0; i < alphabet.count; ++i) {
        const AdaptiveSymbol& symbol = alphabet.symbols[i];
        EXPECT_GE(symbol.frequency, 1u);
        EXPECT_LE(symbol.frequency, kAdaptiveStates / 8 * 7);
        states += symbol.frequency;
        ASSERT_EQ(symbol.first_bin, next_bin);
        next_bin = symbol.last_bin + 1;
        EXPECT_LE(symbol.gap_low, adaptive_bin_low(symbol.first_bin) - 1);
        const uint64_t behind =
            symbol.last_bin + 1 < kAdaptiveBins ? adaptive_bin_low(symbol.last_bin + 1) - 1 : uint64_t{1} << 32;
        EXPECT_GE(symbol.gap_low + (uint64_t{1} << symbol.raw_bits), behind);
        EXPECT_LE(symbol.gap_low + (uint64_t{1} << symbol.raw_bits), uint64_t{1} << 32);  // a gap is a u32
      }
      EXPECT_EQ(next_bin, kAdaptiveBins);
      EXPECT_EQ(states, kAdaptiveStates);
    }
  }
}

TEST(AdaptiveTables, BinsAndLevelsAreThoseOfTheValue) {
  for (uint32_t bin = 0; bin < kAdaptiveBins; ++bin) {
    EXPECT_EQ(adaptive_bin(adaptive_bin_low(bin)), bin);
    if (bin > 0) {
      EXPECT_EQ(adaptive_bin(adaptive_bin_low(bin) - 1), bin - 1);
    }
  }
  for (uint64_t value = 1; value <= uint64_t{1} << 32; value += 1 + value / 100) {
    const int32_t level = adaptive_level(value);
    EXPECT_NEAR(level, 256 * std::log2(static_cast<double>(value)), 12) << value;
    EXPECT_LE(level, 32 * 256);
  }
  for (uint64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(kAdaptiveLog[i], std::lround(256 * std::log2(1 + static_cast<double>(i) / 32))) << i;
  }
}

TEST(AdaptiveTables, TheContextStaysInRange) {
  AdaptiveLevels levels = AdaptiveLevels::from(1, uint64_t{1} << 32);
  RandomSequence random(RandomKey::from(4));
  for (const int32_t extreme : {32 * 256, 0, 32 * 256}) {
    for (int j = 0; j < 1000; ++j) {
      levels.see(j < 500 ? extreme : static_cast<int32_t>(random.next_below(32 * 256 + 1)));
      ASSERT_LT(levels.context(), kAdaptiveContexts);
      ASSERT_GE(levels.fast, 0);
      ASSERT_GE(levels.slow, 0);
    }
  }
}

/// Bits of a code from the lowest of the first byte, zeros behind the end.
struct AdaptiveBits {
  ByteSpan bytes;
  uint64_t at = 0;
  uint64_t take(uint64_t count) {
    uint64_t value = 0;
    for (uint64_t i = 0; i < count; ++i, ++at) {
      const uint64_t bit = at / 8 < bytes.size() ? bytes[at / 8] >> (at % 8) & 1u : 0u;
      value |= bit << i;
    }
    return value;
  }
};

/// Decodes one symbol as in protocol/wire/adaptive_codec.md: state x stands for the symbol of its place in the spread.
/// Take the j-th place (from 0) of a symbol of frequency f. The next state is (f + j) * 2^n + n bits - 1024. Here n is
/// the smallest number that makes it at least 0.
uint64_t oracle_gap(uint32_t shape, uint32_t context, uint64_t& state, AdaptiveBits& bits) {
  const AdaptiveAlphabet alphabet = adaptive_alphabet(shape, context);
  const auto spread = adaptive_spread(alphabet);
  const AdaptiveSymbol& symbol = alphabet.symbols[spread[state]];
  uint64_t number = symbol.frequency;
  for (uint64_t x = 0; x < state; ++x) number += spread[x] == spread[state] ? 1 : 0;
  uint64_t n = 0;
  while (number << n < kAdaptiveStates) ++n;
  state = (number << n) + bits.take(n) - kAdaptiveStates;
  return symbol.gap_low + bits.take(symbol.raw_bits);
}

IndexBuffer oracle_decode(ByteSpan bytes, uint64_t dimension, uint64_t count) {
  IndexBuffer indices;
  std::array<AdaptiveLevels, 4> levels;
  levels.fill(AdaptiveLevels::from(count, dimension));
  uint64_t next = 0;
  while (indices.size() < count) {
    const uint64_t entries = std::min<uint64_t>(kAdaptiveBlock, count - indices.size());
    const uint64_t streams = entries < 256 ? 1 : 4;
    AdaptiveBits bits{bytes};
    const uint64_t shape = bits.take(5);
    const uint64_t padding = bits.take(3);
    EXPECT_EQ(bits.take(padding), 0u);
    std::array<uint64_t, 4> states{};
    for (uint64_t s = 0; s < streams; ++s) states[s] = bits.take(10);
    std::array<std::vector<uint64_t>, 4> gaps;
    for (uint64_t j = 0; j < entries; ++j) {
      const uint64_t s = j % streams;
      gaps[s].push_back(oracle_gap(static_cast<uint32_t>(shape), levels[s].context(), states[s], bits));
      levels[s].see(adaptive_level(gaps[s].back() + 1));
    }
    for (const uint64_t state : states) EXPECT_EQ(state, 0u);
    for (const auto& stream : gaps) {
      for (const uint64_t gap : stream) {
        next += gap;
        indices.push_back(static_cast<uint32_t>(next++));
      }
    }
    EXPECT_EQ(bits.at % 8, 0u);
    bytes = bytes.subspan(bits.at / 8);
  }
  EXPECT_TRUE(bytes.empty());
  return indices;
}

TEST(AdaptiveCode, BytesAreAsDocumented) {
  for (const uint64_t count : {1, 2, 5, 255, 256, 257, 258, 259, 700}) {
    const IndexSet set{std::to_string(count), 100'000, testing::clustered_indices(100'000, count, count)};
    EXPECT_EQ(oracle_decode(adaptive_encoded(set), set.dimension, set.indices.size()), set.indices) << set.name;
  }
  const IndexSet far{"far apart", uint64_t{1} << 32, {0, 1, 0x80000000u, 0xffffffffu}};
  EXPECT_EQ(oracle_decode(adaptive_encoded(far), far.dimension, 4), far.indices);
}

TEST(AdaptiveCode, BlocksFollowOneAnother) {
  for (const uint64_t count : {kAdaptiveBlock - 1, kAdaptiveBlock, kAdaptiveBlock + 1, 3 * kAdaptiveBlock + 300}) {
    IndexBuffer indices = testing::clustered_indices(1 << 22, count + count / 4, 9);
    ASSERT_GE(indices.size(), count);
    indices.resize(count);
    const IndexSet set{"", 1 << 22, std::move(indices)};
    const ByteBuffer bytes = adaptive_encoded(set);
    testing::for_each_isa([&](const std::string& isa) {
      EXPECT_EQ(adaptive_encoded(set), bytes) << isa;
      IndexBuffer decoded;
      ASSERT_TRUE(adaptive_index_codec().decode(bytes, set.dimension, count, decoded)) << isa;
      EXPECT_EQ(decoded, set.indices) << isa;
    });
  }
}

TEST(AdaptiveCode, AnySetSurvivesARoundTrip) {
  const auto holds = [](const std::vector<uint32_t>& gaps, uint8_t spread, uint8_t repeats) {
    IndexBuffer indices;
    uint64_t next = 0;
    for (uint32_t repeat = 0; repeat <= repeats; ++repeat) {
      for (const uint32_t gap : gaps) {
        next += gap >> (spread % 32);
        if (next >= kDimensionMax) break;
        indices.push_back(static_cast<uint32_t>(next++));
      }
    }
    const uint64_t dimension = indices.empty() ? 1 : uint64_t{indices.back()} + 1;
    const ByteBuffer bytes = adaptive_encoded({"", dimension, indices});
    IndexBuffer decoded;
    RC_ASSERT(adaptive_index_codec().decode(bytes, dimension, indices.size(), decoded).has_value());
    RC_ASSERT(decoded == indices);
  };
  EXPECT_TRUE(rc::check("any strictly increasing set survives a round trip", holds));
}

TEST(AdaptiveCode, StaysWithinThreePercentOfTheEntropyOfUniformIndices) {
  const uint64_t n = 1 << 22;
  for (const double density : {0.0003, 0.001, 0.01, 0.1}) {
    const IndexSet set{"", n, testing::uniform_indices(n, density, 17)};
    EXPECT_LE(bits_per_index(set), 1.03 * entropy_bits_per_index(n, set.indices.size())) << density;
  }
}

TEST(AdaptiveCode, TakesLessThanBlocksOfRiceCodesWhereIndicesCluster) {
  for (const uint64_t count : {1000, 10'000, 100'000}) {
    const IndexSet set{"", 100 * count, testing::clustered_indices(100 * count, count, 5)};
    EXPECT_LE(bits_per_index(set), 0.95 * rice_blocks_bits_per_index(set.indices)) << count;
  }
}

TEST(AdaptiveCode, AnUnknownShapeAndFirstBitsThatAreNot0AreErrors) {
  const IndexSet set{"", 5000, testing::uniform_indices(5000, 0.1, 3)};
  ByteBuffer bytes = adaptive_encoded(set);
  IndexBuffer decoded;
  ASSERT_TRUE(adaptive_index_codec().decode(bytes, set.dimension, set.indices.size(), decoded));
  const uint8_t first = bytes[0];
  for (uint32_t shape = kAdaptiveShapes; shape < 32; ++shape) {
    bytes[0] = static_cast<uint8_t>((first & 0xe0u) | shape);
    EXPECT_FALSE(adaptive_index_codec().decode(bytes, set.dimension, set.indices.size(), decoded)) << shape;
  }
  bytes[0] = first;
  const uint32_t padding = first >> 5;
  for (uint32_t bit = 0; bit < padding; ++bit) {
    ByteBuffer broken = bytes;
    broken[1] = static_cast<uint8_t>(broken[1] | 1u << bit);
    EXPECT_FALSE(adaptive_index_codec().decode(broken, set.dimension, set.indices.size(), decoded)) << bit;
  }
}

TEST(AdaptiveCode, ConsecutiveIndicesTakeLessThanHalfABit) {
  const IndexSet set{"", 1 << 16, testing::uniform_indices(1 << 16, 1.0, 1)};
  EXPECT_LE(bits_per_index(set), 0.45);
}

}  // namespace
}  // namespace millrace
