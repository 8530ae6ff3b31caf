#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "worker/launch/child_process.h"
#include "worker/launch/namespace_hosts.h"
#include "worker/launch/shard_process.h"
#include "worker/program/outcome.h"

namespace millrace::launch {

struct TrainingClusterOptions {
  uint32_t workers = 1;
  uint32_t shards = 1;
  std::string folder;  ///< table, logs and what workers print; it exists
  std::string what;    ///< "the demonstration": whose processes these are, in sentences
};

/// Shards that stay, and workers that run `millrace train` through them, one job after the other. Every process ends
/// with the object, workers first.
class TrainingCluster {
 public:
  /// hosts   of all shards, then of all workers.
  /// say     called with one line a shard: where it is, and its status page.
  /// Errors  as ShardProcess::start().
  static std::expected<TrainingCluster, program::Failure> start(const TrainingClusterOptions& options, Hosts hosts,
                                                                const std::function<void(const std::string&)>& say);

  /// Describes the kill of a process (SIGKILL) in the middle of a job; the same command starts it again at once.
  struct Kill {
    enum class Whom : uint8_t { kWorker = 1, kShard = 2 };
    Whom whom = Whom::kWorker;
    uint32_t number = 0;
    std::string when_there;  ///< a file: the moment is when it appears
  };

  /// Runs `millrace train` in every worker; returns the JSON of each. The result of a worker that joined after the
  /// others had made all steps has no epochs.
  ///
  /// flags   of a worker, beside job, servers and its number.
  /// kill    empty: no worker is killed.
  /// Errors  job_ended: a worker ended with another code than 0, or the time ran out; the sentence names the log.
  ///         internal: a worker printed no result; or the job ended before any worker was killed. interrupted.
  std::expected<std::vector<nlohmann::json>, program::Failure> train(
      const std::string& job, const std::function<std::vector<std::string>(uint32_t worker)>& flags,
      const std::optional<Kill>& kill = std::nullopt);

  /// Sends SIGTERM to the shards; after a grace period, SIGKILL to the shards that still run.
  void stop();

 private:
  TrainingCluster(const TrainingClusterOptions& options, Hosts hosts) : options_(options), hosts_(std::move(hosts)) {}
  /// Holds one running job.
  struct Running {
    std::string job;
    std::vector<SpawnOptions> commands;  ///< by worker
    std::vector<ChildProcess> workers;
    std::optional<Kill> kill;  ///< still to be done
  };
  program::Outcome start_shard(uint32_t shard, const std::function<void(const std::string&)>& say);
  /// port  0: a free one.
  std::expected<ShardProcess, program::Failure> start_shard_at(uint32_t shard, uint16_t port) const;
  SpawnOptions command_of(const std::string& job, uint32_t worker, const std::vector<std::string>& flags) const;
  program::Outcome kill_when_due(Running& running);
  std::string log_of(const std::string& job, uint32_t worker) const;
  program::Outcome wait(Running& running);
  std::string output_of(const std::string& job, uint32_t worker) const;
  std::expected<std::vector<nlohmann::json>, program::Failure> outputs(const std::string& job) const;

  TrainingClusterOptions options_;
  Hosts hosts_;
  std::string servers_;
  std::vector<ShardProcess> shards_;
};

}  // namespace millrace::launch
