#include "worker/peer/collectives/result_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/random.h"

/// Dense results of sparse pieces, one after the other in the same memory, against vectors that are filled from the
/// start.
namespace millrace::peer::testing {
namespace {

constexpr uint32_t kResultMemoryRanks = 2;

Piece piece_of(Stream stream, Checked entries = Checked::kNo) {
  return {SharedStream::from(std::move(stream)), entries};
}

Stream result_memory_drawn(RandomSequence& draws, uint64_t dimension, uint64_t count) {
  std::map<uint32_t, float> entries;
  while (entries.size() < count) {
    const auto index = static_cast<uint32_t>(draws.next_below(dimension));
    entries[index] = static_cast<float>(draws.next_below(100)) + 1;
  }
  Stream stream = Stream::empty(dimension);
  for (const auto& [index, value] : entries) {
    stream.indices.push_back(index);
    stream.values.push_back(value);
  }
  return stream;
}

std::vector<float> slow_sum(std::span<const Piece> pieces, float neutral) {
  std::vector<float> all;
  for (const Piece& piece : pieces) {
    const StreamView& view = piece.stream.view;
    const size_t base = all.size();
    all.resize(base + view.dimension, neutral);
    for (size_t i = 0; i < view.values.size(); ++i) all[base + view.indices[i]] = view.values[i];
  }
  return all;
}

std::vector<float> result_values(const SharedStream& held) {
  EXPECT_TRUE(held.view.dense);
  return {held.view.values.begin(), held.view.values.end()};
}

TEST(ResultMemory, ScatteredPiecesEqualAFreshlyFilledVector) {
  // Few entries and many, blocks without any, other dimensions and neutral elements in between.
  RandomSequence draws(RandomKey::from(9));
  ResultMemory memory;
  for (int step = 0; step < 300; ++step) {
    const uint64_t dimension = step % 50 == 49 ? 70'000 : 100'000;
    const uint64_t part = dimension / 4 + draws.next_below(dimension / 4);
    ReduceOp op = draws.next_below(10) == 0 ? max_op() : sum_op();
    std::vector<Piece> pieces;
    for (const uint64_t width : {part, dimension - part}) {
      const uint64_t count = draws.next_below(4) == 0 ? 0 : draws.next_below(width / (step % 7 == 0 ? 3 : 100));
      pieces.push_back(piece_of(result_memory_drawn(draws, width, count)));
    }
    const auto held = memory.share_scattered(op, pieces, kResultMemoryRanks);
    ASSERT_TRUE(held.has_value());
    ASSERT_EQ(result_values(*held), slow_sum(pieces, op.neutral)) << "step " << step;
    if (step % 11 == 0) {
      // Another kind of result between them: its remains are unknown.
      Stream dense = memory.take_dense(dimension);
      std::ranges::fill(dense.values, 7.0F);
      static_cast<void>(memory.hold(std::move(dense), kResultMemoryRanks));
    }
  }
}

TEST(ResultMemory, AResultInUseIsNotOverwritten) {
  RandomSequence draws(RandomKey::from(10));
  ResultMemory memory;
  const std::vector first{piece_of(result_memory_drawn(draws, 1'000, 10))},
      second{piece_of(result_memory_drawn(draws, 1'000, 10))};
  const auto held = memory.share_scattered(sum_op(), std::span<const Piece>(first), kResultMemoryRanks);
  const auto later = memory.share_scattered(sum_op(), std::span<const Piece>(second), kResultMemoryRanks);
  EXPECT_EQ(result_values(*held), slow_sum(first, 0));
  EXPECT_EQ(result_values(*later), slow_sum(second, 0));
}

TEST(ResultMemory, TheMemoryOfAnUnusedResultIsReused) {
  RandomSequence draws(RandomKey::from(11));
  ResultMemory memory;
  const std::vector pieces{piece_of(result_memory_drawn(draws, 1'000, 10))};
  const float* const first =
      memory.share_scattered(sum_op(), std::span<const Piece>(pieces), kResultMemoryRanks)->view.values.data();
  EXPECT_EQ(memory.share_scattered(sum_op(), std::span<const Piece>(pieces), kResultMemoryRanks)->view.values.data(),
            first);
}

TEST(ResultMemory, HostilePiecesAreRefusedAndTheNextResultIsRight) {
  RandomSequence draws(RandomKey::from(12));
  ResultMemory memory;
  const std::vector good{piece_of(result_memory_drawn(draws, 1'000, 10))};
  static_cast<void>(memory.share_scattered(sum_op(), std::span<const Piece>(good), kResultMemoryRanks));
  Stream outside = Stream::empty(1'000), infinite = outside;
  outside.indices = {5, 1'000};
  outside.values = {1, 2};
  infinite.indices = {5};
  infinite.values = {std::numeric_limits<float>::infinity()};
  for (const auto& [bad, code] : {std::pair{outside, ErrorCode::kMalformed}, {infinite, ErrorCode::kNonFinite}}) {
    const std::vector pieces{piece_of(bad)};
    const auto held = memory.share_scattered(sum_op(), std::span<const Piece>(pieces), kResultMemoryRanks);
    ASSERT_FALSE(held.has_value());
    EXPECT_EQ(held.error().code, code);
  }
  const std::vector next{piece_of(result_memory_drawn(draws, 1'000, 10))};
  const auto held = memory.share_scattered(sum_op(), std::span<const Piece>(next), kResultMemoryRanks);
  EXPECT_EQ(result_values(*held), slow_sum(next, 0));
}

}  // namespace
}  // namespace millrace::peer::testing
