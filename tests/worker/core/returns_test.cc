#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/core/returning_core.h"

/// R9 for a worker that was removed and lives: its place, its account, its weights.
namespace millrace::testing {
namespace {

using protocol::Contribution;
using protocol::Hello;
using protocol::MemberState;
using protocol::State;
using protocol::Synced;
using worker::Phase;

class Returns : public ReturningCore {
 protected:
  static constexpr uint32_t kSecond = 150'000;  ///< an index of part 1
  uint32_t local(uint32_t index) const { return index - static_cast<uint32_t>(core_->layout().parts[1].begin); }
  /// Both parts settled with the shard's `decided` steps, and the table knows.
  void settle_both(uint64_t decided) {
    for (uint32_t part = 0; part < 2; ++part) hear(part, settle_of(part, decided));
    make_synced();
  }
};

TEST_F(Returns, AnEvictedWorkerStopsContributingAndAsksToRejoin) {
  make_running();
  push({5}, {1});
  actions_.clear();
  lose_place();
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  const auto hellos = take_sent<Hello>();
  EXPECT_EQ(shards_of(hellos), (std::vector<uint32_t>{0, 1}));
  for (const auto& [shard, message] : hellos) {
    const auto& hello = std::get<Hello>(message.body);
    EXPECT_EQ(hello.nonce, kNonce);
    EXPECT_TRUE(hello.returns);
    EXPECT_TRUE(hello.has_weights);
  }
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 0u) << "nothing is applied without a place";
  pass(5 * kNsPerS);
  EXPECT_TRUE(take_sent<Contribution>().empty());
}

TEST_F(Returns, ARejoiningWorkerReportsItsStateToEveryShardEachEpoch) {
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  lose_place();
  actions_.clear();
  enter(2);
  EXPECT_EQ(core().incarnation(), 2u);
  auto states = take_sent<State>();
  EXPECT_EQ(shards_of(states), (std::vector<uint32_t>{0, 1}));
  for (const auto& [shard, message] : states) {
    EXPECT_EQ(message.header.incarnation, 2u);
    EXPECT_EQ(message.header.epoch, membership_.epoch);
    const auto& state = std::get<State>(message.body);
    EXPECT_FALSE(state.synced);
    ASSERT_EQ(state.parts.size(), 2u);
    EXPECT_EQ(state.parts[0], (State::Part{0, 1, 3, 0, 0}));
    EXPECT_EQ(state.parts[1], (State::Part{1, 0, 0, 0, 0}));
  }
  ++membership_.epoch;
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(shards_of(take_sent<State>()), (std::vector<uint32_t>{0, 1}));
  hear(0, settle_of(0, 1));
  pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
  EXPECT_EQ(shards_of(take_sent<State>()), std::vector<uint32_t>{1}) << "again, where it is not settled";
}

TEST_F(Returns, EntriesForAnOpenStepAreReturnedAndThePushIsAnswered) {
  config_.spec.select = {.selection = SelectionId::kTopK, .k = 2};
  make_running();
  push({5, 6, kSecond}, {4, 1, 3});
  lose_place();
  enter(2);
  actions_.clear();
  hear(0, settle_of(0, 0));
  EXPECT_EQ(residual(), (Entries{{5, 4}, {6, 1}}));
  EXPECT_EQ(core().outstanding(0).size(), 1u);
  EXPECT_TRUE(take_sent<Synced>().empty());
  hear(1, settle_of(1, 0));
  EXPECT_EQ(take_sent<Synced>().size(), 1u);
  EXPECT_EQ(core().phase(), Phase::kRejoining) << "the table does not list it as synced";
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(core().counters().returns, 1u);
  ASSERT_EQ(actions_.delivered.size(), 2u);
  for (const worker::DeliveredUpdate& answer : actions_.delivered) {
    EXPECT_TRUE(answer.delivered_before);
    EXPECT_TRUE(answer.answers_push);
    EXPECT_EQ(answer.push, 0u);
  }
  EXPECT_EQ(core().steps_allowed(0), 2u);
  actions_.clear();
  push({}, {});
  for (const auto& [shard, message] : take_sent<Contribution>()) {
    EXPECT_EQ(std::get<Contribution>(message.body).step, 0u) << "the step is still open";
    EXPECT_EQ(message.header.incarnation, 2u);
  }
  EXPECT_EQ(residual(), (Entries{{6, 1}})) << "the returned entries were sent again";
}

TEST_F(Returns, DecidedBeyondItsWeights_WaitsForUpdateUnderItsIncarnation) {
  for (const uint64_t named : {1u, 2u}) {
    incarnation_ = 1;
    membership_.members = {{0, 1, kNonce, MemberState::kSynced}, {1, 1, 2'000, MemberState::kSynced}};
    make_running();
    push({5, kSecond}, {4, 3});
    lose_place();
    enter(2);
    actions_.clear();
    hear(0, settle_of(0, 1));
    hear(1, settle_of(1, 0));
    make_synced();
    EXPECT_EQ(residual(), (Entries{{kSecond, 3}}));
    const auto outstanding = core().outstanding(0);
    ASSERT_EQ(outstanding.size(), 2u);
    EXPECT_EQ(outstanding[0].incarnation, 1u);
    EXPECT_EQ(outstanding[0].sent.count(), 1u);
    EXPECT_EQ(outstanding[1].incarnation, 2u);
    EXPECT_EQ(outstanding[1].sent.count(), 0u);
    // Part 1 must not be blocked on entries that the next push lacks. Part 0's step may yet be made void by a shard
    // that dies.
    const auto sent = take_sent<Contribution>();
    ASSERT_EQ(sent.size(), 2u);
    for (uint32_t part = 0; part < 2; ++part) {
      EXPECT_EQ(sent[part].second.header.incarnation, 2u);
      EXPECT_EQ(std::get<Contribution>(sent[part].second.body).step, 0u);
      const auto empty = read_container(sent[part].second.payload.bytes, {.dimension = part_dimension(part)});
      ASSERT_TRUE(empty.has_value());
      EXPECT_EQ(empty->count(), 0u);
    }
    EXPECT_EQ(core().steps_allowed(0), 1u) << "part 0 has not answered";
    protocol::Update update = update_of(0, 0);
    update.contributors = {{0, named}, {1, 1}};
    hear(0, update, sum_of({{5, 4}}, part_dimension(0)));
    EXPECT_EQ(residual(), named == 1 ? (Entries{{kSecond, 3}}) : (Entries{{5, 4}, {kSecond, 3}}));
    EXPECT_EQ(core().steps_allowed(0), 2u);
    EXPECT_EQ(core().part_steps_applied(0), 1u);
  }
}

TEST_F(Returns, AnUpdateBeforeTheSettleDeterminesTheCarriedEntries) {
  config_.spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 10};
  make_running();
  push({5, 6}, {4, 2});
  lose_place();
  enter(2);
  protocol::Update update = update_of(0, 0);
  update.whole_sum = false;
  hear(0, update, sum_of({{5, 8}}, part_dimension(0)));
  EXPECT_EQ(core().part_steps_applied(0), 0u) << "nothing is applied before it is synced";
  hear_snapshot(0, 1, 0.5f, 60'000);
  actions_.clear();
  protocol::Settle settle = settle_of(0, 1, Weights::kSnapshot);
  settle.counted = counted_at(1, 0);
  hear(0, settle);
  EXPECT_EQ(residual(), (Entries{{6, 2}}));
  ASSERT_EQ(actions_.delivered.size(), 1u);
  const worker::DeliveredUpdate& weights = actions_.delivered[0];
  EXPECT_TRUE(weights.replaces);
  EXPECT_FALSE(weights.answers_push);
  EXPECT_EQ(weights.steps, 1u);
  EXPECT_TRUE(weights.sum.view.dense);
  EXPECT_EQ(weights.sum.view.values.size(), part_dimension(0));
  EXPECT_TRUE(std::ranges::all_of(weights.sum.view.values, [](float value) { return value == 0.5f; }));
  EXPECT_EQ(core().part_steps_applied(0), 1u);
  EXPECT_EQ(core().counters().unreturnable, 0.0);
}

TEST_F(Returns, WithoutTheUpdateTheSummaryDecides) {
  struct Case {
    std::optional<protocol::SummaryEntry> counted;
    bool reselects;
    Entries residual;
    double unreturnable;
  };
  protocol::SummaryEntry under_another_life = counted_at(9, 0);
  protocol::SummaryEntry and_earlier = counted_at(9, 1);
  and_earlier.counted_mask = 3;
  and_earlier.earlier_incarnations = {{1, 0}};
  const std::vector<Case> cases = {{std::nullopt, true, {{5, 4}, {6, -2}}, 0},
                                   {counted_at(1, 0), true, {}, 6},
                                   {counted_at(1, 0), false, {}, 0},
                                   {under_another_life, true, {{5, 4}, {6, -2}}, 0},
                                   {and_earlier, true, {}, 6}};
  for (size_t at = 0; at < cases.size(); ++at) {
    config_.spec.staleness = 1;
    config_.spec.reselect = {};
    if (cases[at].reselects) config_.spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 10};
    incarnation_ = 1;
    membership_.members = {{0, 1, kNonce, MemberState::kSynced}, {1, 1, 2'000, MemberState::kSynced}};
    make_running();
    push({5, 6}, {4, -2});
    lose_place();
    enter(2);
    hear_snapshot(0, 2, 1);
    protocol::Settle settle = settle_of(0, 2, Weights::kSnapshot);
    settle.counted = cases[at].counted;
    hear(0, settle);
    EXPECT_EQ(core().part_steps_applied(0), 2u) << at;
    EXPECT_EQ(residual(), cases[at].residual) << at;
    EXPECT_EQ(core().counters().unreturnable, cases[at].unreturnable) << at;
    EXPECT_EQ(core().ledger(0)[6], cases[at].unreturnable == 0 ? 0.0 : -2.0) << at;
  }
}

TEST_F(Returns, PartOffTheLog_AllItsEntriesCountedAsLostAndNoOthers) {
  config_.spec.select = {.selection = SelectionId::kTopK, .k = 2};
  config_.spec.staleness = 1;
  make_running();
  push({5, 6, kSecond, kSecond + 1}, {4, 1, 3, 1});
  ASSERT_EQ(residual(), (Entries{{6, 1}, {kSecond + 1, 1}}));
  lose_place();
  push({7}, {8});  // while it rejoins: no part of that state
  enter(2);
  hear_snapshot(0, 3, 1);
  protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
  settle.on_log = false;
  settle.branch = 2;
  hear(0, settle);
  EXPECT_EQ(residual(), (Entries{{7, 8}, {kSecond + 1, 1}}));
  EXPECT_EQ(core().ledger(0)[5], 4.0);
  EXPECT_EQ(core().ledger(0)[6], 1.0);
  EXPECT_EQ(core().counters().lost_off_log, 5.0);
  EXPECT_EQ(core().counters().lost_cut, 0.0);
  for (const uint32_t index : {5u, 6u, 7u, kSecond, kSecond + 1}) EXPECT_EQ(unaccounted(index), 0.0) << index;
  actions_.clear();
  hear(1, settle_of(1, 0));
  make_synced();
  EXPECT_EQ(core().ledger(0)[kSecond], 0.0);
  EXPECT_EQ(core().part_steps_applied(0), 3u);
  EXPECT_EQ(core().saved_state().parts[0].branch, 2u);
}

TEST_F(Returns, ContributionsToStepsMissingFromTheLogAreVoid) {
  const protocol::Membership at_first = membership_;
  const uint64_t first_life = incarnation_;
  for (const uint64_t steps_left : {0u, 1u, 2u}) {
    SCOPED_TRACE(steps_left);
    membership_ = at_first;
    incarnation_ = first_life;
    make_running();
    push({5, 6, kSecond}, {1, 1, 1});
    hear_update(0, 0, {{5, 1}, {6, 1}});
    hear_update(1, 0, {{local(kSecond), 1}});
    push({7}, {1});
    hear_update(0, 1, {{7, 1}});
    hear_update(1, 1, {});
    lose_place();
    enter(2);
    hear_snapshot(0, 3, 1);
    protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
    settle.on_log = false;
    settle.branch = 2;
    if (steps_left > 0) settle.counted = counted_at(1, steps_left - 1);
    hear(0, settle);
    EXPECT_EQ(core().counters().entries_void, steps_left == 0 ? 3u : 2u - steps_left);
    EXPECT_EQ(core().counters().lost_off_log, 0.0);
    hear(1, settle_of(1, 2));
    actions_.log.clear();
    make_synced();
    const auto says_it = [](const LogLine& line) { return line.text.contains("counted in them"); };
    const bool said = std::ranges::any_of(actions_.log, says_it);
    EXPECT_EQ(said, steps_left < 2);
  }
}

TEST_F(Returns, ACutToAnotherStateIsNamedAsTheCause) {
  make_running();
  push({5}, {4});
  lose_place();
  ++membership_.epoch;
  membership_.cut = membership_.epoch;
  membership_.cut_worker = 1;
  membership_.branches = 1;
  membership_.activations = {{0, 1, 0}, {1, 1, 0}};
  enter(2);
  hear_snapshot(0, 0, 1);
  protocol::Settle settle = settle_of(0, 0, Weights::kSnapshot);
  settle.on_log = false;
  settle.branch = 1;
  hear(0, settle);
  EXPECT_EQ(core().counters().lost_cut, 4.0);
  EXPECT_EQ(core().counters().lost_off_log, 0.0);
  ASSERT_FALSE(actions_.delivered.empty());
  EXPECT_EQ(actions_.delivered.back().steps, 0u);
}

TEST_F(Returns, ASettleCountsInItsEpochOnly) {
  make_running();
  lose_place();
  enter(2);
  hear(0, settle_of(0, 0));
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  actions_.clear();
  hear(1, settle_of(1, 0));
  EXPECT_TRUE(take_sent<Synced>().empty()) << "part 0 was settled in the epoch before";
  protocol::Message late = from_shard(0, settle_of(0, 0));
  --late.header.epoch;
  core().on_message(0, std::move(late), now_, actions_);
  EXPECT_TRUE(take_sent<Synced>().empty());
  hear(0, settle_of(0, 0));
  EXPECT_EQ(take_sent<Synced>().size(), 1u);
  pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
  EXPECT_FALSE(take_sent<Synced>().empty()) << "again, until the view lists it as synced";
}

TEST_F(Returns, ASettleWithoutTheWholeSnapshotIsNotTakenUp) {
  make_running();
  lose_place();
  enter(2);
  actions_.clear();
  const protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
  hear(0, settle);
  hear_run(0, 3, 1, 0, 40);
  hear(0, settle);
  hear_run(0, 2, 1, 40, part_dimension(0) - 40);  // of another number of steps: all of it is dropped
  hear(0, settle);
  hear_run(0, 3, 1, 40, part_dimension(0) - 40);
  hear(0, settle);
  EXPECT_TRUE(actions_.delivered.empty());
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  hear_snapshot(0, 3, 1, 30'000);
  hear(0, settle);
  EXPECT_EQ(actions_.delivered.size(), 1u);
  EXPECT_EQ(core().part_steps_applied(0), 3u);
}

TEST_F(Returns, WhereTheShardsHoldTheWeightsItTakesOverAPlaceAlone) {
  config_.has_weights = false;
  config_.spec.store.optimizer = optimizer_from_text("sgd:1").value();
  make_running();
  push({5, kSecond}, {1, 2});
  lose_place();
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  const auto hellos = take_sent<Hello>();
  ASSERT_EQ(hellos.size(), 2u);
  EXPECT_TRUE(std::get<Hello>(hellos[0].second.body).returns);
  EXPECT_FALSE(std::get<Hello>(hellos[0].second.body).has_weights);
  enter(2);
  actions_.clear();
  protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
  hear(0, settle);
  EXPECT_EQ(core().part_steps_applied(0), 0u) << "without the place";
  hear_run(0, 3, 1, 0, 40);
  hear(0, settle);
  EXPECT_EQ(core().part_steps_applied(0), 0u) << "values are not for it";
  hear_place(0, 3);
  hear(0, settle);
  EXPECT_EQ(core().part_steps_applied(0), 3u);
  settle = settle_of(1, 2, Weights::kSnapshot);
  settle.counted = counted_at(1, 0);
  hear_place(1, 2);
  hear(1, settle);
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  for (const auto& delivered : actions_.delivered) {
    EXPECT_TRUE(delivered.delivered_before) << "the push is answered, and the weights are the shards'";
  }
  const auto residual = core().residual(0);
  ASSERT_EQ(residual.indices.size(), 1u) << "it has the entries that were not counted";
  EXPECT_EQ(residual.indices[0], 5u);
}

TEST_F(Returns, AStrandedWorkerReportsItselfToEveryShard) {
  make_running();
  lose_place();
  enter(2);
  actions_.clear();
  hear(0, settle_of(0, 4, Weights::kNone));
  const auto states = take_sent<State>();
  EXPECT_EQ(shards_of(states), (std::vector<uint32_t>{0, 1}));
  EXPECT_TRUE(std::get<State>(states[0].second.body).stranded);
  hear(0, settle_of(0, 4, Weights::kNone));
  EXPECT_TRUE(take_sent<State>().empty()) << "said";
  hear(0, settle_of(0, 0));
  hear(1, settle_of(1, 0));
  EXPECT_EQ(take_sent<Synced>().size(), 1u) << "a later answer of the same epoch counts";
}

TEST_F(Returns, ACutToItsStateMakesItTheLog) {
  make_running();
  push({5}, {4});
  hear_update(0, 0, {{5, 4}});
  hear_update(1, 0, {});
  push({6, kSecond}, {2, 3});
  lose_place();
  enter(2);
  hear(0, settle_of(0, 9, Weights::kNone));
  membership_.cut = membership_.epoch + 1;
  membership_.cut_worker = 0;
  membership_.branches = 5;
  membership_.activations = {{0, 5, 0}, {1, 5, 0}};
  actions_.clear();
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(residual(), (Entries{{6, 2}, {kSecond, 3}}));
  EXPECT_TRUE(core().outstanding(0).empty());
  EXPECT_EQ(core().part_steps_applied(0), 1u);
  for (const worker::SavedPart& part : core().saved_state().parts) EXPECT_EQ(part.branch, 5u);
  hear(0, protocol::Collect{});
  const protocol::State state = last_state();
  EXPECT_TRUE(state.synced);
  EXPECT_EQ(state.parts[0], (State::Part{0, 1, 3, 5, 1})) << "no update from before it";
}

TEST_F(Returns, PushesAreDeferredWhileTheWorkerRejoins) {
  make_running();
  lose_place();
  enter(2);
  actions_.clear();
  push({5}, {1});
  EXPECT_TRUE(take_sent<Contribution>().empty());
  EXPECT_EQ(residual(), (Entries{{5, 1}}));
  EXPECT_EQ(core().steps_allowed(0), 1u);
  settle_both(2);
  while (core().work(now_, actions_)) {
  }
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(std::get<Contribution>(sent[0].second.body).step, 0u);
}

TEST_F(Returns, StepsDecidedWithoutIt_AppliedAndItContinuesWithTheNext) {
  make_running();
  lose_place();
  enter(2);
  settle_both(2);
  actions_.clear();
  for (uint64_t step = 0; step < 2; ++step) {
    for (uint32_t part = 0; part < 2; ++part) {
      protocol::Update update = update_of(part, step);
      update.contributors = {{1, 1}};
      hear(part, update, sum_of({{1, 1}}, part_dimension(part)));
    }
  }
  EXPECT_EQ(core().steps_applied(0), 2u);
  actions_.clear();
  push({5}, {1});
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(std::get<Contribution>(sent[0].second.body).step, 2u);
}

TEST_F(Returns, StepsDecidedWithoutIt_BlocksShardsOnlyAfterApplyingThem) {
  make_running();
  EXPECT_TRUE(core().is_waited_for());
  lose_place();
  enter(2);
  EXPECT_FALSE(core().is_waited_for());
  for (uint32_t part = 0; part < 2; ++part) hear(part, settle_of(part, 0));
  ++membership_.epoch;
  membership_.members[0].state = protocol::MemberState::kSynced;
  hear(0, protocol::MembershipChange{membership_, {1}});
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_FALSE(core().is_waited_for()) << "shard 0 has decided a step without it";
  hear_update(0, 0, {{1, 1}});
  EXPECT_FALSE(core().is_waited_for()) << "shard 1 may still decide steps without it";
  const protocol::MembershipChange late{membership_, {1}};
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  hear(1, late);
  EXPECT_FALSE(core().is_waited_for())
      << "shard 1 has decided a step, and reported it before it knew of the next epoch";
  hear(1, protocol::MembershipChange{membership_});
  hear_update(1, 0, {{1, 1}});
  EXPECT_TRUE(core().is_waited_for());
}

TEST_F(Returns, StepsThatARestartedShardDecidedAreNotAwaited) {
  make_running();
  lose_place();
  enter(2);
  for (uint32_t part = 0; part < 2; ++part) hear(part, settle_of(part, 0));
  ++membership_.epoch;
  membership_.members[0].state = protocol::MemberState::kSynced;
  hear(0, protocol::MembershipChange{membership_, {3}});
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_FALSE(core().is_waited_for()) << "shard 0 has decided three steps without it";
  ++membership_.epoch;
  ++membership_.shards[0].incarnation;
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_TRUE(core().is_waited_for()) << "those steps may be void, and its successor waits for this worker";
}

TEST_F(Returns, AFinishedWorkerRejoinsOnlyIfAPushIsUnanswered) {
  make_running();
  push({5}, {1});
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  hear_update(0, 0, {{5, 1}});
  lose_place();
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  enter(2);
  hear(0, settle_of(0, 1));
  hear(1, settle_of(1, 0));
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kFinishing) << "its push was not answered by part 1";
  incarnation_ = 1;
  membership_.members = {{0, 1, kNonce, MemberState::kSynced}, {1, 1, 2'000, MemberState::kSynced}};
  make_running();
  lose_place();
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  EXPECT_EQ(core().phase(), Phase::kFinished);
  for (const auto& [shard, goodbye] : take_sent<protocol::Goodbye>())
    EXPECT_TRUE(std::get<protocol::Goodbye>(goodbye.body).reach.empty()) << "its steps may be void";
}

TEST_F(Returns, AFinishedWorkerStaysWhileAnotherWorkerIsJoining) {
  make_running();
  ++membership_.epoch;
  membership_.members[1].state = MemberState::kJoining;
  for (uint32_t shard = 0; shard < 2; ++shard) hear(shard, protocol::MembershipChange{membership_});
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  EXPECT_EQ(core().phase(), Phase::kFinishing);
  actions_.clear();
  hear(0, protocol::SnapshotRequest{1, 1, {0}});
  EXPECT_EQ(actions_.give_weights.size(), 1u);
  ++membership_.epoch;
  membership_.members[1].state = MemberState::kSynced;
  for (uint32_t shard = 0; shard < 2; ++shard) hear(shard, protocol::MembershipChange{membership_});
  core().end_pass(now_, actions_);
  EXPECT_EQ(core().phase(), Phase::kFinished);
}

TEST_F(Returns, AForgottenUpdateMakesItGiveUpItsPlaceItself) {
  make_running();
  push({5}, {1});
  actions_.clear();
  hear(0, protocol::StepDecided{0, 0, true});
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  EXPECT_EQ(core().counters().resyncs, 1u);
  std::vector<std::string_view> said;
  for (const worker::SendAction& send : actions_.sends) {
    if (send.shard == 0) said.push_back(protocol::body_name(send.message.body));
  }
  EXPECT_EQ(said, (std::vector<std::string_view>{"goodbye", "hello"}));
  ++membership_.epoch;
  welcome(1);  // a shard that has not read of it: this is the incarnation that it gave up
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  enter(2);
  hear_snapshot(0, 3, 1);
  protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
  settle.counted = counted_at(1, 0);
  hear(0, settle);
  hear(1, settle_of(1, 0));
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(residual(), Entries{});
}

TEST_F(Returns, AStalledRejoinTimesOutAndTheErrorNamesTheUnsettledPart) {
  config_.shard_silence = 10 * kNsPerS;
  make_running();
  lose_place();
  enter(2);
  hear(0, settle_of(0, 0));
  for (int i = 0; i < 12 && core().phase() == Phase::kRejoining; ++i) {
    pass(kNsPerS);
    for (uint32_t shard = 0; shard < 2; ++shard) hear(shard, protocol::Heartbeat{});
  }
  expect_ended(ErrorCode::kTimeout, "shard 1 (tcp://b:2) has not settled part 1 yet");
}

TEST_F(Returns, AnotherProcessInItsPlaceEndsTheSession) {
  make_running();
  lose_place();
  ++membership_.epoch;
  membership_.members.insert(membership_.members.begin(), {0, 2, 4'711, MemberState::kJoining});
  hear(1, protocol::MembershipChange{membership_});
  expect_ended(ErrorCode::kIdentityInUse, "another process is worker 0");
}

TEST_F(Returns, SelectedButUnsentEntriesStayInTheResidual) {
  make_running();
  ASSERT_TRUE(core().push_sparse(0, std::vector<uint32_t>{5, kSecond}, std::vector<float>{1, 2}, 1, now_).has_value());
  ASSERT_TRUE(core().work(now_, actions_));  // selects
  ASSERT_TRUE(core().work(now_, actions_));  // codes part 0
  lose_place();
  EXPECT_EQ(residual(), (Entries{{kSecond, 2}}));
  EXPECT_EQ(core().outstanding(0).size(), 1u);
  enter(2);
  settle_both(0);
  EXPECT_EQ(residual(), (Entries{{5, 1}, {kSecond, 2}}));
  EXPECT_EQ(core().steps_allowed(0), 2u) << "answered";
}

}  // namespace
}  // namespace millrace::testing
