#include "worker/bench/rounds/crowd.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "kernels/base/random.h"
#include "worker/bench/rounds/serve_shared.h"
#include "worker/bench/rounds/serve_worker.h"
#include "worker/launch/child_end.h"
#include "worker/launch/child_process.h"
#include "worker/launch/shard_process.h"
#include "worker/program/interruption.h"
#include "worker/program/scratch_folder.h"

namespace millrace::bench {

using launch::ChildProcess;
using launch::ShardProcess;
using program::ExitCode;
using program::fail_with;
using program::Failure;

namespace {

using nlohmann::json;
using Progress = std::function<void(const std::string&)>;

constexpr int kCrowdLookEveryMs = 200;
constexpr int kBaseTimeoutMs = 120'000;
constexpr int kRoundTimeoutMs = 10'000;
constexpr double kCrowdMegabyte = 1e6;

/// Body of a process: the workers first, first + stride, ... as threads; the worst of their exit codes.
int run_threads(const ServeWorkerSetup& setup, uint32_t first, uint32_t stride, ServeShared& shared) {
  std::vector<int> codes(setup.workers, 0);
  std::vector<std::thread> threads;
  for (uint32_t worker = first; worker < setup.workers; worker += stride) {
    threads.emplace_back([&, worker] {
      codes[worker] = run_serve_worker(setup, worker, shared);
      // The others wait for it at the barrier, for ever.
      if (codes[worker] != 0) std::_Exit(codes[worker]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::ranges::max(codes);
}

ServeWorkerSetup crowd_setup_of(const CrowdOptions& options, uint32_t workers, std::vector<std::string> shards) {
  ServeWorkerSetup setup;
  setup.job = "crowd-" + std::to_string(workers);
  setup.workers = workers;
  setup.shards = std::move(shards);
  setup.n = options.n;
  setup.k =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(options.density * static_cast<double>(options.n))));
  setup.seed = options.seed;
  setup.rounds = options.rounds + options.warmup_rounds;
  setup.first_measured = options.warmup_rounds;
  RandomSequence random(random_key(options.seed, workers));
  setup.checked_round = options.warmup_rounds + static_cast<uint32_t>(random.next_below(options.rounds));
  setup.parts_per_shard = options.parts_per_shard;
  setup.codec = options.codec;
  return setup;
}

/// One row's shards, with a table and a folder of their own.
std::expected<std::vector<ShardProcess>, Failure> start_shards(const CrowdOptions& options, const std::string& folder) {
  std::vector<ShardProcess> shards;
  for (uint32_t shard = 0; shard < options.shards; ++shard) {
    launch::ShardProcessOptions process;
    process.shard = shard;
    process.shards = options.shards;
    process.table = folder + "/table";
    process.log = folder + "/shard" + std::to_string(shard) + ".log";
    auto started = ShardProcess::start(process);
    if (!started) return std::unexpected(program::failure_of(started.error(), program::ErrorPlace::kShard));
    shards.push_back(std::move(*started));
  }
  return shards;
}

program::Outcome wait_for(std::vector<ChildProcess>& processes, const ServeWorkerSetup& setup, ServeShared& shared) {
  const TimeNs deadline = monotonic_now_ns() + (kBaseTimeoutMs + TimeNs{setup.rounds} * kRoundTimeoutMs) * kNsPerMs;
  for (size_t done = 0; done < processes.size();) {
    if (program::interruption_requests().count() > 0) return fail_with(ExitCode::kInterrupted, "interrupted");
    if (monotonic_now_ns() > deadline) return fail_with(ExitCode::kJobEnded, "the workers did not finish in time");
    // Any of them may end first, and badly.
    for (size_t at = 0; at < processes.size(); ++at) {
      const auto report = processes[at].try_wait();
      if (!report || report->exit_code == 0) continue;
      std::string sentence = "process " + std::to_string(at) + " ended with code " + std::to_string(report->exit_code);
      for (uint32_t worker = 0; worker < setup.workers; ++worker) {
        if (shared.report(worker).failure[0] == '\0') continue;
        sentence += "; worker " + std::to_string(worker) + ": " + shared.report(worker).failure;
        break;
      }
      return fail_with(launch::code_of_child_end(report->exit_code), sentence);
    }
    if (processes[done].wait(kCrowdLookEveryMs)) ++done;
  }
  return {};
}

double crowd_quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::llround(q * static_cast<double>(values.size() - 1)))];
}

struct CrowdMeasured {
  CrowdRow row;
  json more;
};

CrowdMeasured measured(const CrowdOptions& options, const ServeWorkerSetup& setup, ServeShared& shared,
                       TimeNs started) {
  CrowdMeasured result;
  CrowdRow& row = result.row;
  row.workers = setup.workers;
  std::vector<double> times;
  for (uint32_t round = options.warmup_rounds; round < setup.rounds; ++round) times.push_back(shared.round_ms(round));
  row.round_ms = crowd_quantile(times, 0.5);
  const double worker_rounds = static_cast<double>(setup.workers) * options.rounds;
  for (uint32_t worker = 0; worker < setup.workers; ++worker) {
    row.bytes_up += static_cast<double>(shared.report(worker).bytes_up) / worker_rounds;
    row.bytes_down += static_cast<double>(shared.report(worker).bytes_down) / worker_rounds;
  }
  result.more = {{"round_p99_ms", crowd_quantile(times, 0.99)},
                 {"round_min_ms", crowd_quantile(times, 0)},
                 {"start_s", static_cast<double>(shared.start_ns(0, 0) - started) / static_cast<double>(kNsPerS)},
                 {"agrees_with_oracle", shared.report(0).check == 1}};
  return result;
}

std::expected<CrowdMeasured, Failure> run_row_crowd(const CrowdOptions& options, uint32_t workers,
                                                    const std::string& folder) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) return fail_with(ExitCode::kIo, "cannot make the folder " + folder + ": " + problem.message());
  auto shards = start_shards(options, folder);
  if (!shards) return std::unexpected(shards.error());
  std::vector<std::string> addresses;
  for (const ShardProcess& shard : *shards) addresses.push_back(shard.address());
  const ServeWorkerSetup setup = crowd_setup_of(options, workers, std::move(addresses));
  auto shared = ServeShared::create(workers, setup.rounds);
  if (!shared) return fail_with(shared.error());
  const TimeNs started = monotonic_now_ns();
  std::vector<ChildProcess> processes;
  const uint32_t count = std::min(options.processes, workers);
  for (uint32_t process = 0; process < count; ++process) {
    auto child = ChildProcess::fork_call({}, [&, process] { return run_threads(setup, process, count, **shared); });
    if (!child) return fail_with(child.error());
    processes.push_back(std::move(*child));
  }
  if (auto done = wait_for(processes, setup, **shared); !done) {
    return fail_with(done.error().code, std::to_string(workers) + " workers: " + done.error().message +
                                            " (servers' logs: " + folder + ")");
  }
  CrowdMeasured result = measured(options, setup, **shared, started);
  double seconds = 0;
  for (ShardProcess& shard : *shards) {
    const launch::ExitReport report = shard.stop();
    seconds += report.cpu_seconds;
    result.row.shard_memory_bytes =
        std::max(result.row.shard_memory_bytes, static_cast<double>(report.peak_memory_bytes));
  }
  result.more["shard_cpu_s"] = seconds;
  return result;
}

json crowd_row_json(const CrowdMeasured& measured, const CrowdRow& first, uint32_t shards) {
  const CrowdRow& row = measured.row;
  json result = {{"algorithm", std::to_string(row.workers) + " workers"},
                 {"workers", row.workers},
                 {"round_ms", row.round_ms},
                 {"bytes_up", row.bytes_up},
                 {"bytes_down", row.bytes_down},
                 {"shard_peak_mb", row.shard_memory_bytes / kCrowdMegabyte}};
  result.update(measured.more);
  result.update(compare_crowd(row, first, shards));
  return result;
}

}  // namespace

json compare_crowd(const CrowdRow& row, const CrowdRow& first, uint32_t shards) {
  const auto ms_a_byte = [](const CrowdRow& one) {
    return one.round_ms / (one.workers * (one.bytes_up + one.bytes_down));
  };
  json result = {{"time_per_byte_over_first", ms_a_byte(row) / ms_a_byte(first)}};
  if (row.workers <= first.workers) return result;
  const double memory = (row.shard_memory_bytes - first.shard_memory_bytes) / (row.workers - first.workers);
  result["memory_a_worker_bytes"] = memory;
  result["memory_over_stream"] = memory / row.bytes_up;
  result["memory_over_stream_here"] = memory / (row.bytes_up / shards);
  return result;
}

std::expected<json, Failure> bench_crowd(const CrowdOptions& options, const Progress& progress) {
  program::interruption_requests();
  const std::vector<std::string> nobody = launch::addresses_to_come(options.shards);
  for (const uint32_t workers : options.workers) {
    if (Status valid = check_serve_job(crowd_setup_of(options, workers, nobody)); !valid)
      return fail_with(valid.error());
  }
  if (options.workers.empty() || !std::ranges::is_sorted(options.workers, std::ranges::less_equal()))
    return fail_with(ExitCode::kUsage, "--workers: numbers that increase, at least one");
  auto folder = program::ScratchFolder::make("millrace-crowd");
  if (!folder) return fail_with(folder.error());
  json rows = json::array();
  CrowdRow first;
  for (const uint32_t workers : options.workers) {
    progress(std::to_string(workers) + " workers, " + std::to_string(options.rounds) + " rounds");
    auto row = run_row_crowd(options, workers, folder->path() + "/" + std::to_string(workers));
    if (!row) {
      // The servers' logs stay where the failure points to them, and nowhere else.
      if (row.error().code != ExitCode::kInterrupted) folder->keep();
      return std::unexpected(row.error());
    }
    if (rows.empty()) first = row->row;
    rows.push_back(crowd_row_json(*row, first, options.shards));
  }
  return json{{"bench", "crowd"},       {"shards", options.shards},   {"processes", options.processes},
              {"n", options.n},         {"density", options.density}, {"rounds", options.rounds},
              {"codec", options.codec}, {"rows", std::move(rows)}};
}

}  // namespace millrace::bench
