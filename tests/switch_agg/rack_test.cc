// A rack's switch in front of a shard: the packets that go up and their times, and those that the shard takes (S7).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/switch_agg/made_up_rack.h"
#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using Event = switch_agg::AggregatorEvent;
using protocol::Datagram;
using protocol::DatagramType;
using protocol::PartialTerms;
namespace flag = protocol::datagram_flag;

PartialTerms terms_of(const Datagram& partial) { return *protocol::read_partial_terms(partial.extension); }
bool is_group(const Datagram& partial) { return terms_of(partial).hash != 0; }

class Rack : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(rig_.open()); }
  RackRig rig_;
};

TEST_F(Rack, ASumGoesUpOnceAllAreInAndTheResultGoesToAll) {
  rig_.to_rack(0, {}, {{1, 5}, {9, 2}});
  EXPECT_TRUE(rig_.partials().empty());
  rig_.to_rack(1, {}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_EQ(entries_of(partials[0], 256), (Entries{{1, 12}, {9, 2}}));
  EXPECT_EQ(terms_of(partials[0]).have, 3);
  EXPECT_EQ(terms_of(partials[0]).last, 0);
  EXPECT_TRUE(is_group(partials[0]));
  EXPECT_EQ(partials[0].header.flags, flag::kLast);
  rig_.to_shard(2, {}, {{1, 100}});
  for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_EQ(rig_.told(worker), (Entries{{1, 112}, {9, 2}}));
}

TEST_F(Rack, AllFragmentsOfAllMustBeIn) {
  rig_.to_rack(0, {.fragment = 1, .flags = flag::kLast}, {{9, 2}});
  rig_.to_rack(1, {}, {{1, 7}});
  EXPECT_TRUE(rig_.partials().empty());
  rig_.to_rack(0, {.fragment = 0, .flags = 0}, {{1, 5}});
  EXPECT_EQ(rig_.partials().size(), 1);
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 1);
}

TEST_F(Rack, NotifiesItsWorkersOfTheirLostPackets) {
  (void)rig_.at_rack(0).contribution({}, {{1, 5}});
  for (int i = 0; i < 2; ++i) rig_.to_rack(0, {.slot = 1}, {});
  EXPECT_EQ(rig_.counted_at_rack(Event::kLossNotices), 0);
  for (int i = 0; i < 3; ++i) rig_.to_rack(0, {.slot = 1}, {});
  EXPECT_EQ(rig_.counted_at_rack(Event::kLossNotices), 1);
  EXPECT_EQ(rig_.counted_at_shard(Event::kLossNotices), 0);
}

TEST_F(Rack, NoticesOfLossGoWhereTheLatestHelloCameFrom) {
  const protocol::Endpoint moved = rig_.at_rack(1).endpoint();
  KeepingSink sink;
  const auto give = [&](ByteSpan packet) { rig_.rack().receive({.bytes = packet, .from = moved}, rig_.now, sink); };
  give(rig_.at_rack(0).hello({.live = 7, .positions = {}}));
  (void)rig_.at_rack(0).contribution({}, {{1, 5}});
  sink.sent.clear();
  for (int i = 0; i < 5; ++i) give(rig_.at_rack(0).empty({.slot = 1}));
  EXPECT_EQ(rig_.counted_at_rack(Event::kLossNotices), 1);
  EXPECT_EQ(std::ranges::count(sink.sent, moved, &Sent::to), 1);
}

TEST_F(Rack, NextIsTheLeastAndFinWhatAllSay) {
  rig_.to_rack(0, {.next = 4}, {});
  rig_.to_rack(1, {.next = 2}, {});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_EQ(partials[0].header.next, 2);
  EXPECT_EQ(partials[0].header.flags, flag::kLast | flag::kEmpty);
}

TEST_F(Rack, AFlushDropsTheSumAndLaterFragmentsAreForwardedRaw) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(0, {}, {{1, 5}});  // the first time-out's
  EXPECT_TRUE(rig_.partials().empty());
  EXPECT_EQ(rig_.counted_at_rack(Event::kDuplicate), 1);
  rig_.to_rack(0, {.flags = flag::kLast | flag::kFlush}, {{1, 5}});
  EXPECT_EQ(rig_.counted_at_rack(Event::kFlushed), 1);
  rig_.to_rack(1, {}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 2);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    EXPECT_FALSE(is_group(partials[worker]));
    EXPECT_EQ(terms_of(partials[worker]).have, 1 << worker);
    EXPECT_EQ(terms_of(partials[worker]).last, 1 << worker);
    EXPECT_EQ(partials[worker].header.flags & flag::kFlush, 0);
  }
  rig_.to_shard(2, {}, {{1, 100}});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 112}}));
}

TEST_F(Rack, AFlushThatCompletesTheSumSendsIt) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {.flags = flag::kLast | flag::kFlush}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_TRUE(is_group(partials[0]));
}

TEST_F(Rack, ADuplicateRetransmitsThePartialOncePerGapAndIsNamed) {
  rig_.lost = [](const Datagram& datagram) { return datagram.header.type == DatagramType::kPartial; };
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.partials();
  rig_.to_rack(0, {}, {{1, 5}});
  EXPECT_TRUE(rig_.partials().empty()) << "within the gap";
  rig_.now += kNsPerMs;
  rig_.lost = [](const Datagram&) { return false; };
  rig_.to_rack(1, {}, {{1, 7}});
  const auto again = rig_.partials();
  ASSERT_EQ(again.size(), 1);
  EXPECT_EQ(terms_of(again[0]).last, 3);
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 1);
}

TEST_F(Rack, AllThatAskWithinTheGapAreAnsweredByOneMore) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.partials();
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.tick_rack();
  EXPECT_TRUE(rig_.partials().empty());
  rig_.now += kNsPerMs;
  rig_.tick_rack();
  const auto again = rig_.partials();
  ASSERT_EQ(again.size(), 1);
  EXPECT_EQ(terms_of(again[0]).last, 3);
  rig_.now += kNsPerMs;
  rig_.tick_rack();
  EXPECT_TRUE(rig_.partials().empty()) << "no worker has asked since";
}

TEST_F(Rack, AGroupGoesUpAgainNoSoonerThanAnAnswerTakes) {
  constexpr TimeNs kTurn = 5 * kNsPerMs;
  for (const uint64_t turn : {1, 2}) {
    for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {.turn = turn}, {{1, 5}});
    rig_.to_shard(2, {.turn = turn}, {{1, 1}});
    rig_.now += turn == 1 ? kTurn : 0;
  }
  rig_.partials();
  rig_.now += kTurn - 1;
  rig_.to_rack(0, {.turn = 2}, {{1, 5}});
  EXPECT_TRUE(rig_.partials().empty()) << "the turn before took as long";
  rig_.now += 1;
  rig_.tick_rack();
  EXPECT_EQ(rig_.partials().size(), 1);
}

TEST_F(Rack, APartThatTheShardLacksGoesUpAgainAlone) {
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {}, {{1, 5}});
  rig_.to_shard(2, {}, {{1, 1}});
  rig_.lost = [](const Datagram& datagram) { return datagram.header.type == DatagramType::kPartial; };
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {.turn = 2, .step = 1}, {{1, 5}});
  rig_.lost = [](const Datagram&) { return false; };
  rig_.partials();
  // Late units of the turn before, raw.
  for (int i = 0; i < 2; ++i) rig_.to_rack(0, {}, {{1, 5}});
  EXPECT_EQ(rig_.partials().size(), 2);
  EXPECT_EQ(rig_.counted_at_shard(Event::kLossNotices), 0);
  rig_.to_rack(0, {}, {{1, 5}});
  EXPECT_EQ(rig_.counted_at_shard(Event::kLossNotices), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kPartAgain), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kGroupAgain), 0);
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 2);
  rig_.to_shard(2, {.turn = 2, .step = 1}, {{1, 1}});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 11}}));
}

TEST_F(Rack, ALostPartialOfAPastTurnIsNotRetransmitted) {
  rig_.lost = [](const Datagram& datagram) { return datagram.header.type == DatagramType::kPartial; };
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {}, {{1, 5}});
  rig_.lost = [](const Datagram&) { return false; };
  // Units past the rack closed the turn.
  for (const uint32_t worker : {0u, 1u}) rig_.to_shard(worker, {}, {{1, 5}});
  rig_.to_shard(2, {}, {{1, 1}});
  rig_.to_rack(0, {.turn = 2, .step = 1}, {{1, 5}});
  for (int i = 0; i < 3; ++i) rig_.to_rack(0, {}, {{1, 5}});
  EXPECT_EQ(rig_.counted_at_shard(Event::kLossNotices), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kPartAgain), 0);
}

TEST_F(Rack, APartialLostBeforeTheLeaseExpiredIsNotRetransmitted) {
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {}, {{1, 5}});
  rig_.to_shard(2, {}, {{1, 1}});
  ByteBuffer late;
  rig_.lost = [&](const Datagram& datagram) {
    if (datagram.header.type != DatagramType::kNotice) return late.empty() && datagram.header.turn == 2;
    late.assign(datagram.signed_bytes.data(),
                datagram.signed_bytes.data() + datagram.signed_bytes.size() + protocol::kDatagramMacBytes);
    return true;
  };
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {.turn = 2, .step = 1}, {{1, 5}});
  for (int i = 0; i < 3; ++i) rig_.to_rack(0, {}, {{1, 5}});
  ASSERT_FALSE(late.empty());
  rig_.now += 3600 * kNsPerS;
  rig_.tick_rack();
  ASSERT_EQ(rig_.counted_at_rack(Event::kLeaseExpired), 1);
  rig_.give_rack(late);
  EXPECT_EQ(rig_.counted_at_rack(Event::kReplay) + rig_.counted_at_rack(Event::kBadMac), 0);
  EXPECT_EQ(rig_.counted_at_rack(Event::kPartAgain), 0);
}

/// Epoch, members and turns of a job that begins again may be those of the job before.
TEST_F(Rack, WhatAnotherProcessSentBeforeIsInNoSum) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.to_rack(0, {.window = 1, .slot = 1}, {{3, 100}});
  rig_.partials();
  rig_.lost = [](const Datagram&) { return true; };
  ASSERT_NO_FATAL_FAILURE(rig_.shake_hands_with_rack());
  rig_.greet_rack(1, 7);
  rig_.now += kNsPerS;
  rig_.to_rack(0, {}, {{1, 50}});
  EXPECT_TRUE(rig_.partials().empty()) << "the group of the turn before is gone";
  rig_.to_rack(1, {}, {{1, 70}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_EQ(entries_of(partials[0], 256), (Entries{{1, 120}}));
  rig_.to_rack(1, {.window = 1, .slot = 1}, {{3, 1}});
  EXPECT_TRUE(rig_.partials().empty()) << "worker 0's half of before is gone too";
}

TEST_F(Rack, CountsThePartialsThatItSends) {
  rig_.to_rack(0, {}, {{1, 5}, {9, 2}});
  rig_.to_rack(1, {}, {{1, 7}});
  const auto partials = rig_.partials();
  EXPECT_EQ(rig_.counted_at_rack(Event::kSentUp), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kSentUpBytes), partials[0].signed_bytes.size() + protocol::kDatagramMacBytes);
  EXPECT_EQ(rig_.counted_at_rack(Event::kEntriesSelected), 2);
  EXPECT_EQ(rig_.counted_at_rack(Event::kEntriesNotSelected), 0);
  const switch_agg::RackStatus status = *rig_.rack().status().front().rack;
  EXPECT_EQ(status.uplink, switch_agg::RackUplink::kWelcome);
  EXPECT_EQ(status.in_flight, 1);
  EXPECT_EQ(status.gathering, 0);
  EXPECT_EQ(rig_.rack().status().front().slots_in_use, 0);
  EXPECT_FALSE(rig_.shard().status().front().rack.has_value());
  rig_.to_shard(2, {}, {{1, 1}});
  rig_.to_rack(0, {.turn = 2}, {{1, 5}});
  EXPECT_EQ(rig_.rack().status().front().rack->gathering, 1);
  EXPECT_EQ(rig_.rack().status().front().slots_in_use, 1);
  EXPECT_EQ(rig_.rack().status().front().rack->in_flight, 0);
}

TEST_F(Rack, WithFlushTheUnitGoesUpBesideTheGroup) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.partials();
  rig_.now += kNsPerMs;
  rig_.to_rack(0, {.flags = flag::kLast | flag::kFlush}, {{1, 5}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 2);
  EXPECT_TRUE(is_group(partials[0]));
  EXPECT_FALSE(is_group(partials[1]));
  EXPECT_EQ(rig_.counted_at_shard(Event::kDuplicate), 1) << "the unit is in by the group";
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupOverlap), 1) << "so is the group";
}

TEST_F(Rack, OnlyTheRetransmittingWorkerGetsAClosedTurnsResult) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.to_shard(2, {}, {{1, 100}});
  for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_EQ(rig_.results(worker).size(), 1);
  rig_.now += kNsPerMs;
  rig_.to_rack(1, {}, {{1, 7}});
  EXPECT_EQ(rig_.results(0).size(), 0);
  EXPECT_EQ(rig_.told(1), (Entries{{1, 112}}));
  EXPECT_EQ(rig_.results(2).size(), 0);
}

TEST_F(Rack, AnOlderTurnGoesUpRawAndIsAnswered) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {}, {{1, 7}});
  rig_.to_shard(2, {}, {{1, 100}});
  rig_.to_rack(0, {.turn = 2, .step = 1}, {{1, 5}});
  rig_.partials();
  rig_.told(1);
  rig_.to_rack(1, {}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_FALSE(is_group(partials[0]));
  EXPECT_EQ(rig_.told(1), (Entries{{1, 112}}));
  rig_.to_rack(1, {.turn = 2, .step = 1}, {{1, 7}});
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 2) << "turn 2's sum was not touched";
}

TEST_F(Rack, AValueOverTheHeadroomIsForwardedRawAndOmitted) {
  rig_.to_rack(0, {}, {{1, 5}, {2, 1}});
  rig_.to_rack(1, {}, {{1, INT32_MAX / 3 + 1}, {2, 1}});
  rig_.to_rack(0, {}, {{1, 5}, {2, 1}});
  EXPECT_EQ(rig_.counted_at_rack(Event::kGroupSent), 0);
  rig_.to_shard(2, {}, {{2, 1}});
  EXPECT_EQ(rig_.told(0), (Entries{{2, 3}}));
  EXPECT_EQ(rig_.counted_at_shard(Event::kOmittedOverflow), 1);
}

TEST_F(Rack, AnIndexInSeveralFragmentsThatLeavesTheRangeIsNoSum) {
  const int32_t most = INT32_MAX / 3;
  rig_.to_rack(0, {.fragment = 0, .flags = 0}, {{1, most}});
  rig_.to_rack(0, {.fragment = 1}, {{1, most}});
  rig_.to_rack(1, {}, {{1, most}});
  EXPECT_TRUE(rig_.partials().empty());
  EXPECT_EQ(rig_.counted_at_rack(Event::kFlushed), 1);
}

TEST_F(Rack, UnitsOfAnotherBindingAreTheShardsToJudge) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {.exponent = -9}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_FALSE(is_group(partials[0]));
  EXPECT_EQ(partials[0].header.exponent, -9);
}

TEST_F(Rack, ANewerEpochDropsAllSumsAndRejectsOlderContributions) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.greet_rack(2, 7);
  rig_.greet_shard(2, 7, 1);
  rig_.to_rack(1, {}, {{1, 7}});
  EXPECT_EQ(rig_.counted_at_rack(Event::kOldEpoch), 1);
  rig_.to_rack(1, {.epoch = 2}, {{1, 7}});
  EXPECT_TRUE(rig_.partials().empty());
  rig_.to_rack(0, {.epoch = 2}, {{1, 5}});
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 1);
}

TEST_F(Rack, WithoutOneWorkerTheOthersAreAll) {
  rig_.greet_rack(2, 5);
  rig_.greet_shard(2, 5, 1);
  rig_.to_rack(0, {.epoch = 2}, {{1, 5}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_EQ(terms_of(partials[0]).have, 1);
  EXPECT_TRUE(is_group(partials[0]));
  rig_.to_shard(2, {.epoch = 2}, {{1, 100}});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 105}}));
}

TEST_F(Rack, ARestartedShardGetsANewSessionAndTheSumsOutliveIt) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.restart_shard();
  rig_.shake_hands_with_shard();
  rig_.greet_shard(1, 7, 1);
  rig_.to_rack(1, {}, {{1, 7}});  // under the incarnation before; the notice makes the rack ask
  EXPECT_EQ(rig_.counted_at_shard(Event::kWrongIncarnation), 1);
  rig_.now += 100 * kNsPerMs;
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.now += 100 * kNsPerMs;
  rig_.to_rack(1, {}, {{1, 7}});
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupAdded), 1);
  rig_.to_shard(2, {}, {{1, 100}});
  EXPECT_EQ(rig_.told(1), (Entries{{1, 112}}));
}

TEST_F(Rack, StrangersAreDropped) {
  MadeUpWorker single(RackRig::kJob, job_key(3), 2);
  rig_.give_rack(single.challenge_request());
  EXPECT_EQ(rig_.counted_at_rack(Event::kStranger), 1) << "a worker that is not of the rack";
  MadeUpWorker other(RackRig::kJob, job_key(3), 0x8001);
  rig_.give_shard(other.challenge_request());
  EXPECT_EQ(rig_.counted_at_shard(Event::kStranger), 1) << "a rack that there is not";
  rig_.give_shard(rig_.at_shard(0).sealed(rig_.at_shard(0).header(DatagramType::kPartial), {}, {}));
  EXPECT_EQ(rig_.counted_at_shard(Event::kUnexpectedType), 1) << "a worker is no rack";
}

TEST(RackUplink, WorkersAreWelcomeOnlyWhileTheRackIs) {
  RackRig rig;
  rig.lost = [](const Datagram& datagram) { return datagram.header.type == DatagramType::kChallenge; };
  rig.open();
  rig.to_rack(0, {}, {{1, 5}});
  EXPECT_EQ(rig.counted_at_rack(Event::kNotOpen), 1);
  EXPECT_EQ(rig.counted_at_rack(Event::kAdded), 0);
}

TEST(RackParts, AGroupOfSeveralPartsIsTakenWholeOrNotAtAll) {
  RackRig rig({.window_indices = 4096});
  rig.open();
  Entries many;
  for (uint16_t index = 0; index < 4000; index += 2) many[index] = 70'000 + index;
  std::vector<Entries> pieces(6);
  for (const auto& [index, value] : many) pieces[index * 6 / 4000][index] = value;
  const auto contribute = [&](uint32_t worker) {
    for (uint8_t piece = 0; piece < 6; ++piece) {
      rig.to_rack(worker,
                  {.fragment = piece,
                   .flags = piece == 5 ? flag::kLast : uint8_t{0},
                   .window_indices = 4096,
                   .codecs = {protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed32}},
                  pieces[piece]);
    }
  };
  uint32_t parts = 0;
  rig.lost = [&](const Datagram& datagram) {
    // The second part of the first sending, and what says that it is lost.
    return datagram.header.type == DatagramType::kNotice ||
           (datagram.header.type == DatagramType::kPartial && ++parts == 2);
  };
  contribute(0);
  contribute(1);
  EXPECT_GT(parts, 3);
  EXPECT_EQ(rig.counted_at_shard(Event::kGroupAdded), 0);
  rig.now += kNsPerMs;
  rig.to_rack(0, {.flags = 0, .window_indices = 4096}, pieces[0]);
  EXPECT_EQ(rig.counted_at_shard(Event::kGroupAdded), 1);
  rig.to_shard(2, {}, {{1, 1}});
  for (auto& [index, value] : many) value *= 2;
  many[1] = 1;
  EXPECT_EQ(rig.told(1), many);
}

TEST(RackParts, AGroupThatTakesMoreThanSixteenGoesRawAndSoDoTheTurnsAfterIt) {
  RackRig rig({.window_indices = 65'536, .packet_bytes_max = 8000, .rack_packet_bytes_max = 1200});
  rig.open();
  Entries many;
  for (uint32_t index = 0; index < 8000; index += 8) many[static_cast<uint16_t>(index)] = 1 << 30 >> 3;
  RackRig::Fields fields{.window_indices = 65'536};
  for (uint8_t fragment = 0; fragment < 6; ++fragment) {
    fields.fragment = fragment;
    fields.flags = fragment == 5 ? flag::kLast : uint8_t{0};
    Entries shifted;
    for (const auto& [index, value] : many) shifted[static_cast<uint16_t>(index + 8000 * fragment)] = value;
    rig.to_rack(0, fields, shifted);
  }
  rig.to_rack(1, {.window_indices = 65'536}, {});
  EXPECT_EQ(rig.counted_at_rack(Event::kGroupTooLong), 1);
  EXPECT_TRUE(rig.partials().empty());
  rig.to_rack(1, {.turn = 2, .step = 1}, {});
  EXPECT_EQ(rig.partials().size(), 1) << "raw, at once";
}

TEST(RackCut, TheRetainedMarksOfAResultSurviveAShardRestart) {
  RackRig rig({.rack_reselect_k = 1});
  rig.open();
  rig.to_rack(0, {}, {{1, 50}, {2, 3}, {9, 2}});
  rig.to_rack(1, {}, {{1, 50}});
  rig.to_shard(2, {}, {{2, 1}});
  rig.told(0);
  // The second step is cut by the first one's histogram: the largest stays.
  const RackRig::Fields second{.turn = 2, .step = 1};
  rig.to_rack(0, second, {{1, 50}, {2, 3}, {9, 2}});
  rig.to_rack(1, second, {{1, 50}});
  rig.to_shard(2, second, {{2, 1}});
  const auto results = rig.results(0);
  ASSERT_EQ(results.size(), 1);
  const Datagram result = *protocol::parse_datagram(results[0]);
  EXPECT_EQ(entries_of(result, 256), (Entries{{1, 100}, {2, 1}}));
  EXPECT_EQ(protocol::read_result_terms(result.extension)->selected, 3);
  const auto marks = protocol::RetainedMarks::read(result.extension, 2);
  ASSERT_TRUE(marks.has_value());
  ASSERT_EQ(marks->racks(), 1);
  EXPECT_TRUE(marks->is_retained(0, 0));
  EXPECT_FALSE(marks->is_retained(0, 1)) << "brought in by the third worker alone";

  // The shard restarts; one worker lacks the result, another has it.
  const ByteBuffer extension(result.extension.begin(), result.extension.end());
  const ByteBuffer payload(result.payload.begin(), result.payload.end());
  rig.restart_shard();
  rig.shake_hands_with_shard();
  for (uint32_t worker = 0; worker < 3; ++worker) {
    rig.give_shard(rig.at_shard(worker).hello({.live = 7, .positions = {worker == 0 ? uint64_t{3} : 2}}));
  }
  protocol::DatagramHeader kept = result.header;
  kept.type = DatagramType::kKept;
  kept.incarnation = rig.at_shard(0).incarnation();
  kept.worker = 0;
  rig.give_shard(rig.at_shard(0).sealed(kept, extension, payload));
  EXPECT_EQ(rig.counted_at_shard(Event::kFetched), 1);
  const auto again = rig.results(1);
  ASSERT_EQ(again.size(), 1);
  const Datagram told = *protocol::parse_datagram(again[0]);
  EXPECT_TRUE(std::ranges::equal(told.extension, extension));
  EXPECT_TRUE(std::ranges::equal(told.payload, payload));
}

TEST_F(MadeUpRack, PartsOfTwoGroupsAreNeverTogether) {
  give({.part = 0, .flags = 0, .entries = {{1, 5}}});
  give({.terms = {.have = 3, .last = 0, .hash = 56}, .part = 1, .entries = {{9, 5}}});
  EXPECT_EQ(counted(Event::kGroupAdded), 0);
  give({.part = 1, .entries = {{9, 7}}});
  EXPECT_EQ(counted(Event::kGroupAdded), 0) << "the first part was thrown away";
  give({.part = 0, .flags = 0, .entries = {{1, 5}}});
  EXPECT_EQ(counted(Event::kGroupAdded), 1);
  rig_.to_shard(2, {}, {});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 5}, {9, 7}}));
}

TEST_F(MadeUpRack, AGroupWithAUnitThatIsInIsRefusedWhole) {
  rig_.to_shard(0, {}, {{1, 5}});
  give({.entries = {{1, 12}}});
  EXPECT_EQ(counted(Event::kGroupOverlap), 1);
  rig_.to_shard(1, {}, {{1, 7}});
  rig_.to_shard(2, {}, {});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 12}}));
}

TEST_F(MadeUpRack, AUnitThatComesBetweenThePartsRefusesTheGroup) {
  give({.part = 0, .flags = 0, .entries = {{1, 12}}});
  rig_.to_shard(0, {}, {{1, 5}});
  give({.part = 1, .entries = {{9, 12}}});
  EXPECT_EQ(counted(Event::kGroupAdded), 0);
  rig_.to_shard(1, {}, {{1, 7}});
  rig_.to_shard(2, {}, {});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 12}}));
}

TEST_F(MadeUpRack, UnitsOfAGroupThatIsInAreDuplicates) {
  give({.entries = {{1, 12}}});
  rig_.to_shard(0, {}, {{1, 5}});
  rig_.to_shard(1, {.fragment = 3, .flags = 0}, {{1, 5}});
  EXPECT_EQ(counted(Event::kDuplicate), 2);
  rig_.to_shard(2, {}, {});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 12}}));
}

TEST_F(MadeUpRack, AGroupThatIsNotRightIsRefusedWhole) {
  give({.part = 0, .flags = 0, .entries = {{9, 5}}});
  give({.part = 1, .entries = {{9, 5}}});  // indices do not increase
  give({.terms = {.have = 3, .last = 0, .hash = 57}, .part = 0, .flags = 0, .entries = {{1, 5}}});
  give({.terms = {.have = 3, .last = 0, .hash = 57}, .part = 1, .entries = {{2, INT32_MAX / 3 * 2 + 1}}});
  EXPECT_EQ(counted(Event::kMalformedPayload), 2);
  EXPECT_EQ(counted(Event::kGroupAdded), 0);
  EXPECT_EQ(rig_.shard().status()[0].phase, switch_agg::SwitchPhase::kOpen);
  give({.terms = {.have = 1, .last = 0, .hash = 58}, .entries = {{1, 5}}});  // not all of the rack
  give({.terms = {.have = 3, .last = 3, .hash = 0}, .entries = {{1, 5}}});   // a unit of two
  give({.terms = {.have = 1, .last = 0, .hash = 0}, .entries = {{1, 5}}});   // `last` contradicts the flag
  give({.flags = flag::kLast | flag::kFlush, .entries = {{1, 5}}});
  EXPECT_EQ(counted(Event::kBadFields), 4);
  give({.terms = {.have = 7, .last = 0, .hash = 58}, .entries = {{1, 5}}});  // a worker of no rack
  give({.terms = {.have = 4, .last = 4, .hash = 0}, .entries = {{1, 5}}});
  EXPECT_EQ(counted(Event::kStranger), 2);
  give({.turn = 3, .entries = {{1, 5}}});
  EXPECT_EQ(counted(Event::kFuture), 1);
  EXPECT_EQ(counted(Event::kAdded), 0);
}

TEST_F(MadeUpRack, ItsHelloMovesNoEpoch) {
  rig_.give_shard(rack_.hello({.epoch = 9, .live = 7, .positions = {}}));
  EXPECT_EQ(rig_.shard().status()[0].epoch, 1);
  EXPECT_EQ(rig_.shard().status()[0].phase, switch_agg::SwitchPhase::kOpen);
}

}  // namespace
}  // namespace millrace::testing
