// Removals that a client keeps, and results that its own removal revokes: S6.8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class ClientReturns : public ::testing::Test {
 protected:
  static SwitchClientOptions of_three_workers() {
    SwitchClientOptions options = ClientRig::options();
    options.workers = 3;
    return options;
  }
  ClientReturns() {
    rig_.epoch.live = 0b111;
    for (uint64_t worker = 0; worker < 3; ++worker) rig_.epoch.incarnations[worker] = 40 + worker;
  }
  /// Both slots of a step get the result of their turn; the entry is of the first slot's window.
  void finish_step(uint32_t step, uint64_t turn, uint16_t index) {
    const auto sent = rig_.sink.take(DatagramType::kContribution);
    ASSERT_FALSE(sent.empty());
    for (uint16_t slot = 0; slot < 2; ++slot) {
      ResultSays says{.slot = slot, .turn = turn, .step = step, .window = slot, .contributors = rig_.epoch.live};
      says.exponent = sent[0].header().exponent;
      if (slot == 0) says.indices = {index};
      if (slot == 0) says.sums = {3};
      rig_.hand(rig_.aggregator.result(rig_.epoch.epoch, says));
    }
    ASSERT_TRUE(rig_.client.at_rest());
  }
  /// The table evicts the worker; the aggregator opens the epoch after these turns.
  void evict(uint16_t worker, uint64_t turn) {
    ++rig_.epoch.epoch;
    rig_.epoch.live &= ~(uint64_t{1} << worker);
    rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
    rig_.hand(rig_.aggregator.welcome(rig_.epoch.epoch, {turn, turn}));
    ASSERT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  }
  ClientRig rig_{of_three_workers()};
};

// Worker 0 has the result of turn 2, and is evicted before worker 1 has it: turn 2 is computed again, without worker 2.
TEST_F(ClientReturns, ARemovalsLastTurnSinksWithTheNextOpening) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {{3, 1.0F}});
  ASSERT_NO_FATAL_FAILURE(finish_step(0, 1, 3));
  rig_.begin(1, {{5, 1.0F}});
  ASSERT_NO_FATAL_FAILURE(evict(2, 2));
  ASSERT_NO_FATAL_FAILURE(evict(0, 1));
  ASSERT_NO_FATAL_FAILURE(finish_step(1, 2, 5));
  const std::vector<SwitchRemoval> removals = rig_.client.handover().lanes[0].removals;
  ASSERT_THAT(removals, SizeIs(2));
  EXPECT_THAT(removals[1].gone, ElementsAre(std::pair<uint16_t, uint64_t>{2, 42}));
  for (const SwitchRemoval& removal : removals) {
    for (const SwitchRemoval::Slot& slot : removal.slots) {
      EXPECT_EQ(slot.turn, 1u) << "removal of epoch " << removal.epoch;
    }
  }
}

// Its removal counts turn 0. It has the results of turns 1 and 2, which no remaining worker has.
TEST_F(ClientReturns, ResultsOfTwoTurnsBehindItsRemovalAreRevoked) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {{3, 1.0F}});
  ASSERT_NO_FATAL_FAILURE(finish_step(0, 1, 3));
  rig_.begin(1, {{5, 1.0F}});
  ASSERT_NO_FATAL_FAILURE(finish_step(1, 2, 5));
  SwitchHandover known{.next_step = 1, .exponents = {}, .lanes = std::vector<SwitchHandover::Lane>(1)};
  const SwitchRemoval::Slot before{.turn = 0, .result = {}};
  known.lanes[0].removals = {{.epoch = 2, .gone = {{1, 41}}, .slots = {before, before}}};
  std::vector<uint32_t> revoked;
  for (const SwitchRevoked& of_turn : rig_.client.abandon_step(41, known)) {
    for (size_t at = 0; at < of_turn.indices.size(); ++at) {
      if (of_turn.integers[at] != 0) revoked.push_back(of_turn.indices[at]);
    }
  }
  EXPECT_THAT(revoked, ElementsAre(5, 3)) << "the last turn first";
}

}  // namespace
}  // namespace millrace::worker::testing
