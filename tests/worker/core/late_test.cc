#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/core/returning_core.h"

/// A process that begins with a saved state, or with nothing, in a job that runs (R9b). Also the requests of shards
/// without a state (R8b, R8d), and weights given away (R9d).
namespace millrace::testing {
namespace {

using protocol::Contribution;
using protocol::MemberState;
using protocol::State;
using worker::Phase;

class Late : public ReturningCore {
 protected:
  static constexpr uint32_t kSecond = 150'000;

  /// Step 0 applied; 5 -> 4 and kSecond -> 3 are kept back in sum.
  worker::SavedState saved() {
    config_.saved.reset();
    config_.spec.select = {.selection = SelectionId::kTopK, .k = 2};
    make_running();
    push({1, 2}, {9, 9});
    hear_update(0, 0, {{1, 9}, {2, 9}});
    hear_update(1, 0, {});
    push({5, kSecond, kSecond + 1}, {4, 3, 1});
    return core().saved_state();
  }
  void make_late(const worker::SavedState& state) {
    config_.saved = state;
    actions_.clear();
    make_joining(2);
  }
};

TEST_F(Late, ASavedResidualCountsWhereNothingWasCountedSince) {
  make_late(saved());
  const protocol::State state = last_state();
  EXPECT_EQ(state.parts[0], (State::Part{0, 1, 3, 0, 1}));
  EXPECT_EQ(residual(), Entries{}) << "in none of the books yet";
  EXPECT_EQ(core().opening_residual(0)[5], 0.0);
  protocol::Settle settle = settle_of(0, 1);
  settle.counted = counted_at(1, 0);  // the last one is in the saved weights
  hear(0, settle);
  EXPECT_EQ(residual(), (Entries{{5, 4}}));
  EXPECT_EQ(core().opening_residual(0)[5], 4.0);
  EXPECT_EQ(core().entered(0)[5], 0.0);
  settle = settle_of(1, 2);
  settle.counted = counted_at(1, 1);  // its contribution was counted, in part at least
  hear(1, settle);
  EXPECT_EQ(core().counters().lost_save_too_old, 4.0);
  EXPECT_EQ(core().opening_residual(0)[kSecond], 0.0);
  EXPECT_EQ(core().ledger(0)[kSecond], 0.0) << "it was in none of the books";
  actions_.clear();
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(residual(), (Entries{{5, 4}}));
  push({6}, {1});
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(std::get<Contribution>(sent[0].second.body).step, 1u);
  const auto stream = read_container(sent[0].second.payload.bytes, {.dimension = part_dimension(0)});
  EXPECT_TRUE(std::ranges::equal(stream->indices, std::vector<uint32_t>{5, 6}));
}

TEST_F(Late, AJoinerOfAReproducibleShardJobIsReferredToPathSwitch) {
  config_.spec.reproducible = true;
  make();
  membership_.members[0] = {0, 2, kNonce, MemberState::kJoining};
  incarnation_ = 2;
  core_->on_connected(0, now_, actions_);
  welcome(0);
  ASSERT_EQ(core().phase(), Phase::kEnded);
  EXPECT_EQ(core().error()->code, ErrorCode::kUnsupported);
  EXPECT_NE(core().error()->message.find("path switch"), std::string::npos) << core().error()->message;
}

TEST_F(Late, AnEvictedWorkerCannotRejoinAReproducibleJobOverShards) {
  config_.spec.reproducible = true;
  make_running();
  lose_place();
  ASSERT_EQ(core().phase(), Phase::kEnded);
  EXPECT_EQ(core().error()->code, ErrorCode::kNotAMember);
}

TEST_F(Late, AStateThatIsOffTheLogIsDropped) {
  make_late(saved());
  hear_snapshot(0, 4, 2);
  protocol::Settle settle = settle_of(0, 4, Weights::kSnapshot);
  settle.on_log = false;
  hear(0, settle);
  EXPECT_EQ(core().counters().lost_off_log, 4.0);
  EXPECT_EQ(residual(), Entries{});
  EXPECT_EQ(core().part_steps_applied(0), 4u);
}

TEST_F(Late, ALoadedStateStaysOneWhenItsWorkerIsRemovedBeforeItIsSettled) {
  make_late(saved());
  hear(0, settle_of(0, 1));
  lose_place();
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  enter(3);
  EXPECT_EQ(residual(), (Entries{{5, 4}})) << "taken over once";
  protocol::Settle settle = settle_of(0, 2);
  settle.counted = counted_at(1, 1);
  hear(0, settle);
  EXPECT_EQ(residual(), Entries{});
  EXPECT_EQ(core().ledger(0)[5], 4.0) << "it was in the books";
  EXPECT_EQ(unaccounted(5), 0.0);
  settle.part = 1;
  hear(1, settle);
  EXPECT_EQ(core().counters().lost_save_too_old, 8.0);
}

TEST_F(Late, WorkerNotSettled_SavedStateIsTheLoadedOnePlusLaterPushes) {
  const worker::SavedState before = saved();
  make_late(before);
  push({5}, {1});
  const worker::SavedState state = core().saved_state();
  EXPECT_EQ(state.parts[1].n, 1u);
  EXPECT_EQ(state.tensors[0].steps_pushed, before.tensors[0].steps_pushed + 1);
  EXPECT_TRUE(std::ranges::equal(state.tensors[0].residual.indices, std::vector<uint32_t>{5, kSecond, kSecond + 1}));
  EXPECT_TRUE(std::ranges::equal(state.tensors[0].residual.values, std::vector<float>{5, 3, 1}));
  // Nor does one that never saw the job lose it.
  make();
  EXPECT_EQ(core().saved_state().parts[1].n, 1u);
  EXPECT_EQ(core().saved_state().job, kJob);
}

TEST_F(Late, OfAnotherJobsStateTheResidualAloneIsTakenOver) {
  worker::SavedState other = saved();
  other.job = kJob + 1;
  config_.saved = other;
  membership_.members[0] = {0, 1, kNonce, MemberState::kSynced};
  incarnation_ = 1;
  make_running();
  EXPECT_EQ(residual(), (Entries{{5, 4}, {kSecond, 3}, {kSecond + 1, 1}}));
  EXPECT_EQ(core().opening_residual(0)[kSecond], 3.0);
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  make_late(other);
  EXPECT_EQ(last_state().parts[0], (State::Part{0, 0, 0, 0, 0}));
}

TEST_F(Late, ACutToALoadedStateTakesItsResidualOver) {
  make_late(saved());
  membership_.cut = membership_.epoch + 1;
  membership_.cut_worker = 0;
  membership_.branches = 1;
  membership_.activations = {{0, 1, 0}, {1, 1, 0}};
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(residual(), (Entries{{5, 4}, {kSecond, 3}, {kSecond + 1, 1}}));
  EXPECT_EQ(core().opening_residual(0)[kSecond + 1], 1.0);
}

TEST_F(Late, AJoinerWithoutStateTakesTheSnapshotsWeights) {
  make_joining(1);
  EXPECT_EQ(last_state().parts[1], (State::Part{1, 0, 0, 0, 0}));
  for (uint32_t part = 0; part < 2; ++part) {
    hear_snapshot(part, 7, 3);
    hear(part, settle_of(part, 8, Weights::kSnapshot));
  }
  make_synced();
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(core().steps_applied(0), 7u);
  core().end_pass(now_, actions_);
  const auto acks = take_sent<protocol::Ack>();
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(std::get<protocol::Ack>(acks[0].second.body), (protocol::Ack{{{0, 7, true}}}));
}

TEST_F(Late, UpdatesBeforeTheSettleAreHeldUpToABoundOfBytes) {
  make_joining(1);
  const SharedBytes mebibyte = SharedBytes::from(ByteBuffer(1 << 20));
  for (uint64_t step = 0; step < 12; ++step) hear(0, update_of(0, step), mebibyte);
  EXPECT_EQ(core().counters().dropped_early, 4u) << "8 MiB are held";
  for (uint32_t part = 0; part < 2; ++part) {
    hear_snapshot(part, 7, 3);
    hear(part, settle_of(part, 12, Weights::kSnapshot));
  }
  hear_update(0, 12, {{1, 1}});
  EXPECT_EQ(core().counters().dropped_early, 5u) << "a settled part needs no update before the worker is synced";
  make_synced();
  core().end_pass(now_, actions_);
  const auto acks = take_sent<protocol::Ack>();
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(std::get<protocol::Ack>(acks[0].second.body), (protocol::Ack{{{0, 7, true}}})) << "asks for all of them";
  for (uint64_t step = 7; step < 13; ++step) {
    protocol::Update update = update_of(0, step);
    update.contributors = {{1, 1}};
    hear(0, update, sum_of({{1, 1}}, part_dimension(0)));
  }
  EXPECT_EQ(core().part_steps_applied(0), 13u);
}

TEST_F(Late, TheUpdateOfAnOwnStepIsHeldBeyondTheBound) {
  config_.spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 10};
  make_running();
  push({5, 6}, {4, 2});
  lose_place();
  enter(2);
  const SharedBytes mebibyte = SharedBytes::from(ByteBuffer(1 << 20));
  for (uint64_t step = 1; step < 10; ++step) hear(0, update_of(0, step), mebibyte);
  EXPECT_EQ(core().counters().dropped_early, 1u);
  protocol::Update update = update_of(0, 0);
  update.whole_sum = false;
  hear(0, update, sum_of({{5, 8}}, part_dimension(0)));
  hear_snapshot(0, 1, 0.5f, 60'000);
  protocol::Settle settle = settle_of(0, 10, Weights::kSnapshot);
  settle.counted = counted_at(1, 0);
  hear(0, settle);
  EXPECT_EQ(residual(), (Entries{{6, 2}})) << "the update shows which entries were carried";
  EXPECT_EQ(core().counters().unreturnable, 0.0);
}

TEST_F(Late, AStateOfOtherTensorsDoesNotFit) {
  worker::SavedState state = saved();
  EXPECT_TRUE(fits(state, 0, config_.spec).has_value());
  EXPECT_NE(fits(state, 1, config_.spec).error().message.find("worker 0 in it, 1 in this job"), std::string::npos);
  state.tensors[0].residual.dimension = 3;
  EXPECT_NE(fits(state, 0, config_.spec).error().message.find("dimension of tensor 't0' 3 in it"), std::string::npos);
  state.tensors[0].name = "other";
  EXPECT_NE(fits(state, 0, config_.spec).error().message.find("name of tensor 0"), std::string::npos);
  state.tensors.clear();
  EXPECT_NE(fits(state, 0, config_.spec).error().message.find("number of tensors"), std::string::npos);
}

TEST_F(Late, ShardWithoutState_GetsPositionsAndRetainedUpdatesOfWorkers) {
  config_.spec.staleness = 2;
  make_running();
  for (uint64_t step = 0; step < 3; ++step) {
    push({5}, {1});
    protocol::Update update = update_of(0, step);
    update.stable = step == 2 ? 1 : 0;
    update.branch = 4;
    update.summary.threshold = static_cast<double>(step);
    hear(0, update, sum_of({{5, 1}}, part_dimension(0)));
  }
  ++membership_.epoch;
  membership_.shards[0].incarnation = 2;
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  pass(kNsPerS);
  core().on_connected(0, now_, actions_);
  welcome(0);
  actions_.clear();
  hear(0, protocol::Collect{});
  const protocol::State state = last_state();
  EXPECT_TRUE(state.synced);
  EXPECT_EQ(state.parts[0], (State::Part{0, 3, 3, 4, 1})) << "step 0 was stable";
  EXPECT_EQ(state.parts[1], (State::Part{1, 0, 0, 0, 0}));
  hear(0, protocol::Fetch{0, 2});
  ASSERT_EQ(actions_.sends.size(), 2u);
  const auto& update = std::get<protocol::Update>(actions_.sends[0].message.body);
  EXPECT_EQ(update.step, 2u);
  EXPECT_EQ(update.contributors, (std::vector<protocol::ContributorId>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(std::ranges::equal(actions_.sends[0].message.payload.bytes, sum_of({{5, 1}}, part_dimension(0)).bytes));
  const auto& fetched = std::get<protocol::Fetched>(actions_.sends[1].message.body);
  EXPECT_EQ(fetched.n, 3u);
  EXPECT_EQ(fetched.decided_in, 3u);
  EXPECT_EQ(fetched.summary.threshold, 2.0);
  actions_.clear();
  hear(1, protocol::Fetch{0, 0});
  EXPECT_TRUE(actions_.sends.empty()) << "a part of another shard";
  protocol::Message late = from_shard(0, protocol::Collect{});
  --late.header.epoch;
  core().on_message(0, std::move(late), now_, actions_);
  EXPECT_TRUE(actions_.sends.empty()) << "of an epoch that is over";
}

TEST_F(Late, AnUnsyncedWorkerReportsItsStateAndSendsNoUpdates) {
  make_joining(1);
  actions_.clear();
  hear(0, protocol::Collect{});
  EXPECT_FALSE(last_state().synced);
  hear(0, protocol::Fetch{0, 0});
  hear(0, protocol::SnapshotRequest{1, 1, {0}});
  EXPECT_TRUE(actions_.sends.empty());
  EXPECT_TRUE(actions_.give_weights.empty());
}

TEST_F(Late, WeightsAreGivenInRunsWithTheSummaryInTheLast) {
  config_.spec = toy_spec(2, {3'000'000});
  config_.spec.parts_per_shard = 1;
  watch_ = Watch::kNothing;
  make_running();
  push({5}, {1});
  protocol::Update update = update_of(0, 0);
  update.summary.threshold = 0.25;
  hear(0, update, sum_of({{5, 1}}, part_dimension(0)));
  actions_.clear();
  hear(0, protocol::SnapshotRequest{1, 6, {0, 1}});
  ASSERT_EQ(actions_.give_weights.size(), 1u) << "part 1 is another shard's";
  const worker::GiveWeights asked = actions_.give_weights[0];
  EXPECT_EQ(asked.for_worker, 1u);
  EXPECT_EQ(asked.for_incarnation, 6u);
  actions_.clear();
  std::vector<float> weights(part_dimension(0));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i);
  core().give_weights(asked, weights, now_, actions_);
  const auto runs = take_sent<protocol::Snapshot>();
  ASSERT_EQ(runs.size(), (part_dimension(0) * sizeof(float) - 1) / protocol::kGivenRunBytes + 1);
  uint64_t at = 0;
  for (const auto& [shard, message] : runs) {
    const auto& run = std::get<protocol::Snapshot>(message.body);
    EXPECT_EQ(run.offset, at);
    EXPECT_EQ(run.n, 1u);
    EXPECT_EQ(run.decided_in, 3u);
    EXPECT_EQ(run.payload_hash, hash64(message.payload.bytes));
    EXPECT_LE(message.payload.bytes.size(), protocol::kGivenRunBytes);
    EXPECT_EQ(std::memcmp(message.payload.bytes.data(), weights.data() + at, message.payload.bytes.size()), 0);
    at += message.payload.bytes.size() / sizeof(float);
    EXPECT_EQ(run.summary.threshold, at == weights.size() ? 0.25 : 0.0);
  }
  EXPECT_EQ(at, weights.size());
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  actions_.clear();
  core().give_weights(asked, weights, now_, actions_);
  EXPECT_TRUE(actions_.sends.empty()) << "no worker wants them in another epoch";
}

}  // namespace
}  // namespace millrace::testing
