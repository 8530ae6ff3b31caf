#include "worker/cli/process/training_cluster.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "kernels/base/clock.h"
#include "worker/cli/interruption.h"

namespace millrace::cli {
namespace {

using nlohmann::json;
using Say = std::function<void(const std::string&)>;

constexpr int kStartTimeoutMs = 30'000;
constexpr int kStopGraceMs = 15'000;
constexpr int kLookEveryMs = 200;
constexpr int kRunTimeoutMs = 30 * 60 * 1000;

}  // namespace

std::expected<TrainingCluster, Failure> TrainingCluster::start(const TrainingClusterOptions& options, Hosts hosts,
                                                               const Say& say) {
  TrainingCluster cluster(options, std::move(hosts));
  std::error_code ignored;
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(options.folder + "/table" + suffix, ignored);
  for (uint32_t shard = 0; shard < options.shards; ++shard) {
    if (auto started = cluster.start_shard(shard, say); !started) return std::unexpected(started.error());
  }
  return cluster;
}

Outcome TrainingCluster::start_shard(uint32_t shard, const Say& say) {
  ShardProcessOptions process;
  process.shard = shard;
  process.shards = options_.shards;
  process.host = hosts_.address(shard);
  process.network_namespace = hosts_.network_namespace(shard);
  process.table = options_.folder + "/table";
  process.log = options_.folder + "/shard" + std::to_string(shard) + ".log";
  process.http = hosts_.address(shard) + ":0";
  process.timeout_ms = kStartTimeoutMs;
  std::error_code ignored;
  std::filesystem::remove(process.log, ignored);
  auto started = ShardProcess::start(process);
  if (!started) return std::unexpected(start_failure(started.error()));
  const std::string inside =
      process.network_namespace.empty() ? "" : " (from inside: ip netns exec " + process.network_namespace + " …)";
  say(fmt::format("shard {}: {}, status page http://{}/{}", shard, started->address(), started->http_address(),
                  inside));
  const std::string address = started->address();
  servers_ += (shard == 0 ? "" : ",") + address.substr(address.find("//") + 2);
  shards_.push_back(std::move(*started));
  return {};
}

void TrainingCluster::stop() {
  for (ShardProcess& shard : shards_) shard.stop(kStopGraceMs);
  shards_.clear();
}

std::expected<std::vector<json>, Failure> TrainingCluster::train(
    const std::string& job, const std::function<std::vector<std::string>(uint32_t worker)>& flags) {
  std::vector<ChildProcess> workers;
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    SpawnOptions spawn;
    spawn.argv = {sibling_program("millrace"),
                  "train",
                  "--json",
                  "--job",
                  job,
                  "--servers",
                  servers_,
                  "--worker",
                  std::to_string(worker),
                  "--workers",
                  std::to_string(options_.workers)};
    const std::vector<std::string> own = flags(worker);
    spawn.argv.insert(spawn.argv.end(), own.begin(), own.end());
    spawn.network_namespace = hosts_.network_namespace(options_.shards + worker);
    // Into a file: a long result would fill a pipe that nobody reads before the worker's end.
    spawn.stdout_path = output_of(job, worker);
    spawn.stderr_path = log_of(job, worker);
    std::error_code ignored;
    std::filesystem::remove(spawn.stdout_path, ignored);
    std::filesystem::remove(spawn.stderr_path, ignored);
    auto child = ChildProcess::spawn(spawn);
    if (!child) return fail_with(child.error());
    workers.push_back(std::move(*child));
  }
  if (auto done = wait(workers, job); !done) return std::unexpected(done.error());
  return outputs(job);
}

std::string TrainingCluster::log_of(const std::string& job, uint32_t worker) const {
  return options_.folder + "/" + job + "-worker" + std::to_string(worker) + ".log";
}

std::string TrainingCluster::output_of(const std::string& job, uint32_t worker) const {
  return options_.folder + "/" + job + "-worker" + std::to_string(worker) + ".json";
}

Outcome TrainingCluster::wait(std::vector<ChildProcess>& workers, const std::string& job) const {
  const InterruptionRequests& requests = interruption_requests();
  const TimeNs deadline = monotonic_now_ns() + kRunTimeoutMs * kNsPerMs;
  for (uint32_t done = 0; done < workers.size();) {
    if (monotonic_now_ns() > deadline)
      return fail_with(ExitCode::kJobEnded, "the workers did not finish; logs in " + options_.folder);
    const auto report = workers[done].wait(kLookEveryMs);
    // Ctrl-C reaches the workers as well: their end is then ours.
    if (requests.count() > 0)
      return fail_with(ExitCode::kInterrupted, "interrupted; every process of " + options_.what + " is ended");
    if (!report) continue;
    if (report->exit_code != 0) {
      return fail_with(ExitCode::kJobEnded, fmt::format("worker {} ended with exit code {}; its log: {}", done,
                                                        report->exit_code, log_of(job, done)));
    }
    ++done;
  }
  return {};
}

std::expected<std::vector<json>, Failure> TrainingCluster::outputs(const std::string& job) const {
  std::vector<json> results;
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    std::ifstream file(output_of(job, worker));
    json last;
    for (std::string line; std::getline(file, line);) last = json::parse(line, nullptr, false);
    if (!last.is_object() || !last.contains("epochs") || last["epochs"].empty()) {
      return fail_with(ExitCode::kInternal,
                       fmt::format("worker {} printed no result; its log: {}", worker, log_of(job, worker)));
    }
    results.push_back(std::move(last));
  }
  return results;
}

}  // namespace millrace::cli
