#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/optimize/optimize.h"
#include "tests/server/returning_cluster.h"

/// A shutdown while a spare waits: the shard leaves its number as after an operator's drain.
namespace millrace::server {
namespace {

using protocol::Goodbye;
using protocol::MembershipChange;
using ::testing::HasSubstr;

constexpr int64_t kSomePollsMs = 200;

Limits drains_for(uint32_t drain_ms) {
  Limits limits;
  limits.drain_ms = drain_ms;
  return limits;
}

protocol::JobSpec with_store(protocol::JobSpec spec) {
  spec.store.optimizer = optimizer_from_text("sgd:0.1").value();
  return spec;
}

/// A job over the given shards, and one spare that waits.
class DepartureTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kDimension = 8'192;  // over two shards

  void begin(uint32_t shards, Limits limits = {}, protocol::JobSpec spec = ScriptedCluster::small_job(1, kDimension)) {
    cluster_ = std::make_unique<ScriptedCluster>(std::move(spec), shards, limits);
    spare_ = millrace::testing::open_memory_table(cluster_->table_state);
    ASSERT_TRUE(spare_->hold_spare_lease());
    cluster_->join_all();
    cluster_->pass(kSomePollsMs);
    cluster_->take(0);
  }
  ScriptedCluster& cluster() { return *cluster_; }
  /// The spare takes the number, and waits no longer.
  void take_over(uint32_t shard = 0) {
    ASSERT_EQ(spare_->take_over_shard(shard, 1, "tcp://spare:9", ""), 2u);
    ASSERT_TRUE(spare_->hold_lease(shard, 2));
  }
  void end_spare() { spare_.reset(); }
  bool has_ended_its_jobs(uint32_t shard = 0) {
    return cluster().core(shard).stopped() && cluster().counted(Metric::kJobsEnded, "shutdown") > 0;
  }

 private:
  std::unique_ptr<ScriptedCluster> cluster_;
  std::unique_ptr<protocol::MembershipTable> spare_;
};

TEST_F(DepartureTest, TheShardServesUntilASpareHasItsNumber) {
  for (const uint32_t shards : {1u, 2u}) {
    begin(shards);
    cluster().shut_down();
    EXPECT_FALSE(holds_number(cluster())) << "at once: a spare looks at the lease";
    cluster().pass(kSomePollsMs);
    cluster().push(0, 0, std::vector<float>(kDimension, 1.0f));
    EXPECT_EQ(cluster().gather(0, 0).parts, shards) << "it decides steps that begin now";
    const StatusReport report = cluster().core().status(cluster().now);
    EXPECT_TRUE(report.shutting_down);
    EXPECT_TRUE(report.leaving);
    take_over();
    cluster().pass(kSomePollsMs);
    EXPECT_TRUE(cluster().core().stopped());
    EXPECT_FALSE(cluster().core().failure()) << "exit code 0";
    const auto told = cluster().take(0);
    ASSERT_FALSE(told.empty());
    const auto* change = std::get_if<MembershipChange>(&told.back().body);
    ASSERT_TRUE(change);
    EXPECT_EQ(change->membership.shards[0].address, "tcp://spare:9");
    EXPECT_FALSE(change->membership.finished);
    EXPECT_FALSE(cluster().table().read_job(uint64_t{1}).value()->membership.finished);
    EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
    const auto drained = std::ranges::find(cluster().audited, AuditEvent::What::kDrain, &AuditEvent::what);
    ASSERT_NE(drained, cluster().audited.end());
    EXPECT_EQ(drained->by.address, "tcp://spare:9");
    EXPECT_EQ(drained->incarnation, 2u);
    EXPECT_EQ(drained->code, "shutdown");
  }
}

TEST_F(DepartureTest, AJobThatStartsMeanwhileIsHandedOverToo) {
  begin(1);
  cluster().shut_down();
  protocol::Hello other = cluster().hello(0);
  other.spec.name = "other";
  other.nonce = 7;
  protocol::Header head;
  head.worker = 0;
  cluster().send({"newcomer"}, 0, {head, other, {}});
  ASSERT_EQ(cluster().core().status(cluster().now).jobs.size(), 2u);
  take_over();
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  for (const uint64_t job : {1u, 2u}) EXPECT_FALSE(cluster().table().read_job(job).value()->membership.finished);
}

TEST_F(DepartureTest, WithoutASpareTheJobsEndAtOnce) {
  begin(1);
  end_spare();
  cluster().shut_down();
  EXPECT_TRUE(has_ended_its_jobs());
  EXPECT_EQ(cluster().take_of<Goodbye>(0).size(), 1u);
}

TEST_F(DepartureTest, ADrainOfZeroEndsTheJobsAtOnce) {
  begin(1, drains_for(0));
  cluster().shut_down();
  EXPECT_TRUE(has_ended_its_jobs());
}

TEST_F(DepartureTest, AnIdleShardEndsAtOnce) {
  begin(1);
  cluster().send(ScriptedCluster::peer(0), 0, {cluster().header(0), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  ASSERT_TRUE(cluster().core().status(cluster().now).jobs.empty());
  cluster().shut_down();
  EXPECT_TRUE(cluster().core().stopped());
}

TEST_F(DepartureTest, TheShardEndsWithItsLastJob) {
  begin(1);
  cluster().shut_down();
  ASSERT_FALSE(cluster().core().stopped());
  cluster().send(ScriptedCluster::peer(0), 0, {cluster().header(0), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_FALSE(cluster().core().failure());
}

TEST_F(DepartureTest, ANumberThatNoSpareTakesEndsItsJobsInTime) {
  begin(1, drains_for(4'000));
  cluster().shut_down();
  cluster().pass(1'900);
  EXPECT_FALSE(cluster().core().stopped());
  cluster().pass(300);
  EXPECT_TRUE(has_ended_its_jobs());
  EXPECT_EQ(cluster().take_of<Goodbye>(0).size(), 1u);
  EXPECT_TRUE(cluster().table().read_job(uint64_t{1}).value()->membership.finished);
  EXPECT_EQ(cluster().said("none has taken it within half of --drain"), 1u);
}

TEST_F(DepartureTest, ASpareThatGoesAwayEndsTheWait) {
  begin(1);
  cluster().shut_down();
  cluster().pass(kSomePollsMs);
  ASSERT_FALSE(cluster().core().stopped());
  end_spare();
  cluster().pass(3 * kSomePollsMs);
  EXPECT_TRUE(has_ended_its_jobs());
}

TEST_F(DepartureTest, OfTwoShardsWithOneSpareOneEndsItsJobs) {
  begin(2);
  for (const uint32_t shard : {0u, 1u}) cluster().shut_down(shard);
  cluster().pass(kSomePollsMs);
  take_over(1);
  cluster().pass(3 * kSomePollsMs);
  for (const uint32_t shard : {0u, 1u}) {
    EXPECT_TRUE(cluster().core(shard).stopped()) << shard;
    EXPECT_FALSE(cluster().core(shard).failure()) << shard;
  }
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 1);
}

/// A view may have the shards before a take-over and the spares after it.
TEST_F(DepartureTest, OneViewWithoutASpareEndsNoJob) {
  begin(1);
  cluster().shut_down();
  cluster().pass(kSomePollsMs);
  cluster().table().next_view = cluster().table().read_cluster().value();
  cluster().table().next_view->spares.clear();
  while (cluster().table().next_view) cluster().pass(10);
  take_over();
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
}

TEST_F(DepartureTest, ATakeOverThatIsNotReadYetEndsNoJob) {
  begin(1);
  cluster().shut_down();
  cluster().pass(kSomePollsMs);
  cluster().table().shard_map_fails = true;
  take_over();
  cluster().pass(3 * kSomePollsMs);
  EXPECT_FALSE(cluster().core().stopped());
  cluster().table().shard_map_fails = false;
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
}

TEST_F(DepartureTest, ATableThatIsAwayForAMomentDoesNotEndTheJobs) {
  begin(1);
  cluster().table().mode = testing::FailingTable::Mode::kUnavailable;
  cluster().shut_down();
  cluster().pass(kSomePollsMs);
  EXPECT_FALSE(cluster().core().stopped());
  cluster().table().mode = testing::FailingTable::Mode::kWorks;
  cluster().pass(kSomePollsMs);
  EXPECT_FALSE(holds_number(cluster()));
  take_over();
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
}

TEST_F(DepartureTest, ASecondOrderChangesNothing) {
  begin(1, drains_for(4'000));
  cluster().shut_down();
  cluster().pass(1'500);
  cluster().shut_down();
  EXPECT_FALSE(cluster().core().stopped());
  cluster().pass(800);
  EXPECT_TRUE(has_ended_its_jobs());
}

TEST_F(DepartureTest, AnOrderWithinAnOperatorsDrainEndsNoJob) {
  begin(1);
  ASSERT_EQ(cluster().table().set_drain(0, 1, protocol::DrainNote{1, ""}), true);
  cluster().pass(kSomePollsMs);
  ASSERT_FALSE(holds_number(cluster()));
  take_over();  // not found yet, and the spare waits no longer
  cluster().shut_down();
  EXPECT_FALSE(cluster().core().stopped());
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_FALSE(cluster().core().failure());
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
}

TEST_F(DepartureTest, AnOrderAfterTheTakeOverEndsNoJob) {
  begin(1, drains_for(0));
  ASSERT_EQ(cluster().table().set_drain(0, 1, protocol::DrainNote{1, ""}), true);
  cluster().pass(kSomePollsMs);
  take_over();
  cluster().fail_table_writes(true);  // the workers do not learn it yet
  cluster().pass(kSomePollsMs);
  ASSERT_FALSE(cluster().core().stopped());
  cluster().shut_down();
  cluster().fail_table_writes(false);
  cluster().pass(kSomePollsMs);
  EXPECT_TRUE(cluster().core().stopped());
  EXPECT_EQ(cluster().counted(Metric::kJobsEnded, "shutdown"), 0);
}

TEST_F(DepartureTest, ARequestThatIsWithdrawnDoesNotEndTheDeparture) {
  begin(1);
  ASSERT_EQ(cluster().table().set_drain(0, 1, protocol::DrainNote{1, ""}), true);
  cluster().pass(kSomePollsMs);
  cluster().shut_down();
  ASSERT_EQ(cluster().table().set_drain(0, 1, std::nullopt), true);
  cluster().pass(kSomePollsMs);
  EXPECT_FALSE(holds_number(cluster()));
  EXPECT_FALSE(cluster().core().stopped());
}

/// The spare may have another folder.
TEST(Departure, AShardWithWeightsSavesThemAndEndsTheirJob) {
  ScriptedCluster cluster(with_store(ScriptedCluster::small_job(1)), 1, {}, {.possible = true, .every = 0});
  const auto spare = millrace::testing::open_memory_table(cluster.table_state);
  ASSERT_TRUE(spare->hold_spare_lease());
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 1.0f));
  cluster.ack(0, 1);
  cluster.shut_down();
  cluster.serve_disk();
  cluster.pass(kSomePollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "shutdown"), 1);
  EXPECT_EQ(cluster.disk.saves.size(), 1u);
  EXPECT_EQ(cluster.said("are in this shard's --store-dir"), 1u);
}

TEST(Departure, AnOperatorsDrainMovesWeightsAlsoAtAShutdown) {
  ScriptedCluster cluster(with_store(ScriptedCluster::small_job(1)), 1, {}, {.possible = true, .every = 0});
  const auto spare = millrace::testing::open_memory_table(cluster.table_state);
  ASSERT_TRUE(spare->hold_spare_lease());
  cluster.join_all();
  cluster.serve_disk();
  ASSERT_EQ(cluster.table().set_drain(0, 1, protocol::DrainNote{1, ""}), true);
  cluster.pass(kSomePollsMs);
  ASSERT_FALSE(holds_number(cluster));
  cluster.shut_down();
  cluster.pass(kSomePollsMs);
  EXPECT_FALSE(holds_number(cluster));
  EXPECT_FALSE(cluster.core().stopped());
}

TEST_F(DepartureTest, AJobWithAStoreOpensAtTheSpare) {
  begin(1);
  cluster().shut_down();
  protocol::Hello hello = cluster().hello(0);
  hello.spec = with_store(hello.spec);
  hello.spec.name = "stored";
  const protocol::Body answer = cluster().say_hello(0, hello);
  const auto* refusal = std::get_if<protocol::Refuse>(&answer);
  ASSERT_TRUE(refusal != nullptr);
  EXPECT_TRUE(refusal->retry);
  cluster().pass(kSomePollsMs);
  EXPECT_FALSE(cluster().core().stopped()) << "the other job waits for the spare";
}

TEST(Departure, AShardThatReplacesASwitchEndsItsJobs) {
  ScriptedCluster cluster(ScriptedCluster::small_job(1), 1, {}, {}, "192.0.2.1:7800");
  const auto spare = millrace::testing::open_memory_table(cluster.table_state);
  ASSERT_TRUE(spare->hold_spare_lease());
  cluster.join_all();
  cluster.shut_down();
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "shutdown"), 1);
}

TEST(Departure, AShardThatRecoversServesAgainBeforeItLeaves) {
  ReturningCluster cluster(ReturningCluster::job(2), 1);
  const auto spare = millrace::testing::open_memory_table(cluster.table_state);
  ASSERT_TRUE(spare->hold_spare_lease());
  cluster.join_all_with_weights();
  cluster.start_shard(0, 1);
  cluster.welcome_with_weights(0);
  ASSERT_TRUE(cluster.core().status(cluster.now).jobs.at(0).recovering);
  cluster.shut_down();
  cluster.pass(kSomePollsMs);
  EXPECT_TRUE(holds_number(cluster));
  EXPECT_FALSE(cluster.core().stopped());
  cluster.welcome_with_weights(1);
  for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
  cluster.pass(kSomePollsMs);
  EXPECT_FALSE(holds_number(cluster));
  EXPECT_FALSE(cluster.core().stopped());
}

}  // namespace
}  // namespace millrace::server
