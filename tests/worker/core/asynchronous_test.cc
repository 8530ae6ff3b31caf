#include "protocol/base/limits.h"
#include "tests/worker/core/returning_core.h"
#include "worker/core/rejoin/contribution_outcome.h"

/// Mode asynchronous at a worker: the update that names a contribution resolves it, at any step.
namespace millrace::worker {
namespace {

using protocol::Contribution;

struct Asynchronous : testing::ReturningCore {
  static constexpr uint32_t kSecond = 100'000;  ///< the first index of part 1

  Asynchronous() {
    config_.spec.mode = protocol::Mode::kAsynchronous;
    config_.spec.staleness = 1;
    make_running();
  }
  /// Delivers an update as the part's next step: it names the contribution with that number of one incarnation.
  void hear_named(uint32_t part, uint64_t step, protocol::ContributorId who, const Entries& entries) {
    protocol::Update update = update_of(part, step);
    update.contributors = {who};
    update.weight_sum = 1;
    hear(part, update, sum_of(entries, part_dimension(part)));
  }
  /// Returns (part, number) of the contributions that go out.
  std::vector<std::pair<uint32_t, uint64_t>> sent() {
    std::vector<std::pair<uint32_t, uint64_t>> numbers;
    for (const auto& [shard, message] : take_sent<Contribution>()) {
      const auto& body = std::get<Contribution>(message.body);
      numbers.emplace_back(body.part, body.step);
    }
    return numbers;
  }
  using Numbers = std::vector<std::pair<uint32_t, uint64_t>>;
  /// Returns its entry of a summary: `sequence` contributions of that incarnation were counted, the last one as that
  /// step.
  static protocol::SummaryEntry counted(uint64_t incarnation, uint64_t sequence, uint64_t step) {
    protocol::SummaryEntry entry = counted_at(incarnation, step);
    entry.sequence = sequence;
    return entry;
  }
  /// Settles both parts; part 1 only returns entries.
  void settle_and_sync(protocol::Settle settle) {
    hear(0, std::move(settle));
    hear(1, settle_of(1, 0));
    make_synced();
    ASSERT_EQ(core().phase(), Phase::kRunning);
  }
};

TEST_F(Asynchronous, TheUpdateThatNamesItAnswersAndOthersAreOnlyApplied) {
  push({5, kSecond}, {1, 2});
  EXPECT_EQ(sent(), (Numbers{{0, 0}, {1, 0}}));
  hear_named(0, 0, {1, 1, 0}, {{5, 7}});
  hear_named(0, 1, {1, 1, 1}, {{5, 7}});
  ASSERT_EQ(actions_.delivered.size(), 2u);
  for (const DeliveredUpdate& delivered : actions_.delivered) {
    EXPECT_FALSE(delivered.counted);
    EXPECT_FALSE(delivered.answers_push);
    EXPECT_EQ(delivered.push, 0u) << "they come with the answer";
  }
  EXPECT_EQ(core().outstanding(0).size(), 2u);
  hear_named(0, 2, {0, 1, 0}, {{5, 1}});
  EXPECT_TRUE(actions_.delivered.back().counted);
  EXPECT_TRUE(actions_.delivered.back().answers_push);
  EXPECT_EQ(actions_.delivered.back().push, 0u);
  EXPECT_EQ(core().outstanding(0).size(), 1u) << "part 1 has a log of its own";
  EXPECT_EQ(core().part_steps_applied(0), 3u);
  hear_named(1, 0, {0, 1, 0}, {{0, 2}});
  EXPECT_TRUE(core().outstanding(0).empty());
  EXPECT_EQ(residual(), Entries{});
  EXPECT_EQ(core().counters().not_counted, 0u);
}

TEST_F(Asynchronous, AnAnswerFromAllPartsOfAPushAllowsTheNextPush) {
  push({5}, {1});
  push({6}, {1});
  EXPECT_EQ(core().steps_allowed(0), 2u) << "staleness 1";
  EXPECT_EQ(sent(), (Numbers{{0, 0}, {1, 0}, {0, 1}, {1, 1}}));
  hear_named(0, 0, {0, 1, 0}, {{5, 1}});
  EXPECT_EQ(core().steps_allowed(0), 2u);
  hear_named(1, 0, {0, 1, 0}, {});
  EXPECT_EQ(core().steps_allowed(0), 3u);
  push({7}, {1});
  EXPECT_EQ(sent(), (Numbers{{0, 2}, {1, 2}}));
}

TEST_F(Asynchronous, UpdatesOfOthersOpenNoPush) {
  push({5}, {1});
  push({6}, {1});
  for (uint64_t step = 0; step < 5; ++step) {
    for (const uint32_t part : {0u, 1u}) hear_named(part, step, {1, 1, step}, {});
  }
  EXPECT_EQ(core().steps_applied(0), 5u);
  EXPECT_EQ(core().steps_allowed(0), 2u);
}

TEST_F(Asynchronous, AnUpdateOfAnotherIncarnationOrWorkerResolvesNothing) {
  push({5}, {1});
  hear_named(0, 0, {1, 1, 0}, {{5, 1}});
  hear_named(0, 1, {0, 9, 0}, {{5, 1}});
  EXPECT_EQ(core().outstanding(0).size(), 2u);
  EXPECT_EQ(core().part_steps_applied(0), 2u);
}

TEST_F(Asynchronous, RefusalAndDuplicateAreAboutTheNumber) {
  push({5}, {1});
  for (uint64_t step = 0; step < 3; ++step) hear_named(0, step, {1, 1, step}, {});
  actions_.clear();
  hear(0, protocol::Refuse{ErrorCode::kUnavailable, "no room", true, true, 0, 0});
  pass(kNsPerS);
  const auto again = take_sent<Contribution>();
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(std::get<Contribution>(again[0].second.body).step, 0u);
  EXPECT_TRUE(std::get<Contribution>(again[0].second.body).again);
  hear(0, protocol::Duplicate{0, 0});
  hear(0, protocol::StepDecided{0, 3, true});
  EXPECT_EQ(core().phase(), Phase::kRunning) << "no shard says that in this mode";
  EXPECT_EQ(core().outstanding(0).size(), 2u);
}

TEST_F(Asynchronous, ALostUpdateIsAskedForAndNotTheContributionSentAgain) {
  push({5}, {1});
  sent();
  protocol::Heartbeat heartbeat;
  heartbeat.decided = {{0, 2}};
  hear(0, heartbeat);
  core().end_pass(now_, actions_);
  const auto acks = take_sent<protocol::Ack>();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(std::get<protocol::Ack>(acks[0].second.body).entries, (std::vector<protocol::Ack::Entry>{{0, 0, true}}));
}

TEST_F(Asynchronous, EntriesTheSummaryOmitsAreReturnedAndNumberingRestarts) {
  push({5}, {4});
  push({6}, {2});
  lose_place();
  enter(2);
  actions_.clear();
  settle_and_sync(settle_of(0, 7));
  EXPECT_EQ(residual(), (Entries{{5, 4}, {6, 2}}));
  EXPECT_TRUE(core().outstanding(0).empty());
  EXPECT_EQ(core().counters().not_counted, 4u) << "two of each part";
  EXPECT_EQ(core().steps_allowed(0), 3u) << "both pushes are answered";
  sent();
  push({7}, {1});
  EXPECT_EQ(sent(), (Numbers{{0, 0}, {1, 0}}));
  EXPECT_EQ(residual(), Entries{});
}

TEST_F(Asynchronous, ACountedContributionAwaitsTheOldIncarnationsUpdate) {
  push({5}, {4});
  push({6}, {2});
  lose_place();
  enter(2);
  protocol::Settle settle = settle_of(0, 3);
  settle.counted = counted(1, 1, 2);
  actions_.clear();
  settle_and_sync(settle);
  EXPECT_EQ(residual(), (Entries{{6, 2}}));
  EXPECT_EQ(core().steps_allowed(0), 2u) << "the first push waits";
  const auto out = take_sent<Contribution>();
  ASSERT_EQ(out.size(), 1u) << "an empty one, of this incarnation; the old one's bytes are not sent again";
  EXPECT_EQ(std::get<Contribution>(out[0].second.body).part, 0u);
  EXPECT_EQ(std::get<Contribution>(out[0].second.body).step, 0u);
  EXPECT_EQ(out[0].second.header.incarnation, 2u);
  hear_named(0, 0, {1, 1, 0}, {});
  hear_named(0, 1, {1, 1, 1}, {});
  hear_named(0, 2, {0, 1, 0}, {{5, 4}});
  ASSERT_GE(actions_.delivered.size(), 2u);
  const DeliveredUpdate& named = actions_.delivered.end()[-2];
  EXPECT_TRUE(named.counted);
  EXPECT_EQ(named.push, 0u);
  EXPECT_TRUE(actions_.delivered.back().delivered_before) << "the answer of the second, which went back";
  EXPECT_EQ(actions_.delivered.back().push, 1u);
  EXPECT_EQ(residual(), (Entries{{6, 2}}));
  EXPECT_EQ(core().steps_allowed(0), 3u) << "both are answered";
  push({7}, {1});
  push({8}, {1});
  EXPECT_EQ(sent(), (Numbers{{0, 1}, {1, 0}, {0, 2}, {1, 1}})) << "the empty one was the first of part 0";
  hear_named(0, 3, {0, 2, 0}, {});
  EXPECT_EQ(core().outstanding(0).size(), 4u);
  EXPECT_EQ(unaccounted(5), 4.0) << "it was applied";
  EXPECT_EQ(unaccounted(6), 0.0) << "it went with the next push";
}

TEST_F(Asynchronous, AVoidContributionIsReturnedByTheNewIncarnationsUpdate) {
  push({5}, {4});
  lose_place();
  enter(2);
  protocol::Settle settle = settle_of(0, 1);
  settle.counted = counted(1, 1, 0);
  actions_.clear();
  settle_and_sync(settle);
  EXPECT_EQ(sent(), (Numbers{{0, 0}}));
  // The shard dies, no member had its step 0, and its successor counts the empty one there.
  hear_named(0, 0, {0, 2, 0}, {});
  EXPECT_EQ(residual(), (Entries{{5, 4}}));
  EXPECT_TRUE(core().outstanding(0).empty());
  EXPECT_EQ(core().steps_allowed(0), 2u);
  EXPECT_EQ(unaccounted(5), 0.0);
}

TEST_F(Asynchronous, ContributionsInASnapshotCountAsApplied) {
  push({5}, {4});
  push({6}, {2});
  lose_place();
  enter(2);
  const uint64_t dimension = part_dimension(0);
  ByteBuffer bytes(dimension * sizeof(float));
  protocol::Snapshot run;
  run.part = 0;
  run.for_incarnation = incarnation_;
  run.n = 5;
  run.decided_in = 3;
  run.payload_hash = hash64(bytes);
  run.summary.workers = {counted(1, 1, 4)};
  hear(0, run, SharedBytes::from(std::move(bytes)));
  protocol::Settle settle = settle_of(0, 7, Weights::kSnapshot);
  settle.counted = counted(1, 2, 6);
  actions_.clear();
  settle_and_sync(settle);
  EXPECT_EQ(core().part_steps_applied(0), 5u);
  EXPECT_EQ(residual(), Entries{});
  EXPECT_EQ(unaccounted(5), 4.0) << "it is in the weights";
  EXPECT_EQ(unaccounted(6), 0.0) << "it waits for its update";
  hear_named(0, 5, {1, 1, 0}, {});
  hear_named(0, 6, {0, 1, 1}, {{6, 2}});
  EXPECT_EQ(unaccounted(6), 2.0);
  EXPECT_EQ(core().counters().unreturnable, 0.0);
}

TEST(OutcomeOfASequence, FollowsTheSummaryOfItsIncarnation) {
  protocol::SummaryEntry entry;
  entry.incarnation = 9;
  entry.sequence = 3;
  entry.earlier_incarnations = {{4, 2}, {6, 1}};
  EXPECT_EQ(sequence_outcome_of(std::nullopt, 9, 0), ContributionOutcome::kNotCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 9, 2), ContributionOutcome::kCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 9, 3), ContributionOutcome::kNotCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 10, 0), ContributionOutcome::kNotCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 4, 1), ContributionOutcome::kCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 4, 2), ContributionOutcome::kNotCounted);
  EXPECT_EQ(sequence_outcome_of(entry, 5, 0), ContributionOutcome::kNotCounted);
  entry.earlier_incarnations.clear();
  for (uint64_t incarnation = 0; incarnation < protocol::kEarlierIncarnationsMax; ++incarnation)
    entry.earlier_incarnations.emplace_back(100 + incarnation, 1);
  entry.incarnation = 1'000;
  EXPECT_EQ(sequence_outcome_of(entry, 99, 0), ContributionOutcome::kUnknown)
      << "further back than the summary reaches";
  EXPECT_EQ(sequence_outcome_of(entry, 999, 0), ContributionOutcome::kNotCounted);
}

}  // namespace
}  // namespace millrace::worker
