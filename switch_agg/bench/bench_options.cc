#include "switch_agg/bench/bench_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/base/clock.h"
#include "monitoring/command_line/completion.h"
#include "monitoring/command_line/config_flag.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/command_line/text_check.h"
#include "monitoring/command_line/usage_sentence.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/window/window_code.h"
#include "switch_agg/process/command_line.h"

namespace millrace::switch_agg {

using monitoring::add_size;
using monitoring::checked;
using monitoring::in_range;
using monitoring::one_of;

namespace {

constexpr const char* kBenchDescription =
    "millrace-switch-bench: measures the aggregator of millrace-switch.\n"
    "\n"
    "`traffic` runs one aggregator on packets that it makes up, and checks every sum. `load` sends contributions to a\n"
    "running millrace-switch, in another process or on another host, and takes the results.\n";
constexpr const char* kBenchFooter =
    "Examples\n"
    "  How fast one core of this machine is:\n"
    "    millrace-switch-bench traffic --pmd net_ring --json\n"
    "  A running switch, whose job 7 has the key 00 01 02 ... 1f:\n"
    "    millrace-switch-bench load --to 10.0.0.1:7700 --duration 10s\n"
    "\n"
    "Exit codes\n"
    "  0  the sums were right\n"
    "  1  a fault of Millrace itself, or the sums were wrong\n"
    "  2  usage: a flag is unknown, missing or out of range\n"
    "  5  this build has no DPDK\n"
    "  6  a device cannot be opened; no switch answers (load)\n";

/// Adds the flags that describe a job's packets: `traffic` makes them, `load` sends them.
template <typename Options>
void add_job_flags(CLI::App& command, Options& options) {
  command.option_defaults()->group("Job");
  command.add_option("--workers", options.workers, "Workers whose packets are made up")
      ->check(in_range(1u, protocol::kSwitchWorkersMax))
      ->capture_default_str();
  command
      .add_option("--switch-slots", options.slots,
                  "Slots of the job. A network needs slots x packet >= bandwidth x round trip")
      ->check(in_range(1u, protocol::kSlotsMax))
      ->capture_default_str();
  add_size(command, "--switch-packet-bytes", options.packet_bytes, "UDP payload of a contribution at most", 576, 8972);
  command.add_option("--density", options.density, "Part of a window's indices that each worker sends")
      ->check(in_range(1e-4, 0.5))
      ->capture_default_str();
}

void add_traffic(CLI::App& bench, BenchOptions& options) {
  monitoring::add_config_flag(bench);
  bench.option_defaults()->group("Switch");
  bench.add_option("--pmd", options.pmd, "net_ring: the path of DPDK with all headers; memory: packets alone")
      ->check(one_of({"net_ring", "memory"}))
      ->capture_default_str();
  bench
      .add_option("--lcores", options.lcores,
                  "Threads, each with slots, packets and a queue of its own; one is measured alone, then all of them")
      ->check(in_range(1u, 64u))
      ->capture_default_str();
  add_job_flags(bench, options);
  bench
      .add_option("--window-indices", options.window_indices,
                  "Of a window; 0: as many that a contribution fills a packet")
      ->check(in_range(0u, protocol::kWindowIndicesMax))
      ->capture_default_str();
  bench.option_defaults()->group("Measurement");
  bench.add_option("--packets", options.packets, "Contributions of a repetition, about")
      ->check(in_range(uint64_t{1000}, uint64_t{4'000'000}))
      ->capture_default_str();
  bench
      .add_option("--repeats", options.repeats,
                  "The same packets' worth so often; the report has the best and the median")
      ->check(in_range(1u, 1000u))
      ->capture_default_str();
  bench.add_option("--seed", options.seed, "Of indices and values")
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  bench.option_defaults()->group("Output");
  bench.add_flag("--json", options.json, "Prints one JSON object");
}

void add_load(CLI::App& load, LoadOptions& options, std::string& to, std::string& from) {
  const auto endpoint = checked([](const std::string& text) { return protocol::parse_endpoint(text); });
  monitoring::add_config_flag(load);
  load.option_defaults()->group("Switch");
  load.add_option("--to", to, "The switch, or what sends packets back")
      ->required()
      ->type_name("HOST:PORT")
      ->check(endpoint);
  load.add_option("--from", from, "Address to send from")
      ->type_name("HOST:PORT")
      ->check(endpoint)
      ->capture_default_str();
  auto* const echo = load.add_flag(
      "--echo", options.echo, "Expects the packets themselves back, as dpdk-testpmd --forward-mode=5tswap sends them");
  load.add_flag("--apart", options.apart,
                "Each worker draws its own indices: results are longer, of several packets (without it: all the same)")
      ->excludes(echo);
  add_job_flags(load, options);
  load.add_option("--switch-job", options.job, "Number of the switch's job, whose key is 00 01 02 ... 1f")
      ->check(in_range(0u, std::numeric_limits<uint32_t>::max()))
      ->capture_default_str();
  load.add_option("--window-indices", options.window_indices, "Of a window, as the switch's job has it")
      ->check(in_range(64u, protocol::kWindowIndicesMax))
      ->capture_default_str();
  load.option_defaults()->group("Measurement");
  monitoring::add_duration(load, "--duration", monitoring::in_seconds(options.seconds), "Time for which it sends",
                           {.least = 100 * kNsPerMs, .most = 3'600 * kNsPerS});
}

}  // namespace

std::variant<BenchOptions, LoadOptions, int> parse_bench_options(int argc, const char* const* argv) {
  BenchOptions bench_options;
  LoadOptions load_options;
  std::string load_to;
  std::string load_from = "0.0.0.0:0";
  CLI::App app(kBenchDescription, std::string(kBenchProgram.name));
  app.footer(fmt::format("{}\n{}\n", kBenchFooter, version_text(kBenchProgram.name)));
  app.set_version_flag("--version", version_text(kBenchProgram.name));
  monitoring::shape_command_line(app);
  app.require_subcommand(1);
  CLI::App* traffic =
      app.add_subcommand("traffic", "Measures how fast one core takes made-up packets, and checks the sums");
  add_traffic(*traffic, bench_options);
  traffic->footer(
      "Examples\n"
      "  millrace-switch-bench traffic --pmd net_ring --json\n"
      "  millrace-switch-bench traffic --pmd memory --lcores 2 --workers 8");
  CLI::App* load = app.add_subcommand("load", "Sends a running switch contributions of job 7 and takes the results");
  add_load(*load, load_options, load_to, load_from);
  load->footer(
      "Examples\n"
      "  millrace-switch-bench load --to 10.0.0.1:7700 --duration 10s\n"
      "  millrace-switch-bench load --to 10.0.0.1:7700 --workers 8 --apart --switch-slots 64");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help comes here too.
    return error.get_exit_code() == 0
               ? app.exit(error)
               : kBenchProgram.report_usage(monitoring::usage_sentence(monitoring::named_command(app), error));
  }
  if (*traffic) return bench_options;
  load_options.to = protocol::parse_endpoint(load_to).value();
  load_options.from = protocol::parse_endpoint(load_from).value();
  return load_options;
}

}  // namespace millrace::switch_agg
