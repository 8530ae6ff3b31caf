#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// Every allreduce of the registry, over ranks, sizes, spreads and codecs, against the oracle: the sum index by index
/// in f64.
namespace millrace::peer::testing {
namespace {

using Sums = std::map<uint32_t, double>;

void add_to(Sums& sums, const StreamView& stream, double sign = 1) {
  for (size_t i = 0; i < stream.values.size(); ++i) {
    const auto index = static_cast<uint32_t>(stream.dense ? i : stream.indices[i]);
    sums[index] += sign * static_cast<double>(stream.values[i]);
  }
}

Sums without_zeros(const Sums& sums) {
  Sums kept;
  for (const auto& [index, value] : sums) {
    if (value != 0) kept.emplace(index, value);
  }
  return kept;
}

/// Adds the entries of `own` that were not handed over.
void add_kept(Sums& sums, const AlgorithmInfo& info, const StreamView& own, const IndexBuffer& contributed) {
  if (info.result == ResultKind::kExactSum) return;
  Sums mine;
  add_to(mine, own);
  for (const uint32_t index : contributed) {
    ASSERT_TRUE(mine.contains(index)) << "index " << index << " is not of this rank";
    mine.erase(index);
  }
  for (const auto& [index, value] : mine) sums[index] += value;
}

struct Case {
  uint32_t size = 1;
  uint64_t dimension = 1;
  uint64_t count = 1;
  Spread spread = Spread::kUniform;
  uint64_t seed = 1;
  std::optional<CodecSpec> codec;
  bool dense = false;  ///< as contributions are given
  bool full = false;   ///< contributions are dense, and hardly a value is 0
  bool rest = false;   ///< something stays beside the contributions, which an index codec may add

  std::string text() const {
    return "ranks " + std::to_string(size) + ", n " + std::to_string(dimension) + ", count " + std::to_string(count) +
           ", " + std::string(name_of(spread)) + ", " + wire_text(codec) + (dense ? ", dense" : "") + ", seed " +
           std::to_string(seed);
  }
};

AllreduceSettings allreduce_grid_settings_of(const Case& one) {
  AllreduceSettings settings;
  settings.dimension = one.dimension;
  settings.k = std::clamp<uint64_t>(one.count, 1, one.dimension);
  settings.wire.contribution = one.codec;
  if (one.codec) settings.wire.sums = lossless_of(*one.codec);
  settings.thresholds_period = 2;
  settings.boundaries_period = 3;
  return settings;
}

/// A dense vector of grid values that is 0 where `own` has an entry.
SharedStream rest_beside(const StreamView& own, uint64_t seed) {
  RandomSequence draws(RandomKey::from(seed), 99);
  Stream rest;
  rest.dimension = own.dimension;
  rest.dense = true;
  rest.values.resize(own.dimension);
  for (float& value : rest.values) value = grid_value(draws);
  for (size_t i = 0; i < own.values.size(); ++i) rest.values[own.dense ? i : own.indices[i]] = 0;
  return SharedStream::from(std::move(rest));
}

/// Checks that the added entries are of the rest, with the rest's values.
void expect_of_rest(const StreamView& added, const StreamView& rest) {
  ASSERT_TRUE(added.count() == 0 || validate(added).has_value());
  ASSERT_TRUE(added.count() == 0 || rest.dimension != 0) << "added without a rest";
  for (size_t i = 0; i < added.values.size(); ++i) {
    ASSERT_NE(added.values[i], 0.0F);
    ASSERT_EQ(added.values[i], rest.values[added.indices[i]]) << "index " << added.indices[i];
  }
}

/// Entries of all steps and ranks.
struct GridCounts {
  uint64_t added = 0;
  uint64_t contributed = 0;
};

/// Steps of one allreduce: the same bits on all ranks, and the law of conservation, exactly.
void check_allreduce_grid(const AlgorithmInfo& info, const Case& one, int steps, GridCounts& counts) {
  SCOPED_TRACE(std::string(info.name) + ": " + one.text());
  PumpedAllreduce all(one.size, info.id, allreduce_grid_settings_of(one), one.seed);
  for (int step = 0; step < steps; ++step) {
    std::vector<SharedStream> own, rest;
    Sums entered;
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      own.push_back(contribution_of(one.spread, rank, one.size, one.dimension, one.count,
                                    one.seed * 100 + static_cast<uint64_t>(step)));
      if (one.full) own.back() = rest_beside(Stream::empty(one.dimension).view(), one.seed * 100 + rank);
      if (one.dense) own.back() = SharedStream::from(to_dense(own.back().view));
      add_to(entered, own.back().view);
      rest.push_back(one.rest ? rest_beside(own.back().view, one.seed + static_cast<uint64_t>(step)) : SharedStream{});
    }
    const std::vector<Result<Reduced>> results = all.step(own, rest);
    Sums accounted;
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      ASSERT_TRUE(results[rank].has_value()) << results[rank].error().message;
      const Reduced& mine = *results[rank];
      ASSERT_TRUE(validate(mine.sum.view).has_value());
      ASSERT_TRUE(millrace::testing::same_bits(mine.sum.view, results[0]->sum.view)) << "rank " << rank;
      if (rank == 0) add_to(accounted, mine.sum.view);
      add_to(accounted, mine.returned.view());
      add_kept(accounted, info, own[rank].view, mine.contributed);
      ASSERT_NO_FATAL_FAILURE(expect_of_rest(mine.added.view(), rest[rank].view));
      add_to(entered, mine.added.view());
      counts.added += mine.added.count();
      counts.contributed += mine.contributed.size();
    }
    ASSERT_EQ(without_zeros(accounted), without_zeros(entered));
    if (info.result == ResultKind::kExactSum && !one.codec) {
      Sums sum;
      add_to(sum, results[0]->sum.view);
      ASSERT_EQ(without_zeros(sum), without_zeros(entered));
    }
  }
}

void check_allreduce_grid(const AlgorithmInfo& info, const Case& one, int steps) {
  GridCounts counts;
  check_allreduce_grid(info, one, steps, counts);
}

class AllreduceGrid : public ::testing::TestWithParam<AlgorithmInfo> {};

TEST_P(AllreduceGrid, AllRanksHaveTheSameSumAndNothingIsLost) {
  for (uint32_t size = 1; size <= 9; ++size) {
    for (const Spread spread : kSpreads) {
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{40}}) {
        check_allreduce_grid(GetParam(), {size, 1000, count, spread, size * 10 + count, {}}, 5);
      }
    }
  }
}

TEST_P(AllreduceGrid, AwkwardDimensions) {
  for (const uint32_t size : {1u, 2u, 3u, 5u, 8u}) {
    for (const uint64_t dimension : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{65'537}}) {
      check_allreduce_grid(GetParam(), {size, dimension, std::min<uint64_t>(dimension, 300), Spread::kUniform, 7, {}},
                           2);
    }
  }
}

TEST_P(AllreduceGrid, SumsThatFillUpBecomeDense) {
  for (const uint32_t size : {2u, 4u, 7u})
    check_allreduce_grid(GetParam(), {size, 512, 300, Spread::kUniform, 3, {}}, 2);
}

TEST_P(AllreduceGrid, ClusteredEntries) {
  for (const uint32_t size : {2u, 3u, 6u})
    check_allreduce_grid(GetParam(), {size, 5000, 100, Spread::kClustered, 5, {}}, 3);
}

TEST_P(AllreduceGrid, LosslessCodecs) {
  for (const char* codec : {"gap+raw", "adaptive+raw", "bitmap+raw"}) {
    for (const uint32_t size : {2u, 5u}) {
      check_allreduce_grid(GetParam(), {size, 4096, 200, Spread::kClustered, 11, codec_from_text(codec).value()}, 3);
    }
  }
}

/// A codec changes a value to a number of few bits: the law still holds exactly.
TEST_P(AllreduceGrid, LossyCodecs) {
  for (const char* codec : {"gap+bf16", "bloom_p0+raw", "bloom_p2+bf16"}) {
    for (const uint32_t size : {1u, 2u, 5u, 6u}) {
      check_allreduce_grid(GetParam(), {size, 4096, 200, Spread::kClustered, 13, codec_from_text(codec).value()}, 3);
    }
  }
}

/// The entries that an index codec adds are of the rest, and the law includes them. This holds also for exact sums,
/// where nothing else is returned.
TEST_P(AllreduceGrid, CodecsThatAddEntriesOfTheRest) {
  const bool codes_sparse = !GetParam().dense_only && !GetParam().selects;
  for (const char* codec : {"bloom_p0:0.1", "bloom_p1:0.1+bf16", "bloom_p2:0.1", "bloom_blocked:0.1+bf16"}) {
    GridCounts counts;
    for (const uint32_t size : {1u, 2u, 3u, 6u}) {
      Case one{size, 2000, 100, Spread::kUniform, 23, codec_from_text(codec).value()};
      one.rest = true;
      ASSERT_NO_FATAL_FAILURE(check_allreduce_grid(GetParam(), one, 3, counts));
    }
    // Which algorithm `auto` tries out is the machine's matter.
    if (GetParam().id == AlgorithmId::kAuto) continue;
    EXPECT_EQ(counts.added > 0, codes_sparse) << codec;
  }
}

/// Algorithms that select by themselves add entries that they were given and did not select.
TEST_P(AllreduceGrid, CodecsThatAddEntriesThatWereNotSelected) {
  if (!GetParam().selects) GTEST_SKIP() << "it selects nothing";
  const auto contributed_with = [](const char* codec) {
    GridCounts counts;
    for (const uint32_t size : {2u, 3u, 6u}) {
      Case one{size, 2000, 100, Spread::kUniform, 29, codec_from_text(codec).value()};
      one.full = true;
      check_allreduce_grid(GetParam(), one, 3, counts);
    }
    return counts.contributed;
  };
  const uint64_t selected = contributed_with("gap");
  EXPECT_GT(contributed_with("bloom_p0:0.1"), selected);
  EXPECT_GT(contributed_with("bloom_blocked:0.1+bf16"), selected);
  EXPECT_GT(contributed_with("bloom_p1:0.1"), 0u);
  EXPECT_GT(contributed_with("bloom_p2:0.1+bf16"), 0u);
}

TEST_P(AllreduceGrid, DenseContributions) {
  for (const uint32_t size : {1u, 3u, 4u, 7u}) {
    for (const Spread spread : {Spread::kUniform, Spread::kDisjoint}) {
      check_allreduce_grid(GetParam(), {size, 2000, 100, spread, 17, {}, true}, 5);
      check_allreduce_grid(GetParam(), {size, 2000, 2000, spread, 19, {}, true}, 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllreduceGrid, ::testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace millrace::peer::testing
