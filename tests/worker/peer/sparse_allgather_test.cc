#include "worker/peer/collectives/sparse_allgather.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

namespace millrace::peer::testing {
namespace {

std::vector<Result<Gathered>> gather_sparse_allgather(Pump& pump, const SparseAllgatherSettings& settings,
                                                      const std::vector<SharedStream>& own) {
  return run_on_all<Gathered>(pump, description_of(settings), [&](uint32_t rank, Channel& channel) {
    return sparse_allgather(channel, own[rank], settings);
  });
}

std::vector<SharedStream> owned(uint32_t size, uint64_t dimension) {
  std::vector<SharedStream> own;
  // Of other counts, none at all and dense ones among them.
  for (uint32_t rank = 0; rank < size; ++rank) {
    own.push_back(contribution_of(Spread::kDisjoint, rank, size, dimension, rank % 4 * 10, 3));
    if (rank % 5 == 4) own.back() = SharedStream::from(to_dense(own.back().view));
  }
  return own;
}

TEST(SparseAllgather, EveryRankHasEveryStream) {
  for (uint32_t size = 1; size <= 9; ++size) {
    for (const bool coded : {false, true}) {
      SparseAllgatherSettings settings;
      settings.dimension = 1'000;
      if (coded) settings.codec = codec_from_text("gap+raw").value();
      Pump pump(size, size);
      const auto own = owned(size, settings.dimension);
      for (const auto& result : gather_sparse_allgather(pump, settings, own)) {
        ASSERT_TRUE(result.has_value()) << result.error().message;
        ASSERT_EQ(result->streams.size(), size);
        EXPECT_EQ(result->returned.count(), 0u);
        for (uint32_t rank = 0; rank < size; ++rank) {
          EXPECT_TRUE(millrace::testing::same_bits(result->streams[rank].view, own[rank].view));
        }
      }
      EXPECT_EQ(pump.messages, size == 1 ? 0u : size * static_cast<uint64_t>(std::bit_width(size - 1)));
    }
  }
}

TEST(SparseAllgather, ASenderOfLossyBytesUsesTheirDecodedValuesItself) {
  constexpr uint32_t kSize = 5;
  SparseAllgatherSettings settings;
  settings.dimension = 1'000;
  settings.codec = codec_from_text("gap+qsgd4").value();
  Pump pump(kSize, 1);
  const auto own = owned(kSize, settings.dimension);
  const auto results = gather_sparse_allgather(pump, settings, own);
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    ASSERT_TRUE(results[rank].has_value());
    for (uint32_t of = 0; of < kSize; ++of) {
      EXPECT_TRUE(millrace::testing::same_bits(results[rank]->streams[of].view, results[0]->streams[of].view));
    }
    const Stream sent = millrace::to_dense(results[0]->streams[rank].view);
    const Stream back = millrace::to_dense(results[rank]->returned.view());
    const Stream whole = millrace::to_dense(own[rank].view);
    for (size_t i = 0; i < settings.dimension; ++i) {
      EXPECT_NEAR(sent.values[i] + back.values[i], whole.values[i], std::ldexp(16.0, -22));
    }
  }
}

TEST(SparseAllgather, AnotherDimensionIsRefused) {
  SparseAllgatherSettings settings;
  settings.dimension = 1'001;
  Pump pump(2, 1);
  for (const auto& result : gather_sparse_allgather(pump, settings, owned(2, 1'000))) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::peer::testing
