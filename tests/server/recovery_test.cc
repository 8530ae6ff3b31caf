#include "tests/server/returning_cluster.h"

/// A shard that starts from nothing in a job that runs: R8, and what R10 and R11 say of it.
namespace millrace::server {
namespace {

using protocol::Activation;
using protocol::Collect;
using protocol::Contribution;
using protocol::Fetch;
using protocol::Fetched;
using protocol::MembershipChange;
using protocol::MemberState;
using protocol::Refuse;
using protocol::Update;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<float> recovery_constant(float value) { return std::vector<float>(64, value); }

struct Recovering : ::testing::Test {
  explicit Recovering(uint32_t workers = 2, uint32_t shards = 1, uint32_t parts = 1, Limits limits = {})
      : cluster(ReturningCluster::job(workers, parts), shards, limits) {
    cluster.join_all_with_weights();
  }
  /// The shard is another process; these workers have said Hello to it.
  void restart(const std::vector<uint32_t>& workers, uint32_t shard = 0) {
    cluster.start_shard(shard, cluster.layout().shard_count);
    for (const uint32_t worker : workers) cluster.welcome_with_weights(worker, shard);
  }
  JobStatus status(uint32_t shard = 0) { return cluster.core(shard).status(cluster.now).jobs.at(0); }
  ReturningCluster cluster;
};

/// A reproducible job.
struct ReproducibleRecovering : ::testing::Test {
  static protocol::JobSpec spec(protocol::Reselect reselect) {
    protocol::JobSpec spec = ReturningCluster::job(2);
    spec.reproducible = true;
    spec.grid.block_indices = 64;
    if (reselect == protocol::Reselect::kTopK) spec.reselect = {.reselect = reselect, .k = 10};
    return spec;
  }
  /// Restarts the shard after some steps; returns the Aborts that the workers receive.
  static std::vector<protocol::Abort> aborts_after_restart(protocol::Reselect reselect, int steps) {
    ReturningCluster cluster(spec(reselect), 1);
    cluster.join_all_with_weights();
    for (int step = 0; step < steps; ++step) cluster.step({0, 1});
    EXPECT_EQ(cluster.holds(0).n, static_cast<uint64_t>(steps));
    cluster.start_shard(0, 1);
    for (const uint32_t worker : {0u, 1u}) cluster.welcome_with_weights(worker);
    for (const uint32_t worker : {0u, 1u}) cluster.deliver_all(worker);
    for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
    std::vector<protocol::Abort> found;
    for (int round = 0; round < 3; ++round) {
      if (round > 0) cluster.live({0, 1}, 200);
      for (const uint32_t worker : {0u, 1u}) {
        const auto messages = cluster.give_all(worker);
        for (const protocol::Abort& abort : ReturningCluster::of<protocol::Abort>(messages)) found.push_back(abort);
      }
    }
    return found;
  }
};

TEST_F(ReproducibleRecovering, ARestartedShardEndsAReselectingJobWithAdvice) {
  const std::vector<protocol::Abort> aborts = aborts_after_restart(protocol::Reselect::kTopK, 2);
  ASSERT_GE(aborts.size(), 2u) << "both workers are notified";
  for (const protocol::Abort& abort : aborts) {
    EXPECT_EQ(abort.code, ErrorCode::kUnsupported);
    EXPECT_THAT(abort.sentence, HasSubstr("start the job again, from the weights that its workers have"));
  }
}

TEST_F(ReproducibleRecovering, AJobContinuesBeforeItsFirstStepOrWithoutReselection) {
  EXPECT_THAT(aborts_after_restart(protocol::Reselect::kTopK, 0), IsEmpty());
  EXPECT_THAT(aborts_after_restart(protocol::Reselect::kNone, 2), IsEmpty());
}

TEST_F(Recovering, HalfDeliveredUpdate_ServedAgainBeforeContributionsAreTaken) {
  cluster.step({0, 1});
  const std::vector<uint32_t> both = {0, 1};
  for (const uint32_t worker : both) {
    cluster.send(ScriptedCluster::peer(worker), 0,
                 cluster.contribution(worker, 0, 1, cluster.payload(recovery_constant(5))));
  }
  cluster.deliver_all(0);
  cluster.take(1);  // lost: worker 1 has step 0 only
  ASSERT_EQ(cluster.holds(0).n, 2u);
  restart(both);
  EXPECT_TRUE(status().recovering);
  EXPECT_THAT(ReturningCluster::of<Collect>(cluster.take(0)), SizeIs(1));
  EXPECT_THAT(ReturningCluster::of<Collect>(cluster.take(1)), SizeIs(1));
  cluster.say_state(1, true);
  EXPECT_THAT(cluster.take(0), IsEmpty()) << "one has not answered";
  cluster.send(ScriptedCluster::peer(1), 0, cluster.contribution(1, 0, 1, cluster.payload(recovery_constant(5))));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "recovering"), 1);
  const uint64_t epoch = cluster.membership().epoch;
  cluster.say_state(0, true);
  const std::vector<Fetch> fetches = cluster.take_of<Fetch>(0);
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].first_step, 1u) << "the updates that the slowest synced member lacks";
  cluster.give(0, fetches[0]);
  const protocol::Membership membership = cluster.membership();
  EXPECT_EQ(membership.epoch, epoch + 1);
  EXPECT_THAT(membership.activations, ElementsAre(Activation{0, 1, 0}));
  EXPECT_FALSE(status().recovering);
  const std::vector<protocol::Message> got = cluster.take(1);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(std::get<MembershipChange>(got[0].body).membership.epoch, epoch + 1);
  const auto& update = std::get<Update>(got[1].body);
  EXPECT_EQ(update.step, 1u);
  EXPECT_EQ(update.branch, 1u);
  EXPECT_EQ(update.decided_in, cluster.holds(0).decided_in) << "serving again does not change it";
  EXPECT_EQ(got[1].header.epoch, epoch + 1);
  EXPECT_THAT(cluster.take_of<Update>(0), IsEmpty());
  EXPECT_EQ(cluster.counted(Metric::kRecoveries, "activated"), 1);
}

TEST_F(Recovering, StepsGoOnAfterItWithTheSummaryOfBefore) {
  for (int step = 0; step < 3; ++step) cluster.step({0, 1});
  restart({0, 1});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  const std::vector<protocol::Message> asked = cluster.give_all(0);
  ASSERT_THAT(ReturningCluster::of<Fetch>(asked), SizeIs(1));
  EXPECT_EQ(ReturningCluster::of<Fetch>(asked)[0].first_step, 3u) << "no worker needs an update: the summary alone";
  cluster.deliver_all(1);
  cluster.step({0, 1}, 8);
  EXPECT_EQ(cluster.holds(0).n, 4u);
  EXPECT_EQ(cluster.holds(1).branch, 1u);
  const protocol::Summary& summary = cluster.holds(1).summary;
  ASSERT_EQ(summary.workers.size(), 2u);
  EXPECT_EQ(summary.workers[0].last_step, 3u);
  ASSERT_EQ(summary.epochs.size(), 2u) << "steps 0 to 2, and the one after the return";
  EXPECT_EQ(summary.epochs[1].second, 3u);
}

TEST_F(Recovering, AStepThatNoMemberReceivedIsOpenAgain) {
  cluster.step({0, 1});
  for (const uint32_t worker : {0u, 1u}) {
    cluster.send(ScriptedCluster::peer(worker), 0,
                 cluster.contribution(worker, 0, 1, cluster.payload(recovery_constant(5))));
    cluster.take(worker);
  }
  restart({0, 1});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_EQ(status().steps_decided, 1u);
  cluster.deliver_all(1);
  cluster.step({0, 1}, 7);
  EXPECT_EQ(cluster.holds(0).n, 2u);
}

TEST_F(Recovering, ALogBranchThatNoMemberAdoptedIsNoParent) {
  for (int times = 0; times < 2; ++times) {
    restart({0, 1});
    for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  }
  EXPECT_THAT(cluster.membership().activations, ElementsAre(Activation{0, 1, 0}, Activation{0, 2, 0}));
  cluster.step({0, 1});
  ASSERT_EQ(cluster.holds(0).branch, 2u);
  cluster.take(1);
  restart({0, 1});
  cluster.holds(1).branch = 0;  // the update was lost on the way to it
  cluster.holds(1).n = cluster.holds(1).decided_in = 0;
  cluster.holds(1).kept.clear();
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  ASSERT_THAT(cluster.membership().activations, SizeIs(3));
  EXPECT_EQ(cluster.membership().activations[2], (Activation{0, 3, 2})) << "the greatest among the answers";
}

TEST_F(Recovering, JobInWhichNothingWasDecidedNeedsNoUpdates) {
  restart({0, 1});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  EXPECT_THAT(cluster.take_of<Fetch>(0), IsEmpty());
  EXPECT_FALSE(status().recovering);
  cluster.step({0, 1});
  EXPECT_EQ(cluster.holds(1).n, 1u);
}

TEST_F(Recovering, RequestMissed_RepeatedEveryHeartbeatAndOnANewConnection) {
  restart({0, 1});
  cluster.take(0);
  cluster.say_state(1, true);
  cluster.take(1);
  cluster.pass(250);
  EXPECT_THAT(cluster.take_of<Collect>(0), SizeIs(1));
  EXPECT_THAT(cluster.take_of<Collect>(1), IsEmpty()) << "it has answered";
  cluster.welcome_with_weights(0);
  EXPECT_THAT(cluster.take_of<Collect>(0), SizeIs(1));
}

TEST_F(Recovering, AnswersOfAnotherEpochDoNotCount) {
  restart({0, 1});
  cluster.say_state(1, true);
  protocol::State state = cluster.state_of(0);
  state.synced = true;
  protocol::Header late = cluster.header(0);
  late.epoch -= 1;
  cluster.send(ScriptedCluster::peer(0), 0, {late, state, {}});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "late_answer"), 1);
  EXPECT_TRUE(status().recovering);
  cluster.say_state(0, true);
  EXPECT_FALSE(status().recovering);
}

TEST_F(Recovering, StatesThatCannotBeAreNoAnswer) {
  restart({0, 1});
  const auto refused = [&](auto change) {
    protocol::State state = cluster.state_of(0);
    state.synced = true;
    change(state);
    const double before = cluster.counted(Metric::kDropped, "malformed_state");
    cluster.say(0, state);
    return cluster.counted(Metric::kDropped, "malformed_state") == before + 1;
  };
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts.clear(); }));
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts[0].part = 1; }));
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts[0].n = 1; })) << "a step that no epoch decided";
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts[0].branch = 1; })) << "a log branch that does not exist";
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts[0].retained_from = 1; }));
  EXPECT_TRUE(refused([](protocol::State& state) { state.parts[0].n = UINT64_MAX; }));
}

TEST_F(Recovering, MessageForTheEarlierStartIsAnsweredByAskingForAHello) {
  const protocol::Message old = cluster.contribution(0, 0, 0, cluster.payload(recovery_constant(1)));
  cluster.start_shard(0, 1);
  cluster.take(0);
  cluster.send(ScriptedCluster::peer(0), 0, old);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry);
  EXPECT_FALSE(refusals[0].about_contribution);
}

TEST_F(Recovering, AShardThatLosesATableRaceCollectsStatesAgain) {
  cluster.step({0, 1});
  restart({0, 1});
  cluster.say_state(0, true);
  // The table changes under this shard: another process's change.
  ASSERT_TRUE(change_job(cluster.table(), cluster.membership().job, [](protocol::JobRecord& record) -> Result<Change> {
                record.membership.members[1].nonce += 1;
                return Change::kChanged;
              }).has_value());
  cluster.say_state(1, true);
  cluster.give_all(0);
  EXPECT_TRUE(status().recovering);
  EXPECT_THAT(cluster.membership().activations, IsEmpty());
  EXPECT_THAT(cluster.take_of<Collect>(1), SizeIs(2)) << "of both epochs";
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_FALSE(status().recovering);
}

struct RecoveringThree : Recovering {
  RecoveringThree() : Recovering(3) {}
};

TEST_F(RecoveringThree, ASilentMemberIsRemovedIfAMajorityHasAnswered) {
  cluster.step({0, 1, 2});
  restart({0, 1});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.live({0, 1}, 1'900);
  EXPECT_EQ(cluster.membership().members.size(), 3u);
  cluster.live({0, 1}, 300);
  EXPECT_EQ(cluster.membership().members.size(), 2u);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "silent"), 1);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_FALSE(status().recovering);
}

TEST_F(RecoveringThree, AMemberThatIsHeardButDoesNotAnswerIsEvicted) {
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.live({0, 1, 2}, 2'300);
  EXPECT_EQ(cluster.membership().members.size(), 2u);
}

TEST_F(RecoveringThree, AMinorityEvictsNoMemberAndTheJobTimesOut) {
  cluster.step({0, 1, 2});
  restart({0});
  cluster.say_state(0, true);
  cluster.take(0);
  cluster.live({0}, 30'000);
  EXPECT_EQ(cluster.membership().members.size(), 3u);
  EXPECT_THAT(status().waited_for, ElementsAre(1, 2));
  EXPECT_THAT(status().waiting_because, HasSubstr("worker 1, 2"));
  cluster.live({0}, 31'000);
  const auto aborts = cluster.take_of<protocol::Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kTimeout);
  EXPECT_THAT(aborts[0].sentence, HasSubstr("no majority of its 3 workers"));
}

TEST_F(RecoveringThree, NoMemberIsEvictedForAPauseOfTheShard) {
  restart({0, 1});
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.now += 10 * kNsPerS;
  cluster.tick();
  EXPECT_EQ(cluster.membership().members.size(), 3u);
}

TEST_F(RecoveringThree, AnUpdateThatTheFurthestLacksIsFetchedElsewhere) {
  for (int step = 0; step < 4; ++step) cluster.step({0, 1, 2});
  // 0 is at 4 and keeps step 3; 1 is at 3 and keeps 1 and 2; 2 is at 1.
  ReturningCluster::Holds& first = cluster.holds(0);
  for (const uint64_t step : {0u, 1u, 2u}) first.kept.erase(step);
  const auto back_to = [&](uint32_t worker, uint64_t n) {
    ReturningCluster::Holds& mine = cluster.holds(worker);
    mine.kept.erase(mine.kept.lower_bound(n), mine.kept.end());
    mine.n = n;
    mine.summary = std::get<Update>(mine.kept.at(n - 1).body).summary;
  };
  back_to(1, 3);
  back_to(2, 1);
  cluster.holds(1).kept.erase(0);
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  const auto from_first = ReturningCluster::of<Fetch>(cluster.give_all(0));
  ASSERT_EQ(from_first.size(), 1u);
  EXPECT_EQ(from_first[0].first_step, 3u);
  EXPECT_TRUE(status().recovering);
  const auto from_second = ReturningCluster::of<Fetch>(cluster.give_all(1));
  ASSERT_EQ(from_second.size(), 1u);
  EXPECT_EQ(from_second[0].first_step, 1u);
  EXPECT_FALSE(status().recovering);
  std::vector<uint64_t> steps;
  for (const Update& update : cluster.take_of<Update>(2)) steps.push_back(update.step);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
}

TEST_F(RecoveringThree, AMemberThatNeedsUnretainedUpdatesIsEvictedAndRejoins) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  for (const uint32_t worker : {0u, 1u}) cluster.holds(worker).kept.clear();
  ReturningCluster::Holds& last = cluster.holds(2);
  last.n = 1;
  last.kept.erase(1);
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "behind"), 1);
  const std::vector<MembershipChange> told = cluster.take_of<MembershipChange>(2);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(find_member(told.back().membership, 2), nullptr) << "it is notified, and rejoins";
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_FALSE(status().recovering);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 1002))));
  EXPECT_EQ(find_member(cluster.membership(), 2)->state, MemberState::kJoining);
}

TEST_F(RecoveringThree, DamagedUpdate_RequestedAgainThenElsewhereThenHolderRemoved) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  ReturningCluster::Holds& last = cluster.holds(2);
  last.n = 1;
  last.kept.erase(1);
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  const auto give_damaged = [&](uint32_t worker) {
    const std::vector<Fetch> asked = ReturningCluster::of<Fetch>(cluster.deliver_all(worker));
    if (asked.empty()) return false;
    const protocol::Message& good = cluster.holds(worker).kept.at(1);
    ByteBuffer bytes(good.payload.bytes.begin(), good.payload.bytes.end());
    bytes.back() ^= 1;
    cluster.say(worker, good.body, 0, SharedBytes::from(std::move(bytes)));
    return true;
  };
  EXPECT_TRUE(give_damaged(0));
  EXPECT_TRUE(give_damaged(0)) << "asked again";
  EXPECT_FALSE(give_damaged(0));
  EXPECT_TRUE(give_damaged(1)) << "another one";
  EXPECT_TRUE(give_damaged(1));
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "wrong"), 2);
  EXPECT_EQ(cluster.membership().members.size(), 1u);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "damaged_update"), 4);
}

TEST_F(RecoveringThree, UpdateThatIsLostOnTheWayIsAskedForAgain) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  cluster.lose_steps(2);
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  ReturningCluster::Holds& first = cluster.holds(0);
  ASSERT_THAT(ReturningCluster::of<Fetch>(cluster.take(0)), SizeIs(1));
  cluster.say(0, first.kept.at(0).body, 0, first.kept.at(0).payload);
  cluster.say(0, Fetched{0, 2, first.decided_in, first.summary});
  EXPECT_TRUE(status().recovering);
  cluster.live({0, 1, 2}, 300);
  const std::vector<Fetch> again = ReturningCluster::of<Fetch>(cluster.give_all(0));
  ASSERT_FALSE(again.empty());
  EXPECT_EQ(again[0].first_step, 1u) << "from the first that lacks";
  EXPECT_FALSE(status().recovering);
}

TEST_F(RecoveringThree, SummaryOfAnotherStepIsNotTaken) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  restart({0, 1, 2});
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  const ReturningCluster::Holds& first = cluster.holds(0);
  cluster.say(0, Fetched{0, 1, first.decided_in, first.summary});
  protocol::Summary beyond = first.summary;
  beyond.workers[0].last_step = 2;
  cluster.say(0, Fetched{0, 2, first.decided_in, beyond});
  EXPECT_TRUE(status().recovering);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "damaged_update"), 2);
  cluster.deliver_all(0);
  cluster.give_all(1);
  EXPECT_FALSE(status().recovering) << "another one as far has it";
}

TEST_F(RecoveringThree, AJoinersStateNeverExtendsTheLog) {
  cluster.step({0, 1, 2});
  cluster.live({0, 1}, 2'200);  // worker 2 is removed
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 5))));
  cluster.holds(2).n = 9;  // a malicious peer, or a state from another run
  restart({0, 1});
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 5))));
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_EQ(status().steps_decided, 1u) << "a joiner never makes the log longer";
}

TEST_F(Recovering, WithoutSyncedMembersLogsAreCutToTheFurthestState) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1});
  // Both processes have died; they rejoin with a save of step 2 and one of step 1.
  cluster.start_shard(0, 1);
  for (const uint32_t worker : {0u, 1u}) {
    const auto wait = expect_body<Refuse>(cluster.say_hello(worker, cluster.returning(worker, 50 + worker)));
    EXPECT_EQ(wait.code, ErrorCode::kIdentityInUse);
    EXPECT_TRUE(wait.retry);
  }
  cluster.pass(1'100);
  for (const uint32_t worker : {0u, 1u}) {
    ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(worker, cluster.returning(worker, 50 + worker))));
  }
  cluster.holds(0).n = 1;
  cluster.holds(0).kept.clear();
  cluster.holds(1).kept.clear();
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, false);
  const protocol::Membership membership = cluster.membership();
  EXPECT_EQ(membership.cut, membership.epoch);
  EXPECT_EQ(membership.cut_worker, 1u);
  EXPECT_EQ(find_member(membership, 1)->state, MemberState::kSynced);
  EXPECT_EQ(find_member(membership, 0)->state, MemberState::kJoining);
  EXPECT_THAT(membership.activations, ElementsAre(Activation{0, 1, 0}));
  EXPECT_TRUE(status().recovering) << "its summary is with the chosen one";
  cluster.holds(1).branch = 1;
  cluster.deliver_all(0);
  cluster.deliver_all(1);
  cluster.say_state(0, false);
  cluster.say_state(1, true);
  cluster.give_all(1);
  EXPECT_FALSE(status().recovering);
  EXPECT_EQ(status().steps_decided, 2u);
  EXPECT_THAT(cluster.membership().activations, ElementsAre(Activation{0, 1, 0}, Activation{0, 2, 1}));
}

struct RecoveringShards : Recovering {
  RecoveringShards() : Recovering(2, 2, 2) {}
};

TEST_F(RecoveringShards, TheOtherShardContinuesInTheNewEpoch) {
  cluster.step({0, 1});
  restart({0, 1}, 1);
  cluster.pass(100);
  EXPECT_FALSE(status(0).recovering);
  EXPECT_TRUE(status(1).recovering);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true, 1);
  cluster.give_all(0, 1);
  EXPECT_THAT(cluster.membership().activations, ElementsAre(Activation{1, 1, 0})) << "each shard has its tree";
  EXPECT_FALSE(status(1).recovering);
  cluster.pass(100);
  EXPECT_EQ(status(0).epoch, status(1).epoch);
  cluster.deliver_all(1);
  cluster.step({0, 1});
  EXPECT_EQ(cluster.holds(1, 0).n, 2u);
  EXPECT_EQ(cluster.holds(1, 1).n, 2u);
  EXPECT_EQ(cluster.holds(1, 0).branch, 0u);
  EXPECT_EQ(cluster.holds(1, 1).branch, 1u);
}

TEST_F(RecoveringShards, AStateWithAnotherShardsBranchIsDropped) {
  restart({0, 1}, 1);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true, 1);
  ASSERT_THAT(cluster.membership().activations, ElementsAre(Activation{1, 1, 0}));
  restart({0, 1}, 0);
  cluster.holds(0, 0).branch = 1;
  cluster.say_state(0, true, 0);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "malformed_state"), 1);
  cluster.holds(0, 0).branch = 0;
  cluster.holds(0, 1).branch = 1;
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true, 0);
  EXPECT_FALSE(status(0).recovering);
}

TEST_F(RecoveringShards, AShardThatStartsElsewhereIsFoundByTheViewOfTheOther) {
  cluster.step({0, 1});
  cluster.take(0);
  const uint64_t incarnation = cluster.membership().shards[1].incarnation;
  cluster.start_shard(1, 2, "elsewhere");
  cluster.pass(100);
  const std::vector<MembershipChange> told = cluster.take_of<MembershipChange>(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].membership.shards[1].address, "tcp://elsewhere:1");
  EXPECT_EQ(told[0].membership.shards[1].incarnation, incarnation)
      << "only it writes its incarnation: so it knows that it has to recover";
  cluster.welcome_with_weights(0, 1);
  EXPECT_TRUE(status(1).recovering);
  EXPECT_GT(cluster.membership().shards[1].incarnation, incarnation);
}

TEST_F(RecoveringShards, ACutByOneShardVoidsTheStepsOfTheOther) {
  cluster.step({0, 1});
  ASSERT_EQ(status(1).steps_decided, 1u);
  protocol::JobRecord record = cluster.table().read_job(cluster.membership().job).value().value();
  const uint64_t epoch = record.membership.epoch;
  ASSERT_TRUE(cut_logs(record, {.worker = 0, .parents = {0, 0}}).has_value());
  record.membership.epoch = epoch + 1;
  ASSERT_TRUE(cluster.table().compare_and_swap(epoch, record).value());
  cluster.pass(100);
  for (const uint32_t shard : {0u, 1u}) {
    EXPECT_TRUE(status(shard).recovering);
    EXPECT_EQ(status(shard).steps_decided, 0u);
    EXPECT_THAT(cluster.take_of<Collect>(0, shard), SizeIs(1));
  }
}

TEST_F(Recovering, SupersededShardHandsItsWorkersOver) {
  cluster.take(0);
  ASSERT_TRUE(cluster.table().start_shard(0, 1, "tcp://elsewhere:1").has_value());
  cluster.pass(100);
  EXPECT_TRUE(cluster.core().stopped());
  ASSERT_TRUE(cluster.core().failure().has_value());
  const std::vector<protocol::Message> told = cluster.take(0);
  ASSERT_EQ(told.size(), 1u) << "no Abort: the job continues";
  EXPECT_EQ(std::get<MembershipChange>(told[0].body).membership.shards[0].address, "tcp://elsewhere:1");
  EXPECT_FALSE(cluster.membership().finished);
}

struct RecoveringTable : Recovering {};

TEST_F(RecoveringTable, AnActivationThatTheTableDoesNotTakeIsTriedAgain) {
  cluster.step({0, 1});
  restart({0, 1});
  cluster.fail_table_writes(true);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.give_all(0);
  EXPECT_TRUE(status().recovering);
  cluster.fail_table_writes(false);
  cluster.live({0, 1}, 200);
  EXPECT_FALSE(status().recovering);
  EXPECT_THAT(cluster.membership().activations, SizeIs(1));
}

}  // namespace
}  // namespace millrace::server
