#include "tests/server/returning_cluster.h"

/// Joins over slow links: R9.
namespace millrace::server {
namespace {

using protocol::Fetch;
using protocol::Settle;
using protocol::SnapshotRequest;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A job of three workers in its second step. The process of worker 2 is another one, and worker 0 alone has weights.
struct SlowJoins : ::testing::Test {
  explicit SlowJoins(uint32_t parts = 1) : cluster(ReturningCluster::job(3, parts), 1) {
    cluster.join_all_with_weights();
    cluster.step({0, 1, 2});
    for (const uint32_t worker : {0u, 1u, 2u}) cluster.ack(worker, 1);
    cluster.say(2, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
    EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(1))) << "without weights";
    cluster.forget(2);
    EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
    for (const uint32_t worker : {0u, 1u, 2u}) cluster.deliver_all(worker);
  }
  std::vector<SnapshotRequest> requests() { return ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(0)); }
  /// Gives half of the part.
  void give_half(const SnapshotRequest& asked, uint64_t from) {
    const protocol::Message run = cluster.weights(0, asked, asked.parts.front(), from, 32);
    cluster.say(0, run.body, 0, run.payload);
  }
  /// Lets bytes of a message of worker 0 arrive every 100 ms, for a number of `dead_after`.
  void send_bytes(uint64_t bytes, int64_t spans) {
    for (int64_t passed = 0; passed < spans * cluster.spec().dead_after.count(); passed += 100) {
      cluster.core().on_arriving(ScriptedCluster::peer(0), bytes, cluster.now);
      cluster.live({1, 2}, 100);
    }
  }
  bool has_member_0() { return find_member(cluster.membership(), 0) != nullptr; }
  ReturningCluster cluster;
};

struct SlowJoinsTwoParts : SlowJoins {
  SlowJoinsTwoParts() : SlowJoins(2) {}
};

TEST_F(SlowJoins, TheOnlyGiverContinuesWhenItIsAskedAgain) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  give_half(asked[0], 0);
  cluster.live({0, 1, 2}, 500);
  EXPECT_THAT(requests(), SizeIs(1)) << "two heartbeats without a run";
  give_half(asked[0], 32);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unasked_snapshot"), 0);
}

TEST_F(SlowJoins, TheOnlyGiverContinuesWhileTheJoinersQueueIsLong) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  give_half(asked[0], 0);
  cluster.queued_bytes = 10'000'000;
  cluster.live({0, 1, 2}, 500);
  EXPECT_THAT(requests(), SizeIs(1)) << "two heartbeats without a run";
  give_half(asked[0], 32);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unasked_snapshot"), 0);
}

TEST_F(SlowJoins, RunsThatTakeLongerThanTwoHeartbeatsNeedOneRequest) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) {
    for (int i = 0; i < 9; ++i) {
      cluster.core().on_arriving(ScriptedCluster::peer(0), 100'000, cluster.now);
      cluster.live({1, 2}, 100);
    }
    give_half(asked[0], from);
  }
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(SlowJoins, AGiverThatConnectsAgainIsAskedAgain) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  give_half(asked[0], 0);
  cluster.welcome_with_weights(0);
  EXPECT_THAT(requests(), SizeIs(1)) << "its runs are lost";
  for (const uint64_t from : {0u, 32u}) give_half(asked[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
}

TEST_F(SlowJoins, AGiverThatConnectsAgainIsPassedOverWhereThereIsAnother) {
  cluster.welcome_with_weights(1);
  cluster.say_state(2, false);
  EXPECT_THAT(requests(), SizeIs(1));
  cluster.welcome_with_weights(0);
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_THAT(ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(1)), SizeIs(1));
}

TEST_F(SlowJoins, AJoinerThatConnectsAgainIsGivenThePartFromItsStart) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  give_half(asked[0], 0);
  const protocol::PeerId again = {"worker-2 again"};
  protocol::Header header;
  header.worker = 2;
  cluster.send(again, 0, {header, cluster.returning(2, 77), {}});
  EXPECT_THAT(cluster.take_of<Welcome>(2), SizeIs(1));
  give_half(asked[0], 32);
  EXPECT_THAT(cluster.take(2), IsEmpty()) << "the first half is lost";
  cluster.send(again, 0, {cluster.header(2), cluster.state_of(2), {}});
  const auto repeated = requests();
  ASSERT_THAT(repeated, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) give_half(repeated[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
}

TEST_F(SlowJoins, FewBytesDoNotKeepAGiver) {
  cluster.say_state(2, false);
  EXPECT_THAT(requests(), SizeIs(1));
  for (int i = 0; i < 5; ++i) {
    cluster.core().on_arriving(ScriptedCluster::peer(0), 100, cluster.now);
    cluster.live({0, 1, 2}, 100);
  }
  EXPECT_THAT(requests(), SizeIs(1)) << "asked again";
}

TEST_F(SlowJoins, OtherBytesHideALostRequestForABoundedTime) {
  cluster.say_state(2, false);
  EXPECT_THAT(requests(), SizeIs(1));
  for (int i = 0; i < 650; ++i) {
    cluster.core().on_arriving(ScriptedCluster::peer(0), 10'000, cluster.now);
    cluster.live({0, 1, 2}, 100);
  }
  EXPECT_THAT(requests(), SizeIs(1)) << "asked again";
}

TEST_F(SlowJoins, BytesWithoutAWholeMessageKeepAMember) {
  send_bytes(5'000, 2);
  EXPECT_TRUE(has_member_0());
  cluster.live({1, 2}, cluster.spec().dead_after.count() + 200);
  EXPECT_FALSE(has_member_0());
}

TEST_F(SlowJoins, FewBytesWithoutAWholeMessageDoNotKeepAMember) {
  send_bytes(1, 1);
  cluster.live({1, 2}, 200);
  EXPECT_FALSE(has_member_0());
}

TEST_F(SlowJoins, BytesWithoutAWholeMessageKeepAMemberForABoundedTime) {
  send_bytes(5'000, 29);
  EXPECT_TRUE(has_member_0());
  send_bytes(5'000, 11);
  EXPECT_FALSE(has_member_0());
}

TEST_F(SlowJoinsTwoParts, TheNextPartIsAskedForWhenTheJoinersQueueIsShort) {
  cluster.say_state(2, false);
  const auto first = requests();
  ASSERT_THAT(first, SizeIs(1));
  cluster.queued_bytes = 10'000'000;
  for (const uint64_t from : {0u, 32u}) give_half(first[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  cluster.live({0, 1, 2}, 500);
  EXPECT_THAT(requests(), IsEmpty());
  cluster.queued_bytes = 0;
  cluster.live({0, 1, 2}, 100);
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_NE(second[0].parts, first[0].parts);
}

TEST_F(SlowJoinsTwoParts, ARepeatedStateHasNoSettledPartGivenAgain) {
  cluster.say_state(2, false);
  const auto first = requests();
  ASSERT_THAT(first, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) give_half(first[0], from);
  cluster.take(2);
  for (int i = 0; i < 5; ++i) {
    cluster.core().on_arriving(ScriptedCluster::peer(0), 100'000, cluster.now);
    cluster.live({0, 1, 2}, 200);
    cluster.say_state(2, false);
  }
  EXPECT_THAT(cluster.take_of<Settle>(2), IsEmpty());
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) give_half(second[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  cluster.queued_bytes = 10'000'000;
  cluster.live({0, 1, 2}, 200);
  cluster.say_state(2, false);
  EXPECT_THAT(requests(), IsEmpty()) << "the answers may still leave";
  cluster.queued_bytes = 0;
  cluster.say_state(2, false);
  EXPECT_THAT(requests(), SizeIs(1)) << "it still lacks a part";
}

TEST_F(SlowJoinsTwoParts, AJoinerGetsNoUpdatesOfNewStepsOfASettledPart) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) give_half(asked[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  for (int i = 0; i < 10; ++i) cluster.step({0, 1});
  EXPECT_EQ(cluster.holds(0).n, 11u);
  EXPECT_THAT(cluster.take_of<protocol::Update>(2), IsEmpty());
}

TEST_F(SlowJoins, AJoinerThatIsSyncedAsksForUpdatesAndGetsEachOnce) {
  cluster.say_state(2, false);
  const auto asked = requests();
  ASSERT_THAT(asked, SizeIs(1));
  for (const uint64_t from : {0u, 32u}) give_half(asked[0], from);
  EXPECT_THAT(cluster.take_of<Settle>(2), SizeIs(1));
  for (int i = 0; i < 3; ++i) cluster.step({0, 1});
  cluster.say(2, protocol::Synced{});
  EXPECT_EQ(find_member(cluster.membership(), 2)->state, protocol::MemberState::kSynced);
  EXPECT_THAT(cluster.take_of<protocol::Update>(2), IsEmpty());
  cluster.say(2, protocol::Ack{{{0, 1, true}}});
  std::vector<uint64_t> steps;
  for (const protocol::Update& update : cluster.take_of<protocol::Update>(2)) steps.push_back(update.step);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
}

TEST_F(SlowJoins, ARecoveringShardWaitsForAnUpdateThatArrives) {
  const std::vector<uint32_t> all = {0, 1};
  cluster.start_shard(0, 1);
  for (const uint32_t worker : all) cluster.welcome_with_weights(worker);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
  for (const uint32_t worker : all) cluster.say_state(worker, true);
  cluster.say_state(2, false);
  EXPECT_THAT(ReturningCluster::of<Fetch>(cluster.deliver_all(0)), SizeIs(1));
  const int64_t dead_after_ms = cluster.spec().dead_after.count();
  for (int64_t passed = 0; passed < 2 * dead_after_ms; passed += 100) {
    cluster.core().on_arriving(ScriptedCluster::peer(0), 100'000, cluster.now);
    cluster.live({1, 2}, 100);
  }
  EXPECT_NE(find_member(cluster.membership(), 0), nullptr);
  EXPECT_THAT(ReturningCluster::of<Fetch>(cluster.deliver_all(0)), IsEmpty()) << "the answer still arrives";
}

}  // namespace
}  // namespace millrace::server
