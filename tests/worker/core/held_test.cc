#include <gtest/gtest.h>

#include "tests/worker/core/returning_core.h"

/// Jobs with apply_after_acks: an update is kept and acknowledged at once. The application gets it when the shard
/// announces that enough members have it.
namespace millrace::testing {
namespace {

using protocol::Ack;
using protocol::MemberState;
using worker::Phase;

class HeldUpdates : public ReturningCore {
 protected:
  static constexpr uint32_t kSecond = 150'000;  ///< an index of part 1

  HeldUpdates() { config_.spec.apply_after_acks = config_.spec.workers_min = 2; }
  void hear_backed(uint32_t part, uint64_t n) { hear(part, Ack{{{part, n}}}); }
  /// Returns (part, step) of the updates that were delivered since the last call.
  std::vector<std::pair<uint32_t, uint64_t>> delivered() {
    std::vector<std::pair<uint32_t, uint64_t>> all;
    for (const worker::DeliveredUpdate& update : actions_.delivered) all.emplace_back(update.part, update.step);
    actions_.clear();
    return all;
  }
  using Steps = std::vector<std::pair<uint32_t, uint64_t>>;
};

TEST_F(HeldUpdates, AnUpdateIsAcknowledgedAtOnceAndDeliveredWhenEnoughHaveIt) {
  make_running();
  push({5, kSecond}, {1, 2});
  actions_.clear();
  hear_update(0, 0, {{5, 1}});
  core().end_pass(now_, actions_);
  const auto acks = take_sent<Ack>();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body).entries, (std::vector<Ack::Entry>{{0, 1}}));
  EXPECT_EQ(core().part_steps_applied(0), 1u) << "it is on the log, and kept";
  EXPECT_EQ(core().part_steps_handed(0), 0u);
  EXPECT_EQ(core().awaiting_acks(0).size(), 1u);
  EXPECT_TRUE(core().outstanding(0).size() == 1) << "what part 0 sent is settled";
  EXPECT_EQ(delivered(), Steps{});
  hear_backed(0, 1);
  EXPECT_EQ(delivered(), (Steps{{0, 0}}));
  EXPECT_EQ(core().part_steps_handed(0), 1u);
}

TEST_F(HeldUpdates, NoPushIsAllowedOnWeightsThatLackAHeldUpdate) {
  make_running();
  push({5, kSecond}, {1, 2});
  hear_update(0, 0, {{5, 1}});
  hear_update(1, 0, {});
  EXPECT_EQ(core().steps_allowed(0), 1u);
  EXPECT_TRUE(core().in_flight());
  hear_backed(0, 1);
  EXPECT_EQ(core().steps_allowed(0), 1u) << "part 1 is held";
  const uint64_t before = core().changes();
  hear_backed(1, 1);
  EXPECT_EQ(core().steps_allowed(0), 2u);
  EXPECT_NE(core().changes(), before);
  EXPECT_FALSE(core().in_flight());
}

TEST_F(HeldUpdates, TheyAreDeliveredInOrderAndTheLastPartCompletesTheStep) {
  config_.spec.staleness = 2;
  make_running();
  for (uint32_t step = 0; step < 3; ++step) push({step, kSecond}, {1, 1});
  actions_.clear();
  for (uint64_t step = 0; step < 3; ++step) {
    hear_update(0, step, {{5, 1}});
    hear_update(1, step, {});
  }
  EXPECT_EQ(delivered(), Steps{});
  hear_backed(0, 2);
  ASSERT_EQ(actions_.delivered.size(), 2u);
  EXPECT_FALSE(actions_.delivered[0].step_complete);
  EXPECT_EQ(delivered(), (Steps{{0, 0}, {0, 1}}));
  hear_backed(1, 1);
  ASSERT_EQ(actions_.delivered.size(), 1u);
  EXPECT_TRUE(actions_.delivered[0].step_complete);
  EXPECT_EQ(delivered(), (Steps{{1, 0}}));
  hear_backed(0, 1);
  EXPECT_EQ(delivered(), Steps{}) << "said before: it never goes back";
  hear_backed(1, 3);
  hear_backed(0, 3);
  EXPECT_EQ(delivered(), (Steps{{1, 1}, {1, 2}, {0, 2}}));
}

TEST_F(HeldUpdates, AReplicatedMessageThatPrecedesItsUpdateCounts) {
  make_running();
  push({5}, {1});
  actions_.clear();
  hear_backed(0, 1);
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(delivered(), (Steps{{0, 0}}));
}

TEST_F(HeldUpdates, AReplicatedMessageOfAnEarlierEpochDoesNotCount) {
  make_running();
  push({5}, {1});
  actions_.clear();
  hear_backed(0, 1);
  protocol::Message late = from_shard(0, Ack{{{0, 1}}});
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(delivered(), Steps{}) << "it may have been said of an update that is void";
  const uint64_t stale = core().counters().dropped_stale;
  core().on_message(0, std::move(late), now_, actions_);
  EXPECT_EQ(delivered(), Steps{});
  EXPECT_EQ(core().counters().dropped_stale, stale + 1);
  hear_backed(0, 1);
  EXPECT_EQ(delivered(), (Steps{{0, 0}}));
}

TEST_F(HeldUpdates, PartsThatAreNotTheShardsAreDropped) {
  make_running();
  push({5}, {1});
  hear_update(1, 0, {});
  actions_.clear();
  const uint64_t dropped = core().counters().dropped_unexpected;
  hear(0, Ack{{{1, 1}, {7, 1}}});
  EXPECT_EQ(core().counters().dropped_unexpected, dropped + 2);
  EXPECT_EQ(delivered(), Steps{});
}

TEST_F(HeldUpdates, AnAckIsRepeatedEachHeartbeatUntilReplicated) {
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  core().end_pass(now_, actions_);
  take_sent<Ack>();
  pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
  const auto acks = take_sent<Ack>();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(acks[0].first, 0u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body).entries, (std::vector<Ack::Entry>{{0, 1}}));
  hear_backed(0, 1);
  actions_.clear();
  pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
  EXPECT_TRUE(take_sent<Ack>().empty());
}

TEST_F(HeldUpdates, TheWorkerReportsTheReplicationThatItIsBlockedOn) {
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().waiting_for(),
            "shard 0 (tcp://a:1) has not said that 2 workers have the update of part 0, step 0 (apply_after_acks)");
}

TEST_F(HeldUpdates, AWorkerLeavesOnlyAfterItsLastUpdatesAreDelivered) {
  make_running();
  push({5, kSecond}, {1, 2});
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  hear_update(0, 0, {{5, 1}});
  hear_update(1, 0, {});
  core().end_pass(now_, actions_);
  EXPECT_EQ(core().phase(), Phase::kFinishing);
  hear_backed(0, 1);
  hear_backed(1, 1);
  core().end_pass(now_, actions_);
  EXPECT_EQ(core().phase(), Phase::kFinished);
  EXPECT_EQ(delivered(), (Steps{{0, 0}, {1, 0}}));
}

TEST_F(HeldUpdates, GivenAndSavedWeightsStandWhereItsLogDoes) {
  make_running();
  push({5, kSecond}, {1, 2});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().saved_state().parts[0].n, 1u);
  actions_.clear();
  const std::vector<float> weights(part_dimension(0), 1);
  core().give_weights({0, 0, 1, 2, membership_.epoch}, weights, now_, actions_);
  const auto runs = take_sent<protocol::Snapshot>();
  ASSERT_FALSE(runs.empty());
  EXPECT_EQ(std::get<protocol::Snapshot>(runs[0].second.body).n, 1u)
      << "the shell adds held() to the application's weights";
  ASSERT_EQ(core().awaiting_acks(0).size(), 1u);
  EXPECT_EQ(core().awaiting_acks(0)[0].sum.view.values[0], 1.0f);
}

TEST_F(HeldUpdates, ARejoiningWorkerOnTheLogKeepsItsUpdatesAwaitingAcks) {
  make_running();
  push({5, kSecond}, {1, 2});
  hear_update(0, 0, {{5, 1}});
  lose_place();
  enter(2);
  hear(0, settle_of(0, 1));
  hear(1, settle_of(1, 0));
  actions_.clear();
  make_synced();
  EXPECT_EQ(core().awaiting_acks(0).size(), 1u);
  EXPECT_EQ(core().steps_allowed(0), 1u);
  hear_backed(0, 1);
  bool found = false;
  for (const worker::DeliveredUpdate& update : actions_.delivered)
    found = found || (update.part == 0 && !update.replaces);
  EXPECT_TRUE(found);
  EXPECT_EQ(core().awaiting_acks(0).size(), 0u);
}

TEST_F(HeldUpdates, OfALogThatWasCutNothingIsAppliedAndThePushIsAnswered) {
  make_running();
  push({5, kSecond}, {1, 2});
  hear_update(0, 0, {{5, 1}});
  lose_place();
  enter(2);
  hear_snapshot(0, 1, 0.5f);
  protocol::Settle settle = settle_of(0, 1, Weights::kSnapshot);
  settle.on_log = false;
  actions_.clear();
  hear(0, settle);
  hear(1, settle_of(1, 0));
  EXPECT_EQ(delivered(), Steps{}) << "the weights of another are held as well";
  make_synced();
  hear_backed(0, 1);
  ASSERT_GE(actions_.delivered.size(), 2u);
  std::vector<worker::DeliveredUpdate> of_part;
  for (const worker::DeliveredUpdate& update : actions_.delivered)
    if (update.part == 0) of_part.push_back(update);
  ASSERT_EQ(of_part.size(), 2u);
  EXPECT_TRUE(of_part[0].answers_push);
  EXPECT_TRUE(of_part[0].delivered_before);
  EXPECT_EQ(of_part[0].sum.view.count(), 0u) << "the void update is not applied";
  EXPECT_TRUE(of_part[1].replaces);
  EXPECT_EQ(core().steps_allowed(0), 2u);
}

TEST_F(HeldUpdates, AJoinerIsAwaitedOnlyOnceItsSavedStateIsReplicated) {
  make_running();
  push({5, kSecond}, {1, 2});
  hear_update(0, 0, {{5, 1}});
  hear_update(1, 0, {});
  config_.saved = core().saved_state();
  actions_.clear();
  make_joining(2);
  for (uint32_t part = 0; part < 2; ++part) hear(part, settle_of(part, 1));
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_FALSE(core().is_waited_for()) << "its weights have an update that it may be alone with";
  hear_backed(0, 1);
  EXPECT_FALSE(core().is_waited_for());
  hear_backed(1, 1);
  EXPECT_TRUE(core().is_waited_for());
}

}  // namespace
}  // namespace millrace::testing
