#include "tests/server/returning_cluster.h"

/// A membership table that is lost, or replaced by an older copy, beneath shards that run.
namespace millrace::server {
namespace {

using protocol::Abort;
using protocol::Refuse;
using protocol::Welcome;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kSeveralPollsMs = 500;  ///< several polls of the table

/// Checks that each worker has got the reason, and that the shard stops with it.
void expect_stopped(ScriptedCluster& cluster, const char* reason) {
  for (uint32_t worker = 0; worker < cluster.spec().workers; ++worker) {
    const std::vector<Abort> ends = cluster.take_of<Abort>(worker);
    ASSERT_THAT(ends, SizeIs(1)) << worker;
    EXPECT_THAT(ends[0].sentence, HasSubstr(reason));
  }
  EXPECT_TRUE(cluster.core().stopped());
  ASSERT_TRUE(cluster.core().failure());
  EXPECT_EQ(cluster.core().failure()->code, ErrorCode::kConflict);
  EXPECT_THAT(cluster.core().failure()->message, HasSubstr(reason));
}

TEST(LostTable, AnotherTableInItsPlaceEndsTheJobsAndStopsTheShard) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  cluster.join_all();
  lose_memory_table(*cluster.table_state);
  cluster.pass(kSeveralPollsMs);
  expect_stopped(cluster, "its data were lost");
  const auto next = open_memory_table(cluster.table_state);
  EXPECT_EQ(next->start_shard(0, 1, "tcp://next:9"), 1u);
  EXPECT_EQ(next->read_job("job").value(), std::nullopt);
}

TEST(LostTable, AnOlderCopyEndsTheJobsAndStopsTheShard) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  cluster.join_all();
  const auto copy = copy_of(*cluster.table_state);
  ASSERT_EQ(cluster.table().set_drain(0, 1, std::nullopt), true);  // any change
  cluster.pass(kSeveralPollsMs);
  go_back(*cluster.table_state, *copy);
  cluster.pass(kSeveralPollsMs);
  expect_stopped(cluster, "the table went back");
}

TEST(LostTable, AnOlderCopyWithoutThisStartStopsTheShard) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  const auto copy = copy_of(*cluster.table_state);
  cluster.start_shard(0, 1);
  cluster.join_all();
  go_back(*cluster.table_state, *copy);
  const auto other = open_memory_table(cluster.table_state);
  for (int change = 0; change < 50; ++change) ASSERT_EQ(other->set_drain(0, 1, std::nullopt), true);
  cluster.pass(kSeveralPollsMs);
  expect_stopped(cluster, "has not this start of shard 0");
}

TEST(LostTable, AHelloThatFindsTheLossIsRefused) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.join(0)));
  lose_memory_table(*cluster.table_state);
  const Refuse refusal = expect_body<Refuse>(cluster.join(1));
  EXPECT_THAT(refusal.sentence, HasSubstr("its data were lost"));
  EXPECT_EQ(open_memory_table(cluster.table_state)->read_job("job").value(), std::nullopt);
}

protocol::JobSpec store_job() {
  protocol::JobSpec spec = ReturningCluster::job(2);
  spec.store.optimizer = optimizer_from_text("sgd:1").value();
  return spec;
}

TEST(LostTable, StoresAreSavedBeforeTheShardStops) {
  ReturningCluster cluster(store_job(), 1, {}, {true, 0});
  cluster.join_all_with_weights();
  cluster.step({0, 1}, 1);
  ASSERT_TRUE(cluster.disk.saves.empty());
  cluster.disk.holds = true;
  lose_memory_table(*cluster.table_state);
  cluster.pass(kSeveralPollsMs);
  EXPECT_FALSE(cluster.core().stopped()) << "the store is not on the disk yet";
  cluster.disk.holds = false;
  cluster.serve_disk();
  cluster.pass(kSeveralPollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_THAT(cluster.disk.saves, SizeIs(1));
}

TEST(LostTable, NoStoreIsSavedWhereAnotherProcessHasTheNumber) {
  for (const char* address : {"tcp://next:9", "tcp://shard:0"}) {
    ReturningCluster cluster(store_job(), 1, {}, {true, 0});
    cluster.join_all_with_weights();
    cluster.step({0, 1}, 1);
    lose_memory_table(*cluster.table_state);
    ASSERT_EQ(open_memory_table(cluster.table_state)->start_shard(0, 1, address), 1u);
    cluster.pass(kSeveralPollsMs);
    EXPECT_TRUE(cluster.core().stopped()) << address;
    EXPECT_TRUE(cluster.disk.saves.empty()) << address;
  }
}

TEST(LostTable, AStoreIsSavedWhereAnOlderCopyHasAnEarlierStartElsewhere) {
  for (const uint64_t later_changes : {0u, 50u}) {
    ReturningCluster cluster(store_job(), 1, {}, {true, 0});
    const auto copy = copy_of(*cluster.table_state);
    cluster.start_shard(0, 1, "elsewhere");
    cluster.join_all_with_weights();
    cluster.step({0, 1}, 1);
    go_back(*cluster.table_state, *copy);
    const auto other = open_memory_table(cluster.table_state);
    for (uint64_t change = 0; change < later_changes; ++change) ASSERT_EQ(other->set_drain(0, 1, std::nullopt), true);
    cluster.pass(kSeveralPollsMs);
    EXPECT_TRUE(cluster.core().stopped());
    EXPECT_THAT(cluster.disk.saves, SizeIs(1)) << later_changes;
  }
}

TEST(LostTable, WhetherTheNumberIsTakenIsReadBeforeTheStoreIsSaved) {
  ReturningCluster cluster(store_job(), 1, {}, {true, 0});
  cluster.join_all_with_weights();
  cluster.step({0, 1}, 1);
  lose_memory_table(*cluster.table_state);
  ASSERT_EQ(open_memory_table(cluster.table_state)->start_shard(0, 1, "tcp://shard:0"), 1u);
  cluster.table().shard_map_fails = true;
  cluster.pass(kSeveralPollsMs);
  EXPECT_FALSE(cluster.core().stopped());
  EXPECT_TRUE(cluster.disk.asked.empty());
  cluster.table().shard_map_fails = false;
  cluster.pass(kSeveralPollsMs);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_TRUE(cluster.disk.saves.empty());
}

TEST(LostTable, ARecordOfAnotherJobIsNotAdopted) {
  for (const bool other_name : {false, true}) {
    ScriptedCluster cluster(ScriptedCluster::small_job(2));
    cluster.join_all();
    protocol::JobRecord record = cluster.table().read_job("job").value().value();
    if (other_name) {
      record.name = "other";
    } else {
      protocol::JobSpec spec = cluster.spec();
      spec.tensors[0].dimension += 1;
      record.spec = protocol::encode_job_spec(spec);
    }
    ++record.membership.epoch;
    ASSERT_EQ(cluster.table().compare_and_swap(record.membership.epoch - 1, record), true);
    cluster.pass(kSeveralPollsMs);
    const std::vector<Abort> ends = cluster.take_of<Abort>(0);
    ASSERT_THAT(ends, SizeIs(1));
    EXPECT_THAT(ends[0].sentence, HasSubstr("not in the membership table any more"));
    EXPECT_FALSE(cluster.core().stopped()) << "other jobs go on";
  }
}

TEST(LostTable, AMemberThatKnowsALaterEpochThanTheTableIsRefused) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  cluster.join_all();
  cluster.start_shard(0, 1);
  protocol::Header header = cluster.header(0);
  header.shard_incarnation = 0;
  const auto say_hello = [&](uint64_t later_by) {
    protocol::Header said = header;
    said.epoch += later_by;
    cluster.send(ScriptedCluster::peer(0), 0, {said, cluster.hello(0), {}});
  };
  say_hello(5);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_THAT(refusals, SizeIs(1));
  EXPECT_EQ(refusals[0].code, ErrorCode::kNotAMember);
  EXPECT_FALSE(refusals[0].retry);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("the table is an older copy"));
  say_hello(0);
  EXPECT_THAT(cluster.take_of<Welcome>(0), SizeIs(1)) << "one whose past the table has";
}

}  // namespace
}  // namespace millrace::server
