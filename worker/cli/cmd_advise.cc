#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "worker/cli/commands.h"
#include "worker/cli/flag_range.h"
#include "worker/cli/json_text.h"
#include "worker/cli/table.h"
#include "worker/cli/units.h"
#include "worker/peer/kernel_speeds.h"
#include "worker/peer/planner.h"

namespace millrace::cli {
namespace {

struct AdviseFlags {
  uint64_t n = 0;
  double density = 0;
  uint32_t ranks = 0;
  std::string rate;
  std::string latency;
  std::optional<double> add_ns, add_value_ns;
  uint32_t threshold_period = 32;
  uint32_t boundary_period = 64;
  bool exact = false;
  bool json = false;
};

std::string result_name(peer::ResultKind kind) {
  return kind == peer::ResultKind::kExactSum ? "exact_sum" : "global_topk";
}

/// As they were given by hand, else as this machine has them now.
peer::KernelSpeeds kernel_speeds_of(const AdviseFlags& flags) {
  peer::KernelSpeeds speeds;
  if (!flags.add_ns || !flags.add_value_ns) speeds = peer::measure_kernel_speeds(&monotonic_now_ns);
  if (flags.add_ns) speeds.add_entry_s = *flags.add_ns * 1e-9;
  if (flags.add_value_ns) speeds.add_value_s = *flags.add_value_ns * 1e-9;
  return speeds;
}

Outcome run_advise(const AdviseFlags& flags) {
  const Result<TimeNs> latency = parse_duration(flags.latency);
  if (!latency) return fail_with(latency.error());
  const Result<double> rate = parse_rate(flags.rate);
  if (!rate) return fail_with(rate.error());
  const auto k = static_cast<uint64_t>(std::llround(flags.density * static_cast<double>(flags.n)));
  const peer::SumShape shape{.dimension = flags.n,
                             .k = std::max<uint64_t>(1, k),
                             .ranks = flags.ranks,
                             .threshold_period = flags.threshold_period,
                             .boundary_period = flags.boundary_period};
  const peer::KernelSpeeds kernels = kernel_speeds_of(flags);
  const peer::MachineSpeeds speeds{.latency_s = static_cast<double>(*latency) / kNsPerS,
                                   .byte_s = 1 / *rate,
                                   .add_entry_s = kernels.add_entry_s,
                                   .add_value_s = kernels.add_value_s};
  const auto wanted = flags.exact ? peer::Wanted::kExactSum : peer::Wanted::kAnyResult;
  const std::vector<peer::PlannedCost> ranking = peer::rank_algorithms(shape, speeds, wanted);
  const std::string reason = peer::reason_of(ranking, shape);
  const double support = peer::expected_support(shape.dimension, shape.k, shape.ranks);
  if (flags.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const peer::PlannedCost& one : ranking) {
      rows.push_back({{"algorithm", std::string(one.info.name)},
                      {"result", result_name(one.info.result)},
                      {"dense", one.info.dense_only},
                      {"total_ms", one.total_s() * 1e3},
                      {"latency_ms", one.latency_s * 1e3},
                      {"transfer_ms", one.transfer_s * 1e3},
                      {"add_ms", one.add_s * 1e3},
                      {"reevaluate_ms", one.reevaluate_s * 1e3}});
    }
    const nlohmann::json advice = {{"n", shape.dimension},
                                   {"k", shape.k},
                                   {"ranks", shape.ranks},
                                   {"sum_entries", support},
                                   {"reason", reason},
                                   {"rows", rows},
                                   {"add_ns", speeds.add_entry_s * 1e9},
                                   {"add_value_ns", speeds.add_value_s * 1e9}};
    fmt::print("{}\n", json_text(advice));
    return {};
  }
  std::vector<std::vector<std::string>> table = {
      {"algorithm", "result", "time", "messages", "bytes", "adding", "anew"}};
  for (const peer::PlannedCost& one : ranking) {
    table.push_back({std::string(one.info.name), result_name(one.info.result), duration_text(one.total_s()),
                     duration_text(one.latency_s), duration_text(one.transfer_s), duration_text(one.add_s),
                     duration_text(one.reevaluate_s)});
  }
  fmt::print("{}\n{}\nAdding: {:.2f} ns a sparse entry, {:.2f} ns a dense value ({}).\n", aligned_table(table), reason,
             speeds.add_entry_s * 1e9, speeds.add_value_s * 1e9,
             flags.add_ns && flags.add_value_ns ? "as given" : "measured here, where not given");
  return {};
}

}  // namespace

Command add_advise_command(CLI::App& root) {
  auto flags = std::make_shared<AdviseFlags>();
  CLI::App* app =
      root.add_subcommand("advise", "which allreduce among peers is the fastest here, and whether dense wins");
  app->add_option("--n", flags->n, "dimension")->required()->check(in_range(uint64_t{1}, uint64_t{1} << 32));
  app->add_option("--density", flags->density, "entries of a rank over the dimension")
      ->required()
      ->check(in_range(1e-12, 1.0));
  app->add_option("--ranks", flags->ranks)->required()->check(in_range(1u, 1u << 20));
  app->add_option("--rate", flags->rate, "of a rank's link: 1gbit, 2.5mbit")->required();
  app->add_option("--latency", flags->latency, "of a message: 20us, 1ms")->required();
  app->add_option("--add-ns", flags->add_ns, "for each sparse entry that is added; default: measured here (some ms)")
      ->check(in_range(0.0, 1e6));
  app->add_option("--add-value-ns", flags->add_value_ns, "for each dense value that is added; default: measured here")
      ->check(in_range(0.0, 1e6));
  app->add_option("--threshold-period", flags->threshold_period,
                  "oktopk: steps between exact thresholds (Ok-Topk's tau')")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app->add_option("--boundary-period", flags->boundary_period,
                  "oktopk: steps between two that find the ranks' regions anew (Ok-Topk's tau)")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app->add_flag("--exact", flags->exact, "exact sums only, no top-k of them");
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "Times are those of the papers' models (latency of messages, bytes over the rate, entries that are added, and "
      "what oktopk finds anew every so many steps, over these) for entries\n"
      "that lie uniformly, without codecs. Where ranks' entries overlap more, sparse sums are smaller and faster.\n"
      "How fast this machine adds is measured; --add-ns and --add-value-ns say it by hand, for another machine or for "
      "the\n"
      "same table twice.\n\n"
      "Example:\n"
      "  millrace advise --n 16777216 --density 0.01 --ranks 16 --rate 1gbit --latency 30us");
  return {app, [flags] { return run_advise(*flags); }};
}

}  // namespace millrace::cli
