#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/rounds/crowd.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/program/table.h"

namespace millrace::bench {

using program::in_range;

namespace {

struct CrowdFlags {
  CrowdOptions options;
  bool json = false;
};

void print_crowd_rows(const nlohmann::json& result) {
  std::vector<std::vector<std::string>> table = {{"workers", "round ms", "p99 ms", "kB up", "kB down", "MB a round",
                                                  "time a byte / first", "shard MB", "kB a worker", "/ stream",
                                                  "/ here", "start s", "checked"}};
  for (const auto& row : result["rows"]) {
    const auto number = [&row](const char* key, const char* form, double scale = 1) {
      return row.contains(key) ? fmt::format(fmt::runtime(form), row[key].get<double>() * scale) : std::string("-");
    };
    const double bytes =
        row["workers"].get<double>() * (row["bytes_up"].get<double>() + row["bytes_down"].get<double>());
    table.push_back({program::json_text(row["workers"]), number("round_ms", "{:.1f}"), number("round_p99_ms", "{:.1f}"),
                     number("bytes_up", "{:.1f}", 1e-3), number("bytes_down", "{:.1f}", 1e-3),
                     fmt::format("{:.2f}", bytes * 1e-6), number("time_per_byte_over_first", "{:.2f}"),
                     number("shard_peak_mb", "{:.0f}"), number("memory_a_worker_bytes", "{:.0f}", 1e-3),
                     number("memory_over_stream", "{:.2f}"), number("memory_over_stream_here", "{:.2f}"),
                     number("start_s", "{:.1f}"), row["agrees_with_oracle"].get<bool>() ? "agrees" : "DIFFERS"});
  }
  fmt::print("{}", program::aligned_table(table));
  fmt::print(
      "\nkB a worker: growth of a shard's resident set for each worker more than in the first row; over all the "
      "bytes that a "
      "worker\nsends in a round, and over those that it sends to one shard.\n");
}

program::Outcome run_crowd(const CrowdFlags& flags) {
  const auto result =
      run_cluster_bench("crowd", [&flags](const SayLine& say) { return bench_crowd(flags.options, say); });
  if (!result) return std::unexpected(result.error());
  if (flags.json) {
    fmt::print("{}\n", result->dump());
  } else {
    print_crowd_rows(*result);
  }
  return {};
}

}  // namespace

program::Command add_crowd_bench(CLI::App& root) {
  auto flags = std::make_shared<CrowdFlags>();
  auto& options = flags->options;
  CLI::App* app =
      program::add_command(root, "crowd", "whole rounds with ever more workers: time, bytes, a shard's memory");
  app->option_defaults()->group("Cluster");
  app->add_option("--workers", options.workers, "numbers of workers, a row each")
      ->delimiter(',')
      ->capture_default_str()
      ->check(in_range(1, 1024));
  app->add_option("--processes", options.processes, "that the workers are threads of")
      ->capture_default_str()
      ->check(in_range(1, 64));
  app->add_option("--shards", options.shards, "server processes")->capture_default_str()->check(in_range(1, 16));
  app->option_defaults()->group("Data");
  app->add_option("--dimension", options.n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{16}, uint64_t{1} << 28));
  app->add_option("--density", options.density,
                  "entries that a worker pushes, and that an update has, over the dimension")
      ->capture_default_str()
      ->check(in_range(1e-9, 0.25));
  app->option_defaults()->group("Measurement");
  app->add_option("--rounds", options.rounds, "measured rounds")->capture_default_str()->check(in_range(1, 100'000));
  app->add_option("--warmup", options.warmup_rounds, "rounds before them")
      ->capture_default_str()
      ->check(in_range(0, 10'000));
  app->option_defaults()->group("Job");
  app->add_option("--parts-per-shard", options.parts_per_shard, "parts a shard")
      ->capture_default_str()
      ->check(in_range(1, 64));
  app->add_option("--codec", options.codec, "both ways; it must not lose anything")
      ->capture_default_str()
      ->check(program::not_empty());
  add_seed_and_json(*app, options.seed, "of the data and of the round that is checked", flags->json);
  app->footer(
      "Every worker is a session with connections of its own; all of them share this machine's cores with the shards, "
      "so "
      "that a\n"
      "round of twice as many workers has twice the bytes and takes twice as long at best.\n\n"
      "Examples:\n"
      "  millrace-bench crowd --json\n"
      "  millrace-bench crowd --workers 4,512 --processes 8\n\n" +
      program::exit_code_table());
  return {app, [flags] { return run_crowd(*flags); }};
}

}  // namespace millrace::bench
