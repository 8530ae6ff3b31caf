#include "worker/bench/converge/converge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "kernels/base/registry.h"
#include "worker/bench/converge/converge_data.h"
#include "worker/bench/converge/svg_plot.h"
#include "worker/config/option_table.h"
#include "worker/launch/namespace_hosts.h"
#include "worker/launch/training_cluster.h"
#include "worker/program/interruption.h"
#include "worker/training/trainer.h"

namespace millrace::bench {

using program::ExitCode;
using program::fail_with;

namespace {

using nlohmann::json;
using Say = std::function<void(const std::string&)>;

constexpr const char* kDense = "dense";
constexpr const char* kSynchronous = "synchronous";
constexpr double kKilobyte = 1e3;

bool wanted(const ConvergeOptions& options, const std::string& row) {
  return options.rows.empty() || std::ranges::find(options.rows, row) != options.rows.end();
}

/// Returns a worker that is not the slow one: its view is that of the job.
uint32_t observer(const ConvergeOptions& options) { return options.slow && options.slow->worker == 0 ? 1 : 0; }

double training_seconds(const json& worker) {
  double seconds = 0;
  for (const json& epoch : worker.at("epochs")) seconds += epoch.at("seconds").get<double>();
  return seconds;
}

program::Outcome check(const ConvergeOptions& options) {
  if (options.workers < 2) return fail_with(ExitCode::kUsage, "--workers: a mode that leaves one out needs two");
  if (options.slow && options.slow->worker >= options.workers) {
    return fail_with(ExitCode::kUsage, fmt::format("--slow-worker {} of --workers {}: workers count from 0",
                                                   options.slow->worker, options.workers));
  }
  if (options.slow && options.compute_ms == 0) {
    return fail_with(ExitCode::kUsage,
                     "--slow-worker is slower than --compute-time, which is 0: give the time of a step");
  }
  const std::vector<ConvergeRow> rows = converge_rows(options);
  for (const std::string& name : options.rows) {
    if (std::ranges::find(rows, name, &ConvergeRow::name) == rows.end())
      return fail_with(ExitCode::kUsage, fmt::format("--only: there is no row '{}'; there are {}", name,
                                                     listed_texts(rows, std::mem_fn(&ConvergeRow::name))));
  }
  training::TrainOptions train;
  train.job.workers = options.workers;
  train.me.shards = launch::addresses_to_come(options.shards);
  for (const auto& [name, text] : {std::pair("select", options.select), std::pair("reselect", options.reselect)}) {
    if (const Status set = worker::set_option(train.job, name, text); !set) return fail_with(set.error());
  }
  return training::check_job(train, 0);
}

std::vector<std::string> worker_flags(const ConvergeOptions& options, const TrainingData& data, const ConvergeRow& row,
                                      uint32_t worker) {
  const bool slow = options.slow && options.slow->worker == worker;
  const double compute_ms = options.compute_ms * (slow ? options.slow->factor : 1);
  std::vector<std::string> flags = {"--train",        data.train,
                                    "--dimension",    std::to_string(data.dimension),
                                    "--batch",        std::to_string(options.batch),
                                    "--lr",           fmt::format("{}", options.learning_rate),
                                    "--seed",         std::to_string(options.seed),
                                    "--job-steps",    std::to_string(options.rounds * row.rounds_per_step),
                                    "--epochs",       "1000000",
                                    "--compute-time", fmt::format("{}ms", std::llround(compute_ms))};
  if (worker == observer(options)) {
    const uint32_t every = std::max(1U, options.rounds / std::max(1U, options.points));
    flags.insert(flags.end(), {"--test", data.held_out, "--curve-every", std::to_string(every * row.rounds_per_step)});
  }
  flags.insert(flags.end(), row.flags.begin(), row.flags.end());
  return flags;
}

std::expected<json, program::Failure> run_row_converge(launch::TrainingCluster& cluster, const ConvergeOptions& options,
                                                       const TrainingData& data, const ConvergeRow& row,
                                                       const Say& say) {
  say(row.title + " …");
  const auto outputs =
      cluster.train("converge-" + row.name, [&](uint32_t worker) { return worker_flags(options, data, row, worker); });
  if (!outputs) return std::unexpected(outputs.error());
  json result = summarise_row(row, *outputs, options);
  say(fmt::format("{}: log-loss {:.4f} after {} rounds, {:.1f} kB a worker, {:.1f} rounds/s", row.title,
                  result["log_loss"].get<double>(), result["rounds"].get<uint64_t>(),
                  (result["bytes_up"].get<double>() + result["bytes_down"].get<double>()) / kKilobyte,
                  result["rounds_per_s"].get<double>()));
  return result;
}

PlotSeries series_of(const json& row, const char* against) {
  PlotSeries series{row["title"].get<std::string>(), {}};
  for (const json& point : row["curve"]) {
    const double bytes = point["bytes_up"].get<double>() + point["bytes_down"].get<double>();
    const double x = std::string(against) == "bytes" ? bytes : point["round"].get<double>();
    series.points.push_back({x, point["log_loss"].get<double>()});
  }
  return series;
}

}  // namespace

std::vector<ConvergeRow> converge_rows(const ConvergeOptions& options) {
  const std::string quorum = std::to_string(std::max(1U, options.workers - 1));
  const std::string half = std::to_string(std::max(1U, options.workers / 2));
  std::vector<ConvergeRow> rows = {
      {kDense, "dense, synchronous", {"--dense"}},
      {kSynchronous, "synchronous", {}},
      {"staleness-1", "staleness 1", {"--mode", "bounded_staleness", "--staleness", "1", "--quorum", quorum}},
      {"staleness-4", "staleness 4", {"--mode", "bounded_staleness", "--staleness", "4", "--quorum", quorum}},
      {"staleness-16", "staleness 16", {"--mode", "bounded_staleness", "--staleness", "16", "--quorum", quorum}},
      {"quorum", "partial, all but one", {"--mode", "partial", "--quorum", quorum}},
      {"half", "partial, half are drawn", {"--mode", "partial", "--participants", half}},
      {"half-deadline",
       "half, deadline",
       {"--mode", "partial", "--participants", half, "--deadline", options.deadline}},
      {"asynchronous", "asynchronous", {"--mode", "asynchronous"}, options.workers},
  };
  for (ConvergeRow& row : rows) {
    if (row.name == kDense) continue;
    row.flags.insert(row.flags.end(), {"--select", options.select});
    if (row.rounds_per_step == 1) row.flags.insert(row.flags.end(), {"--reselect", options.reselect});
  }
  return rows;
}

Result<SlowWorker> slow_worker_from_text(const std::string& text) {
  SlowWorker slow;
  const char* const end = text.data() + text.size();
  const auto [colon, worker_error] = std::from_chars(text.data(), end, slow.worker);
  if (worker_error == std::errc() && colon != end && *colon == ':') {
    const auto [rest, factor_error] = std::from_chars(colon + 1, end, slow.factor);
    if (factor_error == std::errc() && rest == end && slow.factor >= 1 && slow.factor <= 1000) return slow;
  }
  return fail(
      ErrorCode::kInvalidArgument,
      "'" + text + "' is not WORKER:FACTOR, a worker's number and how many times as long its steps take, 1 to 1000");
}

json summarise_row(const ConvergeRow& row, const std::vector<json>& workers, const ConvergeOptions& options) {
  const json& seen = workers.at(observer(options));
  const uint64_t rounds = seen.at("rounds").get<uint64_t>() / row.rounds_per_step;
  json curve = seen.at("curve");
  for (json& point : curve) point["round"] = point["round"].get<double>() / row.rounds_per_step;
  double rate = 0;
  double up = 0;
  double down = 0;
  uint64_t steps = 0;
  uint32_t measured = 0;
  json slow_steps;
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    const json& own = workers[worker];
    up += own.at("bytes_up").get<double>();
    down += own.at("bytes_down").get<double>();
    steps += own.at("steps").get<uint64_t>();
    if (options.slow && options.slow->worker == worker) {
      slow_steps = own.at("steps");
      continue;
    }
    rate += own.at("rounds_per_s").get<double>();
    ++measured;
  }
  const auto count = static_cast<double>(workers.size());
  json result = {
      {"algorithm", row.name},
      {"title", row.title},
      {"flags", row.flags},
      {"log_loss", curve.back().at("log_loss")},
      {"rounds", rounds},
      {"steps", steps},
      {"contributors", seen.at("contributions").get<double>() / static_cast<double>(std::max<uint64_t>(rounds, 1))},
      {"bytes_up", up / count},
      {"bytes_down", down / count},
      {"seconds", training_seconds(seen)},
      {"rounds_per_s", rate / measured / row.rounds_per_step},
      {"curve", std::move(curve)}};
  if (!slow_steps.is_null()) result["slow_steps"] = slow_steps;
  return result;
}

void compare_rows(json& rows) {
  const auto named = [&rows](const char* name) -> const json* {
    const auto found = std::ranges::find_if(rows, [name](const json& row) { return row["algorithm"] == name; });
    return found == rows.end() ? nullptr : &*found;
  };
  const auto bytes = [](const json& row) { return row["bytes_up"].get<double>() + row["bytes_down"].get<double>(); };
  const json* const dense = named(kDense);
  const json* const synchronous = named(kSynchronous);
  for (json& row : rows) {
    if (dense != nullptr) {
      row["log_loss_over_dense"] = row["log_loss"].get<double>() / (*dense)["log_loss"].get<double>();
      row["dense_bytes_over_this"] = bytes(*dense) / bytes(row);
    }
    if (synchronous != nullptr) {
      row["rate_over_synchronous"] = row["rounds_per_s"].get<double>() / (*synchronous)["rounds_per_s"].get<double>();
    }
  }
}

std::string converge_svg(const json& result) {
  std::vector<PlotPanel> panels(2);
  panels[0].x = {"rounds", AxisScale::kLinear};
  panels[1].x = {"bytes of a worker, up and down", AxisScale::kLogarithmic};
  for (PlotPanel& panel : panels) panel.y = {"held-out log-loss", AxisScale::kLogarithmic};
  for (const json& row : result["rows"]) {
    panels[0].series.push_back(series_of(row, "rounds"));
    panels[1].series.push_back(series_of(row, "bytes"));
  }
  const std::string slow =
      result["slow_worker"].is_null()
          ? ""
          : fmt::format(", worker {} {} times as slow", result["slow_worker"]["worker"].get<uint32_t>(),
                        result["slow_worker"]["factor"].get<double>());
  return plot_svg(fmt::format("{}: {} workers, {} shards{}", result["data"].get<std::string>(),
                              result["workers"].get<uint32_t>(), result["shards"].get<uint32_t>(), slow),
                  panels);
}

std::expected<json, program::Failure> bench_converge(const ConvergeOptions& options, const Say& say) {
  if (program::Outcome valid = check(options); !valid) return std::unexpected(valid.error());
  std::error_code problem;
  std::filesystem::create_directories(options.folder, problem);
  if (problem) return fail_with(ExitCode::kIo, "cannot make the folder " + options.folder + ": " + problem.message());
  program::interruption_requests();
  const auto data = training_data(options, say);
  if (!data) return fail_with(data.error());
  auto hosts = launch::Hosts::make(options.shards + options.workers, "");
  if (!hosts) return fail_with(hosts.error());
  auto cluster = launch::TrainingCluster::start(
      {.workers = options.workers, .shards = options.shards, .folder = options.folder, .what = "the benchmark"},
      std::move(*hosts), say);
  if (!cluster) return std::unexpected(cluster.error());
  json rows = json::array();
  for (const ConvergeRow& row : converge_rows(options)) {
    if (!wanted(options, row.name)) continue;
    auto finished = run_row_converge(*cluster, options, *data, row, say);
    if (!finished) return std::unexpected(finished.error());
    rows.push_back(std::move(*finished));
  }
  cluster->stop();
  compare_rows(rows);
  json result = {{"bench", "converge"},
                 {"data", data->name},
                 {"dimension", data->dimension},
                 {"workers", options.workers},
                 {"shards", options.shards},
                 {"rounds", options.rounds},
                 {"batch", options.batch},
                 {"learning_rate", options.learning_rate},
                 {"compute_ms", options.compute_ms},
                 {"slow_worker", nullptr},
                 {"rows", std::move(rows)}};
  if (options.slow) result["slow_worker"] = {{"worker", options.slow->worker}, {"factor", options.slow->factor}};
  return result;
}

}  // namespace millrace::bench
