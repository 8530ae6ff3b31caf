// S4: each rule, and that nothing else happened.
#include <gtest/gtest.h>

#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kNoWindow;
using protocol::NoticeCode;
using Event = switch_agg::AggregatorEvent;
using Fields = MadeUpWorker::ContributionFields;
namespace flag = protocol::datagram_flag;

/// A rig that is open, at turn 1 of slots 0 and 1.
class ContributionTest : public ::testing::Test {
 protected:
  ContributionTest() {
    rig_.open();
    rig_.since_now();
  }

  /// The packet was dropped for this reason, and for no other; nothing was added or answered.
  void expect_dropped(Event why) {
    EXPECT_EQ(rig_.counted(why), 1) << aggregator_event_name(why);
    EXPECT_EQ(rig_.counted(Event::kAdded), 0);
    EXPECT_EQ(rig_.sent().size(), 0);
  }
  void expect_notice(NoticeCode code, uint32_t worker) {
    const Datagram datagram = rig_.only(worker);
    ASSERT_EQ(datagram.header.type, DatagramType::kNotice);
    const auto notice = protocol::read_notice(datagram.extension);
    ASSERT_TRUE(notice);
    EXPECT_EQ(notice->code, code);
    EXPECT_EQ(notice->epoch, rig_.aggregator().status()[0].epoch);
    EXPECT_EQ(notice->incarnation, rig_.aggregator().status()[0].incarnation);
  }
  /// Lets all workers send one entry in slot 0: turn `turn` is closed.
  void close_turn(uint64_t turn, uint32_t window = 0, uint32_t next = 2) {
    rig_.turn({.turn = turn, .window = window, .next = next}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
    EXPECT_EQ(rig_.heard(0).size(), 1);
    rig_.since_now();
  }
  MadeUpWorker& worker(uint32_t at) { return rig_.worker(at); }

  SwitchRig rig_;
};

TEST_F(ContributionTest, TruncatedPacketsAreDroppedAtEveryLength) {
  const ByteBuffer packet = worker(0).contribution({}, {{1, 5}, {9, -3}});
  for (size_t bytes = 0; bytes < packet.size(); ++bytes) {
    rig_.give(0, ByteSpan(packet).first(bytes));
    EXPECT_EQ(rig_.sent().size(), 0);
  }
  EXPECT_EQ(rig_.counted(Event::kTooShort), 80);
  EXPECT_EQ(rig_.counted(Event::kWrongLength), packet.size() - 80);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
  rig_.give(0, packet);
  EXPECT_EQ(rig_.counted(Event::kAdded), 1);
}

TEST_F(ContributionTest, AnyCorruptedByteIsNoticedAndNothingIsAdded) {
  const ByteBuffer packet = worker(0).contribution({}, {{1, 5}, {9, -3}});
  for (size_t at = 0; at < packet.size(); ++at) {
    ByteBuffer damaged = packet;
    damaged[at] ^= 0x10;
    rig_.give(0, damaged);
    rig_.now += kNsPerMs;
  }
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
  rig_.give(0, packet);
  EXPECT_EQ(rig_.counted(Event::kAdded), 1);
}

TEST_F(ContributionTest, WrongMagicUnknownTypeAndFieldsOutOfBoundsAreCountedApart) {
  const ByteBuffer packet = worker(0).contribution({}, {{1, 5}});
  ByteBuffer damaged = packet;
  damaged[0] = 0xA2;
  rig_.give(0, damaged);
  damaged = packet;
  damaged[1] = 12;
  rig_.give(0, damaged);
  damaged = packet;
  damaged[3] = 16;
  rig_.give(0, damaged);
  EXPECT_EQ(rig_.counted(Event::kWrongMagic), 1);
  EXPECT_EQ(rig_.counted(Event::kUnknownType), 1);
  EXPECT_EQ(rig_.counted(Event::kOutOfBounds), 1);
}

TEST_F(ContributionTest, WrongJobIsDroppedWithoutAnAnswer) {
  MadeUpWorker other(8, job_key(3), 0);
  rig_.give(0, other.challenge_request());
  expect_dropped(Event::kWrongJob);
}

TEST_F(ContributionTest, BadMacIsDroppedWithoutAnAnswer) {
  ByteBuffer packet = worker(0).contribution({}, {{1, 5}});
  packet.back() ^= 1;
  rig_.give(0, packet);
  expect_dropped(Event::kBadMac);
}

TEST_F(ContributionTest, APacketSignedByAnotherWorkerIsDropped) {
  DatagramHeader header = worker(0).header(DatagramType::kContribution);
  header.worker = 1;
  header.flags = flag::kLast | flag::kEmpty;
  rig_.give(0, worker(0).sealed(header, {}, {}));
  expect_dropped(Event::kBadMac);
}

TEST_F(ContributionTest, AReplayedPacketIsDropped) {
  const ByteBuffer packet = worker(0).contribution({}, {{1, 5}});
  rig_.give(0, packet);
  rig_.since_now();
  rig_.give(0, packet);
  expect_dropped(Event::kReplay);
}

TEST_F(ContributionTest, SequenceZeroIsNeverASessions) {
  DatagramHeader header = worker(0).header(DatagramType::kHello);
  EXPECT_EQ(header.sequence, 0);
  ByteBuffer packet = worker(0).challenge_request();
  packet[1] = static_cast<uint8_t>(DatagramType::kContribution);
  rig_.give(0, packet);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
}

TEST_F(ContributionTest, AnotherIncarnationIsDroppedWithOneNoticePerGap) {
  ByteBuffer packet = worker(0).contribution(
      {}, {{1, 5}, {2, 6}, {3, 7}, {80, 100'000}, {90, 70'000}, {91, 80'000}, {95, 1}, {97, 1}, {99, 2}});
  packet[8] ^= 1;
  ASSERT_GE(packet.size(), 112);
  rig_.give(0, packet);
  EXPECT_EQ(rig_.counted(Event::kWrongIncarnation), 1);
  expect_notice(NoticeCode::kUnknownIncarnation, 0);
  EXPECT_LE(rig_.sent()[0].bytes.size(), packet.size());
  rig_.give(0, packet);
  EXPECT_EQ(rig_.sent().size(), 0);
  EXPECT_EQ(rig_.counted(Event::kNoticeLimited), 1);
  rig_.now += kNsPerMs;
  rig_.give(0, packet);
  EXPECT_EQ(rig_.sent().size(), 1);
}

TEST_F(ContributionTest, NoAnswerIsLargerThanAnUnauthenticatedRequest) {
  ByteBuffer packet = worker(0).empty({});
  ASSERT_LT(packet.size(), 112);
  packet[8] ^= 1;
  rig_.give(0, packet);
  EXPECT_EQ(rig_.counted(Event::kWrongIncarnation), 1);
  EXPECT_EQ(rig_.sent().size(), 0);
}

TEST_F(ContributionTest, OldEpochIsDroppedAndANoticeNamesTheEpoch) {
  rig_.greet(2, {1, 1, 1});
  rig_.since_now();
  rig_.give(1, worker(1).contribution({.epoch = 1}, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kOldEpoch), 1);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
  expect_notice(NoticeCode::kOldEpoch, 1);
}

TEST_F(ContributionTest, NewerEpochDoesNotMoveTheEpoch) {
  rig_.give(1, worker(1).contribution({.epoch = 2}, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kNotOpen), 1);
  EXPECT_EQ(rig_.aggregator().status()[0].epoch, 1);
  expect_notice(NoticeCode::kSayHello, 1);
}

TEST_F(ContributionTest, AContributionBeforeTheOpeningGetsTheHelloNotice) {
  rig_.give(0, worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig_.since_now();
  rig_.give(1, worker(1).contribution({.epoch = 2}, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kNotOpen), 1);
  expect_notice(NoticeCode::kSayHello, 1);
}

TEST_F(ContributionTest, StrangersAreDropped) {
  // Worker 2 is not of epoch 2.
  for (uint32_t at = 0; at < 2; ++at) rig_.give(at, worker(at).hello({.epoch = 2, .live = 3, .positions = {1, 1}}));
  ASSERT_EQ(rig_.aggregator().status()[0].phase, switch_agg::SwitchPhase::kOpen);
  rig_.since_now();
  rig_.give(2, worker(2).contribution({.epoch = 2}, {{1, 5}}));
  expect_dropped(Event::kStranger);
}

TEST_F(ContributionTest, ASlotThatTheJobHasNotIsDropped) {
  rig_.give(0, worker(0).contribution({.window = 2, .slot = 2}, {{1, 5}}));
  expect_dropped(Event::kStranger);
}

TEST_F(ContributionTest, AWorkerNumberOver63IsDropped) {
  DatagramHeader header = worker(0).header(DatagramType::kContribution);
  header.worker = 64;
  rig_.give(0, worker(0).sealed(header, {}, {}));
  expect_dropped(Event::kStranger);
}

TEST_F(ContributionTest, PastTurnsAreDropped) {
  close_turn(1, 0, 2);
  close_turn(2, 2, 4);
  close_turn(3, 4, kNoWindow);
  rig_.give(0, worker(0).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  expect_dropped(Event::kPast);
}

TEST_F(ContributionTest, ThePreviousTurnIsAnsweredWithItsKeptResultOncePerGap) {
  close_turn(1, 0, 2);
  rig_.give(0, worker(0).contribution({.turn = 2, .window = 2, .next = 4}, {{6, 1}}));
  rig_.since_now();
  rig_.give(1, worker(1).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.counted(Event::kPrevious), 1);
  EXPECT_EQ(rig_.counted(Event::kKeptSent), 1);
  const Datagram result = rig_.only(1);
  EXPECT_EQ(result.header.type, DatagramType::kResult);
  EXPECT_EQ(result.header.worker, 1);
  EXPECT_EQ(result.header.turn, 1);
  EXPECT_EQ(rig_.result(1), (Entries{{5, 3}}));
  rig_.give(1, worker(1).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.sent().size(), 0);
  EXPECT_EQ(rig_.counted(Event::kKeptLimited), 1);
  rig_.now += kNsPerMs;
  rig_.give(1, worker(1).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.result(1), (Entries{{5, 3}}));
}

TEST_F(ContributionTest, TheClosedTurnIsAnsweredWithItsKeptResultAndNotAdded) {
  close_turn(1, 0, 2);
  rig_.give(2, worker(2).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.counted(Event::kCurrentClosed), 1);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
  EXPECT_EQ(rig_.result(2), (Entries{{5, 3}}));
}

TEST_F(ContributionTest, AfterAnOpeningWithEqualPositionsNoResultIsHeld) {
  rig_.greet(2, {5, 5, 5});
  rig_.since_now();
  rig_.give(2, worker(2).contribution({.turn = 4, .epoch = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.counted(Event::kCurrentClosed), 1);
  expect_dropped(Event::kKeptNone);
}

TEST_F(ContributionTest, WrongBindingsOfAnOpenTurnAreDropped) {
  rig_.give(0, worker(0).contribution({.next = 2}, {{1, 5}}));
  rig_.since_now();
  rig_.give(1, worker(1).contribution({.step = 1, .next = 2}, {{1, 5}}));
  rig_.give(1, worker(1).contribution({.window = 2, .next = 4}, {{1, 5}}));
  rig_.give(1, worker(1).contribution({.next = 2, .exponent = -9}, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kWrongBinding), 3);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
}

TEST_F(ContributionTest, AContradictionOfNextOrLastIsDropped) {
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 1, .flags = 0}, {{1, 5}}));
  rig_.since_now();
  rig_.give(0, worker(0).contribution({.next = 4, .fragment = 0, .flags = 0}, {{2, 5}}));  // another next
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 0}, {{2, 5}}));              // last, below one that is in
  rig_.give(0, worker(0).empty({.next = 2}));                                              // and empty
  EXPECT_EQ(rig_.counted(Event::kWrongBinding), 3);
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 2}, {{3, 5}}));
  EXPECT_EQ(rig_.counted(Event::kAdded), 1);
  rig_.since_now();
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 3, .flags = 0}, {{4, 5}}));  // after the last
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 0}, {{4, 5}}));              // a second last
  rig_.give(0, worker(0).contribution({.next = 2, .fragment = 2, .flags = 0}, {{3, 5}}));  // the last, not last
  EXPECT_EQ(rig_.counted(Event::kWrongBinding), 3);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
}

TEST_F(ContributionTest, DuplicateContributionIsDroppedAndNotAdded) {
  rig_.give(0, worker(0).contribution({.next = 2}, {{1, 5}}));
  rig_.since_now();
  rig_.give(0, worker(0).contribution({.next = 2}, {{1, 5}}));
  expect_dropped(Event::kDuplicate);
  rig_.give(1, worker(1).contribution({.next = 2}, {{1, 5}}));
  rig_.give(2, worker(2).contribution({.next = 2}, {{1, 5}}));
  EXPECT_EQ(rig_.result(0), (Entries{{1, 15}}));
}

TEST_F(ContributionTest, AMalformedPayloadIsDroppedWholeAndClaimsNothing) {
  close_turn(1, 0, 2);
  DatagramHeader header = worker(0).header(DatagramType::kContribution);
  header.turn = 2;
  header.epoch = 1;
  header.window = 2;
  header.flags = flag::kLast;
  header.exponent = -10;
  header.entries = 3;
  header.index_codec = 99;
  header.value_codec = 2;
  rig_.give(0, worker(0).sealed(header, {}, ByteBuffer(40)));
  expect_dropped(Event::kMalformedPayload);
  // Turn 1 is still the current one: its kept result was not overwritten.
  rig_.give(0, worker(0).contribution({.turn = 1, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig_.counted(Event::kCurrentClosed), 1);
}

TEST_F(ContributionTest, IndicesBeyondTheWindowAreAMalformedPayload) {
  rig_.give(0, worker(0).contribution({.window_indices = 4096}, {{255, 1}, {256, 1}}));
  expect_dropped(Event::kMalformedPayload);
}

TEST_F(ContributionTest, FlagsThatCannotBeTogetherAreDropped) {
  const auto give = [&](uint8_t flags, uint8_t fragment, uint32_t next) {
    DatagramHeader header = worker(0).header(DatagramType::kContribution);
    header.turn = 1;
    header.epoch = 1;
    header.flags = flags;
    header.fragment = fragment;
    header.next = next;
    rig_.give(0, worker(0).sealed(header, {}, {}));
  };
  give(flag::kEmpty, 0, kNoWindow);                     // empty, but more is to come
  give(flag::kEmpty | flag::kLast, 1, kNoWindow);       // empty in two fragments
  give(flag::kFin | flag::kLast, 0, kNoWindow);         // closing, not empty
  give(flag::kFin | flag::kEmpty | flag::kLast, 0, 2);  // closing, and a next window
  give(flag::kVoid | flag::kEmpty | flag::kLast, 0, kNoWindow);
  give(flag::kEmpty | flag::kLast, 0, 3);  // of another stripe
  give(flag::kEmpty | flag::kLast, 0, 0);  // not behind this one
  EXPECT_EQ(rig_.counted(Event::kBadFields), 7);
  EXPECT_EQ(rig_.counted(Event::kAdded), 0);
  give(flag::kEmpty | flag::kLast, 0, 2);
  EXPECT_EQ(rig_.counted(Event::kAdded), 1);
}

TEST_F(ContributionTest, AnExtensionOnAContributionIsRefused) {
  DatagramHeader header = worker(0).header(DatagramType::kContribution);
  header.turn = 1;
  header.epoch = 1;
  header.flags = flag::kEmpty | flag::kLast;
  rig_.give(0, worker(0).sealed(header, ByteBuffer(8), {}));
  expect_dropped(Event::kBadFields);
}

TEST_F(ContributionTest, TheLastStepIsRefused) {
  rig_.greet(2, {9, 9, 9});
  rig_.since_now();
  rig_.give(0, worker(0).empty({.turn = 9, .epoch = 2, .step = UINT32_MAX}));
  expect_dropped(Event::kBadFields);
}

TEST_F(ContributionTest, NothingIsSentWhileAFragmentIsMissing) {
  rig_.give(0, worker(0).contribution({.fragment = 0, .flags = 0}, {{1, 5}}));
  rig_.give(1, worker(1).contribution({}, {{1, 5}}));
  rig_.give(2, worker(2).contribution({}, {{1, 5}}));
  EXPECT_EQ(rig_.sent().size(), 0);
  rig_.give(0, worker(0).contribution({.fragment = 2}, {{3, 5}}));
  EXPECT_EQ(rig_.sent().size(), 0);
  rig_.give(0, worker(0).contribution({.fragment = 1, .flags = 0}, {{2, 5}}));
  EXPECT_EQ(rig_.result(0), (Entries{{1, 15}, {2, 5}, {3, 5}}));
}

TEST_F(ContributionTest, TheLastWorkerClosesTheTurnAndAllAreSentTheSameResult) {
  rig_.turn({.next = 2}, {{{1, 5}, {7, -2}}, {{7, 3}}, {}});
  EXPECT_EQ(rig_.counted(Event::kClosed), 1);
  for (uint32_t at = 0; at < 3; ++at) {
    const Datagram result = rig_.only(at);
    EXPECT_EQ(result.header.type, DatagramType::kResult);
    EXPECT_EQ(result.header.flags & (flag::kLast | flag::kFin | flag::kVoid), flag::kLast);
    EXPECT_EQ(result.header.turn, 1);
    EXPECT_EQ(result.header.epoch, 1);
    EXPECT_EQ(result.header.window, 0);
    EXPECT_EQ(result.header.next, 2);
    EXPECT_EQ(result.header.exponent, -10);
    const auto terms = protocol::read_result_terms(result.extension);
    ASSERT_TRUE(terms);
    EXPECT_EQ(terms->contributors, 7);
    EXPECT_EQ(terms->decided_epoch, 1);
    EXPECT_EQ(rig_.result(at), (Entries{{1, 5}, {7, 1}}));
  }
  EXPECT_EQ(rig_.sent()[0].bytes, rig_.sent()[1].bytes);
}

TEST_F(ContributionTest, NextIsTheLeastOfAllLiveWorkers) {
  rig_.give(0, worker(0).contribution({.next = 6}, {{1, 5}}));
  rig_.give(1, worker(1).empty({.next = 4}));
  rig_.give(2, worker(2).empty({.next = kNoWindow}));
  EXPECT_EQ(rig_.only(0).header.next, 4);
}

TEST_F(ContributionTest, TheNextTurnIsClaimedByTheSuccessorOnly) {
  close_turn(1, 0, 4);
  rig_.give(0, worker(0).contribution({.turn = 2, .window = 2, .next = 4}, {{6, 1}}));
  rig_.give(0, worker(0).contribution({.turn = 2, .step = 1, .window = 4}, {{6, 1}}));
  EXPECT_EQ(rig_.counted(Event::kWrongBinding), 2);
  rig_.give(0, worker(0).contribution({.turn = 2, .window = 4}, {{6, 1}}));
  EXPECT_EQ(rig_.counted(Event::kAdded), 1);
}

TEST_F(ContributionTest, AfterTheLastWindowTheNextStepOpensAtTheStripesFirst) {
  close_turn(1, 0, kNoWindow);
  rig_.give(0, worker(0).contribution({.turn = 2, .step = 0, .window = 0}, {{6, 1}}));
  rig_.give(0, worker(0).contribution({.turn = 2, .step = 1, .window = 2}, {{6, 1}}));
  EXPECT_EQ(rig_.counted(Event::kWrongBinding), 2);
  rig_.turn({.turn = 2, .step = 1, .window = 0}, {{{6, 1}}, {}, {}});
  EXPECT_EQ(rig_.result(2), (Entries{{6, 1}}));
}

TEST_F(ContributionTest, AFutureTurnIsDropped) {
  rig_.give(0, worker(0).contribution({.turn = 3}, {{1, 5}}));
  expect_dropped(Event::kFuture);
  rig_.give(0, worker(0).contribution({.turn = UINT64_MAX}, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kFuture), 2);
  rig_.give(0, worker(0).contribution({.turn = 1}, {{1, 5}}));
  rig_.since_now();
  rig_.give(1, worker(1).contribution({.turn = 2}, {{1, 5}}));  // turn 1 is open
  expect_dropped(Event::kFuture);
}

TEST_F(ContributionTest, SlotsDoNotWaitForEachOther) {
  rig_.give(0, worker(0).contribution({}, {{1, 5}}));
  rig_.turn({.window = 1, .slot = 1}, {{{2, 1}}, {{2, 1}}, {{2, 1}}});
  EXPECT_EQ(rig_.result(0), (Entries{{2, 3}}));
}

TEST_F(ContributionTest, WhatOnlyAnAggregatorSendsIsUnexpected) {
  for (const DatagramType type :
       {DatagramType::kChallenge, DatagramType::kWelcome, DatagramType::kFetch, DatagramType::kResult,
        DatagramType::kPartial, DatagramType::kReceipt, DatagramType::kNotice}) {
    rig_.give(0, worker(0).sealed(worker(0).header(type), {}, {}));
    EXPECT_EQ(rig_.sent().size(), 0);
  }
  EXPECT_EQ(rig_.counted(Event::kUnexpectedType), 7);
}

}  // namespace
}  // namespace millrace::testing
