#include "tests/server/returning_cluster.h"

/// Jobs with apply_after_acks: the workers that learn that enough members have an update, and the time of it.
namespace millrace::server {
namespace {

using protocol::Ack;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

protocol::JobSpec held_job(uint32_t workers, uint32_t acks) {
  protocol::JobSpec spec = ReturningCluster::job(workers);
  spec.apply_after_acks = spec.workers_min = acks;
  return spec;
}

struct Backing : ::testing::Test {
  explicit Backing(uint32_t workers = 3, uint32_t acks = 2) : cluster(held_job(workers, acks)) {
    cluster.join_all_with_weights();
  }
  /// Returns the shard's notices to the worker since the last call: of each Ack the steps of part 0.
  std::vector<uint64_t> told(uint32_t worker) {
    std::vector<uint64_t> steps;
    for (const Ack& ack : ReturningCluster::of<Ack>(cluster.deliver_all(worker))) {
      for (const Ack::Entry& entry : ack.entries) steps.push_back(entry.n);
    }
    return steps;
  }
  void finish(uint32_t worker) { cluster.say(worker, protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}); }
  ReturningCluster cluster;
};

TEST_F(Backing, AllSyncedMembersLearnOfTheKthAckAndNoEarlierOne) {
  cluster.step({0, 1, 2});
  cluster.ack(1, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) EXPECT_THAT(told(worker), IsEmpty());
  cluster.ack(0, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) EXPECT_THAT(told(worker), ElementsAre(1u));
  cluster.ack(2, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) EXPECT_THAT(told(worker), IsEmpty()) << "nothing new";
}

TEST_F(Backing, AHeartbeatThatAcknowledgesCountsToo) {
  cluster.step({0, 1, 2});
  cluster.ack(1, 1);
  protocol::Heartbeat heartbeat;
  heartbeat.steps_applied = 1;
  cluster.say(2, heartbeat);
  EXPECT_THAT(told(0), ElementsAre(1u));
}

TEST_F(Backing, ARepeatedAckIsAnsweredToItsSenderOnly) {
  cluster.step({0, 1, 2});
  cluster.ack(0, 1);
  cluster.ack(0, 1);
  EXPECT_THAT(told(0), IsEmpty()) << "there is nothing to say yet";
  cluster.ack(1, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) told(worker);
  cluster.ack(0, 1);
  EXPECT_THAT(told(0), ElementsAre(1u));
  EXPECT_THAT(told(1), IsEmpty());
}

TEST_F(Backing, WithoutTheOptionNoReplicatedMessageIsSent) {
  ReturningCluster plain(ReturningCluster::job(2));
  plain.join_all_with_weights();
  plain.step({0, 1});
  plain.ack(0, 1);
  plain.ack(1, 1);
  plain.ack(1, 1);
  EXPECT_THAT(ReturningCluster::of<Ack>(plain.deliver_all(0)), IsEmpty());
}

TEST_F(Backing, MemberRemoved_AcksNoLongerCountAndReplicatedSentAgain) {
  cluster.step({0, 1, 2});
  cluster.ack(0, 1);
  cluster.ack(1, 1);
  for (const uint32_t worker : {0u, 2u}) EXPECT_THAT(told(worker), ElementsAre(1u));
  cluster.live({0, 2}, 2'500);  // worker 1 is dead
  ASSERT_THAT(cluster.membership().members, SizeIs(2));
  EXPECT_THAT(told(0), IsEmpty()) << "one of the two remaining workers has acknowledged it";
  cluster.ack(2, 1);
  EXPECT_THAT(told(0), ElementsAre(1u));
}

TEST_F(Backing, AFinishedMembersAckIsNotRequired) {
  cluster.step({0, 1, 2});
  finish(1);
  EXPECT_EQ(cluster.membership().left, 1u);
  cluster.ack(0, 1);
  EXPECT_THAT(told(0), IsEmpty()) << "two are left, and two are asked for";
  finish(2);
  ASSERT_EQ(cluster.membership().left, 2u);
  EXPECT_THAT(told(0), ElementsAre(1u)) << "all that are there have it";
  cluster.step({0});
  cluster.ack(0, 2);
  EXPECT_THAT(told(0), ElementsAre(2u));
}

TEST_F(Backing, AMemberEvictedForBeingBehindIsNotCountedAsLeft) {
  protocol::JobRecord record;
  record.membership.started = true;
  record.membership.members = {{0, 1, 5}, {1, 1, 6}};
  ASSERT_EQ(leave(record, {1, 1, 6}, Leaving::kBehind, 2), Change::kChanged);
  EXPECT_EQ(record.membership.left, 0u) << "it rejoins";
  EXPECT_FALSE(record.membership.finished);
}

TEST_F(Backing, AJoinersAcksCountOnceItIsSynced) {
  cluster.step({0, 1, 2});
  cluster.live({0, 2}, 2'500);
  cluster.take(1);
  cluster.say_hello(1, cluster.returning(1, 77));
  cluster.forget(1);
  cluster.say_state(1, false);
  cluster.deliver_all(1);
  ASSERT_EQ(cluster.holds(1).n, 1u) << "settled with its own weights, and the update that they lacked";
  cluster.ack(1, 1);
  cluster.ack(0, 1);
  EXPECT_THAT(told(0), IsEmpty()) << "a successor could not go on from what worker 1 has";
  cluster.say(1, protocol::Synced{});
  EXPECT_THAT(told(0), ElementsAre(1u));
}

TEST_F(Backing, AcksOfAnEarlierIncarnationDoNotCountForTheNext) {
  cluster.step({0, 1, 2});
  cluster.ack(1, 1);
  cluster.live({0, 2}, 2'500);  // worker 1 is dead
  cluster.say_hello(1, cluster.returning(1, 77));
  cluster.forget(1);
  cluster.say_state(1, false);
  cluster.take(1);  // the update, which it lacks, is lost on its way
  cluster.say(1, protocol::Synced{});
  ASSERT_EQ(cluster.membership().members[1].state, protocol::MemberState::kSynced);
  cluster.ack(0, 1);
  EXPECT_THAT(told(0), IsEmpty()) << "of three synced workers one has it";
  cluster.ack(1, 1);
  EXPECT_THAT(told(0), ElementsAre(1u));
}

TEST_F(Backing, ARestartedShardRestoresAcksFromTheMembersStates) {
  cluster.step({0, 1, 2});
  cluster.forget(2);  // the update was lost on its way to worker 2
  cluster.ack(0, 1);
  cluster.start_shard(0, 1);
  cluster.tick();
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.welcome_with_weights(worker);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  for (const auto& fetch : ReturningCluster::of<protocol::Fetch>(cluster.deliver_all(0))) cluster.give(0, fetch);
  for (const uint32_t worker : {0u, 1u, 2u}) EXPECT_THAT(told(worker), ElementsAre(1u)) << worker;
}

TEST_F(Backing, TheStatusListsTheMembersThatHaveNotAcknowledged) {
  cluster.step({0, 1, 2});
  cluster.ack(2, 1);
  const StatusReport report = cluster.core().status(cluster.now);
  ASSERT_THAT(report.jobs, SizeIs(1));
  const JobStatus& job = report.jobs.front();
  EXPECT_EQ(job.waiting_for, "acknowledgements");
  EXPECT_THAT(job.waited_for, ElementsAre(0u, 1u));
  EXPECT_EQ(job.waiting_because,
            "step 0 of part 0 is decided, and applied once 2 workers have it (apply_after_acks); worker 0, 1 has not "
            "acknowledged it");
  cluster.ack(0, 1);
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.front().waiting_for, "");
}

}  // namespace
}  // namespace millrace::server
