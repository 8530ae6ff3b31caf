// Steps, turns, resends, congestion: S1.2, S1.4, S5.
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/switch_client_peek.h"
#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
namespace flag = protocol::datagram_flag;

class ClientTurns : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(rig_.run_from_start()); }
  std::vector<SentPacket> contributions() { return rig_.sink.take(DatagramType::kContribution); }
  const Told::Window& last() const { return rig_.told.windows.back(); }
  ClientRig rig_{ClientRig::options()};
};

TEST_F(ClientTurns, EveryStripeOpensWithItsFirstWindowDataOrNot) {
  rig_.begin(0, {{130, 4.0F}, {200, 5.0F}});  // windows 2 and 3: nothing in the first ones
  const auto sent = contributions();
  ASSERT_EQ(sent.size(), 2u);
  for (uint16_t slot = 0; slot < 2; ++slot) {
    const auto header = sent[slot].header();
    EXPECT_TRUE(rig_.aggregator.verifies(sent[slot]));
    EXPECT_EQ(header.flags, flag::kEmpty | flag::kLast);
    EXPECT_EQ(header.slot, slot);
    EXPECT_EQ(header.turn, 1u);
    EXPECT_EQ(header.window, slot);
    EXPECT_EQ(header.next, slot + 2u);
  }
}

TEST_F(ClientTurns, GoesToTheWindowThatTheResultNamesAndAnswersThereWithNothing) {
  rig_.begin(0, {{6 * 64 + 1, 4.0F}});
  contributions();
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .next = 4}));  // another worker wants window 4
  const auto sent = contributions();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header().window, 4u);
  EXPECT_EQ(sent[0].header().turn, 2u);
  EXPECT_EQ(sent[0].header().next, 6u);
  EXPECT_EQ(sent[0].header().flags & flag::kEmpty, flag::kEmpty);
}

TEST_F(ClientTurns, AppliedAndReturnedAreTheValueAndTheStepEnds) {
  rig_.begin(0, {{3, 2.25F}, {7, -1.0F}});
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3, 9}, .sums = {12, 1}}));
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_EQ(last().update, (std::map<uint32_t, int32_t>{{3, 12}, {9, 1}}));
  EXPECT_EQ(last().returned, (std::map<uint32_t, float>{{3, 0.25F}, {7, -1.0F}}));
  EXPECT_TRUE(rig_.told.steps.empty());
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  EXPECT_EQ(rig_.told.steps, std::vector<uint32_t>{0});
}

TEST_F(ClientTurns, AResultWithoutThisWorkerReturnsItsWholeContribution) {
  rig_.begin(0, {{3, 2.25F}});
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .contributors = 1, .indices = {3}, .sums = {12}}));
  EXPECT_EQ(last().returned, (std::map<uint32_t, float>{{3, 2.25F}}));
  EXPECT_EQ(rig_.client.counters().not_contributor, 1u);
}

TEST_F(ClientTurns, TheNextStepContinuesTheTurns) {
  for (uint32_t step = 0; step < 3; ++step) {
    rig_.begin(step, {});
    for (uint16_t slot = 0; slot < 2; ++slot) {
      rig_.hand(rig_.aggregator.result(1, {.slot = slot, .turn = step + 1u, .step = step, .window = slot}));
    }
  }
  EXPECT_EQ(rig_.told.steps, (std::vector<uint32_t>{0, 1, 2}));
}

TEST_F(ClientTurns, ResultsOfOtherTurnsSlotsAndWindowsAreIgnored) {
  rig_.begin(0, {{3, 2.0F}});
  contributions();
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 2}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 0}));
  EXPECT_EQ(rig_.client.counters().other_turn, 2u);
  rig_.hand(rig_.aggregator.result(1, {.slot = 2, .turn = 1, .window = 2}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .window = 2}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .step = 1}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .exponent = 1}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .next = 3}));  // of the other stripe
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .next = 8}));  // behind the tensor
  EXPECT_EQ(rig_.client.counters().contradiction, 6u);
  EXPECT_TRUE(rig_.told.windows.empty());
  EXPECT_TRUE(rig_.sink.take().empty());
}

TEST_F(ClientTurns, AResultThatLeavesOutAWindowOfThisWorkerIsRefused) {
  rig_.begin(0, {{4 * 64, 2.0F}});
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .next = 6}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}));
  EXPECT_EQ(rig_.client.counters().contradiction, 2u);
  EXPECT_TRUE(rig_.told.windows.empty());
}

TEST_F(ClientTurns, AResultCountsOnceAllItsFragmentsAreIn) {
  rig_.begin(0, {{3, 2.0F}});
  const ResultSays second{.slot = 0, .turn = 1, .indices = {9}, .sums = {1}, .fragment = 1};
  const ResultSays first{.slot = 0, .turn = 1, .indices = {3}, .sums = {2}, .fragment = 0, .flags = 0};
  const ByteBuffer late = rig_.aggregator.result(1, first);
  rig_.hand(rig_.aggregator.result(1, second));
  rig_.hand(rig_.aggregator.result(1, second));
  EXPECT_EQ(rig_.client.counters().duplicates, 1u);
  EXPECT_TRUE(rig_.told.windows.empty());
  rig_.hand(late);
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_EQ(last().update, (std::map<uint32_t, int32_t>{{3, 2}, {9, 1}}));
}

TEST_F(ClientTurns, AReplayedPacketIsDroppedAndCounted) {
  rig_.begin(0, {});
  const ByteBuffer result = rig_.aggregator.result(1, {.slot = 0, .turn = 1});
  rig_.hand(result);
  rig_.hand(result);
  EXPECT_EQ(rig_.client.counters().replayed, 1u);
  EXPECT_EQ(rig_.told.windows.size(), 1u);
}

TEST_F(ClientTurns, EverySingleByteOfAResultCountsForItsMac) {
  rig_.begin(0, {{3, 2.0F}});
  const ByteBuffer result = rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3}, .sums = {2}});
  for (size_t at = 0; at < result.size(); ++at) {
    ByteBuffer damaged = result;
    damaged[at] ^= 0x10;
    rig_.hand(damaged);
    ASSERT_TRUE(rig_.told.windows.empty()) << at;
  }
  for (size_t bytes = 0; bytes < result.size(); ++bytes) rig_.hand(ByteBuffer(result.begin(), result.begin() + bytes));
  ASSERT_TRUE(rig_.told.windows.empty());
  rig_.hand(result);
  EXPECT_EQ(rig_.told.windows.size(), 1u);
}

TEST_F(ClientTurns, ResendsAreTheSamePayloadUnderANewSequenceNumber) {
  rig_.begin(0, {{3, 2.0F}, {70, 1.0F}});
  const auto first = contributions();
  ASSERT_EQ(first.size(), 2u);
  rig_.later(kNsPerS);
  rig_.tick();
  const auto again = contributions();
  ASSERT_EQ(again.size(), 1u);  // no worker has begun the step yet: one slot asks for all
  for (size_t i = 0; i < again.size(); ++i) {
    auto one = first[i].header();
    const auto other = again[i].header();
    EXPECT_GT(other.sequence, one.sequence);
    one.sequence = other.sequence;
    EXPECT_EQ(one, other);
    const auto a = first[i].datagram().payload;
    const auto b = again[i].datagram().payload;
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
  EXPECT_EQ(rig_.client.counters().resends, 1u);
}

TEST_F(ClientTurns, TimeoutsDouble) {
  rig_.begin(0, {});
  TimeNs before = rig_.client.next_deadline() - rig_.now;
  for (int i = 0; i < 4; ++i) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    const TimeNs after = rig_.client.next_deadline() - rig_.now;
    EXPECT_EQ(after, 2 * before);
    before = after;
  }
}

TEST_F(ClientTurns, ATimeoutHalvesTheActiveSlotsAndHeldAnswersStillGoOut) {
  rig_.begin(0, {});
  contributions();
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}));
  rig_.now = rig_.client.next_deadline();
  rig_.tick();
  contributions();
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 1u);
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  rig_.begin(1, {});
  EXPECT_EQ(contributions().size(), 1u);  // the other answer is held back
  EXPECT_EQ(rig_.client.counters().held_back, 1u);
  // Another worker may hold back the very turn that this one waits for: so time alone frees it.
  rig_.later(20 * kNsPerMs);
  rig_.tick();
  bool other = false;
  for (const SentPacket& packet : contributions()) other = other || packet.header().slot == 1;
  EXPECT_TRUE(other);
}

TEST_F(ClientTurns, OneSlotProbesAStepThatNoOtherWorkerHasBegun) {
  rig_.begin(0, {});
  EXPECT_EQ(contributions().size(), 2u);
  for (int i = 0; i < 3; ++i) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    const auto asked = contributions();
    ASSERT_EQ(asked.size(), 1u);
    EXPECT_EQ(asked.front().header().slot, 0u);
  }
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 2u);
  // The others have begun now: a result that is still missing was lost, and its slot asks for itself.
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}));
  rig_.now = rig_.client.next_deadline();
  rig_.tick();
  const auto asked = contributions();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked.front().header().slot, 1u);
}

/// Nothing of this worker is missing: another worker's packet is, and that one is notified, or a notice is missing. So
/// this worker only waits, for a round trip.
TEST(ClientResends, ATurnThatThreeLaterOnesOvertakeIsSentAgainWithoutItsTimeOut) {
  SwitchClientOptions options = ClientRig::options();
  options.slots = 8;
  options.round_trip.min_ns = kNsPerS;
  options.round_trip.max_ns = 2 * kNsPerS;
  ClientRig rig(options);
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  rig.begin(0, {});
  EXPECT_EQ(rig.sink.take(DatagramType::kContribution).size(), 8u);
  for (uint16_t slot = 1; slot < 8; ++slot) {
    rig.hand(rig.aggregator.result(1, {.slot = slot, .turn = 1, .window = slot}));
    rig.tick();
    EXPECT_TRUE(rig.sink.take(DatagramType::kContribution).empty()) << slot;
    const TimeNs left = rig.client.next_deadline() - rig.now;
    EXPECT_GE(left, 5 * kNsPerMs) << slot;
    EXPECT_LT(left, kNsPerS) << slot;
  }
  rig.now = rig.client.next_deadline();
  rig.tick();
  const auto sent = rig.sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent.front().header().slot, 0u);
  EXPECT_EQ(rig.client.counters().overtaken, 1u);
  EXPECT_EQ(rig.client.counters().timeouts, 0u);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig.client), 8u);  // a lossy network is no congestion
}

/// A retransmission may be lost again: that shows in the same way, by turns that were sent after it.
TEST(ClientResends, AnOvertakenTurnIsRetransmittedAtMostThreeTimes) {
  SwitchClientOptions options = ClientRig::options();
  constexpr uint32_t kTurns = 40;
  options.slots = 8;
  options.dimension = 64 * 8 * kTurns;
  options.round_trip.min_ns = kNsPerS;
  options.round_trip.max_ns = 2 * kNsPerS;
  ClientRig rig(options);
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  rig.begin(0, {});
  uint32_t sent = 1;
  std::vector<uint32_t> sent_by;
  rig.sink.take();
  for (uint32_t turn = 1; turn < kTurns; ++turn) {
    for (uint16_t slot = 1; slot < 8; ++slot) {
      const uint32_t window = 8 * (turn - 1) + slot;
      rig.hand(rig.aggregator.result(1, {.slot = slot, .turn = turn, .window = window, .next = window + 8}));
    }
    rig.now += kNsPerMs;
    rig.tick();
    for (const SentPacket& packet : rig.sink.take(DatagramType::kContribution))
      sent += packet.header().slot == 0 ? 1 : 0;
    sent_by.push_back(sent);
  }
  EXPECT_GE(sent_by[12], 2u) << "long before a time-out, which is 1,000 turns here";
  EXPECT_EQ(sent_by.back(), 4u) << "from then on its time-out says when";
  EXPECT_EQ(rig.client.counters().overtaken, 3u);
  EXPECT_EQ(rig.client.counters().timeouts, 0u);
}

TEST_F(ClientTurns, StepsThatCannotBeAreRefused) {
  const std::vector<uint32_t> indices{4, 9};
  const std::vector<float> values{1.0F, 2.0F};
  auto begin = [&](uint32_t step, IndexSpan at, std::span<const float> what) {
    return rig_.client.begin_step(step, at, what, rig_.now, rig_.sink).has_value();
  };
  EXPECT_FALSE(begin(1, indices, values));
  EXPECT_FALSE(begin(0, indices, std::span(values).first(1)));
  EXPECT_FALSE(begin(0, std::vector<uint32_t>{9, 4}, values));
  EXPECT_FALSE(begin(0, std::vector<uint32_t>{4, 4}, values));
  EXPECT_FALSE(begin(0, std::vector<uint32_t>{4, 512}, values));
  EXPECT_FALSE(begin(0, indices, std::vector<float>{1.0F, std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_FALSE(begin(0, indices, std::vector<float>{std::numeric_limits<float>::infinity(), 1.0F}));
  EXPECT_TRUE(rig_.sink.take().empty());
  EXPECT_TRUE(begin(0, indices, values));
  EXPECT_FALSE(begin(1, indices, values));
}

TEST_F(ClientTurns, FinishingAnswersOthersStepsUntilAllSayFin) {
  ASSERT_TRUE(rig_.client.finish(rig_.now, rig_.sink).has_value());
  auto sent = contributions();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header().flags, flag::kEmpty | flag::kLast | flag::kFin);
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .next = 4}));  // another worker still has values
  sent = contributions();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header().flags, flag::kEmpty | flag::kLast);
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 2, .window = 4}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  EXPECT_FALSE(rig_.client.finished());
  EXPECT_EQ(contributions().size(), 2u);  // the next step's openings
  const uint8_t fin = flag::kLast | flag::kFin | flag::kVoid;
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 3, .step = 1, .flags = fin}));
  EXPECT_FALSE(rig_.client.finished());
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 2, .step = 1, .window = 1, .flags = fin}));
  EXPECT_TRUE(rig_.client.finished());
  EXPECT_TRUE(rig_.told.steps.empty());
  rig_.later(kNsPerS);
  rig_.tick();
  EXPECT_TRUE(contributions().empty());
}

TEST_F(ClientTurns, ExponentsFollowTheResultsOfStepsThatAreOver) {
  rig_.begin(0, {{3, 1.0F}});
  contributions();
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3}, .sums = {1 << 20}}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  rig_.begin(1, {{3, 1.0F}});
  const auto sent = contributions();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header().exponent, 21 + 2 - 14);
  EXPECT_EQ(sent[1].header().exponent, 21 + 2 - 14);
}

}  // namespace
}  // namespace millrace::worker::testing
