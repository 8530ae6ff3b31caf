#include <fmt/core.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/rounds/serve.h"
#include "worker/program/flag_range.h"
#include "worker/program/option_flags.h"
#include "worker/program/program.h"

namespace millrace::bench {

using program::in_range;
using program::one_of;

namespace {

/// Options of a job that this benchmark has in common with millrace train.
constexpr std::array<std::string_view, 6> kServeJobOptions = {"parts_per_shard", "apply_after_acks", "switch_slots",
                                                              "switch_lanes",    "switch_codec",     "grid"};

struct BenchServeFlags {
  ServeBenchOptions options;  ///< options.job follows from `job` when all flags are read
  worker::JobFlags job{options.job, kServeJobOptions};
  bool json = false;
};

void print_table(const nlohmann::json& result) {
  fmt::print("{} workers, {} shards, n = {}, k = {}, {} rounds{}\n", result["workers"].get<int>(),
             result["shards"].get<int>(), result["n"].get<uint64_t>(), result["k"].get<uint64_t>(),
             result["rounds"].get<int>(),
             result["rate"].get<std::string>().empty() ? " on loopback"
                                                       : ", each process behind " + result["rate"].get<std::string>());
  fmt::print("{:<26} {:<10} {:>9} {:>9} {:>8} {:>11} {:>11} {:>8} {:>10} {:>9}\n", "row", "codec", "median ms",
             "p99 ms", "/ bare", "bytes up", "bytes down", "checked", "worker MB", "shard MB");
  for (const auto& row : result["rows"]) {
    const bool bare = row["algorithm"].get<std::string>().starts_with("raw_zmq");
    fmt::print("{:<26} {:<10} {:>9.2f} {:>9.2f} {:>8.2f} {:>11.0f} {:>11.0f} {:>8} {:>10.0f} {:>9.0f}\n",
               row["algorithm"].get<std::string>(), row.value("codec", "pairs"), row["round_ms"].get<double>(),
               row["round_p99_ms"].get<double>(), row.value("ratio_to_raw_zmq", 1.0), row["bytes_up"].get<double>(),
               row["bytes_down"].get<double>(),
               bare                                    ? "-"
               : row["agrees_with_oracle"].get<bool>() ? "agrees"
                                                       : "DIFFERS",
               row.value("worker_peak_mb", 0.0), row.value("shard_peak_mb", 0.0));
    if (row.contains("ratio_to_server"))
      fmt::print("{:<26} {:.3f} times the round by the shards\n", "", row["ratio_to_server"].get<double>());
    if (row.contains("ratio_to_straight_bytes")) {
      fmt::print("{:<26} {:.0f} bytes into shard 0 a round: {:.3f} of those without racks, {:.3f} of the coded union\n",
                 "", row["bytes_into_shard"].get<double>(), row["ratio_to_straight_bytes"].get<double>(),
                 row["ratio_to_coded_union"].get<double>());
    }
    if (row.contains("ratio_to_same_links"))
      fmt::print("{:<26} {:.3f} times the round of such links without a loss\n", "",
                 row["ratio_to_same_links"].get<double>());
    if (row.contains("ratio_to_plain_links"))
      fmt::print("{:<26} {:.3f} times that of links that carry bursts whole, without a loss\n", "",
                 row["ratio_to_plain_links"].get<double>());
    if (row.contains("audit_ratio"))
      fmt::print("{:<26} {:.3f} times the round without audit\n", "", row["audit_ratio"].get<double>());
    if (row.contains("ratio_to_without_keys"))
      fmt::print("{:<26} {:.3f} times the round without keys\n", "", row["ratio_to_without_keys"].get<double>());
  }
  fmt::print(
      "/ bare: against ZeroMQ with the allocator every program has; Millrace's programs run with a tuned one, as the "
      "last row "
      "does\n");
  fmt::print("bare ZeroMQ carries {:.2f} Gbit/s on the busiest link\n", result["raw_zmq_gbit_s"].get<double>());
}

program::Outcome run_bench_serve(const BenchServeFlags& flags) {
  ServeBenchOptions options = flags.options;
  auto job = worker::config_of(flags.job.draft);
  if (!job) return program::fail_with(job.error());
  options.job = std::move(*job);
  const auto result = run_cluster_bench("serve", [&options](const SayLine& say) { return bench_serve(options, say); });
  if (!result) return std::unexpected(result.error());
  print_result(*result, {flags.json}, print_table);
  return {};
}

void add_path_flags(CLI::App& app, ServeBenchOptions& options) {
  app.option_defaults()->group("Switch");
  const program::Choices<ServePath> paths = {
      {"server", ServePath::kServer}, {"switch", ServePath::kSwitch}, {"both", ServePath::kBoth}};
  program::add_choice(
      app, "--path", options.path, paths,
      "the process that adds up: server, switch (a millrace-switch, on a host whose link has no limit), or both "
      "in turn, with the ratio of the rounds' medians");
  app.add_option(
         "--racks", options.racks,
         "path switch: number of racks' switches (role combine) that add up in front of shard 0, which decides: "
         "rows without them, with them, and with each cutting its sums to its share of k; bytes into shard 0")
      ->check(in_range(1, 16));
  app.add_option("--mtu", options.mtu,
                 "of the links, with --link-rate: 9000 where they take jumbo frames; both paths have it")
      ->capture_default_str()
      ->check(in_range(1500, 9000));
}

}  // namespace

program::Command add_serve_bench(CLI::App& root) {
  auto flags = std::make_shared<BenchServeFlags>();
  auto& options = flags->options;
  CLI::App* app = program::add_command(root, "serve", "whole rounds of real shards and workers against bare ZeroMQ");
  app->option_defaults()->group("Cluster");
  add_cluster_flags(*app, {flags->job.draft.spec.workers, 1, 48, options.shards});
  app->option_defaults()->group("Data");
  app->add_option("--dimension", options.n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{16}, uint64_t{1} << 32));
  app->add_option("--density", options.density,
                  "entries that a worker pushes, and that an update has, over the dimension")
      ->capture_default_str()
      ->check(in_range(1e-9, 0.25));
  app->option_defaults()->group("Measurement");
  app->add_option("--rounds", options.rounds, "measured rounds")->capture_default_str()->check(in_range(1, 100'000));
  app->add_option("--warmup", options.warmup_rounds, "rounds before them")
      ->capture_default_str()
      ->check(in_range(0, 10'000));
  app->option_defaults()->group("Network");
  app->add_option("--link-rate", options.rate,
                  "every process in a network namespace of its own behind this rate (1gbit); needs root")
      ->type_name("RATE")
      ->check(program::not_empty());
  app->add_option("--loss", options.loss,
                  "the chance that a packet is lost on its way to a host, with --link-rate (0.01); needs nft. Rows are "
                  "measured without it, with bursts lost whole (+burst-loss), over links that carry packets one by "
                  "one (+single), and those with it (+loss)")
      ->check(in_range(0.0, 0.2));
  app->add_flag("--secure", options.secure,
                "rows are measured without and with keys (+keys) in turns, and compared: keys encrypt every message");
  app->option_defaults()->group("Measurement");
  app->add_option("--only", options.rows, "rows to measure")
      ->delimiter(',')
      ->check(one_of({"lossless", "qsgd4", "qsgd8"}));
  add_path_flags(*app, options);
  app->option_defaults()->group("Job");
  app->add_option("--codec", options.lossless_codec,
                  "of the row lossless (default: raw+raw on loopback, gap+raw behind a rate)")
      ->check(program::not_empty());
  const program::Choices<ServeAudit> audits = {
      {"off", ServeAudit::kOff}, {"on", ServeAudit::kOn}, {"both", ServeAudit::kBoth}};
  program::add_choice(*app, "--audit", options.audit, audits,
                      "off, on, or both in turn, with the ratio of the rounds' medians");
  app->add_option("--threshold-period", options.threshold_period, "steps between exact global thresholds")
      ->capture_default_str()
      ->check(in_range(1, 1 << 20));
  flags->job.add_to(*app);
  app->get_option("--parts-per-shard")->default_str("3; behind a rate 9, and 3 where values are quantized");
  app->get_option("--grid")->default_str(
      "65536:-12, with racks or over a density of 0.05 32768:-12 below an MTU of 4096");
  add_seed_and_json(*app, flags->job.draft.spec.seed, "of the data and of the round that is checked", flags->json);
  app->footer(
      "A round lasts from the common start until the update, cut to the global top-k, is applied on every worker. Bare "
      "ZeroMQ\n"
      "carries as many entries as plain 8-byte pairs over the same sockets, before and after; compare with it, not "
      "with the clock.\n\n"
      "Examples:\n"
      "  millrace-bench serve --workers 4 --shards 2 --dimension 16777216 --density 0.01 --rounds 50 --json\n"
      "  millrace-bench serve --link-rate 1gbit\n"
      "  millrace-bench serve --only lossless --audit both\n"
      "  millrace-bench serve --only lossless --secure\n"
      "  millrace-bench serve --workers 8 --link-rate 1gbit --only lossless --path both\n"
      "  millrace-bench serve --workers 8 --link-rate 1gbit --path switch --racks 2\n"
      "  millrace-bench serve --workers 8 --link-rate 1gbit --loss 0.01 --path switch\n"
      "  millrace-bench serve --dimension 4294967296 --density 1e-5 --only lossless\n\n" +
      program::exit_code_table());
  return {app, [flags] { return run_bench_serve(*flags); }};
}

}  // namespace millrace::bench
