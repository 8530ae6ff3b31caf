#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/support/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// Every allreduce of the registry, over ranks, sizes, spreads and codecs, against the oracle: the sum index by index in f64.
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

/// What of `own` was not handed over.
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

/// Steps of one allreduce: the same bits on all ranks, and the law of conservation, exactly.
void check_allreduce_grid(const AlgorithmInfo& info, const Case& one, int steps) {
  SCOPED_TRACE(std::string(info.name) + ": " + one.text());
  PumpedAllreduce all(one.size, info.id, allreduce_grid_settings_of(one), one.seed);
  for (int step = 0; step < steps; ++step) {
    std::vector<HeldStream> own;
    Sums entered;
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      own.push_back(contribution_of(one.spread, rank, one.size, one.dimension, one.count,
                                    one.seed * 100 + static_cast<uint64_t>(step)));
      if (one.dense) own.back() = HeldStream::from(to_dense(own.back().view));
      add_to(entered, own.back().view);
    }
    const std::vector<Result<Reduced>> results = all.step(own);
    Sums accounted;
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      ASSERT_TRUE(results[rank].has_value()) << results[rank].error().message;
      const Reduced& mine = *results[rank];
      ASSERT_TRUE(validate(mine.sum.view).has_value());
      ASSERT_TRUE(millrace::testing::same_bits(mine.sum.view, results[0]->sum.view)) << "rank " << rank;
      if (rank == 0) add_to(accounted, mine.sum.view);
      add_to(accounted, mine.returned.view());
      add_kept(accounted, info, own[rank].view, mine.contributed);
    }
    ASSERT_EQ(without_zeros(accounted), without_zeros(entered));
    if (info.result == ResultKind::kExactSum && !one.codec) {
      Sums sum;
      add_to(sum, results[0]->sum.view);
      ASSERT_EQ(without_zeros(sum), without_zeros(entered));
    }
  }
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

/// What a codec changes is a number of few bits: the law still holds exactly.
TEST_P(AllreduceGrid, LossyCodecs) {
  for (const char* codec : {"gap+bf16", "bloom_p0+raw", "bloom_p2+bf16"}) {
    for (const uint32_t size : {1u, 2u, 5u, 6u}) {
      check_allreduce_grid(GetParam(), {size, 4096, 200, Spread::kClustered, 13, codec_from_text(codec).value()}, 3);
    }
  }
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
