#include "worker/launch/training_cluster.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "kernels/base/clock.h"
#include "protocol/address/host_port.h"
#include "worker/launch/child_end.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"

namespace millrace::launch {

using program::ExitCode;
using program::fail_with;
using program::Failure;
using program::Outcome;

namespace {

using nlohmann::json;
using Say = std::function<void(const std::string&)>;

constexpr int kLookEveryMs = 200;
constexpr int kLookForKillMs = 2;
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

std::expected<ShardProcess, Failure> TrainingCluster::start_shard_at(uint32_t shard, uint16_t port) const {
  ShardProcessOptions process;
  process.shard = shard;
  process.shards = options_.shards;
  process.host = hosts_.address(shard);
  process.port = port;
  process.network_namespace = hosts_.network_namespace(shard);
  process.insecure = !process.network_namespace.empty();  // the hosts of that network are this machine's own
  process.table = options_.folder + "/table";
  process.log = options_.folder + "/shard" + std::to_string(shard) + ".log";
  process.http = hosts_.address(shard) + ":0";
  process.http_security.insecure = process.insecure;
  std::error_code ignored;
  if (port == 0) std::filesystem::remove(process.log, ignored);
  auto started = ShardProcess::start(process);
  if (!started) return std::unexpected(program::failure_of(started.error(), program::ErrorPlace::kShard));
  return std::move(*started);
}

Outcome TrainingCluster::start_shard(uint32_t shard, const Say& say) {
  auto started = start_shard_at(shard, 0);
  if (!started) return std::unexpected(started.error());
  const std::string space = hosts_.network_namespace(shard);
  const std::string inside = space.empty() ? "" : " (from inside: ip netns exec " + space + " …)";
  say(fmt::format("shard {}: {}, status page http://{}/{}", shard, started->address(), started->http_address(),
                  inside));
  if (shard > 0) servers_ += ",";
  servers_ += protocol::without_tcp(started->address());
  shards_.push_back(std::move(*started));
  return {};
}

void TrainingCluster::stop() {
  for (ShardProcess& shard : shards_) shard.stop();
  shards_.clear();
}

SpawnOptions TrainingCluster::command_of(const std::string& job, uint32_t worker,
                                         const std::vector<std::string>& flags) const {
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
  spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
  spawn.network_namespace = hosts_.network_namespace(options_.shards + worker);
  // Into a file: a long result would fill a pipe that no process reads before the worker's end.
  spawn.stdout_path = output_of(job, worker);
  spawn.stderr_path = log_of(job, worker);
  return spawn;
}

std::expected<std::vector<json>, Failure> TrainingCluster::train(
    const std::string& job, const std::function<std::vector<std::string>(uint32_t worker)>& flags,
    const std::optional<Kill>& kill) {
  Running running{.job = job, .commands = {}, .workers = {}, .kill = kill};
  std::error_code ignored;
  if (kill) std::filesystem::remove(kill->when_there, ignored);
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    const SpawnOptions& spawn = running.commands.emplace_back(command_of(job, worker, flags(worker)));
    std::filesystem::remove(spawn.stdout_path, ignored);
    std::filesystem::remove(spawn.stderr_path, ignored);
    auto child = ChildProcess::spawn(spawn);
    if (!child) return fail_with(child.error());
    running.workers.push_back(std::move(*child));
  }
  if (auto done = wait(running); !done) return std::unexpected(done.error());
  return outputs(job);
}

Outcome TrainingCluster::kill_when_due(Running& running) {
  if (!running.kill || !std::filesystem::exists(running.kill->when_there)) return {};
  const Kill kill = *std::exchange(running.kill, std::nullopt);
  if (kill.whom == Kill::Whom::kWorker) {
    running.workers[kill.number].kill_now();
    auto child = ChildProcess::spawn(running.commands[kill.number]);
    if (!child) return fail_with(child.error());
    running.workers[kill.number] = std::move(*child);
    return {};
  }
  const uint16_t port = shards_[kill.number].port();
  shards_[kill.number].process().kill_now();
  auto started = start_shard_at(kill.number, port);
  if (!started) return std::unexpected(started.error());
  shards_[kill.number] = std::move(*started);
  return {};
}

std::string TrainingCluster::log_of(const std::string& job, uint32_t worker) const {
  return options_.folder + "/" + job + "-worker" + std::to_string(worker) + ".log";
}

std::string TrainingCluster::output_of(const std::string& job, uint32_t worker) const {
  return options_.folder + "/" + job + "-worker" + std::to_string(worker) + ".json";
}

Outcome TrainingCluster::wait(Running& running) {
  const program::InterruptionRequests& requests = program::interruption_requests();
  const TimeNs deadline = monotonic_now_ns() + kRunTimeoutMs * kNsPerMs;
  for (uint32_t done = 0; done < running.workers.size();) {
    if (monotonic_now_ns() > deadline)
      return fail_with(ExitCode::kJobEnded, "the workers did not finish; logs in " + options_.folder);
    if (Outcome killed = kill_when_due(running); !killed) return killed;
    const auto report = running.workers[done].wait(running.kill ? kLookForKillMs : kLookEveryMs);
    // Ctrl-C reaches the workers as well: their end is then ours.
    if (requests.count() > 0)
      return fail_with(ExitCode::kInterrupted, "interrupted; every process of " + options_.what + " is ended");
    if (!report) continue;
    if (report->exit_code != 0) {
      return fail_with(code_of_child_end(report->exit_code),
                       fmt::format("worker {} ended with exit code {}; its log: {}", done, report->exit_code,
                                   log_of(running.job, done)));
    }
    ++done;
  }
  if (running.kill) return fail_with(ExitCode::kInternal, "the job was over before the process was killed");
  return {};
}

std::expected<std::vector<json>, Failure> TrainingCluster::outputs(const std::string& job) const {
  std::vector<json> results;
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    std::ifstream file(output_of(job, worker));
    json last;
    for (std::string line; std::getline(file, line);) last = program::parse_json(line).value_or(json());
    if (!last.is_object() || !last.contains("epochs")) {
      return fail_with(ExitCode::kInternal,
                       fmt::format("worker {} printed no result; its log: {}", worker, log_of(job, worker)));
    }
    results.push_back(std::move(last));
  }
  return results;
}

}  // namespace millrace::launch
