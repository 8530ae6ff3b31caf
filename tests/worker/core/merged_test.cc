#include <algorithm>

#include "protocol/messages/log_digest.h"
#include "tests/worker/core/returning_core.h"

/// Mode asynchronous, seen from a worker: several steps in one update.
namespace millrace::worker {
namespace {

struct Merged : testing::ReturningCore {
  Merged() {
    config_.spec.mode = protocol::Mode::kAsynchronous;
    config_.spec.staleness = 3;
    config_.takes_merged = true;
    make_running();
  }
  /// The steps up to `step` are, in their order, these contributions.
  protocol::Update merged(uint64_t step, std::vector<protocol::ContributorId> steps) const {
    protocol::Update update = update_of(0, step);
    update.contributors.clear();
    update.weight_sum = static_cast<double>(steps.size());
    for (const protocol::ContributorId& one : steps) update.merged.push_back({one, 1, one.sequence + 77});
    update.summary.epochs = {{membership_.epoch, 0}};
    return update;
  }
  void hear_merged(const protocol::Update& update, const Entries& entries) {
    hear(0, update, sum_of(entries, part_dimension(0)));
  }
  void hear_single(uint64_t step, protocol::ContributorId who) {
    protocol::Update update = update_of(0, step);
    update.contributors = {who};
    update.weight_sum = 1;
    hear(0, update, sum_of({}, part_dimension(0)));
  }
  std::vector<protocol::Ack::Entry> acks() {
    core().end_pass(now_, actions_);
    std::vector<protocol::Ack::Entry> entries;
    for (const auto& [shard, message] : take_sent<protocol::Ack>()) {
      for (const auto& entry : std::get<protocol::Ack>(message.body).entries) entries.push_back(entry);
    }
    return entries;
  }
  using Acks = std::vector<protocol::Ack::Entry>;
};

TEST_F(Merged, HelloSaysThatItTakesThem) {
  const auto said = [this](bool weights, bool takes) {
    config_.has_weights = weights;
    config_.takes_merged = takes;
    make();
    actions_.clear();
    core().on_connected(0, now_, actions_);
    const auto hellos = take_sent<protocol::Hello>();
    EXPECT_EQ(hellos.size(), 1u);
    return std::get<protocol::Hello>(hellos.at(0).second.body).capabilities;
  };
  EXPECT_EQ(said(true, true), protocol::kTakesMerged);
  EXPECT_EQ(said(true, false), 0u);
  EXPECT_EQ(said(false, true), 0u) << "no worker could help it after its shard died";
}

TEST_F(Merged, IsAppliedOnceAndAcknowledgedWhole) {
  push({5}, {1});
  take_sent<protocol::Contribution>();
  acks();
  hear_merged(merged(2, {{1, 1, 0}, {1, 1, 1}, {1, 1, 2}}), {{5, 7}});
  ASSERT_EQ(actions_.delivered.size(), 1u);
  const DeliveredUpdate& delivered = actions_.delivered[0];
  EXPECT_EQ(delivered.first_step, 0u);
  EXPECT_EQ(delivered.step, 2u);
  EXPECT_EQ(delivered.contributors, 3u);
  EXPECT_EQ(delivered.weight_sum, 3);
  EXPECT_EQ(delivered.denominator, 1);
  EXPECT_FALSE(delivered.counted);
  EXPECT_FALSE(delivered.answers_push);
  EXPECT_EQ(core().part_steps_applied(0), 3u);
  EXPECT_EQ(core().outstanding(0).size(), 2u) << "none of them is its own";
  EXPECT_EQ(acks(), (Acks{{0, 3, false}}));
}

TEST_F(Merged, ItsOwnContributionsAmongThemAreSettledInOrder) {
  push({5}, {4});
  push({6}, {2});
  push({7}, {1});
  hear_merged(merged(3, {{0, 1, 0}, {1, 1, 0}, {0, 1, 1}, {1, 1, 1}}), {{5, 4}, {6, 2}, {9, 9}});
  const auto of_part = [](const DeliveredUpdate& update) { return update.part == 0; };
  ASSERT_EQ(std::ranges::count_if(actions_.delivered, of_part), 2) << "the first push is answered without an update";
  EXPECT_TRUE(actions_.delivered[0].delivered_before);
  EXPECT_EQ(actions_.delivered[0].push, 0u);
  EXPECT_EQ(actions_.delivered[1].push, 1u);
  EXPECT_TRUE(actions_.delivered[1].answers_push);
  EXPECT_TRUE(actions_.delivered[1].counted);
  EXPECT_EQ(core().outstanding(0).size(), 4u) << "one of this part, three of the other";
  EXPECT_EQ(core().counters().not_counted, 0u);
  EXPECT_EQ(residual(), Entries{});
}

TEST_F(Merged, OneThatBeginsBeforeItsPlaceIsNotUsedAndTheRestAskedFor) {
  hear_single(0, {1, 1, 0});
  hear_single(1, {1, 1, 1});
  acks();
  hear_merged(merged(4, {{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 1, 4}}), {{5, 7}});
  EXPECT_EQ(core().part_steps_applied(0), 2u);
  EXPECT_EQ(acks(), (Acks{{0, 2, true}}));
  hear_merged(merged(4, {{1, 1, 2}, {1, 1, 3}, {1, 1, 4}}), {{5, 7}});
  EXPECT_EQ(core().part_steps_applied(0), 5u);
  hear_merged(merged(4, {{1, 1, 2}, {1, 1, 3}, {1, 1, 4}}), {{5, 7}});
  EXPECT_EQ(core().part_steps_applied(0), 5u) << "all of it is here";
}

TEST_F(Merged, OneThatIsAheadWaitsForItsTurn) {
  hear_merged(merged(3, {{1, 1, 1}, {1, 1, 2}, {1, 1, 3}}), {{5, 7}});
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  hear_single(0, {1, 1, 0});
  EXPECT_EQ(core().part_steps_applied(0), 4u);
}

TEST_F(Merged, TheDigestIsThatOfTheSteps) {
  const protocol::Update update = merged(1, {{1, 1, 0}, {1, 1, 1}});
  hear_merged(update, {{5, 7}});
  core().on_tick(now_ + 2 * kNsPerS, actions_);
  bool said = false;
  for (const auto& [shard, message] : take_sent<protocol::Heartbeat>()) {
    for (const auto& digest : std::get<protocol::Heartbeat>(message.body).digests) {
      if (digest.part != 0) continue;
      said = true;
      EXPECT_EQ(digest.n, 2u);
      EXPECT_EQ(digest.digest, protocol::extend_log_digest(protocol::kLogDigestStart, update, {}));
    }
  }
  EXPECT_TRUE(said);
}

TEST_F(Merged, AMergedUpdateIsNotRetainedForASuccessor) {
  hear_single(0, {1, 1, 0});
  hear_merged(merged(2, {{1, 1, 1}, {1, 1, 2}}), {{5, 7}});
  hear(0, protocol::Collect{});
  EXPECT_EQ(last_state().parts.at(0).retained_from, 3u);
  hear(0, protocol::Fetch{0, 0});
  EXPECT_TRUE(take_sent<protocol::Update>().empty());
  hear_single(3, {1, 1, 3});
  hear(0, protocol::Collect{});
  EXPECT_EQ(last_state().parts.at(0).retained_from, 3u) << "the update after it is";
}

TEST_F(Merged, WhatCannotBeSummedEndsTheSessionLikeWhatDoesNotDecode) {
  protocol::Update cut = merged(1, {{1, 1, 0}, {1, 1, 1}});
  cut.whole_sum = false;
  for (int time = 0; time < 3; ++time) {
    EXPECT_EQ(core().phase(), Phase::kRunning);
    hear_merged(cut, {{5, 7}});
  }
  EXPECT_EQ(core().phase(), Phase::kEnded);
  EXPECT_TRUE(core().error()->message.contains("several steps that cannot be summed")) << core().error()->message;
}

}  // namespace
}  // namespace millrace::worker
