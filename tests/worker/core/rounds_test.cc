#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/hash.h"
#include "tests/worker/core/scripted_core.h"

/// R1, R4, R5 and R7b at the worker, message by message.
namespace millrace::testing {
namespace {

using protocol::Ack;
using protocol::Contribution;
using worker::Phase;
using RoundsEntries = std::vector<std::pair<uint32_t, float>>;

class Rounds : public ScriptedCore {
 protected:
  /// First index of part 1 in the bucket.
  uint32_t second_part() { return static_cast<uint32_t>(core().layout().parts[1].begin); }
};

TEST_F(Rounds, APushIsSentAsOneContributionAPartWithItsHashAndIdentity) {
  make_running();
  push({5, second_part() + 7}, {1, 2});
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  for (uint32_t part = 0; part < 2; ++part) {
    EXPECT_EQ(sent[part].first, part);
    const auto& contribution = std::get<Contribution>(sent[part].second.body);
    EXPECT_EQ(contribution.part, part);
    EXPECT_EQ(contribution.step, 0u);
    EXPECT_EQ(contribution.payload_hash, container_identity(sent[part].second.payload.bytes));
    const protocol::Header& header = sent[part].second.header;
    EXPECT_EQ(header.job, kJob);
    EXPECT_EQ(header.epoch, membership_.epoch);
    EXPECT_EQ(header.incarnation, 1u);
    EXPECT_EQ(header.shard_incarnation, 1u);
    const auto stream = read_container(sent[part].second.payload.bytes, {.dimension = part_dimension(part)});
    ASSERT_TRUE(stream.has_value());
    EXPECT_EQ(stream->indices.front(), part == 0 ? 5u : 7u);
    EXPECT_EQ(stream->values.front(), part == 0 ? 1.0f : 2.0f);
  }
}

TEST_F(Rounds, AnEmptyPushIsSentToo) {
  make_running();
  push({}, {});
  EXPECT_EQ(take_sent<Contribution>().size(), 2u) << "the others wait for it";
}

TEST_F(Rounds, StalenessIsHowFarAWorkerMayRunAhead) {
  for (const uint32_t staleness : {0u, 1u, 3u}) {
    config_.spec.staleness = staleness;
    make_running();
    for (uint32_t step = 0; step <= staleness; ++step) {
      ASSERT_LT(core().steps_pushed(0), core().steps_allowed(0));
      push({step}, {1});
    }
    EXPECT_EQ(core().steps_allowed(0), staleness + 1);
    const auto refused = core().push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1}, 1, now_);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    hear_update(0, 0, {{0, 1}});
    EXPECT_EQ(core().steps_allowed(0), staleness + 1) << "the other part still stands at the step";
    hear_update(1, 0, {});
    EXPECT_EQ(core().steps_allowed(0), staleness + 2);
    EXPECT_EQ(core().steps_applied(0), 1u);
  }
}

TEST_F(Rounds, AResendRepeatsTheBytesAndItsWaitDoublesUpToTheLimit) {
  make_running();
  push({5}, {1});
  const auto first = take_sent<Contribution>();
  std::vector<TimeNs> waits;
  TimeNs last = now_;
  while (waits.size() < 7) {
    pass(kNsPerS / 10);
    hear(0, protocol::Heartbeat{});
    hear(1, protocol::Heartbeat{});
    for (const auto& [shard, message] : take_sent<Contribution>()) {
      if (shard != 0) continue;
      EXPECT_EQ(std::get<Contribution>(message.body).payload_hash,
                std::get<Contribution>(first[0].second.body).payload_hash);
      EXPECT_TRUE(std::ranges::equal(message.payload.bytes, first[0].second.payload.bytes));
      waits.push_back(now_ - last);
      last = now_;
    }
  }
  TimeNs expected = 2 * kNsPerS;
  for (const TimeNs wait : waits) {
    EXPECT_GE(wait, expected * 3 / 4 - kNsPerS / 10);
    EXPECT_LE(wait, expected * 5 / 4 + kNsPerS / 10);
    expected = std::min(expected * 2, 30 * kNsPerS);
  }
  hear_update(0, 0, {{5, 1}});
  hear_update(1, 0, {});
  EXPECT_GE(core().counters().resends, 7u);
}

TEST_F(Rounds, ADuplicateMessageDelaysTheNextRetransmission) {
  make_running();
  push({5}, {1});
  take_sent<Contribution>();
  pass(3 * kNsPerS);
  EXPECT_EQ(take_sent<Contribution>().size(), 2u);
  hear(0, protocol::Duplicate{0, 0});
  hear(1, protocol::Duplicate{1, 0});
  for (int i = 0; i < 11; ++i) {
    pass(2 * kNsPerS);
    hear(0, protocol::Heartbeat{});
    hear(1, protocol::Heartbeat{});
  }
  EXPECT_TRUE(take_sent<Contribution>().empty()) << "30 s, less a quarter";
  EXPECT_EQ(core().counters().duplicates, 2u);
}

TEST_F(Rounds, AReconnectRetransmitsOutstandingContributionsAtOnce) {
  make_running();
  push({5}, {1});
  const auto first = take_sent<Contribution>();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  pass(kNsPerS / 2);
  core().on_connected(0, now_, actions_);
  EXPECT_TRUE(take_sent<Contribution>().empty()) << "not before the Welcome";
  welcome(0);
  const auto again = take_sent<Contribution>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 0u);
  EXPECT_TRUE(std::ranges::equal(again[0].second.payload.bytes, first[0].second.payload.bytes));
}

TEST_F(Rounds, AnUpdateIsDeliveredSettledAndAcknowledgedOnceAPoll) {
  make_running();
  push({5, 6, second_part()}, {1, 2, 3});
  actions_.clear();
  hear_update(0, 0, {{5, 4}, {9, 1}});
  hear_update(1, 0, {{0, 3}});
  ASSERT_EQ(actions_.delivered.size(), 2u);
  const worker::DeliveredUpdate& first = actions_.delivered[0];
  EXPECT_EQ(first.part, 0u);
  EXPECT_EQ(first.step, 0u);
  EXPECT_TRUE(first.counted);
  EXPECT_FALSE(first.step_complete);
  EXPECT_EQ(first.contributors, 2u);
  EXPECT_EQ(first.denominator, 1.0);
  EXPECT_TRUE(std::ranges::equal(first.sum.view.indices, std::vector<uint32_t>{5, 9}));
  EXPECT_TRUE(actions_.delivered[1].step_complete);
  EXPECT_EQ(actions_.delivered[1].begin, second_part());
  EXPECT_TRUE(core().outstanding(0).empty());
  EXPECT_EQ(residual(), RoundsEntries()) << "the update says that it is the whole sum";
  core().end_pass(now_, actions_);
  core().end_pass(now_, actions_);
  const auto acks = take_sent<Ack>();
  ASSERT_EQ(acks.size(), 2u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body).entries.size(), 1u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body).entries[0].n, 1u);
}

TEST_F(Rounds, EntriesThatTheUpdateOmitsReturnToTheResidual) {
  make_running();
  push({5, 6, 9}, {1, 2, 3});
  protocol::Update update = update_of(0, 0);
  update.whole_sum = false;
  hear(0, update, sum_of({{4, 1}, {6, 8}}, part_dimension(0)));
  EXPECT_EQ(residual(), (RoundsEntries{{5, 1}, {9, 3}}));
  EXPECT_TRUE(!core().all_resolved() && core().resolve_one_deferred() && core().all_resolved());
  EXPECT_EQ(core().bucket_counters(0).entries_returned, 2u);
  hear_update(1, 0, {});
  actions_.clear();
  push({9}, {1});
  const auto sent = take_sent<Contribution>();
  const auto stream = read_container(sent[0].second.payload.bytes, {});
  EXPECT_TRUE(std::ranges::equal(stream->indices, std::vector<uint32_t>{5, 9}));
  EXPECT_TRUE(std::ranges::equal(stream->values, std::vector<float>{1, 4}));
}

TEST_F(Rounds, AContributionThatTheUpdateDoesNotListIsReturned) {
  for (const protocol::ContributorId other : {protocol::ContributorId{1, 1}, protocol::ContributorId{0, 2}}) {
    make_running();
    push({5, 6}, {1, 2});
    protocol::Update update = update_of(0, 0);
    update.contributors = {other};  // another worker; or this worker in an incarnation that did not send this
    hear(0, update, sum_of({{5, 7}}, part_dimension(0)));
    EXPECT_EQ(residual(), (RoundsEntries{{5, 1}, {6, 2}}));
    EXPECT_EQ(core().counters().not_counted, 1u);
    EXPECT_FALSE(actions_.delivered.back().counted);
    EXPECT_EQ(core().part_steps_applied(0), 1u) << "the sum is applied all the same";
  }
}

TEST_F(Rounds, AnUpdateOfAnOlderEpochIsDroppedAndServedAgainInTheNewOne) {
  make_running();
  push({5}, {1});
  protocol::Message late = from_shard(0, update_of(0, 0), sum_of({{5, 1}}, part_dimension(0)));
  ++membership_.epoch;
  hear(1, protocol::MembershipChange{membership_});
  core().on_message(0, std::move(late), now_, actions_);
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  EXPECT_EQ(core().counters().dropped_stale, 1u);
  hear(0, protocol::MembershipChange{membership_});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 1u);
}

TEST_F(Rounds, AnUpdateOfANewerEpochWaitsForThatEpochsView) {
  make_running();
  push({5}, {1});
  const uint64_t old_epoch = membership_.epoch;
  ++membership_.epoch;
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  EXPECT_EQ(core().membership().epoch, old_epoch);
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(core().part_steps_applied(0), 1u);
  EXPECT_EQ(actions_.delivered.size(), 1u);
}

TEST_F(Rounds, EpochChanged_InFlightSentAgainWithTheNewEpochAndSameBytes) {
  make_running();
  push({5}, {1});
  const auto first = take_sent<Contribution>();
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  const auto again = take_sent<Contribution>();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].second.header.epoch, membership_.epoch);
  EXPECT_TRUE(std::ranges::equal(again[0].second.payload.bytes, first[0].second.payload.bytes));
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_TRUE(take_sent<Contribution>().empty()) << "once an epoch";
}

TEST_F(Rounds, ADuplicateUpdateIsNotAppliedAndAcknowledgedAgain) {
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  core().end_pass(now_, actions_);
  actions_.clear();
  hear_update(0, 0, {{5, 1}});
  EXPECT_TRUE(actions_.delivered.empty());
  core().end_pass(now_, actions_);
  const auto acks = take_sent<Ack>();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body).entries[0].n, 1u);
}

TEST_F(Rounds, AnUpdateOfALaterStepWaitsForTheOneBeforeIt) {
  config_.spec.staleness = 1;
  make_running();
  push({5}, {1});
  push({6}, {1});
  actions_.clear();
  hear_update(0, 1, {{6, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  EXPECT_TRUE(actions_.delivered.empty());
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 2u);
  ASSERT_EQ(actions_.delivered.size(), 2u);
  for (uint32_t step = 0; step < 2; ++step) {
    EXPECT_EQ(actions_.delivered[step].step, step);
    EXPECT_TRUE(std::ranges::equal(actions_.delivered[step].sum.view.indices, std::vector<uint32_t>{5 + step}));
  }
  EXPECT_EQ(core().counters().dropped_early, 0u);
  for (const worker::OutstandingView& out : core().outstanding(0)) EXPECT_EQ(out.part, 1u);
}

TEST_F(Rounds, AnUpdateThatOvertookALostOneAsksForThatOne) {
  config_.spec.staleness = 1;
  make_running();
  push({5}, {1});
  push({6}, {1});
  take_sent<Contribution>();
  hear_update(0, 1, {{6, 1}});
  pass(kNsPerS / 2);
  const auto again = take_sent<Contribution>();
  ASSERT_EQ(again.size(), 1u) << "long before the resend of every contribution is due";
  EXPECT_EQ(std::get<Contribution>(again[0].second.body).part, 0u);
  EXPECT_EQ(std::get<Contribution>(again[0].second.body).step, 0u);
}

TEST_F(Rounds, AnUpdateOfALaterStepIsJudgedByItsEpochWhenItsTurnComes) {
  config_.spec.staleness = 1;
  make_running();
  push({5}, {1});
  push({6}, {1});
  hear_update(0, 1, {{6, 1}});
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 1u) << "an update from before the change of members is served again";
  EXPECT_EQ(core().counters().dropped_stale, 1u);
  hear_update(0, 1, {{6, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 2u);
}

TEST_F(Rounds, AnUpdateOfAStepThatWasNeverPushedIsDropped) {
  config_.spec.staleness = 1;
  make_running();
  push({5}, {1});
  hear_update(0, 1, {{6, 1}});
  EXPECT_EQ(core().counters().dropped_early, 1u);
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 1u);
}

TEST_F(Rounds, AHeartbeatOfAShardThatIsAheadBringsTheLostUpdate) {
  make_running();
  push({5}, {1});
  hear(1, protocol::Duplicate{1, 0});
  take_sent<Contribution>();
  protocol::Heartbeat ahead;
  ahead.steps_applied = 1;
  hear(0, ahead);
  hear(1, protocol::Heartbeat{});
  pass(kNsPerS / 5);
  const auto again = take_sent<Contribution>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 0u);
}

TEST_F(Rounds, HeartbeatNamesPartDecided_LostUpdateRequestedAfterDuplicate) {
  make_running();
  push({5}, {1});
  pass(3 * kNsPerS);
  for (const uint32_t shard : {0u, 1u}) hear(shard, protocol::Duplicate{shard, 0});
  pass(2 * kNsPerS);  // the resend that was due
  for (const uint32_t shard : {0u, 1u}) hear(shard, protocol::Heartbeat{});
  pass(2 * kNsPerS);
  take_sent<Contribution>();
  protocol::Heartbeat answer;                  // another bucket of the job has decided nothing
  answer.decided = {{0, 1}, {1, 1}, {77, 5}};  // part 1 is not this shard's, 77 does not exist
  hear(0, answer);
  hear(1, protocol::Heartbeat{});
  pass(kNsPerS / 5);
  const auto again = take_sent<Contribution>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 0u);
  hear_update(0, 0, {{5, 1}});
  hear(0, answer);
  pass(kNsPerS / 5);
  EXPECT_TRUE(take_sent<Contribution>().empty());
}

TEST_F(Rounds, AShardWithoutRoomIsAskedWithGrowingPausesForAsLongAsItTakes) {
  make_running();
  push({5}, {1});
  protocol::Refuse refuse{ErrorCode::kUnavailable, "no room for this step yet", true};
  refuse.about_contribution = true;
  take_sent<Contribution>();
  TimeNs longest = 0;
  for (int i = 0; i < 40; ++i) {
    hear(0, refuse);
    const TimeNs since = now_;
    bool again = false;
    while (!again && now_ < since + 10 * kNsPerS) {
      pass(kNsPerS / 50);
      hear(0, protocol::Heartbeat{});
      hear(1, protocol::Heartbeat{});
      for (const auto& [shard, message] : take_sent<Contribution>()) again |= shard == 0;
    }
    ASSERT_TRUE(again) << i;
    longest = std::max(longest, now_ - since);
  }
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_GE(longest, 3 * kNsPerS);
  EXPECT_LE(longest, 7 * kNsPerS);
}

TEST_F(Rounds, UnusableUpdates_CountedAndEndTheSessionWhenTheyContinue) {
  make_running();
  push({5}, {1});
  hear(0, update_of(0, 0), sum_of({{5, 1}}, part_dimension(0) + 1));  // another dimension
  hear(0, update_of(0, 0), SharedBytes{});                            // nothing
  EXPECT_EQ(core().counters().dropped_malformed, 2u);
  EXPECT_EQ(core().phase(), Phase::kRunning);
  protocol::Update nobody = update_of(0, 0);
  nobody.part = 99;
  hear(0, nobody, {});
  nobody.part = 1;
  hear(0, nobody, sum_of({}, part_dimension(1)));  // a part of another shard
  EXPECT_EQ(core().counters().dropped_unexpected, 2u);
  SharedBytes flipped = sum_of({{5, 1}}, part_dimension(0));
  ByteBuffer bytes(flipped.bytes.begin(), flipped.bytes.end());
  bytes.back() ^= 1;
  hear(0, update_of(0, 0), SharedBytes::from(std::move(bytes)));
  expect_ended(ErrorCode::kMalformed, "shard 0 (tcp://a:1) sent an update of part 0, step 0 that cannot be used");
  EXPECT_EQ(core().outstanding(0).size(), 2u) << "contributions in flight can still be saved";
}

TEST_F(Rounds, TheDenominatorFollowsTheJobsCombineOption) {
  config_.spec.combine = protocol::Combine::kMean;
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  EXPECT_EQ(actions_.delivered.back().denominator, 2.0);
  config_.spec.combine = protocol::Combine::kWeightedMean;
  make_running();
  ASSERT_TRUE(core().push_sparse(0, std::vector<uint32_t>{5}, std::vector<float>{1}, 3, now_).has_value());
  while (core().work(now_, actions_)) {
  }
  const auto sent = take_sent<Contribution>();
  EXPECT_EQ(std::get<Contribution>(sent[0].second.body).weight, 3.0);
  EXPECT_EQ(read_container(sent[0].second.payload.bytes, {})->values.front(), 3.0f) << "weight times gradient";
  protocol::Update update = update_of(0, 0);
  update.weight_sum = 4.5;
  hear(0, update, sum_of({{5, 9}}, part_dimension(0)));
  EXPECT_EQ(actions_.delivered.back().denominator, 4.5);
  // A sum without contributors has no denominator by which it could be divided.
  update.part = 1;
  update.weight_sum = 0;
  hear(1, update, sum_of({{5, 9}}, part_dimension(1)));
  EXPECT_EQ(core().counters().dropped_malformed, 1u);
}

TEST_F(Rounds, ARefusedContributionIsSentAgainOrEndsTheSession) {
  make_running();
  push({5}, {1});
  actions_.clear();
  protocol::Refuse refuse{ErrorCode::kStale, "of an epoch that is over", true};
  refuse.about_contribution = true;
  hear(0, refuse);
  pass(kNsPerS / 5);
  EXPECT_EQ(take_sent<Contribution>().size(), 1u);
  refuse.retry = false;
  refuse.step = 9;
  hear(0, refuse);
  EXPECT_EQ(core().phase(), Phase::kRunning) << "about nothing that is in flight";
  refuse.step = 0;
  refuse.sentence = "it holds infinity";
  hear(0, refuse);
  expect_ended(ErrorCode::kStale, "refuses the contribution to part 0, step 0: it holds infinity");
}

TEST_F(Rounds, ForgottenUpdate_EndsTheSessionContributionKeptOrInTheLedger) {
  make_running();
  push({5}, {1});
  hear(0, protocol::StepDecided{0, 0, false});
  expect_ended(ErrorCode::kStale, "needs a resync");
  EXPECT_EQ(residual(), (RoundsEntries{{5, 1}}));
  make_running();
  push({5}, {1});
  hear(0, protocol::StepDecided{0, 0, true});
  expect_ended(ErrorCode::kStale, "needs a resync");
  EXPECT_EQ(residual(), RoundsEntries());
  EXPECT_EQ(core().ledger(0)[5], 1.0);
}

TEST_F(Rounds, AContributionOverTheShardsLimitEndsTheSessionWithTheLimit) {
  make();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    protocol::Welcome welcome;
    welcome.membership = membership_;
    welcome.message_bytes_max = 100;
    hear(shard, welcome);
  }
  std::vector<uint32_t> indices(1'000);
  for (uint32_t i = 0; i < indices.size(); ++i) indices[i] = i;
  push(indices, std::vector<float>(indices.size(), 1.0f));
  expect_ended(ErrorCode::kLimitExceeded, "over the limit of shard 0 (tcp://a:1), 100 bytes");
}

TEST_F(Rounds, FinishSaysGoodbyeOnceEverythingIsAppliedAndAcknowledged) {
  make_running();
  push({5}, {1});
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  EXPECT_EQ(core().phase(), Phase::kFinishing);
  hear_update(0, 0, {{5, 1}});
  core().end_pass(now_, actions_);
  EXPECT_TRUE(take_sent<protocol::Goodbye>().empty());
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  hear_update(1, 0, {});
  core().end_pass(now_, actions_);
  EXPECT_TRUE(take_sent<protocol::Goodbye>().empty()) << "shard 0 may not have the ack";
  pass(kNsPerS);
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().end_pass(now_, actions_);
  size_t acks = 0;
  std::vector<uint32_t> goodbyes;
  for (const worker::SendAction& send : actions_.sends) {
    if (std::holds_alternative<Ack>(send.message.body)) ++acks;
    if (const auto* goodbye = std::get_if<protocol::Goodbye>(&send.message.body)) {
      EXPECT_EQ(goodbye->reason, protocol::Goodbye::Reason::kFinished);
      goodbyes.push_back(send.shard);
      EXPECT_GE(acks, 1u) << "acks first";
    }
  }
  EXPECT_EQ(goodbyes, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(core().phase(), Phase::kFinished);
  // The view without this worker is no removal now.
  ++membership_.epoch;
  membership_.members.erase(membership_.members.begin());
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(core().phase(), Phase::kFinished);
  EXPECT_EQ(core().next_deadline(), INT64_MAX);
}

TEST_F(Rounds, FusedTensorsThatWerePushedUnequallyCannotBeFinished) {
  config_.spec = toy_spec(2, {10, 20});
  core_ = std::make_unique<WatchedCore>(config_);
  ASSERT_EQ(core().layout().buckets.size(), 1u);
  ASSERT_TRUE(core().push_sparse(0, {}, {}, 1, now_).has_value());
  const auto twice = core().push_sparse(0, {}, {}, 1, now_);
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().code, ErrorCode::kUnavailable) << "its neighbour is not there yet";
  const auto finished = core().finish(now_, actions_);
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Rounds, TensorsOfHigherPriorityGoFirstAndTheShardsTakeTurns) {
  config_.spec = toy_spec(2, {100'000, 100'000});
  config_.spec.parts_per_shard = 2;
  config_.spec.tensors[1].priority = 5;
  core_ = std::make_unique<WatchedCore>(config_);
  core().start(now_, actions_);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    welcome(shard);
  }
  actions_.clear();
  for (uint32_t tensor = 0; tensor < 2; ++tensor) ASSERT_TRUE(core().push_sparse(tensor, {}, {}, 1, now_).has_value());
  while (core().work(now_, actions_)) {
  }
  std::vector<uint32_t> shards;
  std::vector<uint32_t> buckets;
  for (const auto& [shard, message] : take_sent<Contribution>()) {
    shards.push_back(shard);
    buckets.push_back(core().layout().parts[std::get<Contribution>(message.body).part].bucket);
  }
  EXPECT_EQ(buckets, (std::vector<uint32_t>{1, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(shards, (std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST_F(Rounds, AuditReportsWhatEnteredEachPartSoFar) {
  config_.spec.audit = true;
  make_running();
  push({5, second_part()}, {1, 4});
  hear_update(0, 0, {});
  hear_update(1, 0, {});
  actions_.clear();
  std::vector<float> dense(kDimension, 0.0f);
  dense[5] = 2;
  dense[second_part()] = 8;
  ASSERT_TRUE(core().push_dense(0, dense, 1, now_).has_value());
  while (core().work(now_, actions_)) {
  }
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(std::get<Contribution>(sent[0].second.body).entered, 3.0);
  EXPECT_EQ(std::get<Contribution>(sent[1].second.body).entered, 12.0);
}

TEST_F(Rounds, TheSavedStateIsTheResidualWithEverythingInFlight) {
  config_.spec.select = {.selection = SelectionId::kTopK, .k = 2};
  make_running();
  push({5, 6, 7, second_part()}, {1, 2, 3, 4});
  const worker::SavedState state = core().saved_state();
  EXPECT_EQ(state.job, kJob);
  EXPECT_EQ(state.spec_hash, protocol::job_spec_hash(config_.spec));
  EXPECT_EQ(state.epoch, membership_.epoch);
  ASSERT_EQ(state.tensors.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(state.tensors[0].residual.indices, std::vector<uint32_t>{5, 6, 7, second_part()}));
  EXPECT_TRUE(std::ranges::equal(state.tensors[0].residual.values, std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(core().outstanding(0).size(), 2u);
}

TEST_F(Rounds, AHugeSparseTensorCostsMemoryByItsStreamsOnly) {
  config_.spec = toy_spec(2, {kDimensionMax});
  config_.spec.tensors[0].name = "huge";
  core_ = std::make_unique<WatchedCore>(config_, Watch::kNothing);
  core().start(now_, actions_);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    welcome(shard);
  }
  actions_.clear();
  push({0, 0xffff'ffffu}, {1, 2});
  const auto sent = take_sent<Contribution>();
  EXPECT_EQ(sent.size(), core().layout().parts.size());
  for (const worker::OutstandingView& out : core().outstanding(0)) EXPECT_LE(out.sent.count(), 1u);
  const uint32_t last = static_cast<uint32_t>(core().layout().parts.size()) - 1;
  protocol::Update update = update_of(last, 0);
  update.contributors.clear();
  hear(core().layout().parts[last].shard, update, sum_of({}, part_dimension(last)));
  EXPECT_TRUE(std::ranges::equal(core().residual(0).indices, std::vector<uint32_t>{0xffff'ffffu}));
}

}  // namespace
}  // namespace millrace::testing
