// Bloom filters with a choice [DeepReduce21, 4, 10.4], and the blocked filter. Compares them with obvious readings of
// the paper and the format. Tests the paper's claims where they hold, and has counterexamples to the others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "kernels/codec/bloom/bloom_blocked_scan.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/lossy_index_codec.h"
#include "tests/support/index_sets.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/bloom_oracle.h"

namespace millrace {
namespace {

using testing::field;
using PolicyCoded = testing::BloomCode;

PolicyCoded policy_encoded(const IndexCodec& codec, IndexSpan indices, uint64_t dimension, double rate,
                           uint64_t seed = 5) {
  return testing::bloom_code(codec, indices, dimension, testing::bloom_options(rate, seed));
}

/// A policy's code has its seed, u32 positives, and the filter.
struct OracleFilter : testing::BloomOracle {
  OracleFilter(const ByteBuffer& bytes, uint64_t dimension) : BloomOracle(bytes, dimension, 12) {}
};

std::vector<const IndexCodec*> picking_codecs() {
  std::vector<const IndexCodec*> codecs;
  for (const IndexCodec* codec : index_codecs()) {
    if (picking_codec(*codec) != nullptr) codecs.push_back(codec);
  }
  return codecs;
}

class BloomPolicy : public ::testing::TestWithParam<const IndexCodec*> {};

TEST_P(BloomPolicy, TheDecodedSetIsTheEncodersAndAsLargeAsTheSelection) {
  for (const uint64_t dimension : {1, 40, 20'011}) {
    for (const double rate : {0.99, 0.6, 0.5, 0.05, 0.001, 1e-9}) {
      for (const double density : {0.0, 0.002, 0.2, 1.0}) {
        SCOPED_TRACE("rate " + std::to_string(rate) + ", density " + std::to_string(density));
        const IndexBuffer indices = testing::uniform_indices(dimension, density, 3);
        const PolicyCoded first = policy_encoded(*GetParam(), indices, dimension, rate);
        const OracleFilter filter(first.bytes, dimension);
        EXPECT_EQ(field<uint32_t>(first.bytes, 8), filter.positives.size());
        EXPECT_EQ(first.decoded.size(), indices.size());
        EXPECT_TRUE(std::ranges::includes(filter.positives, first.decoded));
        testing::for_each_isa([&](const std::string& isa) {
          const PolicyCoded coded = policy_encoded(*GetParam(), indices, dimension, rate);
          EXPECT_EQ(coded.bytes, first.bytes) << isa;
          IndexBuffer decoded;
          ASSERT_TRUE(GetParam()->decode(coded.bytes, dimension, indices.size(), decoded)) << isa;
          EXPECT_EQ(decoded, first.decoded) << isa;
        });
      }
    }
  }
}

TEST_P(BloomPolicy, TruncationsAreErrorsAndCorruptBytesErrorsOrValidSets) {
  const uint64_t dimension = 3000;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.02, 4);
  const PolicyCoded coded = policy_encoded(*GetParam(), indices, dimension, 0.05);
  IndexBuffer decoded;
  for (size_t length = 0; length < coded.bytes.size(); ++length) {
    const ByteBuffer cut(coded.bytes.begin(), coded.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(GetParam()->decode(cut, dimension, indices.size(), decoded)) << length;
  }
  for (size_t at = 0; at < coded.bytes.size(); ++at) {
    for (uint32_t bit = 0; bit < 8; ++bit) {
      ByteBuffer broken = coded.bytes;
      broken[at] = static_cast<uint8_t>(broken[at] ^ 1u << bit);
      if (!GetParam()->decode(broken, dimension, indices.size(), decoded)) continue;
      ASSERT_EQ(decoded.size(), indices.size());
      ASSERT_TRUE(std::ranges::is_sorted(decoded, std::less_equal<>()) || decoded.size() < 2);
      ASSERT_LT(decoded.back(), dimension);
    }
  }
  for (const uint64_t count : {uint64_t{0}, indices.size() / 2, 2 * indices.size()}) {
    EXPECT_FALSE(GetParam()->decode(coded.bytes, dimension, count, decoded)) << "the filter is of another number";
  }
  ASSERT_GT(field<uint32_t>(coded.bytes, 8), indices.size());
  EXPECT_TRUE(GetParam()->decode(coded.bytes, dimension, indices.size() + 1, decoded)) << "for all that it tells";
}

TEST_P(BloomPolicy, HostileFilterOfAllIndices_MemoryWithinTheLimit) {
  const uint64_t dimension = 1 << 20;
  PolicyCoded coded = policy_encoded(*GetParam(), IndexBuffer{7}, dimension, 0.001);
  std::fill(coded.bytes.begin() + 20, coded.bytes.end(), 0xff);
  IndexBuffer decoded;
  EXPECT_FALSE(GetParam()->decode(coded.bytes, dimension, 1, decoded));
  EXPECT_LE(decoded.capacity(), 2 * kBloomStrip);
  const auto all = static_cast<uint32_t>(dimension);
  std::memcpy(coded.bytes.data() + 8, &all, sizeof(all));
  EXPECT_FALSE(GetParam()->decode(coded.bytes, dimension, 1, decoded)) << "no encoder sets as many bits";
  EXPECT_LE(decoded.capacity(), 2 * kBloomStrip);
}

TEST_P(BloomPolicy, AFilterOfManyMoreIndicesThanAreDecodedIsRefused) {
  PolicyCoded coded = policy_encoded(*GetParam(), {}, 1000, 0.001);
  IndexBuffer decoded;
  EXPECT_TRUE(GetParam()->decode(coded.bytes, 1000, 0, decoded));
  const uint32_t bits = 1 << 20;  // conflict sets took 24 bytes for each of them
  std::memcpy(coded.bytes.data() + 12, &bits, sizeof(bits));
  coded.bytes.resize(20 + bits / 8, 0);
  std::fill(coded.bytes.begin() + 20, coded.bytes.end(), 0);
  EXPECT_FALSE(GetParam()->decode(coded.bytes, 1000, 0, decoded));
}

TEST(BloomP2, RefusesMoreMembersThanTheDimensionAllowsBeforeItHoldsThem) {
  // As full as may be: 0.83 of the bits. Three in five indices are then positives, in 3 sets each.
  const uint64_t dimension = 1 << 20;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.001, 3);
  PolicyCoded coded = policy_encoded(bloom_p2_index_codec(), indices, dimension, 0.125);
  ASSERT_EQ(field<uint32_t>(coded.bytes, 16), 3u);
  const auto stated = static_cast<uint32_t>(dimension);
  std::memcpy(coded.bytes.data() + 8, &stated, sizeof(stated));
  IndexBuffer decoded;
  EXPECT_FALSE(bloom_p2_index_codec().decode(coded.bytes, dimension, indices.size(), decoded));
  EXPECT_EQ(decoded.capacity(), 0u);
}

TEST(BloomP2, StatesTheMemoryOfItsConflictSets) {
  const uint64_t dimension = 1 << 20;
  const IndexCodec& codec = bloom_p2_index_codec();
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.01, 3);
  PolicyCoded coded = policy_encoded(codec, indices, dimension, 0.001);
  const OracleFilter filter(coded.bytes, dimension);
  const uint64_t members = filter.positives.size() * filter.hashes.probes;
  const uint64_t places = 8 * uint64_t{filter.hashes.bits};
  const uint64_t scratch = codec.decode_scratch_bytes(coded.bytes, dimension, indices.size());
  EXPECT_GE(scratch, places + 4 * members);
  EXPECT_LE(scratch, places + 4 * members + 16 * members + 5 * filter.positives.size());
  EXPECT_EQ(bloom_p1_index_codec().decode_scratch_bytes(coded.bytes, dimension, indices.size()), 0u);
  for (const size_t length : {size_t{0}, size_t{19}, coded.bytes.size() - 1}) {
    EXPECT_EQ(codec.decode_scratch_bytes(ByteSpan(coded.bytes).first(length), dimension, indices.size()), 0u);
  }
  const uint32_t stated = UINT32_MAX;  // positives: decode() refuses them without memory
  std::memcpy(coded.bytes.data() + 8, &stated, sizeof(stated));
  EXPECT_EQ(codec.decode_scratch_bytes(coded.bytes, dimension, indices.size()), 0u);
}

INSTANTIATE_TEST_SUITE_P(Codecs, BloomPolicy, ::testing::ValuesIn(picking_codecs()),
                         [](const auto& param) { return std::string(param.param->name()); });

TEST(BloomPolicies, DeterministicOnesTakeTheirEndOrTheMiddle) {
  const uint64_t dimension = 20'000;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.02, 3);
  const auto part = [&](const IndexCodec& codec, auto begin_of) {
    const PolicyCoded coded = policy_encoded(codec, indices, dimension, 0.05);
    const IndexBuffer positives = OracleFilter(coded.bytes, dimension).positives;
    ASSERT_GT(positives.size(), indices.size() + 500);
    const auto begin = positives.begin() + static_cast<std::ptrdiff_t>(begin_of(positives.size() - indices.size()));
    EXPECT_TRUE(std::equal(coded.decoded.begin(), coded.decoded.end(), begin)) << codec.name();
  };
  part(bloom_left_index_codec(), [](size_t) { return size_t{0}; });
  part(bloom_naive_index_codec(), [](size_t) { return size_t{0}; });
  part(bloom_middle_index_codec(), [](size_t over) { return over / 2; });
  part(bloom_right_index_codec(), [](size_t over) { return over; });
}

uint64_t common(IndexSpan a, IndexSpan b) {
  IndexBuffer both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both.size();
}

TEST(BloomP1, EveryPositiveIsAsLikely) {
  const uint64_t dimension = 4000;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.05, 3);
  const auto r = static_cast<double>(indices.size());
  double expected_hits = 0;
  double variance = 0;
  double hits = 0;
  double mean_place = 0;
  constexpr int kSeeds = 300;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const PolicyCoded coded = policy_encoded(bloom_p1_index_codec(), indices, dimension, 0.1, seed);
    const IndexBuffer positives = OracleFilter(coded.bytes, dimension).positives;
    const auto p = static_cast<double>(positives.size());
    hits += static_cast<double>(common(coded.decoded, indices));
    expected_hits += r * r / p;  // hypergeometric
    variance += r * (r / p) * (1 - r / p) * (p - r) / (p - 1);
    for (const uint32_t index : coded.decoded) {
      const auto at = std::ranges::lower_bound(positives, index) - positives.begin();
      mean_place += static_cast<double>(at) / (p - 1) / r / kSeeds;
    }
  }
  EXPECT_NEAR(hits, expected_hits, 4.5 * std::sqrt(variance));
  EXPECT_NEAR(mean_place, 0.5, 4.5 * std::sqrt(1.0 / 12 / (r * kSeeds)));
}

/// Algorithm 1 as the paper has it, with its sets as sets and the two repairs, drawing as protocol/wire/bloom_codecs.md
/// says.
IndexBuffer oracle_p2(const OracleFilter& filter, uint64_t count) {
  std::map<uint32_t, std::vector<uint32_t>> conflicts;  // by bit
  for (uint32_t number = 0; number < filter.positives.size(); ++number) {
    for (uint32_t p = 0; p < filter.hashes.probes; ++p) {
      auto& set = conflicts[filter.hashes.bit(filter.positives[number], p)];
      if (set.empty() || set.back() != number) set.push_back(number);
    }
  }
  std::vector<std::vector<uint32_t>> sets;
  for (auto& [bit, set] : conflicts) sets.push_back(set);
  std::ranges::stable_sort(sets, {}, [](const auto& set) { return set.size(); });
  RandomSequence random(RandomKey::from(filter.seed), 0x7032);
  std::vector<uint32_t> taken;
  while (taken.size() < count) {
    for (auto& set : sets) {
      while (!set.empty() && taken.size() < count) {
        const size_t at = random.next_below(set.size());
        const uint32_t number = set[at];
        set[at] = set.back();
        set.pop_back();
        if (std::ranges::find(taken, number) != taken.end()) continue;
        taken.push_back(number);
        break;
      }
    }
  }
  std::ranges::sort(taken);
  IndexBuffer indices;
  for (const uint32_t number : taken) indices.push_back(filter.positives[number]);
  return indices;
}

TEST(BloomP2, IsAlgorithm1WithoutDrawsFromEmptySets) {
  const uint64_t dimension = 3000;
  for (const double rate : {0.5, 0.1, 0.01}) {
    for (const double density : {0.01, 0.1, 0.4}) {
      const IndexBuffer indices = testing::uniform_indices(dimension, density, 3);
      const PolicyCoded coded = policy_encoded(bloom_p2_index_codec(), indices, dimension, rate);
      EXPECT_EQ(coded.decoded, oracle_p2(OracleFilter(coded.bytes, dimension), indices.size()))
          << rate << ' ' << density;
    }
  }
}

TEST(BloomP2, LoneIndicesAreDecodedAndMoreAreCorrectThanUnderP1) {
  const uint64_t dimension = 40'000;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.02, 3);
  for (const uint64_t seed : {1, 2, 3}) {
    const PolicyCoded coded = policy_encoded(bloom_p2_index_codec(), indices, dimension, 0.01, seed);
    const OracleFilter filter(coded.bytes, dimension);
    std::map<uint32_t, std::vector<uint32_t>> sets;
    for (const uint32_t index : filter.positives) {
      for (uint32_t p = 0; p < filter.hashes.probes; ++p) {
        auto& set = sets[filter.hashes.bit(index, p)];
        if (set.empty() || set.back() != index) set.push_back(index);
      }
    }
    uint64_t alone = 0;
    for (const auto& [bit, set] : sets) {
      if (set.size() > 1) continue;
      ++alone;
      EXPECT_TRUE(std::ranges::binary_search(indices, set[0]));  // no false positive: some entry set the bit
      EXPECT_TRUE(std::ranges::binary_search(coded.decoded, set[0]));
    }
    EXPECT_GT(alone, 500u);
    const PolicyCoded random = policy_encoded(bloom_p1_index_codec(), indices, dimension, 0.01, seed);
    EXPECT_GT(common(coded.decoded, indices), common(random.decoded, indices));
  }
}

TEST(DeepReduceLemmas, Lemma5BoundsTheMeanAndNotEveryDraw) {
  const uint64_t dimension = 20'000;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.02, 3);
  const auto r = static_cast<double>(indices.size());
  const double bound = std::ceil(r + 0.05 * (static_cast<double>(dimension) - r));
  int over = 0;
  double mean = 0;
  constexpr int kSeeds = 100;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto positives =
        static_cast<double>(policy_encoded(bloom_p0_index_codec(), indices, dimension, 0.05, seed).decoded.size());
    over += positives > bound ? 1 : 0;
    mean += positives / kSeeds;
  }
  EXPECT_GT(over, 0);
  EXPECT_LT(mean, 1.02 * bound);
}

double norm2(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

TEST(DeepReduceLemmas, Lemma7iiAndLemma8iAreNoEqualities) {
  // 7 (ii): d = 4, r = 1, a positive at every index, leftmost. The error is 9 + 0 + 16, not (1 - 1/4) (4 + 9 + 0 + 16).
  const std::vector<double> g = {2, 3, 0, 4};
  EXPECT_NE(norm2(g) - g[0] * g[0], (1 - 1.0 / 4) * norm2(g));
  // 8 (i): P = 3, S its first two, k1 = 1 of them by chance. E1 is the mean of ||g_P||^2 - g_i^2: in S alone does (1 -
  // k1 / r) hold.
  const std::vector<double> g_p = {2, 3, 4};
  const double error = norm2(g_p) - (g_p[0] * g_p[0] + g_p[1] * g_p[1]) / 2;
  EXPECT_NE(error, (1 - 1.0 / 2) * norm2(g_p));
  EXPECT_EQ(error, norm2(g_p) - 0.5 * norm2({2, 3}));  // as it is: ||g_P||^2 - (k1 / r) ||g_S||^2
  const std::vector<double> sparse = {2, 3, 0};
  EXPECT_EQ(norm2(sparse) - (4.0 + 9.0) / 2, (1 - 1.0 / 2) * norm2(sparse));
}

// --------------------------------------------------------------------------------------------------- the blocked
// filter

IndexBuffer oracle_blocked(const ByteBuffer& bytes, uint64_t dimension) {
  const auto hashes = BlockedHashes::from(field<uint64_t>(bytes, 0), field<uint32_t>(bytes, 8));
  IndexBuffer known;
  for (uint32_t index = 0; index < dimension; ++index) {
    bool all = true;
    for (size_t w = 0; w < kBlockedWords; ++w) {
      const auto word = field<uint32_t>(bytes, 12 + 4 * (hashes.block(index) * kBlockedWords + w));
      all = all && (word >> hashes.bit(index, w) & 1) != 0;
    }
    if (all) known.push_back(index);
  }
  return known;
}

TEST(BlockedBloom, EveryInstructionSetDecodesTheSetThatTheEncoderReports) {
  for (const uint64_t dimension : {1, 1025, 20'011}) {
    for (const double rate : {0.5, 0.01, 1e-6}) {
      for (const double density : {0.0, 0.01, 1.0}) {
        const IndexBuffer indices = testing::uniform_indices(dimension, density, 3);
        const PolicyCoded first = policy_encoded(bloom_blocked_index_codec(), indices, dimension, rate);
        const IndexBuffer expected = oracle_blocked(first.bytes, dimension);
        EXPECT_TRUE(std::ranges::includes(expected, indices));
        testing::for_each_isa([&](const std::string& isa) {
          SCOPED_TRACE(isa);
          const PolicyCoded coded = policy_encoded(bloom_blocked_index_codec(), indices, dimension, rate);
          EXPECT_EQ(coded.bytes, first.bytes);
          EXPECT_EQ(coded.decoded, expected);
          IndexBuffer decoded;
          ASSERT_TRUE(bloom_blocked_index_codec().decode(coded.bytes, dimension, expected.size(), decoded));
          EXPECT_EQ(decoded, expected);
          EXPECT_FALSE(bloom_blocked_index_codec().decode(coded.bytes, dimension, expected.size() + 1, decoded));
        });
      }
    }
  }
}

TEST(BlockedBloom, FalsePositivesComeAtTheRate) {
  const uint64_t dimension = 1 << 20;
  for (const auto& indices :
       {testing::uniform_indices(dimension, 0.01, 8), testing::clustered_indices(dimension, 8000, 9)}) {
    for (const double rate : {0.1, 0.01, 0.001}) {
      double found = 0;
      double expected = 0;
      for (const uint64_t seed : {1, 2, 3}) {
        const PolicyCoded coded = policy_encoded(bloom_blocked_index_codec(), indices, dimension, rate, seed);
        found += static_cast<double>(coded.decoded.size() - indices.size());
        expected += static_cast<double>(dimension - indices.size()) * rate;
      }
      // Counting noise, and the variation of the fill of a few hundred blocks.
      EXPECT_NEAR(found, expected, 4.5 * std::sqrt(expected) + 0.06 * expected) << rate;
    }
  }
}

TEST(BlockedBloom, TruncatedOrAllOnesFilter_ErrorOrMemoryWithinTheCount) {
  const uint64_t dimension = 1 << 18;
  const IndexBuffer indices = testing::uniform_indices(dimension, 0.002, 4);
  PolicyCoded coded = policy_encoded(bloom_blocked_index_codec(), indices, dimension, 0.01);
  IndexBuffer decoded;
  for (size_t length = 0; length < coded.bytes.size(); ++length) {
    const ByteBuffer cut(coded.bytes.begin(), coded.bytes.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_FALSE(bloom_blocked_index_codec().decode(cut, dimension, coded.decoded.size(), decoded)) << length;
  }
  std::fill(coded.bytes.begin() + 12, coded.bytes.end(), 0xff);
  decoded = {};
  EXPECT_FALSE(bloom_blocked_index_codec().decode(coded.bytes, dimension, indices.size(), decoded));
  EXPECT_LE(decoded.capacity(), indices.size() + 2 * kBloomStrip);
}

}  // namespace
}  // namespace millrace
