#include "worker/cli/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/clock.h"
#include "worker/cli/data_debian.h"
#include "worker/cli/interruption.h"
#include "worker/cli/process/child_process.h"
#include "worker/cli/process/hosts.h"
#include "worker/cli/process/shard_process.h"

namespace millrace::cli {
namespace {

using nlohmann::json;
using Say = std::function<void(const std::string&)>;

constexpr int kStartTimeoutMs = 30'000;
constexpr int kStopGraceMs = 15'000;
constexpr int kLookEveryMs = 200;
constexpr int kRunTimeoutMs = 30 * 60 * 1000;
constexpr double kSparseShare = 0.095;  // of the natural count of entries: less than a tenth
constexpr double kDownOverUp = 3;       // entries that come back for each that a worker sends

struct DemoData {
  std::string train;
  std::string held_out;
};

Failure failure(const Error& error) { return failure_of(error); }

std::expected<DemoData, Failure> prepare_data(const DemoOptions& options, const Say& say) {
  std::error_code problem;
  std::filesystem::create_directories(options.folder, problem);
  if (problem) return fail_with(ExitCode::kIo, "cannot make the folder " + options.folder + ": " + problem.message());
  const std::string stem = options.folder + "/debian-" + std::to_string(options.dimension);
  DemoData data{stem + ".svm.gz", stem + ".test.svm.gz"};
  // Files appear whole or not at all, the held-out one last.
  if (std::filesystem::exists(data.train) && std::filesystem::exists(data.held_out)) {
    say("data: " + data.train + " (made by an earlier run)");
    return data;
  }
  say("data: making " + data.train + " from the package index");
  DebianDataOptions make;
  make.train_path = data.train;
  make.held_out_path = data.held_out;
  make.dimension = options.dimension;
  const auto made = make_debian_data(make);
  if (!made) return std::unexpected(failure(made.error()));
  say(fmt::format("data: {} packages, {} of them libraries; {} rows to train on, {} held out", made->packages,
                  made->libraries, made->train_rows, made->held_out_rows));
  return data;
}

/// The processes of the demonstration, ended with it in any case: workers first.
class Cluster {
 public:
  static std::expected<Cluster, Failure> start(const DemoOptions& options, Hosts hosts, const Say& say) {
    Cluster cluster(options, std::move(hosts));
    std::error_code ignored;
    const std::string table = options.folder + "/table";
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(table + suffix, ignored);
    for (uint32_t shard = 0; shard < options.shards; ++shard) {
      ShardProcessOptions process;
      process.shard = shard;
      process.shards = options.shards;
      process.host = cluster.hosts_.address(shard);
      process.network_namespace = cluster.hosts_.network_namespace(shard);
      process.table = table;
      process.log = options.folder + "/shard" + std::to_string(shard) + ".log";
      process.http = cluster.hosts_.address(shard) + ":0";
      process.timeout_ms = kStartTimeoutMs;
      std::filesystem::remove(process.log, ignored);
      auto started = ShardProcess::start(process);
      if (!started) return std::unexpected(start_failure(started.error()));
      const std::string inside =
          process.network_namespace.empty() ? "" : " (from inside: ip netns exec " + process.network_namespace + " …)";
      say(fmt::format("shard {}: {}, status page http://{}/{}", shard, started->address(), started->http_address(),
                      inside));
      const std::string address = started->address();
      cluster.servers_ += (shard == 0 ? "" : ",") + address.substr(address.find("//") + 2);
      cluster.shards_.push_back(std::move(*started));
    }
    return cluster;
  }

  void stop() {
    for (ShardProcess& shard : shards_) shard.stop(kStopGraceMs);
    shards_.clear();
  }

  /// Runs `millrace train` with `flags` in every worker; their JSON, by worker.
  std::expected<std::vector<json>, Failure> train(const std::string& job, const std::vector<std::string>& flags) {
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
      spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
      spawn.network_namespace = hosts_.network_namespace(options_.shards + worker);
      spawn.stderr_path = log_of(job, worker);
      std::error_code ignored;
      std::filesystem::remove(spawn.stderr_path, ignored);
      auto child = ChildProcess::spawn(spawn);
      if (!child) return std::unexpected(failure(child.error()));
      workers.push_back(std::move(*child));
    }
    if (auto done = wait(workers, job); !done) return std::unexpected(done.error());
    return outputs(workers, job);
  }

 private:
  Cluster(const DemoOptions& options, Hosts hosts) : options_(options), hosts_(std::move(hosts)) {}

  std::string log_of(const std::string& job, uint32_t worker) const {
    return options_.folder + "/" + job + "-worker" + std::to_string(worker) + ".log";
  }

  Outcome wait(std::vector<ChildProcess>& workers, const std::string& job) const {
    const InterruptionRequests& requests = interruption_requests();
    const TimeNs deadline = monotonic_now_ns() + kRunTimeoutMs * kNsPerMs;
    for (uint32_t done = 0; done < workers.size();) {
      if (monotonic_now_ns() > deadline)
        return fail_with(ExitCode::kJobEnded, "the workers did not finish; logs in " + options_.folder);
      const auto report = workers[done].wait(kLookEveryMs);
      // Ctrl-C reaches the workers as well: their end is then ours.
      if (requests.count() > 0)
        return fail_with(ExitCode::kInterrupted, "interrupted; every process of the demonstration is ended");
      if (!report) continue;
      if (report->exit_code != 0) {
        return fail_with(ExitCode::kJobEnded, fmt::format("worker {} ended with exit code {}; its log: {}", done,
                                                          report->exit_code, log_of(job, done)));
      }
      ++done;
    }
    return {};
  }

  std::expected<std::vector<json>, Failure> outputs(std::vector<ChildProcess>& workers, const std::string& job) const {
    std::vector<json> results;
    for (uint32_t worker = 0; worker < workers.size(); ++worker) {
      json last;
      while (auto line = workers[worker].read_line(kLookEveryMs)) last = json::parse(*line, nullptr, false);
      if (!last.is_object() || !last.contains("epochs") || last["epochs"].empty()) {
        return fail_with(ExitCode::kInternal,
                         fmt::format("worker {} printed no result; its log: {}", worker, log_of(job, worker)));
      }
      results.push_back(std::move(last));
    }
    return results;
  }

  const DemoOptions& options_;
  Hosts hosts_;
  std::string servers_;
  std::vector<ShardProcess> shards_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

DemoRow summarise(DemoRow row, const std::vector<json>& workers) {
  const json& first = workers.front();
  row.steps = first["steps"].get<uint64_t>();
  row.epochs = first["epochs"].size();
  std::vector<double> step_ms;
  std::vector<double> communication_ms;
  double entries = 0;
  for (const json& epoch : first["epochs"]) {
    const double steps = std::max(1.0, epoch["steps"].get<double>());
    step_ms.push_back(1e3 * epoch["seconds"].get<double>() / steps);
    communication_ms.push_back(1e3 * epoch["communication_s"].get<double>() / steps);
    entries += epoch["entries_up"].get<double>();
  }
  const json& held_out = first["epochs"].back()["held_out"];
  row.accuracy = held_out["accuracy"].get<double>();
  row.log_loss = held_out["log_loss"].get<double>();
  row.average_precision = held_out["average_precision"].get<double>();
  row.step_ms = median(step_ms);
  row.communication_ms = median(communication_ms);
  const double worker_steps = static_cast<double>(workers.size()) * static_cast<double>(row.steps);
  for (const json& worker : workers) {
    row.bytes_up += worker["bytes_up"].get<double>() / worker_steps;
    row.bytes_down += worker["bytes_down"].get<double>() / worker_steps;
  }
  row.entries_up = entries / static_cast<double>(row.steps);
  return row;
}

std::vector<std::string> shared_flags(const DemoOptions& options, const DemoData& data) {
  return {"--train",     data.train,
          "--test",      data.held_out,
          "--dimension", std::to_string(options.dimension),
          "--batch",     std::to_string(options.batch),
          "--lr",        fmt::format("{}", options.learning_rate),
          "--l2",        fmt::format("{}", options.l2)};
}

std::expected<DemoRow, Failure> run_row(Cluster& cluster, const std::vector<std::string>& shared, DemoRow row,
                                        const Say& say) {
  say(row.title + " …");
  std::vector<std::string> flags = shared;
  flags.insert(flags.end(), row.flags.begin(), row.flags.end());
  const auto outputs = cluster.train("demo-" + row.name, flags);
  if (!outputs) return std::unexpected(outputs.error());
  row = summarise(std::move(row), *outputs);
  say(fmt::format("{}: {} steps, held-out accuracy {:.4f}, {:.0f} bytes up and {:.0f} down a step, {:.1f} ms a step",
                  row.name, row.steps, row.accuracy, row.bytes_up, row.bytes_down, row.step_ms));
  return row;
}

/// Entries that the sparse row sends, from what the natural one did.
std::vector<std::string> sparse_flags(const DemoOptions& options, double natural_entries) {
  const auto up = static_cast<uint64_t>(std::max(2.0, std::floor(kSparseShare * natural_entries)));
  const auto down = static_cast<uint64_t>(std::ceil(kDownOverUp * static_cast<double>(up)));
  return {"--epochs",     std::to_string(options.epochs),
          "--select",     "topk:" + std::to_string(up),
          "--reselect",   "topk:" + std::to_string(down),
          "--codec-up",   "gap+qsgd4",
          "--codec-down", "gap+qsgd4"};
}

}  // namespace

std::expected<DemoResult, Failure> run_demo(const DemoOptions& options, const Say& say) {
  if (const Status valid = check_hosts(options.rate); !valid) return std::unexpected(failure(valid.error()));
  if (options.learning_rate * options.l2 >= 1)
    return fail_with(ExitCode::kUsage, "--lr times --l2 must be below 1: one step would shrink the weights to nothing");
  const auto data = prepare_data(options, say);
  if (!data) return std::unexpected(data.error());
  interruption_requests();
  auto hosts = Hosts::make(options.shards + options.workers, options.rate);
  if (!hosts) return std::unexpected(failure(hosts.error()));
  auto cluster = Cluster::start(options, std::move(*hosts), say);
  if (!cluster) return std::unexpected(cluster.error());
  const auto shared = shared_flags(options, *data);
  DemoResult result;
  DemoRow natural;
  natural.name = "natural";
  natural.title = "natural, lossless";
  natural.flags = {"--epochs", std::to_string(options.epochs), "--codec-up", "gap+raw", "--codec-down", "gap+raw"};
  DemoRow sparse;
  sparse.name = "sparse";
  sparse.title = "selected, 4 bits";
  DemoRow dense;
  dense.name = "dense";
  dense.title = "dense";
  dense.flags = {"--dense", "--steps", std::to_string(options.dense_steps)};
  for (DemoRow* row : {&natural, &sparse, &dense}) {
    if (row == &sparse) row->flags = sparse_flags(options, natural.entries_up);
    auto finished = run_row(*cluster, shared, *row, say);
    if (!finished) return std::unexpected(finished.error());
    *row = *finished;
    result.rows.push_back(std::move(*finished));
  }
  cluster->stop();
  return result;
}

}  // namespace millrace::cli
