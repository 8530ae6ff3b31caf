#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "monitoring/status/status_json.h"
#include "tests/server/scripted_cluster.h"
#include "worker/cluster_status/report.h"

namespace millrace::cluster_status {

/// Real shard cores, scripted workers, and what `millrace status` makes of them.
struct StatusFixture : ::testing::Test {
  using ScriptedCluster = server::ScriptedCluster;
  static constexpr double kStillAfterS = 5;
  static constexpr uint64_t kStatusDimension = 8'192;  ///< over two shards

  void start(const protocol::JobSpec& spec, uint32_t shards = 2, server::Limits limits = {}) {
    ASSERT_TRUE(protocol::validate(spec).has_value()) << protocol::validate(spec).error().message;
    cluster = std::make_unique<ScriptedCluster>(spec, shards, limits);
    shard_count = shards;
  }
  void start_running(const protocol::JobSpec& spec, uint32_t shards = 2, server::Limits limits = {}) {
    start(spec, shards, limits);
    cluster->join_all();
  }
  static protocol::JobSpec job(uint32_t workers) {
    protocol::JobSpec spec = ScriptedCluster::small_job(workers, kStatusDimension);
    spec.dead_after = std::chrono::milliseconds(15'000);
    return spec;
  }
  /// Through JSON and back, as over HTTP.
  ShardAnswer answer(uint32_t shard) const {
    StatusReport report = cluster->core(shard).status(cluster->now);
    report.table = "/table";
    const auto said = monitoring::read_status(nlohmann::json::parse(monitoring::status_json(report)));
    return {"127.0.0.1:" + std::to_string(7700 + shard), said.value()};
  }
  ClusterSnapshot look() const {
    std::vector<ShardAnswer> answers;
    for (uint32_t shard = 0; shard < shard_count; ++shard) answers.push_back(answer(shard));
    return picture_of(answers, {}, kStillAfterS, switch_jobs);
  }
  JobPicture the_job() const {
    const ClusterSnapshot picture = look();
    EXPECT_EQ(picture.jobs.size(), 1u);
    return picture.jobs.empty() ? JobPicture() : picture.jobs.front();
  }
  static std::optional<program::ExitCode> code_of(const ClusterSnapshot& picture, const Answers& answers = {}) {
    const program::Outcome outcome = outcome_of(picture, answers);
    return outcome ? std::nullopt : std::optional(outcome.error().code);
  }
  /// Lets time pass while these workers say that they live.
  void pass_with(const std::vector<uint32_t>& alive, int64_t milliseconds) const {
    for (int64_t passed = 0; passed < milliseconds; passed += 500) {
      for (const uint32_t worker : alive) {
        for (uint32_t shard = 0; shard < shard_count; ++shard) {
          cluster->send(ScriptedCluster::peer(worker), shard,
                        {cluster->header(worker, shard), protocol::Heartbeat{}, {}});
        }
      }
      cluster->pass(500);
    }
  }
  void push(uint32_t worker, uint64_t step) const {
    cluster->push(worker, step, std::vector<float>(kStatusDimension, 1));
  }

  std::vector<SwitchJobStatus> switch_jobs;
  std::unique_ptr<ScriptedCluster> cluster;
  uint32_t shard_count = 0;
};

}  // namespace millrace::cluster_status
