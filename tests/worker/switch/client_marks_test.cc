// Packets that the network marked instead of dropping them (ECN): S5.9.
#include <gtest/gtest.h>

#include "tests/support/switch_client_peek.h"
#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
using protocol::Ecn;

class ClientMarks : public ::testing::Test {
 protected:
  static SwitchClientOptions options() {
    SwitchClientOptions out = ClientRig::options();
    out.slots = 8;
    return out;
  }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
    rig_.begin(0, {});
    rig_.later(10 * kNsPerMs);  // a round trip
  }
  ByteBuffer result(uint16_t slot) { return rig_.aggregator.result(1, {.slot = slot, .turn = 1, .window = slot}); }
  uint64_t marks() const { return rig_.client.counters().congestion_marks; }
  ClientRig rig_{options()};
};

TEST_F(ClientMarks, AMarkHalvesTheActiveSlotsOnceInARoundTrip) {
  rig_.hand(result(0), Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 4u);
  rig_.hand(result(1), Ecn::kCe);
  rig_.hand(result(2), Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 4u) << "the same congestion";
  rig_.later(kNsPerS);
  rig_.hand(result(3), Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 2u);
  EXPECT_EQ(marks(), 4u);
  EXPECT_EQ(rig_.told.windows.size(), 4u) << "a marked result is a result";
  EXPECT_EQ(rig_.client.counters().resends, 0u) << "nothing is lost";
}

TEST_F(ClientMarks, WithoutAMarkNothingHappens) {
  for (const Ecn ecn : {Ecn::kNotEct, Ecn::kEct0, Ecn::kEct1}) rig_.hand(result(static_cast<uint16_t>(ecn)), ecn);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 8u);
  EXPECT_EQ(marks(), 0u);
}

TEST_F(ClientMarks, AForgedPacketDoesNotSlowTheWorker) {
  ByteBuffer forged = result(0);
  forged.back() ^= 1;
  rig_.hand(forged, Ecn::kCe);
  EXPECT_EQ(rig_.client.counters().forged, 1u);
  rig_.hand({1, 2, 3}, Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 8u);
  EXPECT_EQ(marks(), 0u);
}

TEST_F(ClientMarks, NorDoesAReplay) {
  const ByteBuffer once = result(0);
  rig_.hand(once);
  rig_.hand(once, Ecn::kCe);
  EXPECT_EQ(rig_.client.counters().replayed, 1u);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 8u);
  EXPECT_EQ(marks(), 0u);
}

/// Its key never changes, so that any sender may send an old one again.
TEST_F(ClientMarks, NorDoesANoticeWithoutASession) {
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kUnknownIncarnation, 0, {}), Ecn::kCe);
  EXPECT_EQ(rig_.client.counters().challenge_requests, 2u) << "it was taken, though";
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 8u);
  EXPECT_EQ(marks(), 0u);
}

TEST_F(ClientMarks, APacketOfAFormerIncarnationDoesNotSlowTheWorker) {
  ScriptedSwitch former(rig_.client_options, 0xDEAD);
  rig_.hand(former.result(1, {.slot = 0, .turn = 1}), Ecn::kCe);
  EXPECT_EQ(rig_.client.counters().wrong_life, 1u);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 8u);
}

TEST_F(ClientMarks, AMarkedPacketOfATurnThatIsOverCounts) {
  rig_.hand(result(0));
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}), Ecn::kCe);
  EXPECT_EQ(rig_.client.counters().other_turn, 1u);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), 4u);
}

TEST_F(ClientMarks, AfterAMarkAnswersAreHeldBack) {
  SwitchClientOptions narrow = ClientRig::options();
  narrow.dimension = 64 * 64;
  ClientRig rig(narrow);
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  rig.begin(0, {});
  rig.sink.take();
  rig.hand(rig.aggregator.result(1, {.slot = 0, .turn = 1, .next = 2}), Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig.client), 1u);
  EXPECT_TRUE(rig.sink.take(DatagramType::kContribution).empty());
  EXPECT_EQ(rig.client.counters().held_back, 1u);
}

/// The least window would open by each result, marked or not, and close by each, a round trip later.
TEST_F(ClientMarks, MarkedResultsDoNotOpenTheWindow) {
  SwitchClientOptions one_by_one = ClientRig::options();
  one_by_one.dimension = 64 * 64;
  ClientRig rig(one_by_one);
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  rig.begin(0, {});
  for (uint64_t turn = 1; turn < 20; ++turn) {
    const auto window = static_cast<uint32_t>(2 * (turn - 1));
    rig.hand(rig.aggregator.result(1, {.slot = 0, .turn = turn, .window = window, .next = window + 2}), Ecn::kCe);
    EXPECT_EQ(SwitchClientPeek::active_slots(rig.client), 1u) << turn;
    rig.later(kNsPerMs);
    rig.tick();
  }
}

TEST(ClientMarksAtRack, ThatOfTheRackCountsToo) {
  ClientRig rig(ClientRig::options());
  rig.epoch.role = SwitchRole::kCombine;
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  ASSERT_NO_FATAL_FAILURE(rig.welcome_by_rack());
  rig.hand_from_rack(rig.rack.notice(protocol::NoticeCode::kOldEpoch, 1, {}), Ecn::kCe);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig.client), 1u);
  EXPECT_EQ(rig.client.counters().congestion_marks, 1u);
}

}  // namespace
}  // namespace millrace::worker::testing
