#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"
#include "worker/peer/collectives/integer_collectives.h"
#include "worker/peer/oktopk/oktopk_gather.h"
#include "worker/peer/oktopk/oktopk_regions.h"
#include "worker/peer/oktopk/oktopk_threshold.h"

/// The parts of Ok-Topk, each by itself: sums of numbers, the global threshold, regions, and the balanced gathering.
namespace millrace::peer::testing {
namespace {

constexpr uint32_t kOktopkPartsTag = 7;

TEST(NumberSum, OfAnyRanksAndCounts) {
  for (uint32_t size = 1; size <= 17; ++size) {
    for (const size_t count : {0u, 1u, 3u, 40u}) {
      SCOPED_TRACE("ranks " + std::to_string(size) + ", numbers " + std::to_string(count));
      Pump pump(size, size);
      const auto number = [](uint64_t rank, uint64_t at) { return (rank + 1) * 0x1000'0000'0000 + at * rank; };
      const auto results = run_on_all<std::vector<uint64_t>>(pump, "sum", [&](uint32_t rank, Channel& channel) {
        std::vector<uint64_t> own;
        for (size_t i = 0; i < count; ++i) own.push_back(number(rank, i));
        return sum_numbers(channel, std::move(own), kOktopkPartsTag);
      });
      std::vector<uint64_t> expected(count, 0);
      for (uint32_t rank = 0; rank < size; ++rank) {
        for (size_t i = 0; i < count; ++i) expected[i] += number(rank, i);
      }
      for (const auto& result : results) {
        ASSERT_TRUE(result.has_value()) << result.error().message;
        EXPECT_EQ(*result, expected);
      }
    }
  }
}

TEST(NumberSum, GatheringIsByRank) {
  for (uint32_t size = 1; size <= 17; ++size) {
    Pump pump(size, size);
    const auto results = run_on_all<std::vector<uint32_t>>(pump, "gather", [](uint32_t rank, Channel& channel) {
      std::vector<uint32_t> own{rank, rank * rank};
      return gather_numbers(channel, std::move(own), kOktopkPartsTag);
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.has_value()) << result.error().message;
      ASSERT_EQ(result->size(), 2 * size);
      for (uint32_t rank = 0; rank < size; ++rank) {
        EXPECT_EQ((*result)[2 * rank], rank);
        EXPECT_EQ((*result)[2 * rank + 1], rank * rank);
      }
    }
    for (const uint64_t bytes : pump.body_bytes) EXPECT_EQ(bytes, 2 * sizeof(uint32_t) * (size - 1));
  }
}

TEST(NumberSum, AnotherCountIsAnErrorOnAllRanks) {
  Pump pump(4, 1);
  const auto results = run_on_all<std::vector<uint64_t>>(pump, "sum", [](uint32_t rank, Channel& channel) {
    std::vector<uint64_t> own(rank == 2 ? 5 : 8, 1);
    return sum_numbers(channel, std::move(own), kOktopkPartsTag);
  });
  for (const auto& result : results) EXPECT_FALSE(result.has_value());
}

void expect_kth(uint32_t size, uint64_t each, uint64_t k, uint64_t distinct) {
  SCOPED_TRACE("ranks " + std::to_string(size) + ", each " + std::to_string(each) + ", k " + std::to_string(k) +
               ", of " + std::to_string(distinct) + " magnitudes");
  std::vector<std::vector<float>> values(size);
  std::vector<float> all;
  RandomSequence draws(RandomKey::from(size * 1000 + each + k), 0);
  for (uint32_t rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < each * (rank % 3); ++i) {
      const float value = static_cast<float>(draws.next_below(distinct)) * 0.37F;
      values[rank].push_back(draws.next_below(2) == 0 ? value : -value);
      if (value != 0) all.push_back(value);
    }
  }
  std::ranges::sort(all, std::greater{});
  const MagnitudeKey expected = all.size() <= k ? 1 : magnitude_key(all[k - 1]);
  Pump pump(size, 1);
  const auto results = run_on_all<MagnitudeKey>(pump, "threshold", [&](uint32_t rank, Channel& channel) {
    return kth_largest_of_all(channel, values[rank], k, kOktopkPartsTag);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(*result, expected);
  }
}

TEST(GlobalThreshold, IsThatOfAllSumsSorted) {
  for (const uint32_t size : {1u, 2u, 3u, 7u, 8u}) {
    for (const uint64_t k : {1u, 5u, 100u, 3000u}) {
      for (const uint64_t distinct : {2u, 10u, 1'000'000u}) {
        expect_kth(size, 400, k, distinct);
        expect_kth(size, 100, k, distinct);
      }
    }
  }
}

std::vector<IndexBuffer> indices_of(Spread spread, uint32_t size, uint64_t dimension, uint64_t count) {
  std::vector<IndexBuffer> indices;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const SharedStream own = contribution_of(spread, rank, size, dimension, count, 5);
    indices.emplace_back(own.view.indices.begin(), own.view.indices.end());
  }
  return indices;
}

void expect_shares(const std::vector<IndexBuffer>& indices, uint64_t dimension) {
  const auto size = static_cast<uint32_t>(indices.size());
  Pump pump(size, 3);
  const auto results = run_on_all<Regions>(pump, "regions", [&](uint32_t rank, Channel& channel) {
    return pooled_regions(channel, indices[rank], dimension, kOktopkPartsTag);
  });
  double total = 0;
  for (const IndexBuffer& one : indices) total += static_cast<double>(one.size());
  for (const auto& result : results) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(result->boundaries, results[0]->boundaries);
    EXPECT_EQ(result->owner, results[0]->owner);
    ASSERT_EQ(result->boundaries.front(), 0u);
    ASSERT_EQ(result->boundaries.back(), dimension);
    ASSERT_TRUE(std::ranges::is_sorted(result->boundaries));
    for (uint32_t rank = 0; rank < size; ++rank) EXPECT_EQ(result->owner[result->region[rank]], rank);
  }
  for (uint32_t region = 0; region < size; ++region) {
    size_t held = 0;
    for (const IndexBuffer& one : indices) {
      const auto [first, last] = range_of(one, results[0]->boundaries[region], results[0]->boundaries[region + 1]);
      held += last - first;
    }
    EXPECT_LE(static_cast<double>(held), total / size * (1 + 1.0 / 16) + size + 1) << "region " << region;
  }
}

TEST(PooledRegions, AreLikeSharesWhereverTheEntriesLie) {
  for (const uint32_t size : {1u, 2u, 3u, 5u, 8u, 16u, 33u, 64u}) {
    for (const Spread spread : kSpreads) {
      for (const uint64_t dimension : {uint64_t{100'000}, kDimensionMax}) {
        SCOPED_TRACE("ranks " + std::to_string(size) + ", " + std::string(name_of(spread)) + ", n " +
                     std::to_string(dimension));
        expect_shares(indices_of(spread, size, dimension, 500), dimension);
      }
    }
  }
}

TEST(PooledRegions, RegionsAreBalancedWithAllEntriesOnOneRankOrNone) {
  std::vector<IndexBuffer> indices(7);
  expect_shares(indices, 1000);
  for (uint32_t i = 0; i < 700; ++i) indices[3].push_back(90'000 + i);
  expect_shares(indices, 100'000);
  std::vector<IndexBuffer> same(9, IndexBuffer{77});
  expect_shares(same, 100'000);
}

TEST(PooledRegions, RanksThatLieApartGetTheRegionOfTheirOwn) {
  for (const uint32_t size : {2u, 5u, 16u}) {
    std::vector<IndexBuffer> indices = indices_of(Spread::kDisjoint, size, 100'000, 300);
    std::ranges::reverse(indices);
    Pump pump(size, 3);
    const auto results = run_on_all<Regions>(pump, "regions", [&](uint32_t rank, Channel& channel) {
      return pooled_regions(channel, indices[rank], 100'000, kOktopkPartsTag);
    });
    for (uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(results[rank].has_value());
      EXPECT_EQ(results[rank]->region[rank], size - 1 - rank);
    }
  }
}

TEST(AveragedRegions, AreTheMeanOfTheRanksBoundaries) {
  const std::vector<IndexBuffer> indices{{0, 10, 20, 30}, {}, {100, 110, 120, 130}};
  Pump pump(3, 3);
  const auto results = run_on_all<Regions>(pump, "regions", [&](uint32_t rank, Channel& channel) {
    return averaged_regions(channel, indices[rank], 1000, kOktopkPartsTag);
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(result->boundaries, (std::vector<uint64_t>{0, 60, 70, 1000}));
  }
}

/// Gathers regions with `counts` entries, and checks the result, the sent and the received entries of all ranks.
void expect_gathered(const std::vector<uint64_t>& counts, const std::optional<CodecSpec>& codec) {
  const auto size = static_cast<uint32_t>(counts.size());
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  Regions regions;
  regions.boundaries.push_back(0);
  for (uint32_t region = 0; region < size; ++region) {
    regions.boundaries.push_back(regions.boundaries.back() + 2 * counts[region]);
    regions.owner.push_back((region + 1) % size);
    regions.region.push_back((region + size - 1) % size);
  }
  AllreduceSettings settings;
  settings.dimension = 2 * total + 1;
  settings.wire.sums = codec;
  std::vector<Stream> own(size, Stream::empty(settings.dimension));
  for (uint64_t i = 0, region = 0; i < total; ++i) {
    while (2 * i >= regions.boundaries[region + 1]) ++region;
    own[region].indices.push_back(static_cast<uint32_t>(2 * i));
    own[region].values.push_back(static_cast<float>(i + 1));
  }
  const GatherPlan plan = plan_gather(counts, 4);
  Pump pump(size, 11);
  const auto results = run_on_all<Stream>(pump, "gather", [&](uint32_t rank, Channel& channel) {
    return gather_by_plan(channel, settings, plan, regions, own[regions.region[rank]].view(), kOktopkPartsTag);
  });
  for (uint32_t rank = 0; rank < size; ++rank) {
    ASSERT_TRUE(results[rank].has_value()) << results[rank].error().message;
    ASSERT_EQ(results[rank]->count(), total);
    for (uint64_t i = 0; i < total; ++i) {
      ASSERT_EQ(results[rank]->indices[i], 2 * i);
      ASSERT_EQ(results[rank]->values[i], static_cast<float>(i + 1));
    }
    if (codec || size == 1) continue;
    // Entries, of 8 bytes; where shares do not come out even one more for each other rank.
    const uint64_t sent = size == 2 ? total : 2 * total - 3 * total / size;
    EXPECT_LE(pump.body_bytes[rank] / 8, sent + size) << "rank " << rank;
    EXPECT_LE(pump.body_bytes_received[rank] / 8, total + size) << "rank " << rank;
  }
}

TEST(GatherPlan, EveryRankGetsAllWithinTheBoundForAnyRegionSizes) {
  const CodecSpec codec = codec_from_text("gap+raw").value();
  for (const uint32_t size : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 13u, 16u, 31u, 64u}) {
    const uint64_t total = 12 * size;
    for (uint32_t at = 0; at < size; at += std::max(1u, size / 3)) {
      SCOPED_TRACE("ranks " + std::to_string(size) + ", region " + std::to_string(at));
      std::vector<uint64_t> counts(size, 0);
      expect_gathered(counts, {});
      counts[at] = total;
      expect_gathered(counts, {});
      expect_gathered(counts, codec);
      // Nearly all in one region: both sides of what excuses its rank.
      for (const uint64_t others : {1u, 5u, 11u, 12u, 13u}) {
        std::vector<uint64_t> nearly = counts;
        for (uint64_t i = 0; i < others; ++i) {
          ++nearly[(at + 1 + i * 5) % size];
          --nearly[at];
        }
        expect_gathered(nearly, {});
        expect_gathered(nearly, codec);
      }
      // A quarter of the ranks has four shares each: not balanced by the largest alone.
      std::vector<uint64_t> quarter(size, 0);
      for (uint32_t i = 0; i < std::max(1u, size / 4); ++i) quarter[(at + i) % size] = 48;
      expect_gathered(quarter, {});
    }
  }
}

TEST(GatherPlan, RandomRegions) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSequence draws(RandomKey::from(seed), 0);
    std::vector<uint64_t> counts(1 + draws.next_below(20));
    for (uint64_t& count : counts) count = draws.next_below(3) == 0 ? draws.next_below(200) : draws.next_below(10);
    expect_gathered(counts, {});
  }
}

TEST(GatherPlan, LikeRegionsStayWhereTheyAre) {
  const std::vector<uint64_t> counts{90, 110, 100, 105, 95};
  const GatherPlan plan = plan_gather(counts, 4);
  EXPECT_EQ(plan.boundaries, plan.starts);
  EXPECT_FALSE(plan.excused.has_value());
  const GatherPlan strict = plan_gather(counts, 1.05);
  EXPECT_EQ(strict.boundaries, (std::vector<uint64_t>{0, 100, 200, 300, 400, 500}));
}

TEST(GatherPlan, AnInfiniteRatioNeverBalances) {
  const std::vector<uint64_t> counts{0, 0, 1000, 0, 0};
  EXPECT_NE(plan_gather(counts, 1000).boundaries, plan_gather(counts, 1000).starts)
      << "a rank would send more than the bound";
  const GatherPlan plan = plan_gather(counts, std::numeric_limits<double>::infinity());
  EXPECT_EQ(plan.boundaries, plan.starts);
  EXPECT_FALSE(plan.excused.has_value());
}

}  // namespace
}  // namespace millrace::peer::testing
