#include "worker/peer/collectives/allgather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "kernels/base/bytes.h"
#include "tests/worker/peer/pump.h"

namespace millrace::peer::testing {
namespace {

constexpr uint32_t kAllgatherTag = 100;

/// Bytes that only this rank has.
Packet packet_of(uint32_t rank, uint64_t bytes) {
  ByteBuffer body(bytes);
  for (uint64_t i = 0; i < bytes; ++i) body[i] = static_cast<uint8_t>(i * 7 + rank);
  return {BodyForm::kContainer, SharedBytes::from(std::move(body))};
}

using Packets = std::vector<Packet>;

std::vector<Result<Packets>> gather_allgather(Pump& pump, AllgatherWay way, const std::vector<uint64_t>& bytes) {
  return run_on_all<Packets>(pump, "allgather", [&](uint32_t rank, Channel& channel) {
    return allgather(channel, packet_of(rank, bytes[rank]), kAllgatherTag, way);
  });
}

void expect_all(const std::vector<Result<Packets>>& results, const std::vector<uint64_t>& bytes) {
  for (uint32_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].has_value()) << "rank " << rank << ": " << results[rank].error().message;
    ASSERT_EQ(results[rank]->size(), results.size());
    for (uint32_t of = 0; of < results.size(); ++of) {
      const Packet& got = (*results[rank])[of];
      const Packet expected = packet_of(of, bytes[of]);
      EXPECT_EQ(got.form, expected.form);
      ASSERT_TRUE(std::ranges::equal(got.body.bytes, expected.body.bytes)) << "of rank " << of << " on rank " << rank;
      EXPECT_EQ(std::bit_cast<uintptr_t>(got.body.bytes.data()) % 8, 0u);
    }
  }
}

class AllgatherWays : public ::testing::TestWithParam<AllgatherWay> {};

TEST_P(AllgatherWays, EveryRankReceivesPacketsOfEveryLength) {
  for (uint32_t size = 1; size <= 17; ++size) {
    std::vector<uint64_t> small, mixed;
    for (uint32_t rank = 0; rank < size; ++rank) {
      small.push_back(rank * 5 % 11);
      mixed.push_back(rank % 3 == 1 ? kBundledBytesMax + rank : rank % 3 == 2 ? kBundledBytesMax - rank : 0);
    }
    for (const auto& bytes : {small, mixed}) {
      SCOPED_TRACE("ranks " + std::to_string(size));
      Pump pump(size, size);
      expect_all(gather_allgather(pump, GetParam(), bytes), bytes);
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<AllgatherWay>& way) {
  constexpr const char* const kNames[]{"doubling", "ring"};
  return kNames[static_cast<size_t>(way.param) - 1];
}

INSTANTIATE_TEST_SUITE_P(All, AllgatherWays, ::testing::Values(AllgatherWay::kDoubling, AllgatherWay::kRing), name_of);

TEST(Allgather, DoublingTakesAMessageARoundAndATableOfEightBytesAPacket) {
  for (const uint32_t size : {2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 33u}) {
    constexpr uint64_t kBytes = 800;
    Pump pump(size, 1);
    const std::vector<uint64_t> bytes(size, kBytes);
    expect_all(gather_allgather(pump, AllgatherWay::kDoubling, bytes), bytes);
    const auto rounds = static_cast<uint64_t>(std::bit_width(size - 1));
    EXPECT_EQ(pump.messages, rounds * size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_GE(pump.body_bytes[rank], (size - 1) * kBytes);
      EXPECT_LE(pump.body_bytes[rank], (size - 1) * (kBytes + 8));
    }
  }
}

TEST(Allgather, ALargeBodyIsPassedOnByItself) {
  constexpr uint32_t kSize = 8;
  Pump pump(kSize, 1);
  std::vector<uint64_t> bytes(kSize, 0);
  bytes[5] = kBundledBytesMax;
  expect_all(gather_allgather(pump, AllgatherWay::kDoubling, bytes), bytes);
  EXPECT_EQ(pump.messages, 3 * kSize + (kSize - 1));
  // Its owner does not send it to all members, but once in each round.
  EXPECT_EQ(pump.body_bytes[5], 3 * kBundledBytesMax + (kSize - 1) * 8);
}

TEST(Allgather, TheRingSendsTheBodiesAndNothingElse) {
  Pump pump(7, 1);
  const std::vector<uint64_t> bytes(7, 800);
  expect_all(gather_allgather(pump, AllgatherWay::kRing, bytes), bytes);
  EXPECT_EQ(pump.messages, 42u);
  for (const uint64_t sent : pump.body_bytes) EXPECT_EQ(sent, 4800u);
}

TEST(Allgather, NumbersOfAnyCount) {
  for (const uint32_t size : {1u, 2u, 5u, 8u}) {
    Pump pump(size, 3);
    using Numbers = std::vector<std::vector<uint64_t>>;
    const auto results = run_on_all<Numbers>(pump, "numbers", [](uint32_t rank, Channel& channel) {
      return allgather_numbers<uint64_t>(channel, std::vector<uint64_t>(rank % 3, rank), kAllgatherTag);
    });
    for (const auto& result : results) {
      ASSERT_TRUE(result.has_value());
      for (uint32_t rank = 0; rank < size; ++rank) EXPECT_EQ((*result)[rank], std::vector<uint64_t>(rank % 3, rank));
    }
  }
}

/// Rank 0 takes part; rank 2 sends it these bytes as its bundle of the second round of four.
Result<Packets> with_bundle(const ByteBuffer& bundle) {
  Pump pump(4, 1);
  return run_on_all<Packets>(pump, "allgather", [&](uint32_t rank, Channel& channel) -> Task<Result<Packets>> {
    if (rank != 2) return allgather(channel, packet_of(rank, 16), kAllgatherTag, AllgatherWay::kDoubling);
    const auto hostile = [](Channel& to, ByteBuffer bytes) -> Task<Result<Packets>> {
      ByteBuffer first;
      ByteWriter(first).put(uint64_t{3} << 56);
      to.send(3, kAllgatherTag, {BodyForm::kNumbers, SharedBytes::from(std::move(first))});
      to.send(0, kAllgatherTag + 1, {BodyForm::kNumbers, SharedBytes::from(std::move(bytes))});
      co_return Packets{};
    };
    return hostile(channel, bundle);
  })[0];
}

TEST(Allgather, ABundleThatIsNotOneIsAnError) {
  ByteBuffer good;
  ByteWriter out(good);
  for (int i = 0; i < 2; ++i) out.put(uint64_t{3} << 56 | 12);
  for (int i = 0; i < 4; ++i) out.put(uint64_t{0});
  EXPECT_TRUE(with_bundle(good).has_value());
  for (size_t length = 0; length < good.size(); ++length) {
    const Result<Packets> cut = with_bundle(ByteBuffer(good.begin(), good.begin() + static_cast<ptrdiff_t>(length)));
    ASSERT_FALSE(cut.has_value()) << length;
    EXPECT_EQ(cut.error().code, ErrorCode::kMalformed);
  }
  ByteBuffer longer = good;
  longer.push_back(0);
  EXPECT_FALSE(with_bundle(longer).has_value());
  ByteBuffer unknown_form = good;
  unknown_form[7] = 9;
  EXPECT_FALSE(with_bundle(unknown_form).has_value());
}

}  // namespace
}  // namespace millrace::peer::testing
