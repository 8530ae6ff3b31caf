#include <fmt/core.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monitoring/standard_streams.h"
#include "worker/cli/commands.h"
#include "worker/cli/demo.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/program/scratch_folder.h"
#include "worker/program/table.h"

namespace millrace::cli {

using program::in_range;
using program::not_empty;

namespace {

/// Flags of `train` that every row of the demonstration takes unchanged: the mode, and the treatment of gradients.
constexpr std::array kJobFlags = {"--mode",  "--staleness", "--quorum", "--deadline",        "--participants",
                                  "--store", "--momentum",  "--clip",   "--initial-weights", "--apply-after-acks"};

struct DemoFlags {
  DemoOptions options;
  std::array<std::string, kJobFlags.size()> job;  ///< as given; empty: not given
  bool json = false;
};

std::string bytes_text(double bytes) {
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

/// Prints the outcome of the killed processes.
void print_kills(const DemoResult& result) {
  for (size_t at = 1; at < result.rows.size(); ++at) {
    const DemoRow& row = result.rows[at];
    if (!row.same_model) continue;
    const DemoRow& before = result.rows[at - 1];
    fmt::print("Row {} is row {} again, with a process killed half way and started again at once by its command: {}.\n",
               at + 1, at,
               *row.same_model ? "the model is the same to the bit"
                               : fmt::format("held-out log-loss {:.4f} beside {:.4f}", row.log_loss, before.log_loss));
  }
}

void print_demo_result(const DemoResult& result) {
  std::vector<std::vector<std::string>> table = {
      {"sent", "steps", "accuracy", "log-loss", "entries up", "bytes up", "bytes down", "time a step", "dense / this"}};
  const DemoRow& dense = result.rows.back();
  for (const DemoRow& row : result.rows) {
    // After a handful of steps a model is no model: the dense row is there for its cost.
    const bool trained = &row != &dense;
    table.push_back({row.title, fmt::format("{}", row.steps), trained ? fmt::format("{:.4f}", row.accuracy) : "-",
                     trained ? fmt::format("{:.4f}", row.log_loss) : "-", fmt::format("{:.0f}", row.entries_up),
                     bytes_text(row.bytes_up), bytes_text(row.bytes_down), fmt::format("{:.1f} ms", row.step_ms),
                     fmt::format("{:.0f}x bytes, {:.0f}x time",
                                 (dense.bytes_up + dense.bytes_down) / (row.bytes_up + row.bytes_down),
                                 dense.step_ms / row.step_ms)});
  }
  fmt::print("\n{}", program::aligned_table(table));
  fmt::print(
      "\nAccuracy and log-loss on held-out rows after the last epoch. Bytes: of one worker and step, containers and "
      "envelopes. Time:\n"
      "the median over the epochs of a step's mean, computing included. Row 1 sends every non-zero of the gradient, "
      "nothing rounded: it\n"
      "trains as dense would. The dense row is {} steps long, for its cost a step only.\n",
      dense.steps);
  print_kills(result);
}

nlohmann::json row_json(const DemoRow& row) {
  nlohmann::json json = {{"algorithm", row.name},
                         {"steps", row.steps},
                         {"epochs", row.epochs},
                         {"accuracy", row.accuracy},
                         {"log_loss", row.log_loss},
                         {"average_precision", row.average_precision},
                         {"entries_up", row.entries_up},
                         {"bytes_up", row.bytes_up},
                         {"bytes_down", row.bytes_down},
                         {"step_ms", row.step_ms},
                         {"communication_ms", row.communication_ms},
                         {"flags", row.flags}};
  if (row.same_model) json["same_model"] = *row.same_model;
  return json;
}

program::Outcome run_demo_command(DemoFlags& flags) {
  for (size_t at = 0; at < kJobFlags.size(); ++at) {
    if (flags.job[at].empty()) continue;
    flags.options.job_flags.insert(flags.options.job_flags.end(), {kJobFlags[at], flags.job[at]});
  }
  std::vector<std::string> arguments = demo_train_flags(flags.options);
  const std::string workers = std::to_string(flags.options.workers);
  arguments.insert(arguments.end(), {"--train", "none yet", "--servers", "127.0.0.1:1", "--workers", workers});
  if (program::Outcome valid = check_train_arguments(std::move(arguments)); !valid) return valid;
  const auto say = [](const std::string& line) { monitoring::say(fmt::format("demo: {}", line)); };
  const auto result = run_demo(flags.options, say);
  // Regardless of the error that it then fails with: Ctrl-C reaches shards and scripts that are starting, too.
  if (!result && program::interruption_requests().count() > 0)
    return program::fail_with(program::ExitCode::kInterrupted,
                              "interrupted; every process of the demonstration is ended");
  if (!result) return std::unexpected(result.error());
  if (!flags.json) {
    print_demo_result(*result);
    return {};
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const DemoRow& row : result->rows) rows.push_back(row_json(row));
  fmt::print("{}\n", program::json_text(nlohmann::json{{"demo", "debian"},
                                                       {"workers", flags.options.workers},
                                                       {"shards", flags.options.shards},
                                                       {"dimension", flags.options.dimension},
                                                       {"rate", flags.options.rate},
                                                       {"rows", rows}}));
  return {};
}

}  // namespace

program::Command add_demo_command(CLI::App& root) {
  auto flags = std::make_shared<DemoFlags>();
  DemoOptions& options = flags->options;
  options.folder = program::kept_folder("millrace-demo");
  CLI::App* app = program::add_command(
      root, "demo", "trains a real model through shards and workers of its own, sparse against dense");
  app->option_defaults()->group("Cluster");
  app->add_option("--workers", options.workers, "worker processes")->capture_default_str()->check(in_range(1, 32));
  app->add_option("--shards", options.shards, "server processes")->capture_default_str()->check(in_range(1, 16));
  app->option_defaults()->group("Training");
  app->add_option("--epochs", options.epochs, "of the two sparse rows")
      ->capture_default_str()
      ->check(in_range(1, 1000));
  app->add_option("--batch", options.batch, "rows a worker and step")
      ->capture_default_str()
      ->check(in_range(1, 65'536));
  app->add_option("--lr", options.learning_rate, "learning rate")->capture_default_str()->check(in_range(1e-6, 1e6));
  app->add_option("--l2", options.l2, "L2 regularisation, applied at the workers and never sent")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app->add_option("--dense-steps", options.dense_steps, "steps of the dense row")
      ->capture_default_str()
      ->check(in_range(1, 10'000));
  app->add_option("--dimension", options.dimension, "number of features that hashing makes of the data")
      ->capture_default_str()
      ->check(in_range(uint64_t{1024}, uint64_t{1} << 28));
  app->option_defaults()->group("Job");
  // What train says of them; that it takes them is checked before anything is made.
  CLI::App described;
  const program::Command train = add_train_command(described);
  for (size_t at = 0; at < kJobFlags.size(); ++at) {
    const CLI::Option* const same = train.app->get_option(kJobFlags[at]);
    app->add_option(kJobFlags[at], flags->job[at], same->get_description())
        ->default_str(same->get_default_str())
        ->type_name(same->get_type_name())
        ->check(not_empty());
  }
  app->option_defaults()->group("Cluster");
  app->add_flag("--kill", options.kill,
                "both sparse rows once more: half way a shard is killed, and a worker, and started again");
  app->add_option("--link-rate", options.rate,
                  "every process in a network namespace of its own behind this rate (1gbit); needs root")
      ->type_name("RATE")
      ->check(not_empty());
  app->option_defaults()->group("Output");
  app->add_option("--folder", options.folder, "where the data and logs are kept")
      ->type_name("FOLDER")
      ->capture_default_str()
      ->check(not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "The data is this machine's Debian package index: is a package a library, told from its description alone? "
      "(millrace data\n"
      "debian --help.) Three runs through the same shards: the natural gradient, lossless; a tenth or less of its "
      "entries,\n"
      "quantized to 4 bits, with error feedback; dense. While it runs, every shard has a status page; its address is "
      "printed.\n\n"
      "Examples:\n"
      "  millrace demo\n"
      "  millrace demo --kill              a shard and a worker are killed on the way\n"
      "  millrace demo --mode partial --quorum 3 --deadline 5ms\n"
      "  millrace demo --store adagrad:0.1 the servers hold the weights\n"
      "  millrace demo --link-rate 1gbit   every process behind 1 Gbit/s (root)");
  return {app, [flags] { return run_demo_command(*flags); }};
}

}  // namespace millrace::cli
