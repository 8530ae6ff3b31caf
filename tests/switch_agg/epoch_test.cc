// S6 at the aggregator.
#include <gtest/gtest.h>

#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kNoWindow;
using protocol::NoticeCode;
using switch_agg::SwitchPhase;
using Event = switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

SwitchPhase phase(SwitchRig& rig) { return rig.aggregator().status()[0].phase; }

/// Returns the part of a result that worker `from` stored, as a KEPT of the present incarnation and epoch.
ByteBuffer kept_of(MadeUpWorker& from, const Datagram& result, uint32_t epoch) {
  DatagramHeader header = result.header;
  const DatagramHeader own = from.header(DatagramType::kKept);
  header.type = own.type;
  header.incarnation = own.incarnation;
  header.worker = own.worker;
  header.epoch = epoch;
  return from.sealed(header, result.extension, result.payload);
}

/// A rig in which turn 1 of slot 0 closed, and its result's packet (a copy that outlives the next give()).
struct Closed {
  explicit Closed(SwitchRig& rig) {
    rig.open();
    rig.turn({.next = 2}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
    packet = rig.sent()[0].bytes;
    result = *protocol::parse_datagram(packet);
  }
  ByteBuffer packet;
  Datagram result;
};

TEST(EpochTest, NothingOpensBeforeAllLiveWorkersSaidHello) {
  SwitchRig rig;
  rig.shake_hands();
  for (uint32_t at = 0; at < 2; ++at) {
    rig.give(at, rig.worker(at).hello({.live = rig.live(), .positions = {1, 1}}));
    EXPECT_EQ(rig.sent().size(), 0);
    EXPECT_EQ(phase(rig), SwitchPhase::kCollecting);
  }
  rig.give(0, rig.worker(0).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(rig.counted(Event::kHelloAgain), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kCollecting);
  rig.give(2, rig.worker(2).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
  for (uint32_t at = 0; at < 3; ++at) {
    const Datagram welcome = rig.only(at);
    ASSERT_EQ(welcome.header.type, DatagramType::kWelcome);
    const auto said = protocol::read_welcome(welcome.extension);
    ASSERT_TRUE(said);
    EXPECT_EQ(said->slots, 2);
    EXPECT_EQ(said->window_indices, 256);
    EXPECT_EQ(said->turns[0], 0);
    EXPECT_EQ(said->turns[1], 0);
  }
}

TEST(EpochTest, AnotherMembershipOrLiveSetIsRefusedAndTold) {
  SwitchRig rig;
  rig.shake_hands();
  rig.give(0, rig.worker(0).hello({.live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.live = 7, .positions = {1, 1}, .membership_hash = 78}));
  EXPECT_EQ(protocol::read_notice(rig.only(1).extension)->code, NoticeCode::kOtherMembership);
  rig.now += kNsPerMs;
  rig.give(1, rig.worker(1).hello({.live = 3, .positions = {1, 1}}));
  EXPECT_EQ(protocol::read_notice(rig.only(1).extension)->code, NoticeCode::kOtherMembership);
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 2);
}

TEST(EpochTest, HellosThatCannotBeAreRefused) {
  SwitchRig rig;
  rig.shake_hands();
  rig.give(0, rig.worker(0).hello({.live = 6, .positions = {1, 1}}));  // without itself
  rig.give(0, rig.worker(0).hello({.live = 7, .positions = {}}));
  rig.give(0, rig.worker(0).hello({.live = 7, .positions = {1, 0}}));  // turns begin at 1
  rig.give(0, rig.worker(0).hello({.live = 7, .positions = {1, UINT64_MAX}}));
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 4);
  EXPECT_EQ(phase(rig), SwitchPhase::kClosed);
}

/// The answer makes the worker leave the path. Without one it repeats its HELLO for ever.
TEST(EpochTest, AHelloOfTooManySlotsGetsTheSwitchsNumber) {
  SwitchRig rig;
  rig.shake_hands();
  rig.give(0, rig.worker(0).hello({.epoch = 3, .live = 7, .positions = {1, 1, 1}}));
  const Datagram answer = rig.only(0);
  ASSERT_EQ(answer.header.type, DatagramType::kWelcome);
  EXPECT_EQ(answer.header.epoch, 3) << "a worker takes no WELCOME of another epoch";
  EXPECT_EQ(protocol::read_welcome(answer.extension)->slots, 2);
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kClosed);
}

TEST(EpochTest, AHelloOfTooManyWorkersGetsNoSlots) {
  SwitchRig rig;
  rig.shake_hands();
  rig.give(0, rig.worker(0).hello({.live = 15, .positions = {1, 1}}));
  EXPECT_EQ(protocol::read_notice(rig.only(0).extension)->code, NoticeCode::kNoSlots);
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kClosed);
}

/// Makes the job of a small model: it has fewer windows than the switch has slots.
void greet_with(SwitchRig& rig, uint32_t slots, uint32_t epoch, uint64_t position) {
  const std::vector<uint64_t> positions(slots, position);
  for (uint32_t at = 0; at < 3; ++at)
    rig.give(at, rig.worker(at).hello({.epoch = epoch, .live = 7, .positions = positions}));
}

TEST(EpochTest, AJobOfFewerSlotsRunsOnASwitchOfMore) {
  SwitchRig rig({.slots = 16, .slots_max = 16});
  rig.shake_hands();
  greet_with(rig, 10, 1, 1);
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  EXPECT_EQ(protocol::read_welcome(rig.only(0).extension)->slots, 10);
  const std::vector<Entries> entries = {{{5, 1}}, {{5, 1}}, {{5, 1}}};
  rig.turn({.window = 3, .next = 13, .slot = 3}, entries);  // a stripe of 10
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
  rig.turn({.turn = 2, .window = 13, .slot = 3}, entries);
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
  rig.give(0, rig.worker(0).contribution({.window = 12, .slot = 12}, {{5, 1}}));
  EXPECT_EQ(rig.counted(Event::kStranger), 1) << "a slot that the job does not have";
}

TEST(EpochTest, AHelloOfOtherSlotsThanItsEpochGetsTheEpochsNumber) {
  SwitchRig rig({.slots = 4});
  rig.shake_hands();
  rig.give(0, rig.worker(0).hello({.live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.live = 7, .positions = {1, 1, 1, 1}}));
  EXPECT_EQ(protocol::read_welcome(rig.only(1).extension)->slots, 2);
  EXPECT_EQ(phase(rig), SwitchPhase::kCollecting);
}

TEST(EpochTest, AJobOfFewerSlotsEndsAndGivesItsNumberOn) {
  SwitchRig rig({.slots = 4});
  const auto finish = [&rig](uint32_t slots) {
    for (uint16_t slot = 0; slot < slots; ++slot) {
      for (uint32_t at = 0; at < 3; ++at)
        rig.give(at, rig.worker(at).empty({.epoch = slots, .window = slot, .slot = slot, .flags = flag::kFin}));
    }
  };
  rig.shake_hands();
  for (const uint32_t slots : {3u, 4u}) {  // the epoch has the same number
    greet_with(rig, slots, slots, 1);
    ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
    finish(slots);
  }
  rig.now += 2 * kNsPerS;
  rig.shake_hands();
  greet_with(rig, 2, 1, 1);
  EXPECT_EQ(rig.counted(Event::kBegunAnew), 1);
}

TEST(EpochTest, AnOlderHelloGetsTheEpochInANoticeAndOpensNothing) {
  SwitchRig rig;
  rig.open();
  rig.greet(5, {1, 1, 1});
  rig.since_now();
  rig.give(0, rig.worker(0).hello({.epoch = 4, .live = 7, .positions = {1, 1}}));
  EXPECT_EQ(rig.counted(Event::kOldEpoch), 1);
  const auto notice = protocol::read_notice(rig.only(0).extension);
  EXPECT_EQ(notice->code, NoticeCode::kOldEpoch);
  EXPECT_EQ(notice->epoch, 5);
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
}

TEST(EpochTest, AHelloOfAnOpenEpochIsAnsweredByTheSameWelcome) {
  SwitchRig rig;
  rig.shake_hands();
  rig.greet(1, {4, 4, 4});
  rig.turn({.turn = 4}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  rig.give(1, rig.worker(1).hello({.live = 7, .positions = {4, 4}}));
  const auto said = protocol::read_welcome(rig.only(1).extension);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->turns[0], 3);
}

TEST(EpochTest, ANewerHelloThrowsAwayOpenSums) {
  SwitchRig rig;
  rig.open();
  // Worker 2 dies with half of its fragments in the sum.
  rig.give(2, rig.worker(2).contribution({.fragment = 0, .flags = 0}, {{5, 100}}));
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).hello({.epoch = 2, .live = 3, .positions = {1, 1}}));
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).contribution({.epoch = 2}, {{5, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{5, 2}}));
  EXPECT_EQ(protocol::read_result_terms(rig.only(1).extension)->contributors, 3);
  EXPECT_EQ(rig.heard(2).size(), 0);
}

TEST(EpochTest, AResultThatNoWorkerHasIsComputedAgain) {
  SwitchRig rig;
  Closed closed(rig);
  rig.greet(2, {1, 1, 1});  // it reached no worker: the switch's own kept result does not decide
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  rig.turn({.epoch = 2, .next = 2}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.result(2), (Entries{{5, 3}}));
}

TEST(EpochTest, AResultThatSomeLackIsFetchedAndGivenToThem) {
  SwitchRig rig;
  Closed closed(rig);
  // Worker 1 has result 1 of slot 0; the others lack it.
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  rig.give(2, rig.worker(2).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  EXPECT_EQ(phase(rig), SwitchPhase::kFetching);
  const Datagram fetch = rig.only(1);
  EXPECT_EQ(fetch.header.type, DatagramType::kFetch);
  EXPECT_EQ(fetch.header.slot, 0);
  EXPECT_EQ(fetch.header.turn, 1);
  EXPECT_EQ(rig.sent().size(), 1);

  rig.give(1, kept_of(rig.worker(1), closed.result, 2));
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
  EXPECT_EQ(rig.counted(Event::kFetched), 1);
  for (uint32_t at = 0; at < 3; ++at) {
    const std::vector<Datagram> heard = rig.heard(at);
    ASSERT_EQ(heard.size(), 2);
    EXPECT_EQ(protocol::read_welcome(heard[0].extension)->turns[0], 1);
    EXPECT_EQ(protocol::read_welcome(heard[0].extension)->turns[1], 0);
    EXPECT_EQ(heard[1].header.type, DatagramType::kResult);
    EXPECT_EQ(heard[1].header.epoch, 2);
    EXPECT_EQ(protocol::read_result_terms(heard[1].extension)->decided_epoch, 1);
    EXPECT_EQ(entries_of(heard[1], 256), (Entries{{5, 3}}));
  }
  // The laggard asks by contributing; and the next turn is bound by the fetched result.
  rig.give(0, rig.worker(0).contribution({.turn = 1, .epoch = 2, .next = 2}, {{5, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
  rig.since_now();
  rig.give(1, rig.worker(1).contribution({.turn = 2, .epoch = 2, .window = 4}, {{5, 1}}));
  EXPECT_EQ(rig.counted(Event::kWrongBinding), 1);
  rig.give(1, rig.worker(1).contribution({.turn = 2, .epoch = 2, .window = 2}, {{5, 1}}));
  EXPECT_EQ(rig.counted(Event::kAdded), 1);
}

TEST(EpochTest, ContributionWhileFetching_AnsweredWithHelloNoticeNotAdded) {
  SwitchRig rig;
  Closed closed(rig);
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  rig.give(2, rig.worker(2).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  ASSERT_EQ(phase(rig), SwitchPhase::kFetching);
  rig.since_now();
  rig.give(1, rig.worker(1).contribution({.turn = 2, .epoch = 2, .window = 2}, {{5, 100}}));
  EXPECT_EQ(rig.counted(Event::kNotOpen), 1);
  EXPECT_EQ(protocol::read_notice(rig.only(1).extension)->code, NoticeCode::kSayHello);
  rig.give(0, rig.worker(0).contribution({.turn = 1, .epoch = 2, .next = 2}, {{5, 100}}));
  EXPECT_EQ(rig.counted(Event::kNotOpen), 2);
  EXPECT_EQ(rig.counted(Event::kAdded), 0);
  EXPECT_EQ(phase(rig), SwitchPhase::kFetching);

  rig.give(1, kept_of(rig.worker(1), closed.result, 2));
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  rig.turn({.turn = 2, .epoch = 2, .window = 2}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
}

TEST(EpochTest, AFetchIsRepeatedAndThenAskedOfAnotherThatHasIt) {
  SwitchRig rig;
  Closed closed(rig);
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  rig.give(2, rig.worker(2).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  EXPECT_EQ(rig.only(1).header.type, DatagramType::kFetch);
  rig.tick();
  EXPECT_EQ(rig.sent().size(), 0);
  for (int try_number = 2; try_number <= 3; ++try_number) {
    rig.now += 8 * kNsPerMs;
    rig.tick();
    EXPECT_EQ(rig.heard(1).size(), 1);
  }
  rig.now += 8 * kNsPerMs;
  rig.tick();
  EXPECT_EQ(rig.heard(1).size(), 0);
  EXPECT_EQ(rig.only(2).header.type, DatagramType::kFetch);
  rig.give(1, kept_of(rig.worker(1), closed.result, 2));
  EXPECT_EQ(rig.counted(Event::kKeptUnasked), 1);
  rig.give(2, kept_of(rig.worker(2), closed.result, 2));
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
}

TEST(EpochTest, AFetchIsRepeatedWithAHello) {
  SwitchRig rig;
  Closed closed(rig);
  rig.greet(2, {1, 2, 1});
  ASSERT_EQ(phase(rig), SwitchPhase::kFetching);
  rig.now += 8 * kNsPerMs;
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  EXPECT_EQ(rig.heard(1).size(), 2);  // both slots
}

TEST(EpochTest, KeptFragmentsThatDoNotBelongTogetherAreRefused) {
  SwitchRig rig;
  Closed closed(rig);
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  rig.give(2, rig.worker(2).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.since_now();
  Datagram part = closed.result;
  part.header.fragment = 1;  // LAST
  rig.give(1, kept_of(rig.worker(1), part, 2));
  EXPECT_EQ(rig.counted(Event::kKeptUnasked), 0);
  part = closed.result;
  part.header.flags &= static_cast<uint8_t>(~flag::kLast);
  part.header.window = 2;
  rig.give(1, kept_of(rig.worker(1), part, 2));  // of another window
  part.header.window = 0;
  part.header.fragment = 2;
  rig.give(1, kept_of(rig.worker(1), part, 2));  // behind the last
  part.header.fragment = 1;
  rig.give(1, kept_of(rig.worker(1), part, 2));  // again
  EXPECT_EQ(rig.counted(Event::kKeptUnasked), 3);
  part.header.turn = 2;
  part.header.fragment = 0;
  rig.give(1, kept_of(rig.worker(1), part, 2));  // another turn
  EXPECT_EQ(rig.counted(Event::kKeptUnasked), 4);
  part.header.turn = 1;
  rig.give(1, kept_of(rig.worker(1), part, 1));
  EXPECT_EQ(rig.counted(Event::kOldEpoch), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kFetching);
  rig.give(1, kept_of(rig.worker(1), part, 2));
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
}

TEST(EpochTest, AKeptResultThatDoesNotDecodeIsRefused) {
  SwitchRig rig;
  Closed closed(rig);
  rig.greet(2, {1, 2, 1});
  Datagram part = closed.result;
  part.header.index_codec = 77;
  rig.give(1, kept_of(rig.worker(1), part, 2));
  EXPECT_EQ(rig.counted(Event::kMalformedPayload), 1);
  part = closed.result;
  part.extension = part.extension.first(16);
  rig.give(1, kept_of(rig.worker(1), part, 2));
  EXPECT_EQ(rig.counted(Event::kBadFields), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kFetching);
}

TEST(EpochTest, ANewerEpochEndsAFetch) {
  SwitchRig rig;
  Closed closed(rig);
  rig.greet(2, {1, 2, 1});
  ASSERT_EQ(phase(rig), SwitchPhase::kFetching);
  // The worker that had it is removed: no worker that is left received the result.
  for (const uint32_t at : {0u, 2u}) rig.give(at, rig.worker(at).hello({.epoch = 3, .live = 5, .positions = {1, 1}}));
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  for (const uint32_t at : {0u, 2u}) rig.give(at, rig.worker(at).contribution({.epoch = 3}, {{5, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{5, 2}}));
}

TEST(EpochTest, PositionsTooFarApartOpenNothingAndAllWorkersGetANotice) {
  SwitchRig rig;
  rig.shake_hands();
  rig.greet(1, {1, 3, 2});
  EXPECT_EQ(rig.counted(Event::kPositionsApart), 1);
  EXPECT_EQ(phase(rig), SwitchPhase::kCollecting);
  for (uint32_t at = 0; at < 3; ++at) {
    EXPECT_EQ(protocol::read_notice(rig.only(at).extension)->code, NoticeCode::kPositionsTooFarApart);
  }
  rig.greet(1, {2, 2, 2});
  EXPECT_EQ(phase(rig), SwitchPhase::kOpen);
}

TEST(EpochTest, ATurnAwaitsTheContributionOfAJoiningWorker) {
  SwitchRig rig;
  rig.shake_hands();
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).hello({.live = 3, .positions = {1, 1}}));
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  rig.greet(2, {1, 1, 1});
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).contribution({.epoch = 2}, {{5, 1}}));
  EXPECT_EQ(rig.sent().size(), 0);
  rig.give(2, rig.worker(2).contribution({.epoch = 2}, {{5, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
}

TEST(EpochTest, AFinResultSurvivesAnEpochChange) {
  SwitchRig rig;
  rig.open();
  for (uint32_t at = 0; at < 3; ++at) rig.give(at, rig.worker(at).empty({.flags = flag::kFin}));
  const ByteBuffer packet = rig.sent()[0].bytes;
  const Datagram result = *protocol::parse_datagram(packet);
  EXPECT_NE(result.header.flags & flag::kFin, 0);
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 7, .positions = {2, 1}}));
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(2, rig.worker(2).hello({.epoch = 2, .live = 7, .positions = {1, 1}}));
  rig.give(0, kept_of(rig.worker(0), result, 2));
  ASSERT_EQ(phase(rig), SwitchPhase::kOpen);
  EXPECT_NE(rig.heard(2)[1].header.flags & flag::kFin, 0);
}

}  // namespace
}  // namespace millrace::testing
