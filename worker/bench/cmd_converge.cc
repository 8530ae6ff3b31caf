#include <fmt/core.h>

#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/registry.h"
#include "monitoring/command_line/quantity_flags.h"
#include "protocol/files/atomic_file.h"
#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/converge/converge.h"
#include "worker/program/flag_range.h"
#include "worker/program/option_flags.h"
#include "worker/program/program.h"
#include "worker/program/scratch_folder.h"
#include "worker/program/table.h"

namespace millrace::bench {

using program::fail_with;
using program::in_range;
using program::not_empty;
using program::Outcome;

namespace {

constexpr std::array<std::string_view, 3> kConvergeJobOptions = {"select", "reselect", "deadline"};

struct ConvergeFlags {
  ConvergeFlags() {
    for (const auto& [name, text] : {std::pair("select", options.select), std::pair("reselect", options.reselect),
                                     std::pair("deadline", options.deadline)}) {
      (void)worker::option_named(job.options, name).set(text);  // a default
    }
  }

  ConvergeOptions options;  ///< its texts follow from `job` when all flags are read
  worker::JobFlags job{JobConfig{}, kConvergeJobOptions};
  std::string slow;
  std::string plot;
  bool json = false;
};

void print_converge_rows(const nlohmann::json& result) {
  std::vector<std::vector<std::string>> table = {{"mode", "log-loss", "/ dense", "rounds", "contributors", "kB up",
                                                  "kB down", "dense bytes / this", "rounds/s", "/ synchronous"}};
  const auto number = [](const nlohmann::json& row, const char* key, const char* form, double scale = 1) {
    return row.contains(key) ? fmt::format(fmt::runtime(form), row[key].get<double>() * scale) : std::string("-");
  };
  for (const auto& row : result["rows"]) {
    table.push_back({row["title"].get<std::string>(), number(row, "log_loss", "{:.4f}"),
                     number(row, "log_loss_over_dense", "{:.3f}"), number(row, "rounds", "{:.0f}"),
                     number(row, "contributors", "{:.2f}"), number(row, "bytes_up", "{:.1f}", 1e-3),
                     number(row, "bytes_down", "{:.1f}", 1e-3), number(row, "dense_bytes_over_this", "{:.1f}"),
                     number(row, "rounds_per_s", "{:.1f}"), number(row, "rate_over_synchronous", "{:.2f}")});
  }
  fmt::print("\n{}", program::aligned_table(table));
  fmt::print(
      "\nLog-loss on held-out rows at the end. Bytes: of a worker, in all. Rounds a second: of the workers that are "
      "not slow.\n");
}

Outcome write_plot(const std::string& path, const std::string& svg) {
  const ByteBuffer bytes(svg.begin(), svg.end());
  const Status written = files::write_file_atomically(path, bytes);
  return written ? Outcome() : fail_with(written.error());
}

Outcome run_converge(ConvergeFlags& flags) {
  if (!flags.slow.empty()) {
    const auto slow = slow_worker_from_text(flags.slow);
    if (!slow) return fail_with(program::ExitCode::kUsage, "--slow-worker: " + slow.error().message);
    flags.options.slow = *slow;
  }
  if (!flags.plot.empty()) {
    if (Status can = files::try_to_write(flags.plot); !can) return fail_with(can.error());
  }
  flags.options.select = worker::option_named(flags.job.options, "select").text();
  flags.options.reselect = worker::option_named(flags.job.options, "reselect").text();
  flags.options.deadline = worker::option_named(flags.job.options, "deadline").text();
  const auto result =
      run_cluster_bench("converge", [&flags](const SayLine& say) { return bench_converge(flags.options, say); });
  if (!result) return std::unexpected(result.error());
  if (!flags.plot.empty()) {
    if (Outcome written = write_plot(flags.plot, converge_svg(*result)); !written) return written;
  }
  print_result(*result, {flags.json}, print_converge_rows);
  return {};
}

}  // namespace

program::Command add_converge_bench(CLI::App& root) {
  auto flags = std::make_shared<ConvergeFlags>();
  auto& options = flags->options;
  options.folder = program::kept_folder("millrace-converge");
  CLI::App* app =
      program::add_command(root, "converge", "held-out loss of every mode against dense synchronous training");
  app->option_defaults()->group("Data");
  app->add_option("--data", options.data,
                  "a LIBSVM file (every tenth row is held out), debian, or generated (default: w8a of the shared data, "
                  "else generated)")
      ->check(not_empty());
  app->add_option("--dimension", options.dimension, "of debian and generated data")
      ->capture_default_str()
      ->check(in_range(uint64_t{16}, uint64_t{1} << 28));
  app->option_defaults()->group("Cluster");
  add_cluster_flags(*app, {options.workers, 2, 32, options.shards});
  app->option_defaults()->group("Measurement");
  app->add_option("--rounds", options.rounds, "of each row")->capture_default_str()->check(in_range(1, 1'000'000));
  app->add_option("--points", options.points, "of each curve")->capture_default_str()->check(in_range(1, 1'000));
  app->option_defaults()->group("Training");
  app->add_option("--batch", options.batch, "rows a worker and step")
      ->capture_default_str()
      ->check(in_range(1, 65'536));
  app->add_option("--lr", options.learning_rate, "learning rate")->capture_default_str()->check(in_range(1e-6, 1e6));
  flags->job.limit("deadline", 1, 60'000);
  flags->job.add_to(*app);
  app->option_defaults()->group("Training");
  monitoring::add_duration(*app, "--compute-time", monitoring::in_ms(options.compute_ms),
                           "let every gradient take at least this time", {.most = 10 * kNsPerS});
  app->add_option("--slow-worker", flags->slow, "WORKER:FACTOR: its gradients take FACTOR times --compute-time")
      ->check(not_empty());
  const std::string names = listed_texts(converge_rows(options), std::mem_fn(&ConvergeRow::name));
  app->option_defaults()->group("Measurement");
  app->add_option("--only", options.rows, "rows to measure, of: " + names + " (default: all)")->delimiter(',');
  app->option_defaults()->group("Output");
  app->add_option("--plot", flags->plot, "an SVG: log-loss against rounds, and against bytes")
      ->type_name("FILE")
      ->check(not_empty());
  app->add_option("--folder", options.folder, "where data, tables and logs are kept")
      ->type_name("FOLDER")
      ->capture_default_str()
      ->check(not_empty());
  add_seed_and_json(*app, options.seed, "of the order of rows and of every random choice in the jobs", flags->json);
  app->footer(
      "Each row is a job of its own: the same rows of data in the same order, the same learning rate, another way to "
      "wait.\n"
      "A round is a step that the servers decided, with any contributors. With --slow-worker the workers' times are "
      "those of\n"
      "sleeping, not of this machine's cores.\n\n"
      "Examples:\n"
      "  millrace-bench converge --plot w8a.svg\n"
      "  millrace-bench converge --data debian --select topk:512 --reselect topk:1536 --plot debian.svg\n"
      "  millrace-bench converge --compute-time 20ms --slow-worker 3:10 --rounds 200\n\n" +
      program::exit_code_table());
  return {app, [flags] { return run_converge(*flags); }};
}

}  // namespace millrace::bench
