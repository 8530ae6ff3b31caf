#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// Bytes of bodies that each rank sends, counted, against the bounds of the papers ([SparCML19, 5.3];
/// [RedSync19, appendix A]).
namespace millrace::peer::testing {
namespace {

constexpr uint32_t kVolumeSizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 16, 33};
constexpr uint64_t kSlice = 420;
constexpr uint64_t kEntries = 150;  ///< of a rank: fewer than would make a slice dense
constexpr uint64_t kValue = sizeof(float);
constexpr uint64_t kPair = sizeof(float) + sizeof(uint32_t);

constexpr uint64_t dense_bytes(uint32_t size) { return size * kSlice * kValue; }

struct Counted {
  std::vector<uint64_t> sent;   ///< by rank
  std::vector<uint64_t> count;  ///< entries of its contribution, by rank
  uint64_t messages = 0;
  uint64_t sum_count = 0;  ///< of the result
  bool sum_dense = false;

  uint64_t sent_in_all() const { return std::accumulate(sent.begin(), sent.end(), uint64_t{0}); }
  uint64_t sent_max() const { return std::ranges::max(sent); }
  uint64_t count_in_all() const { return std::accumulate(count.begin(), count.end(), uint64_t{0}); }
};

Counted count(AlgorithmId id, uint32_t size, Spread spread, uint64_t entries) {
  AllreduceSettings settings;
  settings.dimension = size * kSlice;
  PumpedAllreduce all(size, id, settings, size);
  std::vector<SharedStream> own;
  Counted counted;
  for (uint32_t rank = 0; rank < size; ++rank) {
    own.push_back(contribution_of(spread, rank, size, settings.dimension, entries, 17));
    counted.count.push_back(own.back().view.count());
  }
  const auto results = all.step(own);
  for (const auto& result : results) EXPECT_TRUE(result.has_value());
  counted.sent = all.pump.body_bytes;
  counted.messages = all.pump.messages;
  counted.sum_count = results[0]->sum.view.count();
  counted.sum_dense = results[0]->sum.view.dense;
  return counted;
}

/// Bruck's and doubling's own bytes: 8 for each packet that a rank passes on, and what pads it.
uint64_t table_max(uint32_t size) { return 16 * uint64_t{size - 1}; }

class Volume : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Volume, ::testing::ValuesIn(kVolumeSizes));

TEST_P(Volume, AllIndicesEqual_SsarSplitAllgatherReachesItsLowerBound) {
  const uint32_t size = GetParam();
  const Counted counted = count(AlgorithmId::kSsarSplitAllgather, size, Spread::kSame, kEntries);
  const uint64_t k = counted.count[0];
  ASSERT_EQ(counted.sum_count, k);
  // 2 (P - 1) / P k pairs a rank; how they lie among the slices is chance, over all ranks it is exact.
  EXPECT_GE(counted.sent_in_all(), 2 * (size - 1) * k * kPair);
  EXPECT_LE(counted.sent_in_all(), 2 * (size - 1) * k * kPair + size * table_max(size));
}

TEST_P(Volume, SsarSplitAllgatherKeepsItsUpperBound) {
  const uint32_t size = GetParam();
  for (const Spread spread : kSpreads) {
    // P k pairs a rank: where the slices are not alike, over all ranks.
    const Counted counted = count(AlgorithmId::kSsarSplitAllgather, size, spread, kEntries);
    SCOPED_TRACE(name_of(spread));
    EXPECT_LE(counted.sent_in_all(), size * (counted.count_in_all() * kPair + table_max(size)));
  }
  // Without overlap, each rank's entries in its own slice: nothing to split, everything to gather.
  const Counted disjoint = count(AlgorithmId::kSsarSplitAllgather, size, Spread::kDisjoint, kEntries);
  EXPECT_EQ(disjoint.sum_count, disjoint.count_in_all());
  EXPECT_GE(disjoint.sent_in_all(), (size - 1) * disjoint.count_in_all() * kPair);
  EXPECT_LE(disjoint.sent_max(), (size - 1) * kEntries * kPair + table_max(size));
}

TEST_P(Volume, SplitAllgathersSendPMinusOneMessagesAndARound) {
  const uint32_t size = GetParam();
  for (const AlgorithmId id : {AlgorithmId::kSsarSplitAllgather, AlgorithmId::kDsarSplitAllgather}) {
    const Counted counted = count(id, size, Spread::kUniform, kEntries);
    EXPECT_EQ(counted.messages, size * (size - 1 + static_cast<uint64_t>(std::bit_width(size - 1))));
  }
}

TEST_P(Volume, DsarSendsItsEntriesAndItsDenseSlices) {
  const uint32_t size = GetParam();
  const Counted counted = count(AlgorithmId::kDsarSplitAllgather, size, Spread::kUniform, size * kSlice / 2);
  const uint64_t gathered = (size - 1) * kSlice * kValue;
  ASSERT_TRUE(counted.sum_dense);
  for (uint32_t rank = 0; rank < size; ++rank) {
    EXPECT_GE(counted.sent[rank], gathered);
    EXPECT_LE(counted.sent[rank], counted.count[rank] * kPair + gathered + table_max(size));
  }
}

TEST_P(Volume, SparseRingSendsEachSliceAroundTwice) {
  const uint32_t size = GetParam();
  const Counted same = count(AlgorithmId::kSparseRing, size, Spread::kSame, kEntries);
  EXPECT_EQ(same.sent_in_all(), 2 * (size - 1) * same.count[0] * kPair);
  EXPECT_EQ(same.messages, 2 * size * (size - 1));
  for (const Spread spread : kSpreads) {
    const Counted full = count(AlgorithmId::kSparseRing, size, spread, size * kSlice / 2);
    EXPECT_LE(full.sent_max(), 2 * (size - 1) * kSlice * kValue) << name_of(spread);
  }
}

TEST_P(Volume, RedsyncAllgatherSendsEverybodysEntries) {
  const uint32_t size = GetParam();
  const Counted counted = count(AlgorithmId::kRedsyncAllgather, size, Spread::kUniform, kEntries);
  for (uint32_t rank = 0; rank < size; ++rank) {
    EXPECT_GE(counted.sent[rank], (size - 1) * kEntries * kPair);
    EXPECT_LE(counted.sent[rank], (size - 1) * kEntries * kPair + table_max(size));
  }
  EXPECT_EQ(counted.messages, size * static_cast<uint64_t>(std::bit_width(size - 1)));
}

TEST_P(Volume, SsarRecursiveDoublingStaysBetweenItsBounds) {
  const uint32_t size = GetParam();
  const auto rounds = static_cast<uint64_t>(std::bit_width(size) - 1);
  const Counted same = count(AlgorithmId::kSsarRecursiveDoubling, size, Spread::kSame, kEntries);
  const Counted disjoint = count(AlgorithmId::kSsarRecursiveDoubling, size, Spread::kDisjoint, kEntries);
  const bool folds = !std::has_single_bit(size);
  EXPECT_GE(same.sent_max(), rounds * same.count[0] * kPair);
  EXPECT_LE(same.sent_max(), (rounds + (folds ? 1 : 0)) * same.count[0] * kPair);
  // Where ranks fold, partners have up to twice as much, and one gets the whole sum back.
  const uint64_t pairs = folds ? 2 * (std::bit_floor(size) - 1) + size : size - 1;
  EXPECT_LE(disjoint.sent_max(), pairs * kEntries * kPair);
}

TEST_P(Volume, DenseBaselines) {
  const uint32_t size = GetParam();
  const auto rounds = static_cast<uint64_t>(std::bit_width(size) - 1);
  const uint64_t folds = std::has_single_bit(size) ? 0 : 1;
  const uint64_t optimal = 2 * (size - 1) * kSlice * kValue;
  const Counted ring = count(AlgorithmId::kDenseRing, size, Spread::kUniform, 10);
  EXPECT_EQ(ring.sent, std::vector<uint64_t>(size, optimal));
  const Counted doubling = count(AlgorithmId::kDenseRecursiveDoubling, size, Spread::kUniform, 10);
  EXPECT_EQ(doubling.sent_max(), (rounds + folds) * dense_bytes(size));
  const Counted halving = count(AlgorithmId::kDenseRabenseifner, size, Spread::kUniform, 10);
  // [Thakur05]: where ranks fold, the whole result goes back.
  const uint64_t paired = std::bit_floor(size);
  EXPECT_LE(halving.sent_max(),
            2 * (paired - 1) * dense_bytes(size) / paired + folds * dense_bytes(size) + table_max(size));
}

TEST(SliceForms, OneSliceThatFillsUpTravelsDenseAndTheSumStaysSparse) {
  constexpr uint32_t kSize = 4;
  constexpr uint64_t kFull = 1024;
  AllreduceSettings settings;
  settings.dimension = kSize * kFull;
  for (const AlgorithmId id : {AlgorithmId::kSsarSplitAllgather, AlgorithmId::kSparseRing}) {
    PumpedAllreduce all(kSize, id, settings, 1);
    std::vector<SharedStream> own;
    // Together they have all of slice 1; each has a quarter of it.
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      Stream stream = Stream::empty(settings.dimension);
      for (uint64_t i = rank; i < kFull; i += kSize) {
        stream.indices.push_back(static_cast<uint32_t>(kFull + i));
        stream.values.push_back(1);
      }
      own.push_back(SharedStream::from(std::move(stream)));
    }
    const auto results = all.step(own);
    for (const auto& result : results) {
      ASSERT_TRUE(result.has_value());
      EXPECT_FALSE(result->sum.view.dense);
      EXPECT_EQ(result->sum.view.count(), kFull);
    }
    const uint64_t gathered = (kSize - 1) * kFull * sizeof(float);
    const uint64_t sent = std::accumulate(all.pump.body_bytes.begin(), all.pump.body_bytes.end(), uint64_t{0});
    if (id == AlgorithmId::kSsarSplitAllgather) {
      EXPECT_EQ(sent, (kSize - 1) * kFull / kSize * kPair + gathered + kSize * (kSize - 1) * 8);
    } else {
      // Of the partial sums of 256, 512 and 768 entries the last one is smaller as a dense slice.
      EXPECT_EQ(sent, (256 + 512) * kPair + kFull * sizeof(float) + gathered);
    }
  }
}

}  // namespace
}  // namespace millrace::peer::testing
