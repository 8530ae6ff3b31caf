#include <algorithm>

#include "kernels/optimize/optimize.h"
#include "tests/server/returning_cluster.h"

/// A shard that leaves its number to a spare at an operator's request.
namespace millrace::server {
namespace {

using protocol::DrainNote;
using protocol::MembershipChange;
using ::testing::HasSubstr;

constexpr int64_t kPollsMs = 200;

std::string refusal(ScriptedCluster& cluster) {
  const auto note = cluster.table().read_drain(0).value();
  return note ? note->refusal : "";
}

TEST(Drain, TheShardServesUntilASpareHasItsNumberAndThenSaysWhereItIs) {
  constexpr uint64_t kDimension = 8'192;  // over both shards
  ScriptedCluster cluster(ScriptedCluster::small_job(1, kDimension), 2);
  cluster.join_all();
  cluster.pass(kPollsMs);
  ASSERT_TRUE(holds_number(cluster));
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_FALSE(holds_number(cluster));
  EXPECT_EQ(cluster.table().read_cluster()->shards[0].state(), protocol::ClusterView::Shard::State::kDraining);
  EXPECT_TRUE(holds_number(cluster, 1));
  cluster.push(0, 0, std::vector<float>(kDimension, 1.0f));
  EXPECT_EQ(cluster.gather(0, 0).parts, 2u) << "it decides steps";
  EXPECT_FALSE(cluster.core().stopped());
  cluster.take(0);
  ASSERT_EQ(cluster.table().take_over_shard(0, 1, "tcp://spare:9", ""), 2u);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_FALSE(cluster.core().failure()) << "the process ends in order";
  const auto told = cluster.take_of<MembershipChange>(0);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().membership.shards[0].address, "tcp://spare:9");
  EXPECT_FALSE(told.back().membership.finished);
  const auto drained = std::ranges::find(cluster.audited, AuditEvent::What::kDrain, &AuditEvent::what);
  ASSERT_NE(drained, cluster.audited.end());
  EXPECT_EQ(drained->code, "operator");
}

/// A cluster of one shard whose number a spare has taken. Its table takes no writes in that moment.
class TableFailsAtHandOver : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.join_all();
    ASSERT_EQ(cluster_.table().set_drain(0, 1, DrainNote{1, ""}), true);
    cluster_.pass(kPollsMs);
    ASSERT_FALSE(holds_number(cluster_));
    cluster_.take(0);
    ASSERT_EQ(cluster_.table().take_over_shard(0, 1, "tcp://spare:9", ""), 2u);
    cluster_.fail_table_writes(true);
    cluster_.pass(kPollsMs);
  }

  ScriptedCluster cluster_{ScriptedCluster::small_job(1)};
};

TEST_F(TableFailsAtHandOver, TheShardStaysUntilItsWorkersHaveTheAddress) {
  EXPECT_FALSE(cluster_.core().stopped());
  EXPECT_TRUE(cluster_.take_of<MembershipChange>(0).empty());
  cluster_.fail_table_writes(false);
  cluster_.pass(kPollsMs);
  EXPECT_TRUE(cluster_.core().stopped());
  EXPECT_FALSE(cluster_.core().failure());
  const auto told = cluster_.take_of<MembershipChange>(0);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().membership.shards[0].address, "tcp://spare:9");
}

TEST_F(TableFailsAtHandOver, TheShardEndsAfterASecondAllTheSame) {
  cluster_.pass(1'500);
  EXPECT_TRUE(cluster_.core().stopped());
  EXPECT_FALSE(cluster_.core().failure()) << "the process ends in order";
}

TEST_F(TableFailsAtHandOver, ATableThatIsAwayDoesNotHoldItEither) {
  cluster_.table().mode = testing::FailingTable::Mode::kUnavailable;
  cluster_.pass(1'500);
  EXPECT_TRUE(cluster_.core().stopped());
  EXPECT_FALSE(cluster_.core().failure());
}

TEST(Drain, ARequestThatIsWithdrawnLeavesTheShardItsNumber) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1));
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  ASSERT_FALSE(holds_number(cluster));
  ASSERT_EQ(cluster.table().set_drain(0, 1, std::nullopt), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
}

TEST(Drain, ATableThatCannotBeReadLeavesTheShardItsNumber) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1));
  cluster.fail_table_writes(true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
}

TEST(Drain, AShardThatReplacesASwitchRefuses) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1), 1, {}, {}, "192.0.2.1:7800");
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_THAT(refusal(cluster), HasSubstr("switch"));
}

TEST(Drain, AShardWhoseWeightsHaveNoPlaceForSavesRefuses) {
  for (const bool has_place : {false, true}) {
    protocol::JobSpec spec = ScriptedCluster::small_job(1);
    spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
    ScriptedCluster cluster(spec, 1, {}, {.possible = has_place, .every = 0});
    cluster.disk.holds = has_place;
    cluster.join_all();
    ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
    cluster.pass(kPollsMs);
    EXPECT_EQ(holds_number(cluster), !has_place);
    EXPECT_THAT(refusal(cluster), HasSubstr(has_place ? "" : "in no save"));
  }
}

TEST(Drain, AShardWritesTheLastSaveOfAJobBeforeItLeaves) {
  protocol::JobSpec spec = ScriptedCluster::small_job(1);
  spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
  ScriptedCluster cluster(spec, 1, {}, {.possible = true, .every = 0});
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 1.0f));
  cluster.ack(0, 1);
  cluster.disk.holds = true;
  cluster.send(ScriptedCluster::peer(0), 0,
               {cluster.header(0), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  ASSERT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_EQ(refusal(cluster), "");
  cluster.disk.holds = false;
  cluster.serve_disk();
  cluster.pass(kPollsMs);
  EXPECT_FALSE(holds_number(cluster));
  EXPECT_EQ(cluster.disk.saves.size(), 1u);
}

TEST(Drain, AFailedLastSaveIsTheReasonOfARefusal) {
  protocol::JobSpec spec = ScriptedCluster::small_job(1);
  spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
  ScriptedCluster cluster(spec, 1, {}, {.possible = true, .every = 0});
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 1.0f));
  cluster.ack(0, 1);
  cluster.disk.fails = true;
  cluster.send(ScriptedCluster::peer(0), 0,
               {cluster.header(0), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  cluster.pass(kPollsMs);
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_THAT(refusal(cluster), HasSubstr("its last save has failed"));
}

TEST(Drain, AShardThatRecoversServesAgainBeforeItLeaves) {
  ReturningCluster cluster(ReturningCluster::job(2), 1);
  cluster.join_all_with_weights();
  cluster.start_shard(0, 1);
  cluster.welcome_with_weights(0);
  ASSERT_TRUE(cluster.core().status(cluster.now).jobs.at(0).recovering);
  ASSERT_EQ(cluster.table().set_drain(0, 2, DrainNote{2, ""}), true);
  cluster.pass(kPollsMs);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_EQ(cluster.said("leaves its number to a spare later: job 'job' recovers"), 1u) << "once";
  cluster.welcome_with_weights(1);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.pass(kPollsMs);
  ASSERT_FALSE(cluster.core().status(cluster.now).jobs.at(0).recovering);
  EXPECT_FALSE(holds_number(cluster));
}

TEST(Drain, AShardThatReadsTheSaveOfAJobServesItBeforeItLeaves) {
  protocol::JobSpec spec = ReturningCluster::job(2);
  spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
  ReturningCluster cluster(spec, 1, {}, {.possible = true, .every = 0});
  cluster.join_all_with_weights();
  cluster.start_shard(0, 1);
  cluster.welcome_with_weights(0);
  ASSERT_EQ(cluster.table().set_drain(0, 2, DrainNote{2, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_EQ(refusal(cluster), "") << "the shard recovers";
  cluster.disk.holds = true;
  cluster.welcome_with_weights(1);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.pass(kPollsMs);
  ASSERT_FALSE(cluster.core().status(cluster.now).jobs.at(0).recovering);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_EQ(refusal(cluster), "") << "its store does";
  cluster.disk.holds = false;
  cluster.serve_disk();
  cluster.pass(kPollsMs);
  EXPECT_FALSE(holds_number(cluster));
}

TEST(Drain, AShardEndsTheSaveThatIsUnderWayBeforeItLeaves) {
  protocol::JobSpec spec = ScriptedCluster::small_job(1);
  spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
  spec.store.begin = protocol::StoreBegin::kWorker;
  ScriptedCluster cluster(spec, 1, {}, {.possible = true, .every = 0});
  cluster.join_all();
  cluster.disk.fails = true;
  const SharedBytes weights = SharedBytes::from(ByteBuffer(64 * sizeof(float)));
  cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Place{0, 0, hash64(weights.bytes)}, weights});
  ASSERT_FALSE(cluster.core().status(cluster.now).jobs.at(0).store->survives_restart);
  cluster.disk.fails = false;
  cluster.disk.holds = true;
  Actions actions;
  cluster.core().save_stores(cluster.now, actions);
  cluster.carry_out(0, actions);
  ASSERT_EQ(cluster.table().set_drain(0, 1, DrainNote{1, ""}), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_EQ(refusal(cluster), "");
  cluster.disk.holds = false;
  cluster.serve_disk();
  cluster.pass(kPollsMs);
  EXPECT_FALSE(holds_number(cluster));
}

TEST(Drain, AProcessOfARemovedClusterStops) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1));
  end_leases(*cluster.table_state);  // the process was stopped
  ASSERT_EQ(open_memory_table(cluster.table_state)->remove_cluster(), true);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  ASSERT_TRUE(cluster.core().failure());
  EXPECT_THAT(cluster.core().failure()->message, HasSubstr("removed"));
}

TEST(Drain, AProcessStopsWhereTheNextClusterHasItsIncarnation) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1));
  cluster.pass(kPollsMs);
  end_leases(*cluster.table_state);  // the process was stopped
  ASSERT_EQ(cluster.table().remove_cluster(), true);
  ASSERT_EQ(cluster.table().start_shard(0, 1, "tcp://next:9"), 1u);
  cluster.pass(kPollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  ASSERT_TRUE(cluster.core().failure());
  EXPECT_THAT(cluster.core().failure()->message, HasSubstr("tcp://next:9"));
}

}  // namespace
}  // namespace millrace::server
