#include "tests/server/returning_cluster.h"
#include "tests/support/memory_table.h"

/// Workers that come into a running job: R6, R9, R10.
namespace millrace::server {
namespace {

using protocol::ContributorId;
using protocol::MembershipChange;
using protocol::MemberState;
using protocol::Refuse;
using protocol::Settle;
using protocol::Snapshot;
using protocol::SnapshotRequest;
using protocol::State;
using protocol::Synced;
using protocol::Update;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

std::vector<float> settlement_constant(float value) { return std::vector<float>(64, value); }

struct Joining : ::testing::Test {
  explicit Joining(uint32_t parts = 1, Limits limits = {}, uint32_t staleness = 0)
      : cluster(spec(parts, staleness), 1, limits) {
    cluster.join_all_with_weights();
  }
  static protocol::JobSpec spec(uint32_t parts, uint32_t staleness) {
    protocol::JobSpec spec = ReturningCluster::job(3, parts);
    spec.staleness = staleness;
    return spec;
  }
  /// Lets worker 2 leave, so that a worker can join.
  void leave() {
    cluster.say(2, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
    cluster.deliver_all(0);
    cluster.deliver_all(1);
    cluster.take(2);
  }
  /// ... and a process that knows nothing says Hello as worker 2.
  void join_fresh() {
    cluster.forget(2);
    ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
    cluster.deliver_all(0);
    cluster.deliver_all(1);
    cluster.take(2);
  }
  void ack_all(const std::vector<uint32_t>& workers) {
    for (const uint32_t worker : workers) cluster.ack(worker, cluster.holds(worker).n);
  }
  JobStatus status() { return cluster.core().status(cluster.now).jobs.at(0); }
  MemberState state_of(uint32_t worker) { return find_member(cluster.membership(), worker)->state; }
  SnapshotRequest request_at(uint32_t giver) {
    const auto requests = ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(giver));
    EXPECT_EQ(requests.size(), 1u);
    return requests.empty() ? SnapshotRequest{} : requests[0];
  }
  std::vector<std::string> kinds(uint32_t worker) {
    std::vector<std::string> names;
    for (const protocol::Message& message : cluster.take(worker)) names.emplace_back(protocol::body_name(message.body));
    return names;
  }
  ReturningCluster cluster;
};

TEST_F(Joining, AJoinerIsNotWaitedForAndItsContributionsAreDropped) {
  cluster.step({0, 1, 2});
  leave();
  join_fresh();
  cluster.send(ScriptedCluster::peer(2), 0, cluster.contribution(2, 0, 1, cluster.payload(settlement_constant(100))));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "joining"), 1);
  cluster.step({0, 1}, 3);
  const std::vector<Update> none = cluster.take_of<Update>(2);
  EXPECT_THAT(none, IsEmpty()) << "nothing before it is settled";
  EXPECT_EQ(cluster.holds(0).n, 2u);
  EXPECT_THAT(std::get<Update>(cluster.holds(0).kept.at(1).body).contributors,
              ElementsAre(ContributorId{0, 1}, ContributorId{1, 1}));
  EXPECT_TRUE(status().members.at(2).joining);
}

TEST_F(Joining, SnapshotComesThroughTheShardThenSettleThenTheUpdates) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  leave();
  ack_all({0, 1});
  join_fresh();
  cluster.say_state(2, false);
  const SnapshotRequest request = request_at(0);
  EXPECT_EQ(request.for_worker, 2u);
  EXPECT_EQ(request.for_incarnation, 2u);
  EXPECT_THAT(request.parts, ElementsAre(0));
  cluster.step({0, 1}, 4);
  cluster.holds(0).n = 2;  // its weights are from before the step that has just been decided
  cluster.holds(0).decided_in = std::get<Update>(cluster.holds(0).kept.at(1).body).decided_in;
  cluster.give_weights(0, request, 24);
  const std::vector<protocol::Message> got = cluster.take(2);
  ASSERT_EQ(got.size(), 5u);
  uint64_t offset = 0;
  for (size_t run = 0; run < 3; ++run) {
    const auto& snapshot = std::get<Snapshot>(got[run].body);
    EXPECT_EQ(snapshot.offset, offset);
    EXPECT_EQ(snapshot.n, 2u);
    EXPECT_EQ(hash64(got[run].payload.bytes), snapshot.payload_hash);
    EXPECT_EQ(got[run].header.epoch, cluster.membership().epoch);
    EXPECT_EQ(got[run].header.shard_incarnation, 1u) << "under the shard's header";
    offset += got[run].payload.bytes.size() / sizeof(float);
  }
  EXPECT_EQ(offset, 64u);
  const auto& settle = std::get<Settle>(got[3].body);
  EXPECT_EQ(settle.weights, Settle::Weights::kSnapshot);
  EXPECT_EQ(settle.decided, 3u);
  EXPECT_TRUE(settle.on_log) << "no steps are on every log";
  ASSERT_TRUE(settle.counted.has_value());
  EXPECT_EQ(settle.counted->incarnation, 1u);
  EXPECT_EQ(settle.counted->last_step, 1u);
  EXPECT_EQ(std::get<Update>(got[4].body).step, 2u);
  EXPECT_EQ(cluster.counted(Metric::kSettled, "snapshot"), 1);
  EXPECT_EQ(cluster.counted(Metric::kSnapshotBytes), 256);
}

TEST_F(Joining, AfterItsWordThatAllIsSettledItIsSyncedAndWaitedFor) {
  cluster.step({0, 1, 2});
  leave();
  join_fresh();
  cluster.say(2, Synced{});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "not_settled"), 1);
  EXPECT_EQ(state_of(2), MemberState::kJoining);
  cluster.say_state(2, false);
  EXPECT_THAT(kinds(2), ElementsAre("settle", "update")) << "step 0 is kept: its own weights do";
  cluster.say(2, Synced{});
  EXPECT_EQ(state_of(2), MemberState::kSynced);
  const auto told = cluster.take(2);
  ASSERT_EQ(told.size(), 1u);
  ASSERT_TRUE(std::holds_alternative<protocol::MembershipChange>(told[0].body));
  EXPECT_THAT(std::get<protocol::MembershipChange>(told[0].body).decided, ElementsAre(1))
      << "the steps that it has to apply first";
  cluster.say(2, protocol::Ack{{{0, 0, true}}});
  EXPECT_THAT(kinds(2), ElementsAre("update"));
  EXPECT_TRUE(cluster.take_of<protocol::MembershipChange>(0).back().decided.empty()) << "worker 0 was there";
  cluster.say(2, Synced{});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "synced"), 1) << "again: no effect";
  cluster.deliver_all(0);
  cluster.deliver_all(1);
  cluster.holds(2) = cluster.holds(0);
  cluster.step({0, 1}, 4);
  EXPECT_EQ(cluster.holds(0).n, 1u) << "it waits for worker 2";
  cluster.step({2}, 8);
  cluster.deliver_all(0);
  EXPECT_EQ(cluster.holds(0).n, 2u);
}

TEST_F(Joining, AJoinerOnTheLogKeepsItsWeightsIfUpdatesAreRetained) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  cluster.step({0, 1});
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 1002))));
  cluster.say_state(2, false);
  const std::vector<protocol::Message> got = cluster.take(2);
  ASSERT_EQ(got.size(), 2u);
  const auto& settle = std::get<Settle>(got[0].body);
  EXPECT_EQ(settle.weights, Settle::Weights::kOwn);
  EXPECT_TRUE(settle.on_log);
  EXPECT_EQ(settle.decided, 3u);
  EXPECT_EQ(std::get<Update>(got[1].body).step, 2u);
}

TEST_F(Joining, AStateOfAnotherEpochsStepIsOffTheLog) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  leave();
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 1002))));
  cluster.holds(2).decided_in += 1;
  cluster.say_state(2, false);
  EXPECT_THAT(kinds(2), IsEmpty());
  cluster.give_weights(0, request_at(0));
  std::vector<protocol::Message> got = cluster.take(2);
  ASSERT_EQ(got.size(), 2u) << "no updates before the snapshot: nothing of its own counts";
  EXPECT_FALSE(std::get<Settle>(got[1].body).on_log);
}

TEST_F(Joining, AStateAheadOfTheLogIsOffIt) {
  cluster.step({0, 1, 2});
  leave();
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 1002))));
  cluster.holds(2).n += 1;
  cluster.say_state(2, false);
  EXPECT_THAT(kinds(2), IsEmpty());
  EXPECT_EQ(request_at(0).for_worker, 2u);
}

TEST_F(Joining, UpdatesThatAJoinerStillNeedsForItsAccountComeBeforeItsSettle) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  for (int step = 0; step < 2; ++step) cluster.step({0, 1});
  // Worker 2 says that it has step 0 only: step 1 is forgotten, 2 and 3 are kept.
  ReturningCluster::Holds& mine = cluster.holds(2);
  mine.n = 1;
  mine.summary = std::get<Update>(mine.kept.at(0).body).summary;
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 1002))));
  cluster.say_state(2, false);
  const SnapshotRequest request = request_at(0);
  cluster.holds(0).n = 3;
  cluster.holds(0).decided_in = std::get<Update>(cluster.holds(0).kept.at(2).body).decided_in;
  cluster.give_weights(0, request);
  const std::vector<protocol::Message> got = cluster.take(2);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(std::get<Snapshot>(got[0].body).n, 3u);
  EXPECT_EQ(std::get<Update>(got[1].body).step, 2u);
  EXPECT_EQ(std::get<Settle>(got[2].body).weights, Settle::Weights::kSnapshot);
  EXPECT_EQ(std::get<Update>(got[3].body).step, 3u);
}

TEST_F(Joining, UpdatesAreKeptForAJoinerUntilItAcknowledges) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  cluster.step({0, 1});
  ack_all({0, 1});
  EXPECT_EQ(status().retained_updates, 1u);
  cluster.say(2, protocol::Ack{{{0, 2}}});
  EXPECT_EQ(status().retained_updates, 1u) << "of a state that no shard has looked at";
  cluster.say_state(2, false);
  cluster.give_weights(0, request_at(0));
  cluster.say(2, protocol::Ack{{{0, 2}}});
  EXPECT_EQ(status().retained_updates, 0u);
}

TEST_F(Joining, ASettleCountsInItsOwnEpochOnly) {
  cluster.step({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  EXPECT_THAT(kinds(2), ElementsAre("settle", "update"));
  ASSERT_TRUE(change_job(cluster.table(), cluster.membership().job, [](protocol::JobRecord& record) -> Result<Change> {
                record.membership.members[1].nonce += 1;
                return Change::kChanged;
              }).has_value());
  cluster.say(2, Synced{});  // in the old epoch, which this shard still has
  EXPECT_EQ(state_of(2), MemberState::kJoining);
  EXPECT_THAT(kinds(2), ElementsAre("view_change"));
  cluster.say(2, Synced{});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "not_settled"), 1);
  cluster.say_state(2, false);
  cluster.say(2, Synced{});
  EXPECT_EQ(state_of(2), MemberState::kSynced);
}

TEST_F(Joining, AGiverThatIsSilentIsPassedOver) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  const SnapshotRequest first = request_at(0);
  EXPECT_THAT(cluster.take_of<SnapshotRequest>(1), IsEmpty());
  EXPECT_THAT(status().waiting_because, HasSubstr("worker 2 joins with the weights of worker 0"));
  cluster.live({0, 1, 2}, 500);
  const SnapshotRequest second = request_at(1);
  cluster.give_weights(0, first);  // too late
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unasked_snapshot"), 1);
  cluster.take(2);
  cluster.give_weights(1, second);
  EXPECT_THAT(kinds(2), ElementsAre("snapshot", "settle"));
}

TEST_F(Joining, ARunThatDoesNotFitIsNotHandedOnAndAnotherGiverIsAsked) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  const auto damaged = [&](auto change) {
    cluster.say_state(2, false);
    uint32_t giver = 0;
    std::vector<SnapshotRequest> asked = ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(0));
    if (asked.empty()) {
      giver = 1;
      asked = ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(1));
    }
    if (asked.size() != 1) return false;
    protocol::Message first = cluster.weights(giver, asked[0], 0, 0, 32);
    cluster.say(giver, first.body, 0, first.payload);
    protocol::Message second = cluster.weights(giver, asked[0], 0, 32, 32);
    change(std::get<Snapshot>(second.body), second.payload);
    const double before = cluster.counted(Metric::kDropped, "damaged_snapshot");
    cluster.take(2);
    cluster.say(giver, second.body, 0, second.payload);
    return cluster.counted(Metric::kDropped, "damaged_snapshot") == before + 1 && cluster.take(2).empty();
  };
  EXPECT_TRUE(damaged([](Snapshot& body, SharedBytes&) { body.payload_hash ^= 1; }));
  EXPECT_TRUE(damaged([](Snapshot& body, SharedBytes&) { body.offset = 16; }));
  EXPECT_TRUE(damaged([](Snapshot& body, SharedBytes&) { body.n = 0; }));
  EXPECT_TRUE(damaged([](Snapshot& body, SharedBytes& payload) {
    payload = SharedBytes::from(ByteBuffer(33 * sizeof(float), 0));
    body.payload_hash = hash64(payload.bytes);
  })) << "beyond the part";
  EXPECT_TRUE(damaged([](Snapshot& body, SharedBytes& payload) {
    payload = SharedBytes::from(ByteBuffer(6, 0));
    body.payload_hash = hash64(payload.bytes);
  })) << "no whole values";
}

TEST_F(Joining, AJoinerWithoutAGiverWaitsAndTheStatusReportsIt) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  for (const uint32_t worker : {0u, 1u}) ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.join(worker)));
  join_fresh();
  cluster.say_state(2, false);
  EXPECT_THAT(kinds(2), IsEmpty());
  EXPECT_THAT(status().waiting_because, HasSubstr("no synced worker that has weights"));
  cluster.welcome_with_weights(1);
  EXPECT_EQ(request_at(1).for_worker, 2u) << "now a worker has them";
}

struct JoiningTwoParts : Joining {
  JoiningTwoParts() : Joining(2) {}
};

TEST_F(JoiningTwoParts, PartsAreSettledOneByOneAndSnapshotsAskedForOneAtATime) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  const SnapshotRequest first = request_at(0);
  EXPECT_THAT(first.parts, ElementsAre(0));
  cluster.give_weights(0, first);
  EXPECT_THAT(kinds(2), ElementsAre("snapshot", "settle"));
  cluster.say(2, Synced{});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "not_settled"), 1) << "part 1 is not";
  const SnapshotRequest second = request_at(0);
  EXPECT_THAT(second.parts, ElementsAre(1));
  cluster.give_weights(0, second);
  cluster.say(2, Synced{});
  EXPECT_EQ(state_of(2), MemberState::kSynced);
}

TEST_F(JoiningTwoParts, TheNextPartIsAskedForAfterARestOfNineTimesAsLong) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  const SnapshotRequest first = request_at(0);
  cluster.pass(2);
  cluster.give_weights(0, first);
  cluster.pass(10);
  EXPECT_THAT(cluster.take_of<SnapshotRequest>(0), IsEmpty());
  EXPECT_THAT(status().waiting_because, HasSubstr("worker 2 joins with the weights of worker 0"));
  cluster.pass(10);
  EXPECT_THAT(request_at(0).parts, ElementsAre(1));
}

TEST_F(JoiningTwoParts, ARestIsAtMostAQuarterOfAHeartbeat) {
  cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  const SnapshotRequest first = request_at(0);
  cluster.pass(150);
  cluster.give_weights(0, first);
  const auto rest = static_cast<int64_t>(cluster.spec().heartbeat.count()) / 4;
  cluster.pass(rest - 10);
  EXPECT_THAT(cluster.take_of<SnapshotRequest>(0), IsEmpty());
  cluster.pass(20);
  EXPECT_THAT(request_at(0).parts, ElementsAre(1));
}

/// All workers restart, one after the other, from saves; the shard lives.
TEST_F(Joining, StrandedJoinersAreCutToAStateThatNoOtherBeats) {
  for (int step = 0; step < 3; ++step) cluster.step({0, 1, 2});
  ack_all({0, 1, 2});
  cluster.pass(1'100);
  for (const uint32_t worker : {0u, 1u, 2u}) {
    ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(worker, cluster.returning(worker, 70 + worker))));
    ReturningCluster::Holds& mine = cluster.holds(worker);
    mine.n = worker == 2 ? 1 : 2;
    mine.summary = std::get<Update>(mine.kept.at(mine.n - 1).body).summary;
    mine.kept.clear();
  }
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.take(worker);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, false);
  for (const uint32_t worker : {0u, 1u, 2u}) {
    const std::vector<Settle> settles = cluster.take_of<Settle>(worker);
    ASSERT_EQ(settles.size(), 1u);
    EXPECT_EQ(settles[0].weights, Settle::Weights::kNone);
    EXPECT_TRUE(settles[0].on_log);
  }
  const uint64_t epoch = cluster.membership().epoch;
  cluster.say_state(0, false, 0, true);
  cluster.say_state(1, false, 0, true);
  EXPECT_EQ(cluster.membership().epoch, epoch) << "worker 2 has not said that it is stranded";
  cluster.say_state(2, false, 0, true);
  const protocol::Membership membership = cluster.membership();
  EXPECT_EQ(membership.cut, epoch + 1);
  EXPECT_EQ(membership.cut_worker, 0u) << "the lower of the two that are furthest";
  EXPECT_EQ(state_of(0), MemberState::kSynced);
  EXPECT_EQ(state_of(2), MemberState::kJoining);
  EXPECT_TRUE(status().recovering) << "also the shard that made the cut";
  EXPECT_THAT(cluster.take_of<MembershipChange>(0).back().decided, IsEmpty()) << "the decided steps are void";
  EXPECT_EQ(cluster.counted(Metric::kRecoveries, "cut"), 1);
  cluster.holds(0).branch = membership.branches;
  cluster.say_state(0, true);
  cluster.say_state(1, false);
  cluster.say_state(2, false);
  cluster.give_all(0);
  EXPECT_FALSE(status().recovering);
  EXPECT_EQ(status().steps_decided, 2u) << "step 2 is void";
}

TEST_F(Joining, ALiveProcessIsNotReplacedAndASilentOneIsAtOnce) {
  cluster.step({0, 1, 2});
  cluster.live({0, 1, 2}, 1'000);
  protocol::Hello other = cluster.returning(2, 77);
  const auto refusal = expect_body<Refuse>(cluster.say_hello(2, other));
  EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
  EXPECT_TRUE(refusal.retry) << "until the earlier one is taken for dead";
  other.returns = false;
  EXPECT_FALSE(expect_body<Refuse>(cluster.say_hello(2, other)).retry);
  cluster.live({0, 1}, 900);
  EXPECT_TRUE(std::holds_alternative<Refuse>(cluster.say_hello(2, cluster.returning(2, 77)))) << "not yet a second";
  cluster.live({0, 1}, 200);
  const uint64_t epoch = cluster.membership().epoch;
  EXPECT_TRUE(std::holds_alternative<Refuse>(cluster.say_hello(2, other))) << "it does not say that it returns";
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
  EXPECT_EQ(cluster.membership().epoch, epoch + 1) << "one change";
  EXPECT_EQ(find_member(cluster.membership(), 2)->incarnation, 2u);
  EXPECT_EQ(state_of(2), MemberState::kJoining);
}

TEST_F(Joining, AProcessWithAClosedConnectionIsReplacedSooner) {
  cluster.step({0, 1, 2});
  cluster.live({0, 1, 2}, 1'000);
  cluster.live({0, 1}, 400);
  cluster.closed.push_back(ScriptedCluster::peer(2));
  const auto refusal = expect_body<Refuse>(cluster.say_hello(2, cluster.returning(2, 77)));
  EXPECT_TRUE(refusal.retry) << "a live process may open another connection";
  cluster.live({0, 1}, 100);
  cluster.closed.clear();
  EXPECT_TRUE(std::holds_alternative<Refuse>(cluster.say_hello(2, cluster.returning(2, 77)))) << "it is open";
  cluster.closed.push_back(ScriptedCluster::peer(2));
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
}

TEST_F(Joining, OpenContributionOfTheLifeBeforeIsDropped) {
  cluster.step({0, 1, 2});
  cluster.send(ScriptedCluster::peer(2), 0, cluster.contribution(2, 0, 1, cluster.payload(settlement_constant(100))));
  cluster.live({0, 1}, 1'100);
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "removed_worker"), 1);
  cluster.deliver_all(0);
  cluster.deliver_all(1);
  cluster.step({0, 1});
  EXPECT_THAT(std::get<Update>(cluster.holds(0).kept.at(1).body).contributors,
              ElementsAre(ContributorId{0, 1}, ContributorId{1, 1}));
}

struct JoiningStale : Joining {
  JoiningStale() : Joining(1, {}, 2) {}
};

TEST_F(JoiningStale, SummaryTellsUnderWhichLifeAStepWasCounted) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  leave();
  join_fresh();
  cluster.say_state(2, false);
  cluster.deliver_all(2);
  cluster.say(2, Synced{});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.deliver_all(worker);
  ASSERT_EQ(cluster.holds(2).n, 2u);
  cluster.step({0, 1, 2});
  const protocol::SummaryEntry entry = cluster.holds(0).summary.workers.at(2);
  EXPECT_EQ(entry.incarnation, 2u);
  EXPECT_EQ(entry.last_step, 2u);
  EXPECT_EQ(entry.counted_mask, 7u) << "of all incarnations";
  EXPECT_THAT(entry.earlier_incarnations, ElementsAre(Pair(1u, 1u)));
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  EXPECT_THAT(cluster.holds(0).summary.workers.at(2).earlier_incarnations, IsEmpty()) << "out of the mask's reach";
  // A contribution that was counted under an earlier incarnation was not counted under this one.
  ack_all({0, 1, 2});
  cluster.take(2);
  cluster.send(ScriptedCluster::peer(2), 0, cluster.contribution(2, 0, 3, cluster.payload(settlement_constant(1))));
  const auto settled = cluster.take_of<protocol::StepDecided>(2);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_TRUE(settled[0].counted);
}

struct Crowded : Joining {
  static Limits little() {
    Limits limits;
    limits.job_memory_bytes_max = 6'000;
    return limits;
  }
  Crowded() : Joining(1, little(), 0) {}
};

TEST_F(Crowded, AMemberThatWithholdsAcksIsEvictedAsBehind) {
  int steps = 0;
  for (; steps < 100; ++steps) {
    const uint64_t before = cluster.holds(0).n;
    cluster.step({0, 1, 2});
    ack_all({0, 1});  // worker 2 does not acknowledge
    if (cluster.holds(0).n == before) break;
  }
  ASSERT_LT(steps, 100) << "decisions are held back";
  EXPECT_THAT(status().waited_for, ElementsAre(2));
  cluster.live({0, 1, 2}, 1'900);
  EXPECT_EQ(cluster.membership().members.size(), 3u);
  cluster.live({0, 1, 2}, 300);
  EXPECT_EQ(find_member(cluster.membership(), 2), nullptr);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "behind"), 1);
  const uint64_t before = cluster.holds(0).n;
  cluster.deliver_all(0);
  EXPECT_GT(cluster.holds(0).n, before) << "the step that was held back is decided";
}

TEST(MembershipChanges, ACutIsTheChosenOnesStateForAllShards) {
  protocol::JobRecord record;
  record.membership.epoch = 9;
  record.membership.started = true;
  record.membership.shards.resize(2);
  record.membership.members = {{0, 1, 5, MemberState::kSynced}, {1, 1, 6, MemberState::kJoining}};
  record.membership.branches = 3;
  ASSERT_TRUE(cut_logs(record, {.worker = 1, .parents = {2, 3}}).has_value());
  EXPECT_EQ(record.membership.branches, 4u);
  EXPECT_THAT(record.membership.activations, ElementsAre(protocol::Activation{0, 4, 2}, protocol::Activation{1, 4, 3}));
  EXPECT_EQ(record.membership.cut, 10u);
  EXPECT_EQ(record.membership.cut_worker, 1u);
  EXPECT_EQ(record.membership.members[0].state, MemberState::kJoining);
  EXPECT_EQ(record.membership.members[1].state, MemberState::kSynced);
  EXPECT_TRUE(protocol::activations_make_sense(record.membership));
  EXPECT_EQ(cut_logs(record, {.worker = 7, .parents = {4, 4}}).error().code, ErrorCode::kNotAMember);
}

TEST(MembershipChanges, TheChosenStateIsBeatenByNoOther) {
  protocol::JobLayout layout;
  layout.shard_count = 2;
  layout.parts.resize(2);
  layout.parts[1].part = layout.parts[1].shard = 1;
  protocol::Membership membership;
  membership.shards.resize(2);
  const auto state = [](State::Part a, State::Part b) {
    State made;
    b.part = 1;
    made.parts = {a, b};
    return made;
  };
  std::map<uint32_t, State> states;
  states[0] = state({0, 9, 3, 1, 9}, {0, 9, 3, 1, 9});
  states[1] = state({0, 2, 5, 2, 2}, {0, 1, 4, 2, 1});
  states[2] = state({0, 2, 5, 2, 2}, {0, 2, 5, 3, 2});
  states[3] = states[2];
  const CutChoice choice = choose_for_cut(states, layout, membership);
  EXPECT_EQ(choice.worker, 2u) << "a later log branch is further than more steps; of equals the lowest";
  EXPECT_THAT(choice.parents, ElementsAre(2, 3));
  EXPECT_THAT(choice.reach, ElementsAre(protocol::LogReach{2, 5}, protocol::LogReach{2, 5}));
}

TEST(MembershipChanges, AChangeOfOneEpochIsNotMadeInAnother) {
  const auto table = millrace::testing::open_memory_table(millrace::testing::make_memory_table_state());
  ASSERT_TRUE(table->start_shard(0, 1, "tcp://a:1").has_value());
  const uint64_t job = table->create_job("job", {}).value().membership.job;
  const Transform raise = [](protocol::JobRecord& record) -> Result<Change> {
    record.membership.started = true;
    return Change::kChanged;
  };
  const auto beaten = change_job_in(*table, job, 2, raise);
  ASSERT_TRUE(beaten.has_value());
  EXPECT_FALSE(beaten->has_value());
  const auto done = change_job_in(*table, job, 1, raise);
  ASSERT_TRUE(done && *done);
  EXPECT_EQ((*done)->membership.epoch, 2u);
  EXPECT_TRUE(table->read_job(job).value()->membership.started);
}

TEST(MembershipChanges, TheOnlyMemberIsNeverTakenOutButByItsOwnWord) {
  protocol::JobRecord record;
  record.membership.started = true;
  record.membership.members = {{0, 1, 5, MemberState::kSynced}, {1, 1, 6, MemberState::kJoining}};
  const protocol::Member synced = record.membership.members[0];
  const protocol::Member joining = record.membership.members[1];
  EXPECT_EQ(leave(record, synced, Leaving::kSilent, 1), Change::kChanged) << "the last synced one, where another joins";
  for (const Leaving leaving : {Leaving::kSilent, Leaving::kBehind, Leaving::kWrong}) {
    EXPECT_EQ(leave(record, joining, leaving, 1), Change::kNone);
  }
  EXPECT_FALSE(record.membership.finished);
  EXPECT_EQ(leave(record, joining, Leaving::kFinished, 1), Change::kChanged);
  EXPECT_TRUE(record.membership.finished);
}

}  // namespace
}  // namespace millrace::server
