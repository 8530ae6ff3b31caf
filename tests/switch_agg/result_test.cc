// The closing of a turn, and the contents of its result.
#include <gtest/gtest.h>

#include "kernels/base/random.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::kNoWindow;
using protocol::WindowIndexCodec;
using protocol::WindowValueCodec;
using Event = switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

Entries drawn(RandomSequence& random, uint32_t window_indices, uint64_t count, int shift) {
  Entries entries;
  for (uint64_t at = 0; at < count; ++at) {
    entries[static_cast<uint16_t>(random.next_below(window_indices))] =
        static_cast<int32_t>(random.next_u32()) >> shift;
  }
  return entries;
}

TEST(ResultTest, ManyTurnsMatchTheSumsOfAMapInRandomCodecsAndOrders) {
  SwitchRig rig({.workers = 4, .slots = 2, .window_indices = 1024, .slots_max = 4});
  rig.open();
  RandomSequence random(RandomKey::from(11));
  for (uint64_t turn = 1; turn < 150; ++turn) {
    Entries expected;
    std::vector<uint32_t> order = {0, 1, 2, 3};
    for (size_t at = 3; at > 0; --at) std::swap(order[at], order[random.next_below(at + 1)]);
    const int shift = random.next_below(2) == 0 ? 4 : 20;
    for (const uint32_t at : order) {
      const Entries entries = drawn(random, 1024, random.next_below(3) == 0 ? 0 : random.next_below(120), shift);
      MadeUpWorker::ContributionFields fields{
          .turn = turn, .step = static_cast<uint32_t>(turn - 1), .window_indices = 1024};
      fields.codecs.index = random.next_below(2) == 0 ? WindowIndexCodec::kGap : WindowIndexCodec::kRaw;
      for (const auto& [index, value] : entries) expected[index] += value;
      rig.give(at, entries.empty() ? rig.worker(at).empty(fields) : rig.worker(at).contribution(fields, entries));
    }
    for (uint32_t at = 0; at < 4; ++at) ASSERT_EQ(rig.result(at), expected) << "turn " << turn;
  }
  EXPECT_EQ(rig.counted(Event::kOmittedOverflow), 0);
}

TEST(ResultTest, SmallSumsGoAsSixteenBits) {
  SwitchRig rig;
  rig.open();
  rig.turn({}, {{{1, 32'000}, {200, -5}}, {{1, 767}}, {}});
  EXPECT_EQ(rig.only(0).header.value_codec, static_cast<uint8_t>(WindowValueCodec::kFixed16));
  EXPECT_EQ(rig.result(0), (Entries{{1, 32'767}, {200, -5}}));
  rig.turn({.turn = 2, .step = 1}, {{{1, 32'000}, {200, -5}}, {{1, 768}}, {}});
  EXPECT_EQ(rig.only(0).header.value_codec, static_cast<uint8_t>(WindowValueCodec::kFixed32));
  EXPECT_EQ(rig.result(0), (Entries{{1, 32'768}, {200, -5}}));
}

TEST(ResultTest, AllEmptyIsAVoidResultThatMovesOn) {
  SwitchRig rig;
  rig.open();
  rig.turn({.next = 6}, {{}, {}, {}});
  const Datagram result = rig.only(1);
  EXPECT_EQ(result.header.flags & (flag::kVoid | flag::kLast | flag::kFin), flag::kVoid | flag::kLast);
  EXPECT_EQ(result.header.entries, 0);
  EXPECT_EQ(result.header.next, 6);
  EXPECT_EQ(rig.counted(Event::kVoid), 1);
  // It is kept as any other.
  rig.give(1, rig.worker(1).empty({.next = 6}));
  EXPECT_EQ(rig.only(1).header.flags & flag::kVoid, flag::kVoid);
}

TEST(ResultTest, AResultIsFinOnlyIfAllWorkersAreDone) {
  SwitchRig rig;
  rig.open();
  rig.give(0, rig.worker(0).empty({.flags = flag::kFin}));
  rig.give(1, rig.worker(1).empty({.flags = flag::kFin}));
  rig.give(2, rig.worker(2).contribution({}, {{4, 1}}));
  EXPECT_EQ(rig.only(0).header.flags & flag::kFin, 0);
  for (uint32_t at = 0; at < 3; ++at) rig.give(at, rig.worker(at).empty({.turn = 2, .step = 1, .flags = flag::kFin}));
  EXPECT_EQ(rig.only(0).header.flags & (flag::kFin | flag::kVoid), flag::kFin | flag::kVoid);
}

TEST(ResultTest, AnOverflowOmitsItsIndexAndNothingElse) {
  SwitchRig rig;
  rig.open();
  constexpr int32_t kHeadroom = INT32_MAX / 3;
  rig.turn({}, {{{1, kHeadroom}, {2, kHeadroom + 1}, {3, 7}}, {{1, kHeadroom}}, {{1, kHeadroom}, {2, -9}}});
  EXPECT_EQ(rig.result(0), (Entries{{1, 3 * kHeadroom}, {3, 7}}));
  EXPECT_EQ(rig.counted(Event::kOmittedOverflow), 1);
  // Only a worker that names an index in several fragments can leave the range within the headroom.
  for (uint8_t fragment = 0; fragment < 4; ++fragment) {
    const uint8_t flags = fragment == 3 ? flag::kLast : uint8_t{0};
    rig.give(
        0, rig.worker(0).contribution({.turn = 2, .step = 1, .fragment = fragment, .flags = flags}, {{9, kHeadroom}}));
  }
  rig.give(1, rig.worker(1).empty({.turn = 2, .step = 1}));
  rig.give(2, rig.worker(2).contribution({.turn = 2, .step = 1}, {{8, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{8, 1}}));
}

TEST(ResultTest, AllOmittedIsVoid) {
  SwitchRig rig;
  rig.open();
  rig.turn({}, {{{2, INT32_MAX}}, {}, {}});
  EXPECT_NE(rig.only(0).header.flags & flag::kVoid, 0);
}

TEST(ResultTest, ManyFragmentsArriveWhole) {
  SwitchRig rig({.workers = 2, .slots = 1, .window_indices = 4096, .slots_max = 2});
  rig.open();
  RandomSequence random(RandomKey::from(2));
  Entries expected;
  const Entries entries = drawn(random, 4096, 1'500, 3);
  for (uint32_t at = 0; at < 2; ++at) {
    for (const auto& [index, value] : entries) expected[index] += value;
    rig.give(at, rig.worker(at).contribution({.window_indices = 4096}, entries));
  }
  const std::vector<Datagram> fragments = rig.heard(0);
  EXPECT_GT(fragments.size(), 2);
  for (size_t at = 0; at < fragments.size(); ++at) {
    EXPECT_EQ(fragments[at].header.fragment, at);
    EXPECT_EQ((fragments[at].header.flags & flag::kLast) != 0, at + 1 == fragments.size());
    EXPECT_LE(fragments[at].signed_bytes.size() + 16, 1472);
  }
  EXPECT_EQ(rig.result(0), expected);
  rig.give(0, rig.worker(0).contribution({.window_indices = 4096}, entries));
  EXPECT_EQ(rig.result(0), expected);
}

/// Workers drop longer packets. Without the limit each retransmission of the result is lost again.
TEST(ResultTest, AResultFitsItsJobsPacketsOnASwitchOfLongerOnes) {
  SwitchRig rig({.workers = 2,
                 .slots = 1,
                 .window_indices = 4096,
                 .packet_bytes_max = 8972,
                 .slots_max = 2,
                 .job_packet_bytes = 1472});
  rig.open();
  RandomSequence random(RandomKey::from(2));
  Entries expected;
  const Entries entries = drawn(random, 4096, 600, 3);  // some 3,000 bytes
  const MadeUpWorker::ContributionFields fields{.window_indices = 4096};
  for (uint32_t at = 0; at < 2; ++at) {
    for (const auto& [index, value] : entries) expected[index] += value;
    rig.give(at, rig.worker(at).contribution(fields, entries));
  }
  EXPECT_GT(rig.heard(0).size(), 1);
  for (const Sent& sent : rig.sent()) EXPECT_LE(sent.bytes.size(), 1472);
  EXPECT_EQ(rig.result(0), expected);
  rig.give(0, rig.worker(0).contribution(fields, entries));
  for (const Sent& sent : rig.sent()) EXPECT_LE(sent.bytes.size(), 1472);
  EXPECT_EQ(rig.result(0), expected);
}

TEST(ResultTest, WhatDoesNotFitSixteenFragmentsIsLeftOutElsewhereEachStep) {
  constexpr uint32_t kIndices = 8192;  // x 4 bytes is about twice what 16 packets hold
  SwitchRig rig({.workers = 1, .slots = 1, .window_indices = kIndices, .packet_bytes_max = 1200, .slots_max = 1});
  rig.open();
  Entries all;
  for (uint16_t index = 0; index < kIndices; ++index) all[index] = (index % 2 == 0 ? 1 : -1) * (1'000'000'000 - index);
  Entries before;
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    rig.since_now();
    for (uint8_t fragment = 0; fragment < 8; ++fragment) {
      const Entries part(all.lower_bound(static_cast<uint16_t>(fragment * 1024)),
                         all.lower_bound(static_cast<uint16_t>((fragment + 1) * 1024)));
      rig.give(0, rig.worker(0).contribution({.turn = turn,
                                              .step = static_cast<uint32_t>(turn - 1),
                                              .fragment = fragment,
                                              .flags = fragment == 7 ? flag::kLast : uint8_t{0},
                                              .window_indices = kIndices},
                                             part));
    }
    const Entries result = rig.result(0);
    EXPECT_EQ(rig.heard(0).size(), 16);
    EXPECT_GT(result.size(), all.size() / 3);
    EXPECT_EQ(result.size() + rig.counted(Event::kOmittedNoRoom), all.size());
    for (const auto& [index, value] : result) ASSERT_EQ(all.at(index), value);
    EXPECT_NE(before, result);
    before = result;
  }
}

TEST(ResultTest, ReselectionCutsAStepByTheOneBefore) {
  SwitchRig rig({.workers = 2, .slots = 2, .reselect_k = 3});
  rig.open();
  // Step 0, whole: 6 sums; the three largest are 64, 32, 16.
  rig.turn({}, {{{1, 32}, {2, 1}, {3, 16}}, {{1, 32}}});
  EXPECT_EQ(rig.result(0), (Entries{{1, 64}, {2, 1}, {3, 16}}));
  rig.turn({.window = 1, .slot = 1}, {{{1, 2}, {2, -32}}, {{9, 4}}});
  EXPECT_EQ(rig.result(0).size(), 3);
  // Step 1: sums below 16 are returned.
  rig.turn({.turn = 2, .step = 1}, {{{1, 10}, {2, -40}}, {{1, 5}, {7, 17}}});
  EXPECT_EQ(rig.result(1), (Entries{{2, -40}, {7, 17}}));
  EXPECT_EQ(rig.counted(Event::kReselected), 1);
  rig.turn({.turn = 2, .step = 1, .window = 1, .slot = 1}, {{{1, 3}}, {{1, 4}}});
  EXPECT_NE(rig.only(0).header.flags & flag::kVoid, 0);
}

TEST(ResultTest, WithoutRoomInTheSinkTheResultIsKept) {
  SwitchRig rig;
  rig.open();
  rig.give(0, rig.worker(0).contribution({}, {{1, 1}}));
  rig.give(1, rig.worker(1).contribution({}, {{1, 1}}));
  rig.sink().rooms_left = 1;
  rig.give(2, rig.worker(2).contribution({}, {{1, 1}}));
  EXPECT_EQ(rig.sent().size(), 1);
  EXPECT_EQ(rig.counted(Event::kNoRoom), 2);
  rig.sink().rooms_left = UINT64_MAX;
  rig.give(2, rig.worker(2).contribution({}, {{1, 1}}));
  EXPECT_EQ(rig.result(2), (Entries{{1, 3}}));
}

}  // namespace
}  // namespace millrace::testing
