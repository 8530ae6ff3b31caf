#include <fmt/core.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/standard_streams.h"
#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/peers/measured_child.h"
#include "worker/bench/peers/simulated_run.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/program/flag_range.h"
#include "worker/program/program.h"
#include "worker/program/table.h"
#include "worker/program/units.h"

namespace millrace::bench {

using monitoring::add_duration;
using monitoring::in_ns;
using monitoring::in_seconds;
using program::fail_with;
using program::in_range;
using program::one_of;

namespace {

using peer::AlgorithmInfo;
using peer::AllreduceSettings;
using peer::DistributionName;
using peer::ResultKind;
using peer::SimulatedRun;
using peer::SimulatedRunOptions;
using peer::SimulatedStep;

constexpr double kBitsOfByte = 8;

struct SimulateFlags {
  uint32_t ranks = 64;
  uint64_t n = 1 << 20;
  double density = 0.01;
  std::vector<std::string> algorithms = {"all"};
  TimeNs latency = kNsPerUs;
  TimeNs propagation = 0;
  double link_rate = 1e10;  ///< bits a second
  TimeNs jitter = 0;
  std::string distribution = "uniform";
  std::string boundaries = "averaged";
  double balance_ratio = 4;
  uint32_t steps = 1;
  double work_scale = 1;
  uint64_t seed = 1;
  uint64_t memory_bytes = uint64_t{8} << 30;  ///< of one algorithm's process
  uint32_t seconds = 600;
  bool json = false;
};

/// k entries of each rank; twice as many where the algorithm selects k of them by itself.
constexpr uint64_t kEntriesOfSelecting = 2;

std::expected<SimulatedRunOptions, program::Failure> simulate_options_of(const SimulateFlags& flags) {
  SimulatedRunOptions options;
  options.network.ranks = flags.ranks;
  options.network.latency = flags.latency;
  options.network.propagation = flags.propagation;
  options.network.jitter_max = flags.jitter;
  options.network.bytes_per_s = flags.link_rate / kBitsOfByte;
  options.network.work_scale = flags.work_scale;
  options.network.seed = flags.seed;
  // No rank is dead here: queries would be counted as messages.
  options.network.group.silence_ms_max = UINT32_MAX;
  const uint64_t k = std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(flags.n) * flags.density));
  options.settings.dimension = flags.n;
  options.settings.k = k;
  options.settings.boundaries = peer::boundaries_of(flags.boundaries);
  options.settings.balance_ratio = flags.balance_ratio;
  options.samples = {peer::find_distribution(flags.distribution).value(), flags.ranks, flags.n, k, flags.seed};
  options.steps = flags.steps;
  return options;
}

/// Bounded ones only where all ranks' dense results would not fit: the others have as much or more in flight.
std::expected<std::vector<AlgorithmInfo>, program::Failure> chosen(const SimulateFlags& flags) {
  std::vector<AlgorithmInfo> infos;
  const bool small = uint64_t{flags.ranks} * flags.n * sizeof(float) <= flags.memory_bytes / 2;
  for (const std::string& name : flags.algorithms) {
    if (name == "all" || name == "bounded") {
      for (const AlgorithmInfo& info : peer::algorithms()) {
        if (info.bounded_volume || (name == "all" && small && !info.chooses)) infos.push_back(info);
      }
      if (name == "all" && !small) {
        monitoring::say(fmt::format(
            "millrace-bench simulate: {} ranks' dense results are {:.0f} GB: only algorithms that keep their volume "
            "bounded; name others to run them",
            flags.ranks, static_cast<double>(flags.ranks) * static_cast<double>(flags.n) * 4e-9));
      }
      continue;
    }
    const AlgorithmInfo* info = peer::find_algorithm(name);
    if (info == nullptr) {
      std::string known;
      for (const AlgorithmInfo& one : peer::algorithms()) known.append(" ").append(one.name);
      return fail_with(program::ExitCode::kUsage,
                       fmt::format("--algorithm: there is no '{}'; all, bounded, or of:{}", name, known));
    }
    infos.push_back(*info);
  }
  return infos;
}

nlohmann::json mean_of(const AlgorithmInfo& info, const SimulatedRunOptions& options, const SimulatedRun& run,
                       std::string_view kind) {
  nlohmann::json row = {{"steps", std::string(kind)}};
  SimulatedStep sum;
  sum.correct = true;
  double count = 0, messages_max = 0, bytes_max = 0;
  for (const SimulatedStep& step : run.steps) {
    if (kind != "all" && step.evaluates != (kind == "re-evaluating")) continue;
    count += 1;
    sum.virtual_s += step.virtual_s;
    messages_max += static_cast<double>(step.messages_max);
    sum.messages_mean += step.messages_mean;
    bytes_max += static_cast<double>(step.bytes_max);
    sum.bytes_mean += step.bytes_mean;
    sum.words_max += step.words_max;
    sum.work_s_max += step.work_s_max;
    sum.correct = sum.correct && step.correct;
  }
  if (count == 0) return {};
  row["virtual_ms"] = sum.virtual_s / count * 1e3;
  row["work_ms_max"] = sum.work_s_max / count * 1e3;
  row["messages_max"] = messages_max / count;
  row["messages_mean"] = sum.messages_mean / count;
  row["bytes_max"] = bytes_max / count;
  row["bytes_mean"] = sum.bytes_mean / count;
  row["words_max"] = sum.words_max / count;
  if (info.result == ResultKind::kGlobalTopk && options.network.ranks > 1) {
    row["words_over_bound"] = sum.words_max / count / peer::words_bound(options.settings.k, options.network.ranks);
  }
  row["correct"] = sum.correct;
  return row;
}

/// Returns a row for steps of each kind, and their mean cost.
nlohmann::json rows_of(const AlgorithmInfo& info, const SimulatedRunOptions& options, const SimulatedRun& run) {
  nlohmann::json rows = nlohmann::json::array();
  if (peer::evaluating_share(info.id, options.settings) == 0) {
    rows.push_back(mean_of(info, options, run, "all"));
    return rows;
  }
  const nlohmann::json evaluating = mean_of(info, options, run, "re-evaluating");
  const nlohmann::json plain = mean_of(info, options, run, "others");
  for (const nlohmann::json& one : {plain, evaluating}) {
    if (!one.is_null()) rows.push_back(one);
  }
  if (evaluating.is_null() || plain.is_null()) return rows;
  const double share = peer::evaluating_share(info.id, options.settings);
  nlohmann::json amortised = {{"steps", "amortised"}};
  for (const auto& [key, value] : plain.items()) {
    if (value.is_number()) {
      amortised[key] = value.get<double>() * (1 - share) + evaluating.at(key).get<double>() * share;
    }
  }
  amortised["correct"] = plain.at("correct").get<bool>() && evaluating.at("correct").get<bool>();
  rows.push_back(std::move(amortised));
  return rows;
}

nlohmann::json simulate(const AlgorithmInfo& info, SimulatedRunOptions options) {
  if (info.selects)
    options.samples.count = std::min(options.samples.count * kEntriesOfSelecting, options.samples.dimension);
  const Result<SimulatedRun> run = peer::run_simulated(info.id, options);
  if (!run) return {{"error", run.error().message}};
  return {{"rows", rows_of(info, options, *run)},
          {"wall_s", run->wall_s},
          {"messages", run->messages},
          {"wall_us_a_message", run->messages == 0 ? 0.0 : run->wall_s * 1e6 / static_cast<double>(run->messages)}};
}

void print_simulated(const nlohmann::json& result) {
  std::vector<std::vector<std::string>> table = {{"algorithm", "steps", "virtual", "messages max", "mean", "kB max",
                                                  "mean", "words / 6k(P-1)/P", "wall s", "CPU s", "peak MB",
                                                  "checked"}};
  for (const nlohmann::json& row : result.at("rows")) {
    if (row.contains("error")) {
      table.push_back({row["algorithm"], "-", row["error"]});
      continue;
    }
    const auto number = [&row](const char* key, const char* form, double scale) {
      return row.contains(key) ? fmt::format(fmt::runtime(form), row[key].get<double>() * scale) : std::string("-");
    };
    table.push_back(
        {row["algorithm"], row["steps"], program::rounded_duration_text(row["virtual_ms"].get<double>() * 1e-3),
         number("messages_max", "{:.0f}", 1), number("messages_mean", "{:.1f}", 1), number("bytes_max", "{:.1f}", 1e-3),
         number("bytes_mean", "{:.1f}", 1e-3), number("words_over_bound", "{:.3f}", 1), number("wall_s", "{:.2f}", 1),
         number("processor_s", "{:.2f}", 1), number("peak_mb", "{:.0f}", 1),
         row["correct"].get<bool>() ? "agrees" : "DIFFERS"});
  }
  fmt::print("{}", program::aligned_table(table));
}

program::Outcome run_simulate(const SimulateFlags& flags) {
  const auto options = simulate_options_of(flags);
  if (!options) return std::unexpected(options.error());
  const auto infos = chosen(flags);
  if (!infos) return std::unexpected(infos.error());
  nlohmann::json rows = nlohmann::json::array();
  bool correct = true;
  for (const AlgorithmInfo& info : *infos) {
    nlohmann::json all =
        peer::run_in_child({flags.memory_bytes, flags.seconds}, [&] { return simulate(info, *options); });
    const nlohmann::json parts =
        all.contains("error") ? nlohmann::json::array({{{"error", all["error"]}}}) : all["rows"];
    all.erase("rows");
    for (nlohmann::json row : parts) {
      row["algorithm"] = std::string(info.name);
      row["result"] = info.result == ResultKind::kExactSum ? "exact_sum" : "global_topk";
      row["ranks"] = flags.ranks;
      row.update(all);
      correct = correct && row.value("correct", true);
      rows.push_back(std::move(row));
    }
  }
  const nlohmann::json whole = {{"benchmark", "peer_simulate"},
                                {"ranks", flags.ranks},
                                {"n", flags.n},
                                {"k", options->settings.k},
                                {"distribution", flags.distribution},
                                {"latency_ns", options->network.latency},
                                {"propagation_ns", options->network.propagation},
                                {"bytes_per_s", options->network.bytes_per_s},
                                {"work_scale", flags.work_scale},
                                {"seed", flags.seed},
                                {"rows", rows}};
  print_result(whole, {flags.json}, print_simulated);
  if (!correct) return fail_with(program::ExitCode::kInternal, "a result differs from the sum of the contributions");
  return {};
}

void add_network_flags(CLI::App& app, SimulateFlags& flags) {
  constexpr double kLeastRate = 1e3;
  app.option_defaults()->group("Network");
  add_duration(app, "--latency", in_ns(flags.latency), "alpha: of a message, while both its ports are busy");
  add_duration(app, "--propagation", in_ns(flags.propagation), "in flight beside that, with no port busy");
  monitoring::add_rate(app, "--link-rate", flags.link_rate, "of each link", kLeastRate)->default_str("10gbit");
  add_duration(app, "--jitter", in_ns(flags.jitter),
               "messages arrive later by up to this time, and overtake each other");
  app.add_option("--work-scale", flags.work_scale, "of the computation that is charged; 0: none")
      ->capture_default_str()
      ->check(in_range(0.0, 1e6));
}

std::vector<std::string> distribution_names() {
  std::vector<std::string> names;
  for (const DistributionName& one : peer::distributions()) names.emplace_back(one.name);
  return names;
}

}  // namespace

program::Command add_simulate(CLI::App& root) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* app = program::add_command(root, "simulate", "the allreduces on thousands of ranks, under a virtual clock");
  app->option_defaults()->group("Data");
  app->add_option("--ranks", flags->ranks, "that sum their contributions")
      ->capture_default_str()
      ->check(in_range(1u, 65'536u));
  app->add_option("--dimension", flags->n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{1}, uint64_t{1} << 32));
  app->add_option("--density", flags->density, "entries of a rank over the dimension")
      ->capture_default_str()
      ->check(in_range(1e-9, 1.0));
  app->option_defaults()->group("Collectives");
  app->add_option("--algorithm", flags->algorithms, "names, a row each; all; bounded: volume does not grow with ranks")
      ->delimiter(',')
      ->capture_default_str();
  add_network_flags(*app, *flags);
  app->option_defaults()->group("Data");
  app->add_option("--distribution", flags->distribution, "where the ranks' entries lie")
      ->capture_default_str()
      ->check(one_of(distribution_names()));
  app->option_defaults()->group("Collectives");
  app->add_option("--boundaries", flags->boundaries, "oktopk: how it divides the dimension among ranks")
      ->capture_default_str()
      ->check(one_of(peer::boundaries_names()));
  app->add_option("--balance-ratio", flags->balance_ratio,
                  "oktopk: balances the parts of the result where the largest exceeds this multiple of their average; "
                  "inf: never")
      ->capture_default_str()
      ->check(in_range(1.0, std::numeric_limits<double>::infinity()));
  app->option_defaults()->group("Measurement");
  app->add_option("--steps", flags->steps,
                  "one after another; oktopk re-evaluates in the first, and has rows of either kind from two on")
      ->capture_default_str()
      ->check(in_range(1u, 100'000u));
  app->add_option("--seed", flags->seed, "of contributions and jitter")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  app->option_defaults()->group("Limits");
  monitoring::add_size(*app, "--memory-limit", flags->memory_bytes, "of one algorithm's process", uint64_t{64} << 20,
                       uint64_t{1} << 44);
  add_duration(*app, "--time-limit", in_seconds(flags->seconds), "of processor time, of one algorithm",
               {.least = kNsPerS, .most = 1'000'000 * kNsPerS});
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "Each algorithm runs in a process of its own; wall seconds and peak memory are that process's. Messages and "
      "bytes\n"
      "are those that a rank sends in a step, headers among them. Every step is checked against the contributions' "
      "sum.\n\n"
      "Examples:\n"
      "  millrace-bench simulate --ranks 4096 --dimension 1048576 --density 0.01 --json\n"
      "  millrace-bench simulate --ranks 64 --algorithm oktopk --link-rate 1gbit --latency 30us --steps 64");
  return {app, [flags] { return run_simulate(*flags); }};
}

}  // namespace millrace::bench
