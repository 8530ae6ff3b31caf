#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/cli/outcome.h"
#include "worker/cli/process/child_process.h"
#include "worker/cli/process/hosts.h"
#include "worker/cli/process/shard_process.h"

namespace millrace::cli {

struct TrainingClusterOptions {
  uint32_t workers = 1;
  uint32_t shards = 1;
  std::string folder;  ///< table, logs and what workers print; it exists
  std::string what;    ///< "the demonstration": whose processes these are, in sentences
};

/// Shards that stay, and workers that run `millrace train` through them, one job after the other. Every process ends with the
/// object, workers first.
class TrainingCluster {
 public:
  /// hosts   of all shards, then of all workers.
  /// say     called with one line a shard: where it is, and its status page.
  /// Errors  as ShardProcess::start().
  static std::expected<TrainingCluster, Failure> start(const TrainingClusterOptions& options, Hosts hosts,
                                                       const std::function<void(const std::string&)>& say);

  /// Runs `millrace train` in every worker; returns the JSON of each.
  ///
  /// flags   of a worker, beside job, servers and its number.
  /// Errors  job_ended: a worker ended with another code than 0, or the time ran out; the sentence names the log. internal: a
  ///         worker printed no result. interrupted.
  std::expected<std::vector<nlohmann::json>, Failure> train(
      const std::string& job, const std::function<std::vector<std::string>(uint32_t worker)>& flags);

  /// SIGTERM to the shards; SIGKILL to who is still there after a while.
  void stop();

 private:
  TrainingCluster(const TrainingClusterOptions& options, Hosts hosts) : options_(options), hosts_(std::move(hosts)) {}
  Outcome start_shard(uint32_t shard, const std::function<void(const std::string&)>& say);
  std::string log_of(const std::string& job, uint32_t worker) const;
  Outcome wait(std::vector<ChildProcess>& workers, const std::string& job) const;
  std::string output_of(const std::string& job, uint32_t worker) const;
  std::expected<std::vector<nlohmann::json>, Failure> outputs(const std::string& job) const;

  TrainingClusterOptions options_;
  Hosts hosts_;
  std::string servers_;
  std::vector<ShardProcess> shards_;
};

}  // namespace millrace::cli
