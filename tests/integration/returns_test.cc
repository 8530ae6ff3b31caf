// Real servers and workers that are killed and rejoin: they continue with the state of the others.
#include <algorithm>
#include <csignal>

#include "tests/integration/cluster_processes.h"

namespace millrace::testing {
namespace {

constexpr uint64_t kDimension = 20'000;  // test_worker's own
constexpr uint64_t kSteps = 40;

class Returns : public ClusterProcesses {
 protected:
  static constexpr uint32_t kWorkers = 3;

  std::vector<std::string> settings(uint32_t worker) const {
    return {"parts=2", "heartbeat_ms=200", "dead_after_ms=8000", "state=" + path("state-" + std::to_string(worker))};
  }
  void start_all(const std::vector<std::string>& more) {
    for (uint32_t worker = 0; worker < kWorkers; ++worker) workers_.push_back(start(worker, more));
    logs_.resize(kWorkers);
  }
  launch::ChildProcess start(uint32_t worker, const std::vector<std::string>& more) {
    std::vector<std::string> all = settings(worker);
    all.insert(all.end(), more.begin(), more.end());
    return start_worker(worker, kWorkers, kSteps, all);
  }
  /// Waits until worker `worker` holds, and kills it there.
  void kill_holding(uint32_t worker) {
    wait_for_line(workers_[worker], "holding");
    workers_[worker].kill_now();
  }
  void expect_all_finish_alike() {
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      read_to_end(workers_[worker], logs_[worker]);
      EXPECT_TRUE(logs_[worker].finished) << "worker " << worker << ": " << logs_[worker].error;
      EXPECT_EQ(logs_[worker].exit_code, 0);
      EXPECT_EQ(logs_[worker].weights, logs_[0].weights) << "worker " << worker;
    }
  }
  /// Checks that every step has the contributions of all workers in every part, once.
  void expect_nothing_lost() {
    expect_all_finish_alike();
    for (const WorkerLog& log : logs_) {
      EXPECT_FALSE(log.broken);
      EXPECT_EQ(log.contributors.size(), kSteps * 4);
      for (const auto& [piece, mask] : log.contributors) EXPECT_EQ(mask, 7u) << "step " << piece.first;
      EXPECT_EQ(log.weights, replayed_weights(log, kDimension));
    }
  }
  static uint64_t begun_at(const WorkerLog& log) {
    for (const std::string& line : log.lines) {
      if (line.starts_with("begins ")) return std::stoull(line.substr(7));
    }
    return 0;
  }

  std::vector<launch::ChildProcess> workers_;
  std::vector<WorkerLog> logs_;
};

TEST_F(Returns, AKilledWorkerIsStartedAgainByTheSameCommandAndAllAgree) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<std::string> saving = {"save_every=7"};
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    std::vector<std::string> more = saving;
    if (worker == 1) more.push_back("hold_at=10");
    workers_.push_back(start(worker, more));
  }
  logs_.resize(kWorkers);
  kill_holding(1);
  workers_[1] = start(1, saving);
  expect_all_finish_alike();
  EXPECT_GE(begun_at(logs_[1]), 10u) << "it continues at the step of the job";
}

// R10f: where the others have left with the last steps, it must not repeat them alone.
TEST_F(Returns, AWorkerThatIsKilledAfterItsLastPushAgreesOrEndsWithASentence) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<std::string> saving = {"save_every=7"};
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    std::vector<std::string> more = saving;
    if (worker == 1) more.push_back("hold_at=" + std::to_string(kSteps - 1));
    workers_.push_back(start(worker, more));
  }
  logs_.resize(kWorkers);
  kill_holding(1);
  workers_[1] = start(1, saving);
  for (uint32_t worker = 0; worker < kWorkers; ++worker) read_to_end(workers_[worker], logs_[worker]);
  for (const uint32_t worker : {0u, 2u}) EXPECT_EQ(logs_[worker].exit_code, 0) << logs_[worker].error;
  EXPECT_EQ(logs_[0].weights, logs_[2].weights);
  if (logs_[1].exit_code == 0) {
    EXPECT_EQ(logs_[1].weights, logs_[0].weights);
  } else {
    EXPECT_NE(logs_[1].error.find("take the model of a worker that finished"), std::string::npos) << logs_[1].error;
  }
}

TEST_F(Returns, AKilledWorkerWithoutAStateTakesTheOthersWeights) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  start_all({"hold_at=10"});
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    if (worker != 1) wait_for_line(workers_[worker], "holding");
  }
  kill_holding(1);
  workers_[1] = start(1, {});
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    if (worker != 1) ::kill(workers_[worker].pid(), SIGUSR1);
  }
  expect_all_finish_alike();
  EXPECT_GE(begun_at(logs_[1]), 10u);
}

TEST_F(Returns, AWorkerThatRejoinsAfterItsEvictionContributesToTheEnd) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<std::string> common = {"parts=2", "heartbeat_ms=200", "dead_after_ms=3000", "weights=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    workers_.push_back(
        start_worker(worker, kWorkers, kSteps, with({"hold_at=" + std::to_string(worker == 1 ? 4 : 15)})));
  logs_.resize(kWorkers);
  kill_holding(1);
  // The others have continued without it.
  for (const uint32_t worker : {0u, 2u}) wait_for_line(workers_[worker], "holding", &logs_[worker]);
  workers_[1] = start_worker(1, kWorkers, kSteps, common);
  wait_for_line(workers_[1], "joined", &logs_[1]);
  for (const uint32_t worker : {0u, 2u}) ::kill(workers_[worker].pid(), SIGUSR1);
  expect_all_finish_alike();
  EXPECT_GE(begun_at(logs_[1]), 15u);
  EXPECT_EQ(logs_[1].contributors.rbegin()->second, 7u) << "all workers contribute to the last step";
}

TEST_F(Returns, AKilledShardRecoversOnItsPortWithoutLoss) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  start_all({"staleness=1"});
  for (auto& worker : workers_)
    wait_for_line(worker, "pushed 8", &logs_[static_cast<size_t>(&worker - workers_.data())]);
  const std::string address = addresses_[1];
  shards_[1]->kill_now();
  ASSERT_NO_FATAL_FAILURE(start_shard(1, 2, address));
  expect_nothing_lost();
}

TEST_F(Returns, WorkersFindAShardThatRestartsOnAnotherPort) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  start_all({});
  for (uint32_t worker = 0; worker < kWorkers; ++worker) wait_for_line(workers_[worker], "pushed 8", &logs_[worker]);
  const std::string address = addresses_[0];
  shards_[0]->kill_now();
  ASSERT_NO_FATAL_FAILURE(start_shard(0, 2));
  ASSERT_NE(addresses_[0], address);
  expect_nothing_lost();
}

TEST_F(Returns, TwoShardsKilledAtOnceRecoverWithoutLoss) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  start_all({});
  for (uint32_t worker = 0; worker < kWorkers; ++worker) wait_for_line(workers_[worker], "pushed 8", &logs_[worker]);
  const std::vector<std::string> addresses = addresses_;
  for (auto& shard : shards_) shard->kill_now();
  for (uint32_t shard = 0; shard < 2; ++shard) ASSERT_NO_FATAL_FAILURE(start_shard(shard, 2, addresses[shard]));
  expect_nothing_lost();
}

TEST_F(Returns, AJobMayBeginWithTheWeightsOfItsFirstWorker) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    workers_.push_back(start(worker, {"initial=first", "begin=" + std::to_string(5 + worker)}));
  logs_.resize(kWorkers);
  expect_all_finish_alike();
  EXPECT_EQ(logs_[0].contributors.size(), kSteps * 4);
  for (const auto& [piece, mask] : logs_[0].contributors) EXPECT_EQ(mask, 7u) << "step " << piece.first;
  EXPECT_EQ(logs_[0].weights, replayed_weights(logs_[0], kDimension, 5));
}

}  // namespace
}  // namespace millrace::testing
