#include "server/part/part_round.h"
#include "tests/server/returning_cluster.h"

/// Mode asynchronous at a shard: each contribution is a step of the log by itself.
namespace millrace::server {
namespace {

using protocol::ContributorId;
using protocol::Duplicate;
using protocol::Mode;
using protocol::Refuse;
using protocol::Update;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

std::vector<float> asynchronous_constant(float value) { return std::vector<float>(64, value); }

protocol::JobSpec asynchronous(protocol::JobSpec spec, uint32_t staleness = 1) {
  spec.mode = Mode::kAsynchronous;
  spec.staleness = staleness;
  return spec;
}

struct Asynchronous : ::testing::Test {
  void start(const protocol::JobSpec& spec, Limits limits = {}) {
    ASSERT_TRUE(protocol::validate(spec).has_value()) << protocol::validate(spec).error().message;
    cluster = std::make_unique<ScriptedCluster>(spec, 1, limits);
    cluster->join_all();
  }
  /// Returns the contributors of the updates that the worker got since the last call, as "worker/number", in the order
  /// of the steps.
  std::vector<std::string> named(uint32_t worker) {
    std::vector<std::string> out;
    for (const Update& update : cluster->take_of<Update>(worker)) {
      EXPECT_EQ(update.contributors.size(), 1u);
      EXPECT_EQ(update.step, steps_of_[worker]++);
      const ContributorId& who = update.contributors.front();
      out.push_back(std::to_string(who.worker) + "/" + std::to_string(who.sequence));
    }
    return out;
  }
  std::unique_ptr<ScriptedCluster> cluster;
  std::map<uint32_t, uint64_t> steps_of_;
};

TEST_F(Asynchronous, EveryContributionIsAStepAndReachesEveryWorker) {
  start(asynchronous(ScriptedCluster::small_job(3)));
  cluster->push(1, 0, asynchronous_constant(4));
  EXPECT_THAT(named(0), ElementsAre("1/0"));
  cluster->push(1, 1, asynchronous_constant(5));
  cluster->push(0, 0, asynchronous_constant(6));
  EXPECT_THAT(named(0), ElementsAre("1/1", "0/0"));
  EXPECT_THAT(named(2), ElementsAre("1/0", "1/1", "0/0")) << "a worker that sends nothing delays no other worker";
}

TEST_F(Asynchronous, AnUpdateIsTheContributionItself) {
  protocol::JobSpec spec = asynchronous(ScriptedCluster::small_job(2));
  spec.combine = protocol::Combine::kMean;
  start(spec);
  cluster->push(1, 0, asynchronous_constant(4));
  const ScriptedCluster::Gathered got = cluster->gather(0, 0);
  EXPECT_EQ(got.entries, 64u);
  EXPECT_EQ(got.dense, asynchronous_constant(4));
}

TEST_F(Asynchronous, WhatOvertookIsCountedAfterTheOneBeforeIt) {
  start(asynchronous(ScriptedCluster::small_job(2)));
  cluster->push(0, 1, asynchronous_constant(2));
  EXPECT_THAT(named(1), IsEmpty());
  cluster->push(1, 0, asynchronous_constant(3));
  EXPECT_THAT(named(1), ElementsAre("1/0")) << "only its own incarnation waits";
  cluster->push(0, 0, asynchronous_constant(1));
  EXPECT_THAT(named(1), ElementsAre("0/0", "0/1"));
}

TEST_F(Asynchronous, ALateCopyIsAnsweredAndNotCountedAgain) {
  start(asynchronous(ScriptedCluster::small_job(2)));
  cluster->push(0, 0, asynchronous_constant(1));
  cluster->push(0, 1, asynchronous_constant(2));
  EXPECT_THAT(named(1), SizeIs(2));
  cluster->take(0);
  cluster->push(0, 0, asynchronous_constant(1));
  cluster->push(0, 0, asynchronous_constant(7));
  EXPECT_THAT(cluster->take_of<Duplicate>(0), ElementsAre(Duplicate{0, 0}, Duplicate{0, 0}));
  EXPECT_THAT(named(1), IsEmpty());
  EXPECT_EQ(cluster->counted(Metric::kDuplicates), 2);
}

TEST_F(Asynchronous, OtherBytesUnderOneNumberAreRefusedWhileTheFirstWait) {
  start(asynchronous(ScriptedCluster::small_job(2)));
  cluster->push(0, 1, asynchronous_constant(1));
  cluster->push(0, 1, asynchronous_constant(2));
  const auto refused = cluster->take_of<Refuse>(0);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].code, ErrorCode::kConflict);
  EXPECT_TRUE(refused[0].sentence.contains("other bytes for contribution 1 of part 0")) << refused[0].sentence;
}

TEST_F(Asynchronous, TooFarAheadIsRefusedByName) {
  start(asynchronous(ScriptedCluster::small_job(2), 1));
  cluster->push(0, 3, asynchronous_constant(1));
  const auto refused = cluster->take_of<Refuse>(0);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_FALSE(refused[0].retry);
  EXPECT_TRUE(refused[0].sentence.contains("contribution 3 of part 0 is too far ahead: contribution 0 is the next"))
      << refused[0].sentence;
}

TEST_F(Asynchronous, AnUndecodableContributionIsRefusedAndLaterOnesWait) {
  start(asynchronous(ScriptedCluster::small_job(2)));
  SharedBytes damaged = cluster->payload(asynchronous_constant(1));
  ByteBuffer bytes(damaged.bytes.begin(), damaged.bytes.end());
  bytes.back() ^= 1;
  cluster->push(0, 1, asynchronous_constant(2));
  cluster->send(ScriptedCluster::peer(0), 0, cluster->contribution(0, 0, 0, SharedBytes::from(std::move(bytes))));
  const auto refused = cluster->take_of<Refuse>(0);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].step, 0u);
  EXPECT_TRUE(refused[0].retry);
  EXPECT_THAT(named(1), IsEmpty());
  cluster->push(0, 0, asynchronous_constant(1));
  EXPECT_THAT(named(1), ElementsAre("0/0", "0/1"));
}

TEST_F(Asynchronous, QueuedContributionsMayFillHalfOfTheJobMemory) {
  Limits limits;
  limits.job_memory_bytes_max = 4'000;
  start(asynchronous(ScriptedCluster::small_job(2), 8), limits);
  cluster->hold_tasks = true;
  uint64_t sent = 0;
  std::vector<Refuse> refused;
  while (refused.empty() && sent < 9) {
    cluster->push(0, sent++, asynchronous_constant(1));
    refused = cluster->take_of<Refuse>(0);
  }
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_GT(sent, 2u);
  EXPECT_TRUE(refused[0].retry);
  EXPECT_TRUE(refused[0].sentence.contains("steps ahead may fill 1/2")) << refused[0].sentence;
  cluster->hold_tasks = false;
  cluster->run_held_tasks();
  EXPECT_THAT(named(1), SizeIs(sent - 1));
}

TEST_F(Asynchronous, WhileItDrainsNothingMoreBegins) {
  Limits limits;
  limits.drain_ms = 2'000;
  start(asynchronous(ScriptedCluster::small_job(2)), limits);
  cluster->hold_tasks = true;
  cluster->push(0, 0, asynchronous_constant(1));
  cluster->shut_down();
  cluster->push(0, 1, asynchronous_constant(2));
  const auto refused = cluster->take_of<Refuse>(0);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_TRUE(refused[0].sentence.contains("shutting down")) << refused[0].sentence;
  cluster->hold_tasks = false;
  cluster->run_held_tasks();
  EXPECT_THAT(named(1), ElementsAre("0/0")) << "the arrived contribution is decided";
}

TEST_F(Asynchronous, ARejoiningWorkerRestartsAtZeroAndItsQueueIsDropped) {
  ReturningCluster jobs(asynchronous(ReturningCluster::job(2), 2));
  jobs.join_all_with_weights();
  jobs.push(1, 0, asynchronous_constant(1));
  jobs.push(1, 2, asynchronous_constant(3));  // waits for number 1
  for (const uint32_t worker : {0u, 1u}) jobs.deliver_all(worker);
  EXPECT_EQ(jobs.holds(0).n, 1u);
  jobs.live({0}, 1'100);
  ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(jobs.say_hello(1, jobs.returning(1, 77))));
  EXPECT_EQ(jobs.counted(Metric::kDropped, "removed_worker"), 1);
  jobs.deliver_all(1);
  jobs.say_state(1, false);
  const auto settled = ReturningCluster::of<protocol::Settle>(jobs.deliver_all(1));
  ASSERT_THAT(settled, SizeIs(1));
  EXPECT_EQ(settled[0].counted->sequence, 1u);
  jobs.say(1, protocol::Synced{});
  for (const uint32_t worker : {0u, 1u}) jobs.deliver_all(worker);
  jobs.push(1, 1, asynchronous_constant(2));
  jobs.deliver_all(0);
  EXPECT_EQ(jobs.holds(0).n, 1u) << "neither of the old incarnation, nor out of order";
  jobs.push(1, 0, asynchronous_constant(5));
  jobs.deliver_all(0);
  EXPECT_EQ(jobs.holds(0).n, 3u);
  const protocol::SummaryEntry& entry = jobs.holds(0).summary.workers.at(0);
  EXPECT_EQ(entry.worker, 1u);
  EXPECT_EQ(entry.sequence, 2u);
  EXPECT_EQ(entry.last_step, 2u);
  EXPECT_EQ(entry.counted_mask, 1u);
  EXPECT_THAT(entry.earlier_incarnations, ElementsAre(Pair(1u, 1u)));
}

}  // namespace
}  // namespace millrace::server
