// The history of indices, and the code against it: by the definition of protocol/wire/history.md, for late comers, on
// hostile bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/history/history_code.h"
#include "kernels/codec/history/history_ranks.h"
#include "tests/support/index_sets.h"
#include "tests/support/isa.h"
#include "tests/support/update_log.h"

namespace millrace {
namespace {

using testing::IndexSet;

ByteBuffer history_encoded(const IndexHistory& history, IndexSpan indices) {
  ByteBuffer bytes;
  history_encode(history, indices, bytes);
  return bytes;
}

/// By class, then by index.
IndexBuffer order_of(const std::vector<uint32_t>& classes) {
  IndexBuffer order(classes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](uint32_t index) { return classes[index]; });
  return order;
}

TEST(IndexHistory, ClassesAreAsDocumentedAndRanksFollowThem) {
  constexpr uint64_t kDimension = 9'001;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 300, 1);
  IndexHistory history(kDimension);
  for (uint64_t position = 0; position < log.size(); ++position) {
    if (position % 37 == 0 || position % 32 <= 1) {
      const IndexBuffer order = order_of(testing::classes_after(log, position, kDimension));
      IndexBuffer all(kDimension);
      std::iota(all.begin(), all.end(), 0u);
      testing::for_each_isa([&](const std::string& isa) {
        IndexBuffer back(kDimension + kHistorySlack);
        IndexBuffer ranks(kDimension);
        history_ranks(history.view(), all, ranks.data());
        EXPECT_EQ(ranks, all) << "all entries have all ranks; step " << position << " on " << isa;
        for (const uint32_t rank : {0u, 17u, 4'000u, static_cast<uint32_t>(kDimension - 1)}) {
          const IndexBuffer one{rank, 0xffffffffu};
          history_indices(history.view(), one.data(), 1, back.data());
          ASSERT_EQ(back[0], order[rank]) << "step " << position << " on " << isa;
          history_ranks(history.view(), IndexSpan(&order[rank], 1), ranks.data());
          ASSERT_EQ(ranks[0], rank) << "step " << position << " on " << isa;
        }
      });
    }
    history.advance(log[position]);
  }
}

TEST(IndexHistory, RanksOfAnySetAreThoseOfItsEntries) {
  constexpr uint64_t kDimension = 40'000;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 130, 2);
  const IndexHistory history = testing::history_after(log, log.size(), kDimension);
  const IndexBuffer order = order_of(testing::classes_after(log, log.size(), kDimension));
  std::vector<uint32_t> rank_of(kDimension);
  for (uint32_t rank = 0; rank < kDimension; ++rank) rank_of[order[rank]] = rank;
  for (const IndexSet& set : testing::random_index_sets(kDimension, 4)) {
    IndexBuffer expected;
    for (const uint32_t index : set.indices) expected.push_back(rank_of[index]);
    std::ranges::sort(expected);
    testing::for_each_isa([&](const std::string& isa) {
      IndexBuffer ranks(set.indices.size());
      history_ranks(history.view(), set.indices, ranks.data());
      ASSERT_EQ(ranks, expected) << set.name << " on " << isa;
      ranks.push_back(0xffffffffu);
      IndexBuffer back(set.indices.size() + kHistorySlack);
      history_indices(history.view(), ranks.data(), set.indices.size(), back.data());
      back.resize(set.indices.size());
      ASSERT_EQ(back, set.indices) << set.name << " on " << isa;
    });
  }
}

TEST(IndexHistory, AHistoryOfAllTheLogIsCompleteFromItsBeginning) {
  const std::vector<IndexBuffer> log = testing::update_log(500, 70, 3);
  IndexHistory history(500);
  EXPECT_TRUE(history.complete());
  for (const IndexBuffer& indices : log) {
    history.advance(indices);
    EXPECT_TRUE(history.complete());
  }
  EXPECT_EQ(history.position(), log.size());
}

TEST(IndexHistory, ALateHistoryEqualsTheFullOneAfterSixWholePeriods) {
  constexpr uint64_t kDimension = 3'000;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 600, 4);
  for (const uint64_t joins : {1, 31, 32, 33, 100, 127, 200}) {
    SCOPED_TRACE(joins);
    IndexHistory always = testing::history_after(log, joins, kDimension);
    IndexHistory late(kDimension, joins);
    const uint64_t complete_at = (joins + 31) / 32 * 32 + 6 * 32;
    for (uint64_t step = joins; step < log.size(); ++step) {
      ASSERT_EQ(late.complete(), step >= complete_at) << step;
      if (late.complete()) {
        ASSERT_EQ(late.name(), always.name()) << step;
        if (step % 29 == 0) {
          ASSERT_EQ(history_encoded(late, log[step]), history_encoded(always, log[step])) << step;
        }
      }
      late.advance(log[step]);
      always.advance(log[step]);
    }
  }
}

TEST(IndexHistory, ARestartedHistoryEqualsTheFullOneOnceComplete) {
  constexpr uint64_t kDimension = 1'000;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 400, 5);
  IndexHistory always = testing::history_after(log, 150, kDimension);
  IndexHistory gap = testing::history_after(log, 90, kDimension);
  gap.restart(150);  // a snapshot in place of the steps between
  EXPECT_FALSE(gap.complete());
  for (uint64_t step = 150; step < 352; ++step) {
    gap.advance(log[step]);
    always.advance(log[step]);
  }
  ASSERT_TRUE(gap.complete());
  EXPECT_EQ(gap.name(), always.name());
  EXPECT_EQ(history_encoded(gap, log[352]), history_encoded(always, log[352]));
}

TEST(IndexHistory, NamesTellDimensionPositionAndEveryUpdateThatMatters) {
  constexpr uint64_t kDimension = 1'000;
  std::vector<IndexBuffer> log = testing::update_log(kDimension, 257, 6);
  const uint64_t name = testing::history_after(log, 256, kDimension).name();
  EXPECT_NE(testing::history_after(log, 255, kDimension).name(), name);
  EXPECT_NE(testing::history_after(log, 257, kDimension).name(), name);
  EXPECT_NE(testing::history_after(log, 256, kDimension + 1).name(), name);
  for (uint64_t step = 0; step < 256; ++step) {
    std::vector<IndexBuffer> other = log;
    other[step].erase(other[step].begin());
    const bool matters = step >= 64;  // in period 8 with nothing yet, those of periods 2 to 7
    ASSERT_EQ(testing::history_after(other, 256, kDimension).name() != name, matters) << step;
  }
  // The same entries in another order of updates, or of two updates in one.
  std::swap(log[250], log[251]);
  EXPECT_NE(testing::history_after(log, 256, kDimension).name(), name);
}

TEST(HistoryCode, DecodesTheEncodedSetOnEveryInstructionSet) {
  std::vector<IndexSet> sets = testing::awkward_index_sets(1 << 20);
  for (IndexSet& set : testing::random_index_sets(50'000, 11)) sets.push_back(std::move(set));
  for (const IndexSet& set : sets) {
    const std::vector<IndexBuffer> log = testing::update_log(set.dimension, 40, 7);
    for (const uint64_t position : {0, 5, 40}) {
      const IndexHistory history = testing::history_after(log, position, set.dimension);
      ByteBuffer first;
      testing::for_each_isa([&](const std::string& isa) {
        SCOPED_TRACE(set.name + " on " + isa);
        const ByteBuffer bytes = history_encoded(history, set.indices);
        if (first.empty()) first = bytes;
        EXPECT_EQ(bytes, first) << "instruction sets disagree about the bytes";
        IndexBuffer decoded;
        const Status status = history_decode(bytes, history, set.indices.size(), decoded);
        ASSERT_TRUE(status) << status.error().message;
        EXPECT_EQ(decoded, set.indices);
      });
    }
  }
}

TEST(HistoryCode, WithoutUpdatesItIsTheNameAndTheAdaptiveCode) {
  const IndexSet set{"", 10'000, testing::clustered_indices(10'000, 900, 8)};
  const IndexHistory history(set.dimension);
  ByteBuffer expected;
  ByteWriter(expected).put(history.name());
  ASSERT_TRUE(adaptive_index_codec().encode(set.indices, set.dimension, {}, expected, nullptr));
  EXPECT_EQ(history_encoded(history, set.indices), expected);
}

TEST(HistoryCode, BytesAreAsDocumented) {
  // Entries 2 and 5 are of class 4, 9 of class 5.
  // The order is 0 1 3 4 6 7 8 10 11 12 13 14 15, then 2 5, then 9.
  IndexHistory history(16);
  history.advance(IndexBuffer{2, 9});
  history.advance(IndexBuffer{5, 9});
  const IndexBuffer indices{5, 6, 9};
  const ByteBuffer bytes = history_encoded(history, indices);
  EXPECT_EQ(bytes, (ByteBuffer{0x26, 0xac, 0xb2, 0x9c, 0x9b, 0x1a, 0x73, 0xb9, 0x83, 0x80, 0x27, 0x5f}));
  ByteBuffer ranks;
  ASSERT_TRUE(adaptive_index_codec().encode(IndexBuffer{4, 14, 15}, 16, {}, ranks, nullptr));
  EXPECT_TRUE(std::ranges::equal(ranks, ByteSpan(bytes).subspan(kHistoryNameBytes)));
}

TEST(HistoryCode, LargeDimensionsAreWalkedInGroups) {
  constexpr uint64_t kDimension = (uint64_t{1} << 24) + 5;
  IndexHistory history(kDimension);
  const IndexBuffer indices{0, 63, 64, 4'095, 4'096, 8'000'000, 16'777'216, 16'777'220};
  history.advance(IndexBuffer{64, 4'095, 12'000'000});
  history.advance(IndexBuffer{4'095, 16'777'220});
  testing::for_each_isa([&](const std::string& isa) {
    IndexBuffer decoded;
    ASSERT_TRUE(history_decode(history_encoded(history, indices), history, indices.size(), decoded)) << isa;
    EXPECT_EQ(decoded, indices) << isa;
  });
}

TEST(HistoryCode, ACodeOfAnotherHistoryIsRefusedAsStale) {
  constexpr uint64_t kDimension = 2'000;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 300, 9);
  const IndexHistory history = testing::history_after(log, 100, kDimension);
  const ByteBuffer bytes = history_encoded(history, log[100]);
  std::vector<IndexBuffer> changed = log;
  changed[99].pop_back();
  const std::array others = {testing::history_after(log, 99, kDimension),
                             testing::history_after(log, 101, kDimension),
                             testing::history_after(changed, 100, kDimension),
                             IndexHistory(kDimension),
                             IndexHistory(kDimension, 100),
                             testing::history_after(log, 100, kDimension + 64)};
  for (const IndexHistory& other : others) {
    IndexBuffer decoded;
    const Status status = history_decode(bytes, other, log[100].size(), decoded);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kStale);
    EXPECT_TRUE(decoded.empty());
  }
  IndexBuffer decoded;
  EXPECT_TRUE(history_decode(bytes, history, log[100].size(), decoded));
}

/// Anything that is accepted must be a strictly increasing set of the right size.
void expect_error_or_valid_history(const IndexHistory& history, ByteSpan bytes, uint64_t count) {
  const ByteBuffer exact(bytes.begin(), bytes.end());  // so that a sanitizer sees a read behind the end
  IndexBuffer decoded;
  const Status status = history_decode(exact, history, count, decoded);
  if (!status) {
    EXPECT_TRUE(status.error().code == ErrorCode::kMalformed || status.error().code == ErrorCode::kStale);
    return;
  }
  ASSERT_EQ(decoded.size(), count);
  for (size_t j = 1; j < decoded.size(); ++j) ASSERT_LT(decoded[j - 1], decoded[j]);
  if (count > 0) {
    ASSERT_LT(decoded.back(), history.dimension());
  }
}

TEST(HistoryCode, TruncatedOrCorruptBytes_AnErrorOrAValidSet) {
  constexpr uint64_t kDimension = 3'000;
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 50, 10);
  const IndexHistory history = testing::history_after(log, 49, kDimension);
  for (const uint64_t wanted : {1, 100, 256, 600}) {
    const IndexBuffer indices = testing::clustered_indices(kDimension, wanted, wanted);
    const ByteBuffer bytes = history_encoded(history, indices);
    IndexBuffer decoded;
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(history_decode(ByteSpan(bytes).first(length), history, indices.size(), decoded)) << length;
    }
    ByteBuffer longer = bytes;
    longer.push_back(0);
    EXPECT_FALSE(history_decode(longer, history, indices.size(), decoded));
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const uint32_t flip : {0x01, 0x10, 0x80, 0xff}) {
        ByteBuffer broken = bytes;
        broken[at] = static_cast<uint8_t>(broken[at] ^ flip);
        if (at < kHistoryNameBytes) {
          const Status status = history_decode(broken, history, indices.size(), decoded);
          ASSERT_FALSE(status);
          EXPECT_EQ(status.error().code, ErrorCode::kStale);
        } else {
          expect_error_or_valid_history(history, broken, indices.size());
        }
      }
    }
  }
}

TEST(HistoryCode, RandomBytesAreAnErrorOrAValidSetAndLargeClaimsTakeNoMemory) {
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE(kSeed);
  RandomSequence random(RandomKey::from(kSeed));
  for (int round = 0; round < 600; ++round) {
    const uint64_t dimension = 1 + random.next_below(round % 2 == 0 ? 200 : 20'000);
    const std::vector<IndexBuffer> log = testing::update_log(dimension, 3, kSeed + static_cast<uint64_t>(round));
    const IndexHistory history = testing::history_after(log, log.size(), dimension);
    ByteBuffer bytes;
    ByteWriter writer(bytes);
    writer.put(history.name());
    for (uint64_t left = random.next_below(300); left > 0; --left) {
      writer.put(static_cast<uint8_t>(random.next_u32() & (round % 3 == 0 ? 0xffu : 0x11u)));
    }
    expect_error_or_valid_history(history, bytes, random.next_below(400));
    IndexBuffer decoded;
    EXPECT_FALSE(history_decode(bytes, history, uint64_t{1} << 40, decoded));
    EXPECT_LE(decoded.capacity(), 1024u);
  }
}

TEST(HistoryCode, TakesFewerBitsThanAdaptiveWhereSelectionsRecur) {
  constexpr uint64_t kDimension = 100'000;
  // One entry in twenty is selected often, and lies anywhere: gaps say nothing of which.
  RandomSequence random(RandomKey::from(13));
  std::vector<uint8_t> often(kDimension);
  for (uint8_t& entry : often) entry = random.next_below(20) == 0 ? 1 : 0;
  const auto draw = [&] {
    IndexBuffer indices;
    for (uint32_t i = 0; i < kDimension; ++i) {
      if (random.next_below(often[i] != 0 ? 5 : 500) == 0) indices.push_back(i);
    }
    return indices;
  };
  IndexHistory history(kDimension);
  for (int step = 0; step < 60; ++step) history.advance(draw());
  const IndexBuffer indices = draw();
  ByteBuffer alone;
  ASSERT_TRUE(adaptive_index_codec().encode(indices, kDimension, {}, alone, nullptr));
  EXPECT_LT(static_cast<double>(history_encoded(history, indices).size()), 0.8 * static_cast<double>(alone.size()));
}

}  // namespace
}  // namespace millrace
