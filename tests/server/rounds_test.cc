#include <cmath>

#include "protocol/base/limits.h"
#include "tests/server/scripted_cluster.h"

namespace millrace::server {
namespace {

using protocol::Duplicate;
using protocol::MembershipChange;
using protocol::Refuse;
using protocol::StepDecided;
using protocol::Update;
using ::testing::ElementsAre;

std::vector<float> rounds_constant(float value, size_t dimension = 64) { return std::vector<float>(dimension, value); }

struct Rounds : ::testing::Test {
  explicit Rounds(uint32_t workers = 2) : cluster(ScriptedCluster::small_job(workers)) { cluster.join_all(); }
  ScriptedCluster cluster;
};

TEST_F(Rounds, UpdateIsTheSumOfAllMembersAndNamesThem) {
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_TRUE(cluster.take(0).empty());
  cluster.push(0, 0, rounds_constant(1));
  const std::vector<Update> updates = cluster.take_of<Update>(0);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_THAT(updates[0].contributors, ElementsAre(protocol::ContributorId{0, 1}, protocol::ContributorId{1, 1}));
  EXPECT_EQ(updates[0].weight_sum, 2);
  EXPECT_TRUE(updates[0].whole_sum);
  const auto got = cluster.gather(1, 0);
  EXPECT_EQ(got.dense, rounds_constant(3));
}

TEST_F(Rounds, DuplicateContributionIsAcknowledgedAndNotAdded) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(0, 0, rounds_constant(1));
  EXPECT_EQ(cluster.take_of<Duplicate>(0).size(), 1u);
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
  EXPECT_EQ(cluster.counted(Metric::kDuplicates), 1);
}

TEST_F(Rounds, DuplicateIsRecognisedWhileTheFirstIsStillBeingDecoded) {
  cluster.hold_tasks = true;
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.take_of<Duplicate>(0).size(), 1u);
  cluster.run_held_tasks();
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
}

TEST_F(Rounds, LateContributionIsAnsweredWithTheKeptUpdate) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  cluster.take(0);
  cluster.push(0, 0, rounds_constant(1));
  const auto got = cluster.gather(0, 0);
  EXPECT_EQ(got.parts, 1u);
  EXPECT_EQ(got.dense, rounds_constant(3));
  EXPECT_EQ(cluster.counted(Metric::kLate, "update"), 1);
}

TEST(RoundsOfTwoBuckets, AHeartbeatNamesThePartsThatAreAheadAndNotAcknowledged) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.tensors.push_back({.name = "later", .dimension = 64});
  spec.fuse_below = 1;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  ASSERT_EQ(cluster.layout().parts.size(), 2u);
  for (const uint32_t worker : {0u, 1u}) {
    cluster.send(ScriptedCluster::peer(worker), 0,
                 cluster.contribution(worker, 0, 0, cluster.payload(rounds_constant(1))));
  }
  const auto answer = [&](uint32_t worker) {
    cluster.take(worker);
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Heartbeat{}, {}});
    return cluster.take_of<protocol::Heartbeat>(worker).at(0);
  };
  EXPECT_EQ(answer(0).steps_applied, 0u) << "the slowest part";
  EXPECT_THAT(answer(0).decided, ElementsAre(protocol::Ack::Entry{0, 1}));
  cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Ack{{{0, 1}}}, {}});
  EXPECT_THAT(answer(0).decided, ElementsAre());
  EXPECT_THAT(answer(1).decided, ElementsAre(protocol::Ack::Entry{0, 1}));
}

TEST_F(Rounds, ForgottenStepIsAnsweredFromTheSummary) {
  for (uint64_t step = 0; step < 2; ++step) {
    cluster.push(0, step, rounds_constant(1));
    cluster.push(1, step, rounds_constant(2));
    cluster.ack(0, step + 1);
    cluster.ack(1, step + 1);
  }
  cluster.take(0);
  cluster.push(0, 1, rounds_constant(1));
  const std::vector<StepDecided> settled = cluster.take_of<StepDecided>(0);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_EQ(settled[0].step, 1u);
  EXPECT_TRUE(settled[0].counted);
}

TEST_F(Rounds, UpdateIsKeptUntilEveryMemberHasAcknowledgedIt) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  cluster.ack(0, 1);
  cluster.take(1);
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(1, 0).parts, 1u) << "worker 1 has not acknowledged";
  const uint64_t before = cluster.core().status(cluster.now).memory_bytes;
  cluster.ack(1, 1);
  EXPECT_LT(cluster.core().status(cluster.now).memory_bytes, before);
}

TEST_F(Rounds, WeightsWithAnInfiniteSum_RefusedAndTheirPlaceStaysEmpty) {
  const auto push_weighing = [this](uint32_t worker, double weight) {
    protocol::Message message = cluster.contribution(worker, 0, 0, cluster.payload(rounds_constant(1)));
    std::get<protocol::Contribution>(message.body).weight = weight;
    cluster.send(ScriptedCluster::peer(worker), 0, std::move(message));
  };
  for (const double weight : {1.7e308, std::nextafter(protocol::kContributionWeightMax, HUGE_VAL)}) {
    push_weighing(0, weight);
    push_weighing(1, weight);
    for (const uint32_t worker : {0u, 1u}) {
      const std::vector<Refuse> refusals = cluster.take_of<Refuse>(worker);
      ASSERT_EQ(refusals.size(), 1u) << weight;
      EXPECT_EQ(refusals[0].code, ErrorCode::kLimitExceeded);
      EXPECT_FALSE(refusals[0].retry);
    }
  }
  push_weighing(0, protocol::kContributionWeightMax);
  push_weighing(1, 0.5);
  const std::vector<Update> updates = cluster.take_of<Update>(1);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].weight_sum, protocol::kContributionWeightMax + 0.5);
  EXPECT_TRUE(std::isfinite(protocol::kContributionWeightMax * protocol::kWorkersMax));
}

TEST_F(Rounds, SameIdentityOtherHashIsRefused) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(0, 0, rounds_constant(5));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kConflict);
  EXPECT_TRUE(refusals[0].about_contribution);
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3)) << "the first bytes stand";
}

TEST_F(Rounds, StepBeyondTheStalenessWindowIsRefused) {
  cluster.push(0, 2, rounds_constant(1));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kInvalidArgument);
}

TEST_F(Rounds, NextStepIsTakenBeforeTheOthersHaveReachedIt) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(0, 1, rounds_constant(10));
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
  cluster.push(1, 1, rounds_constant(20));
  EXPECT_EQ(cluster.gather(0, 1).dense, rounds_constant(30));
}

TEST_F(Rounds, PayloadThatDoesNotDecodeLeavesTheSlotEmpty) {
  protocol::Message bad = cluster.contribution(0, 0, 0, cluster.payload(rounds_constant(1)));
  ByteBuffer bytes(bad.payload.bytes.begin(), bad.payload.bytes.end());
  bytes.back() ^= 1;
  bad.payload = SharedBytes::from(std::move(bytes));
  std::get<protocol::Contribution>(bad.body).payload_hash = container_identity(bad.payload.bytes).value_or(0);
  cluster.send(ScriptedCluster::peer(0), 0, bad);
  ASSERT_EQ(cluster.take_of<Refuse>(0).size(), 1u);
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
}

TEST_F(Rounds, PayloadWithAnotherHashThanAnnouncedIsRefused) {
  protocol::Message bad = cluster.contribution(0, 0, 0, cluster.payload(rounds_constant(1)));
  std::get<protocol::Contribution>(bad.body).payload_hash ^= 1;
  cluster.send(ScriptedCluster::peer(0), 0, bad);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kMalformed);
}

TEST_F(Rounds, APayloadDamagedOnItsWay_RefusedForNowAndTakenWhenWhole) {
  const protocol::Message whole = cluster.contribution(0, 0, 0, cluster.payload(rounds_constant(1)));
  for (const size_t damaged : {size_t{0}, whole.payload.bytes.size() - 1}) {  // the container's header, and its values
    protocol::Message bad = whole;
    ByteBuffer bytes(whole.payload.bytes.begin(), whole.payload.bytes.end());
    bytes[damaged] ^= 1;
    bad.payload = SharedBytes::from(std::move(bytes));
    cluster.send(ScriptedCluster::peer(0), 0, bad);
    const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
    ASSERT_EQ(refusals.size(), 1u) << damaged;
    EXPECT_EQ(refusals[0].code, ErrorCode::kMalformed) << damaged;
    EXPECT_TRUE(refusals[0].retry) << damaged;
  }
  cluster.send(ScriptedCluster::peer(0), 0, whole);
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
}

TEST_F(Rounds, OtherDimensionIsRefused) {
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 0, cluster.payload(rounds_constant(1, 32))));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kMalformed);
}

TEST_F(Rounds, NonFiniteContributionIsRefused) {
  std::vector<float> values = rounds_constant(1);
  values[7] = std::numeric_limits<float>::quiet_NaN();
  cluster.push(0, 0, values);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kNonFinite);
}

TEST_F(Rounds, UnknownPartIsRefused) {
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 99, 0, cluster.payload(rounds_constant(1))));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kInvalidArgument);
}

TEST_F(Rounds, AnAckOfAnUndecidedStepChangesNothing) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  cluster.ack(0, 1'000'000);
  cluster.ack(1, 1);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "impossible_ack"), 1);
  cluster.take(0);
  cluster.push(0, 0, rounds_constant(1));
  EXPECT_EQ(cluster.gather(0, 0).parts, 1u) << "still kept for worker 0";
}

TEST_F(Rounds, SumThatOverflowsEndsTheJobWithASentence) {
  cluster.push(0, 0, rounds_constant(3e38f));
  cluster.push(1, 0, rounds_constant(3e38f));
  const std::vector<protocol::Abort> aborts = cluster.take_of<protocol::Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kNonFinite);
}

struct ThreeWorkers : Rounds {
  ThreeWorkers() : Rounds(3) {}
  void keep_alive(std::initializer_list<uint32_t> workers, int64_t milliseconds) {
    for (int64_t passed = 0; passed < milliseconds; passed += 500) {
      cluster.pass(500);
      for (const uint32_t worker : workers) {
        cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Heartbeat{}, {}});
      }
    }
  }
};

TEST_F(ThreeWorkers, RemovedWorkersOpenContributionIsDropped) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(2, 0, rounds_constant(100));
  keep_alive({0, 1}, 12'000);
  const std::vector<MembershipChange> changes = cluster.take_of<MembershipChange>(0);
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes.back().membership.members.size(), 2u);
  cluster.push(1, 0, rounds_constant(2));
  const auto got = cluster.gather(0, 0);
  EXPECT_EQ(got.dense, rounds_constant(3)) << "without the removed worker's 100";
  EXPECT_EQ(cluster.counted(Metric::kDropped, "removed_worker"), 1);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "silent"), 1);
}

TEST_F(ThreeWorkers, DecisionUnderWayIsBegunAgainWhenAContributorIsRemoved) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  cluster.hold_tasks = true;
  cluster.push(2, 0, rounds_constant(100));
  cluster.run_held_tasks_until(Task::Kind::kReduce);
  keep_alive({0, 1}, 12'000);  // worker 2 is removed while the three are summed
  EXPECT_EQ(cluster.counted(Metric::kRestarted), 1);
  cluster.hold_tasks = false;
  cluster.run_held_tasks();
  const std::vector<Update> updates = cluster.take_of<Update>(1);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].contributors.size(), 2u);
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
}

TEST_F(ThreeWorkers, AnEvictedWorkerReceivesAMembershipWithoutIt) {
  keep_alive({0, 1}, 12'000);
  const std::vector<MembershipChange> changes = cluster.take_of<MembershipChange>(2);
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(find_member(changes.back().membership, 2), nullptr);
  const auto refusal = expect_body<Refuse>(cluster.join(2));
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported) << "it returns as one that joins, and needs weights";
  EXPECT_FALSE(refusal.retry);
}

TEST_F(ThreeWorkers, KeptUpdatesAreServedAgainInTheNewEpoch) {
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  cluster.push(2, 0, rounds_constant(4));
  cluster.ack(0, 1);
  cluster.take(0);
  cluster.take(1);
  keep_alive({0, 1}, 12'000);
  EXPECT_TRUE(cluster.take_of<Update>(0).empty()) << "worker 0 acknowledged it";
  uint64_t epoch = 0;
  bool view_first = false;
  for (const protocol::Message& message : cluster.take(1)) {
    if (const auto* change = std::get_if<MembershipChange>(&message.body)) epoch = change->membership.epoch;
    if (const auto* update = std::get_if<Update>(&message.body)) {
      view_first = epoch != 0;
      EXPECT_EQ(message.header.epoch, epoch);
      EXPECT_LT(update->decided_in, epoch) << "re-serving does not change the epoch of deciding";
    }
  }
  EXPECT_TRUE(view_first);
}

TEST_F(ThreeWorkers, AHeartbeatOfAnEarlierEpochAcknowledgesNothing) {
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.push(worker, 0, rounds_constant(1));
  cluster.ack(0, 1);
  const protocol::Header before = cluster.header(1);
  cluster.send(ScriptedCluster::peer(2), 0, {cluster.header(2), protocol::Goodbye{}, {}});
  cluster.take(1);  // and with it the new view
  protocol::Heartbeat heartbeat;
  heartbeat.steps_applied = 1;
  cluster.send(ScriptedCluster::peer(1), 0, {before, heartbeat, {}});
  const auto kept = [this] { return cluster.core().status(cluster.now).jobs.at(0).retained_updates; };
  EXPECT_EQ(kept(), 1u) << "it may have joined since, with another state";
  cluster.send(ScriptedCluster::peer(1), 0, {cluster.header(1), heartbeat, {}});
  EXPECT_EQ(kept(), 0u);
}

TEST_F(ThreeWorkers, FinishingWorkerIsNotWaitedForAndNotADeath) {
  cluster.send(ScriptedCluster::peer(2), 0, {cluster.header(2), protocol::Goodbye{}, {}});
  EXPECT_EQ(cluster.counted(Metric::kMembersFinished), 1);
  cluster.push(0, 0, rounds_constant(1));
  cluster.push(1, 0, rounds_constant(2));
  EXPECT_EQ(cluster.gather(0, 0).dense, rounds_constant(3));
}

TEST(BoundedStaleness, StepsAreDecidedInOrderWithinTheWindow) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.staleness = 2;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  for (uint64_t step = 0; step < 4; ++step) cluster.push(0, step, rounds_constant(1));
  EXPECT_TRUE(cluster.take_of<Refuse>(0).empty());
  cluster.push(0, 4, rounds_constant(1));
  EXPECT_EQ(cluster.take_of<Refuse>(0).size(), 1u);
  for (uint64_t step = 0; step < 4; ++step) cluster.push(1, 3 - step, rounds_constant(2));
  const std::vector<Update> updates = cluster.take_of<Update>(1);
  ASSERT_EQ(updates.size(), 4u);
  for (uint64_t step = 0; step < 4; ++step) EXPECT_EQ(updates[step].step, step);
}

TEST(Audit, TheSummaryListsTheCarriedSumOfEachWorker) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.audit = true;
  spec.reselect.reselect = protocol::Reselect::kTopK;
  spec.reselect.k = 1;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  std::vector<float> first(64, 0.0f);
  first[3] = 5;
  first[4] = 1;
  cluster.push(0, 0, first);
  cluster.push(1, 0, first);
  const std::vector<Update> updates = cluster.take_of<Update>(0);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_FALSE(updates[0].whole_sum);
  ASSERT_EQ(updates[0].summary.workers.size(), 2u);
  EXPECT_EQ(updates[0].summary.workers[0].carried, 5);
  EXPECT_EQ(updates[0].summary.workers[1].carried, 5);
}

TEST(Audit, TheStatusReportsTheAuditAndEachWorkersImbalance) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.audit = true;
  ScriptedCluster cluster(spec);
  cluster.join_all();
  std::vector<float> gradient(64, 0.0f);
  gradient[3] = 5;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    protocol::Message message = cluster.contribution(worker, 0, 0, cluster.payload(gradient));
    auto& body = std::get<protocol::Contribution>(message.body);
    body.entered = 8;
    body.lost = 1;
    body.imbalance = worker == 0 ? 0 : -0.5;
    cluster.send(ScriptedCluster::peer(worker), 0, message);
  }
  const StatusReport report = cluster.core().status(cluster.now);
  ASSERT_EQ(report.jobs.size(), 1u);
  ASSERT_TRUE(report.jobs[0].audit.has_value());
  const AuditStatus& audit = *report.jobs[0].audit;
  EXPECT_EQ(audit.entered, 16);
  EXPECT_EQ(audit.carried, 10);
  EXPECT_EQ(audit.lost, 2);
  EXPECT_EQ(audit.in_residual, 4);
  EXPECT_EQ(audit.updates_imbalance, 0);
  EXPECT_EQ(audit.workers_imbalance(), 0.5);
  ASSERT_EQ(audit.workers.size(), 2u);
  EXPECT_EQ(audit.workers[0].imbalance, 0);
  EXPECT_EQ(audit.workers[1].imbalance, 0.5);
}

}  // namespace
}  // namespace millrace::server
