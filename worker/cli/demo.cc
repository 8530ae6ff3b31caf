#include "worker/cli/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "worker/launch/namespace_hosts.h"
#include "worker/launch/training_cluster.h"
#include "worker/program/interruption.h"
#include "worker/training/data/data_debian.h"

namespace millrace::cli {

using launch::TrainingCluster;
using program::ExitCode;
using program::fail_with;
using program::Failure;
using program::Outcome;
using training::DataFiles;

namespace {

using nlohmann::json;
using Say = std::function<void(const std::string&)>;

constexpr double kSparseShare = 0.095;  // of the natural count of entries: less than a tenth
constexpr double kDownOverUp = 3;       // entries that return for each that a worker sends
constexpr const char* kNatural = "natural";

Failure failure(const Error& error) { return program::failure_of(error); }

std::expected<DataFiles, Failure> prepare_data(const DemoOptions& options, const Say& say) {
  std::error_code problem;
  std::filesystem::create_directories(options.folder, problem);
  if (problem) return fail_with(ExitCode::kIo, "cannot make the folder " + options.folder + ": " + problem.message());
  DataFiles files = training::debian_files(options.folder, options.dimension);
  if (Status kept = training::keep_debian_data(files, options.dimension, say); !kept)
    return std::unexpected(failure(kept.error()));
  return files;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// workers  that were there from the beginning to the end. In modes that leave workers out one may have come too late
///          for all.
DemoRow summarise(DemoRow row, std::span<const json> workers) {
  const auto steps_of = [](const json& worker) { return worker["steps"].get<uint64_t>(); };
  const json& first = *std::ranges::max_element(workers, {}, steps_of);
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
  double worker_steps = 0;
  for (const json& worker : workers) worker_steps += worker["steps"].get<double>();
  for (const json& worker : workers) {
    row.bytes_up += worker["bytes_up"].get<double>() / worker_steps;
    row.bytes_down += worker["bytes_down"].get<double>() / worker_steps;
  }
  row.entries_up = entries / static_cast<double>(row.steps);
  return row;
}

std::vector<std::string> shared_flags(const DemoOptions& options, const DataFiles& data) {
  std::vector<std::string> flags = {"--train", data.train, "--test", data.held_out};
  std::ranges::copy(demo_train_flags(options), std::back_inserter(flags));
  return flags;
}

/// Describes the process to kill in a row that has another one's flags, when half of that one's steps are made.
struct RowKill {
  TrainingCluster::Kill::Whom whom;
  uint32_t number = 0;
  uint64_t steps = 0;
  std::string state;   ///< the moment is when it is saved for the first time
  uint32_t saver = 0;  ///< the worker that saves it
};

RowKill kill_in(const DemoOptions& options, const DemoRow& row) {
  const bool shard = row.name == kNatural;
  RowKill kill;
  kill.whom = shard ? TrainingCluster::Kill::Whom::kShard : TrainingCluster::Kill::Whom::kWorker;
  kill.number = shard ? options.shards - 1 : options.workers - 1;
  kill.saver = shard ? 0 : kill.number;
  kill.steps = std::max<uint64_t>(1, row.steps / 2);
  kill.state = options.folder + "/demo.state";
  return kill;
}

std::expected<DemoRow, Failure> run_row(TrainingCluster& cluster, const std::vector<std::string>& shared, DemoRow row,
                                        const std::optional<RowKill>& kill, const Say& say) {
  say(row.title + " …");
  const auto flags_of = [&](uint32_t worker) {
    std::vector<std::string> flags = shared;
    flags.insert(flags.end(), row.flags.begin(), row.flags.end());
    if (kill && worker == kill->saver) {
      const std::string steps = std::to_string(kill->steps);
      flags.insert(flags.end(), {"--state", kill->state, "--save-every", steps});
    }
    return flags;
  };
  std::optional<TrainingCluster::Kill> what;
  if (kill) what = {.whom = kill->whom, .number = kill->number, .when_there = kill->state};
  const auto outputs = cluster.train("demo-" + row.name, flags_of, what);
  if (!outputs) return std::unexpected(outputs.error());
  // The last worker's figures are those of its second incarnation, where it was killed.
  const bool all = !kill || kill->whom == TrainingCluster::Kill::Whom::kShard;
  row = summarise(std::move(row), std::span(*outputs).first(outputs->size() - (all ? 0 : 1)));
  say(fmt::format("{}: {} steps, held-out accuracy {:.4f}, {:.0f} bytes up and {:.0f} down a step, {:.1f} ms a step",
                  row.name, row.steps, row.accuracy, row.bytes_up, row.bytes_down, row.step_ms));
  return row;
}

/// Returns the flags for the entries that the sparse row sends, from the number of the natural one.
std::vector<std::string> sparse_flags(const DemoOptions& options, double natural_entries) {
  const auto up = static_cast<uint64_t>(std::max(2.0, std::floor(kSparseShare * natural_entries)));
  const auto down = static_cast<uint64_t>(std::ceil(kDownOverUp * static_cast<double>(up)));
  std::vector<std::string> flags = {"--epochs",     std::to_string(options.epochs),
                                    "--select",     "topk:" + std::to_string(up),
                                    "--codec-up",   "gap+qsgd4",
                                    "--codec-down", "gap+qsgd4"};
  // In mode asynchronous an update is one worker's: there is nothing to cut.
  const bool alone = std::ranges::find(options.job_flags, "asynchronous") != options.job_flags.end();
  if (!alone) flags.insert(flags.end(), {"--reselect", "topk:" + std::to_string(down)});
  return flags;
}

bool same_bytes(const std::string& a, const std::string& b) {
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string first = bytes(a);
  return !first.empty() && first == bytes(b);
}

std::string model_path(const DemoOptions& options, const std::string& row) {
  return options.folder + "/" + row + ".model";
}

/// Runs a row, and with `kill` the same once more with a process killed in its middle.
Outcome run_rows(TrainingCluster& cluster, const DemoOptions& options, const std::vector<std::string>& shared,
                 DemoRow row, std::vector<DemoRow>& rows, const Say& say) {
  const std::vector<std::string> flags = row.flags;
  const auto keeping_model = [&](const std::string& name) {
    std::vector<std::string> all = flags;
    if (options.kill) all.insert(all.end(), {"--output", model_path(options, name)});
    return all;
  };
  row.flags = keeping_model(row.name);
  auto finished = run_row(cluster, shared, std::move(row), std::nullopt, say);
  if (!finished) return std::unexpected(finished.error());
  rows.push_back(*finished);
  if (!options.kill) return {};
  const RowKill kill = kill_in(options, *finished);
  DemoRow again;
  again.name = finished->name + "-killed";
  const bool shard = kill.whom == TrainingCluster::Kill::Whom::kShard;
  again.title = fmt::format("the same, {} {} killed", shard ? "shard" : "worker", kill.number);
  again.flags = keeping_model(again.name);
  auto killed = run_row(cluster, shared, std::move(again), kill, say);
  if (!killed) return std::unexpected(killed.error());
  killed->same_model = same_bytes(model_path(options, finished->name), model_path(options, killed->name));
  std::error_code ignored;
  for (const std::string& name : {finished->name, killed->name})
    std::filesystem::remove(model_path(options, name), ignored);
  rows.push_back(std::move(*killed));
  return {};
}

}  // namespace

bool has_store(const DemoOptions& options) {
  return std::ranges::find(options.job_flags, "--store") != options.job_flags.end();
}

std::vector<std::string> demo_train_flags(const DemoOptions& options) {
  std::vector<std::string> flags = {"--dimension", std::to_string(options.dimension), "--batch",
                                    std::to_string(options.batch)};
  // With a store the rate is the store's, and there is no L2.
  if (!has_store(options)) {
    flags.insert(flags.end(),
                 {"--lr", fmt::format("{}", options.learning_rate), "--l2", fmt::format("{}", options.l2)});
  }
  flags.insert(flags.end(), options.job_flags.begin(), options.job_flags.end());
  return flags;
}

std::expected<DemoResult, Failure> run_demo(const DemoOptions& options, const Say& say) {
  if (const Status valid = launch::check_hosts(options.rate); !valid) return std::unexpected(failure(valid.error()));
  if (options.kill && options.workers < 2)
    return fail_with(ExitCode::kUsage, "--kill: the others continue while a worker is gone; --workers 2 at least");
  if (options.kill && has_store(options)) {
    return fail_with(ExitCode::kUsage,
                     "--kill: a worker rejoins with the weights of another worker; with --store the servers have them");
  }
  if (options.learning_rate * options.l2 >= 1)
    return fail_with(ExitCode::kUsage, "--lr times --l2 must be below 1: one step would shrink the weights to nothing");
  const auto data = prepare_data(options, say);
  if (!data) return std::unexpected(data.error());
  program::interruption_requests();
  auto hosts = launch::Hosts::make(options.shards + options.workers, options.rate);
  if (!hosts) return std::unexpected(failure(hosts.error()));
  auto cluster = TrainingCluster::start(
      {.workers = options.workers, .shards = options.shards, .folder = options.folder, .what = "the demonstration"},
      std::move(*hosts), say);
  if (!cluster) return std::unexpected(cluster.error());
  const auto shared = shared_flags(options, *data);
  DemoResult result;
  DemoRow natural;
  natural.name = kNatural;
  natural.title = "natural, lossless";
  natural.flags = {"--epochs", std::to_string(options.epochs), "--codec-up", "gap+raw", "--codec-down", "gap+raw"};
  if (Outcome done = run_rows(*cluster, options, shared, std::move(natural), result.rows, say); !done)
    return std::unexpected(done.error());
  DemoRow sparse;
  sparse.name = "sparse";
  sparse.title = "selected, 4 bits";
  sparse.flags = sparse_flags(options, result.rows.front().entries_up);
  if (Outcome done = run_rows(*cluster, options, shared, std::move(sparse), result.rows, say); !done)
    return std::unexpected(done.error());
  DemoRow dense;
  dense.name = "dense";
  dense.title = "dense";
  dense.flags = {"--dense", "--steps", std::to_string(options.dense_steps)};
  auto finished = run_row(*cluster, shared, std::move(dense), std::nullopt, say);
  if (!finished) return std::unexpected(finished.error());
  result.rows.push_back(std::move(*finished));
  cluster->stop();
  return result;
}

}  // namespace millrace::cli
