#include <fmt/core.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/command_line/quantity_flags.h"
#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/recover/recover.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/option_flags.h"
#include "worker/program/program.h"
#include "worker/program/table.h"

namespace millrace::bench {

using program::in_range;
using program::json_text;

namespace {

constexpr std::array<std::string_view, 2> kRecoverJobOptions = {"parts_per_shard", "heartbeat"};

struct RecoverFlags {
  RecoverOptions options;  ///< options.job follows from `job` when all flags are read
  worker::JobFlags job{options.job, kRecoverJobOptions};
  bool json = false;
};

void print_recover_result(const nlohmann::json& result) {
  const auto number = [](const nlohmann::json& row, const char* key, const char* form) {
    return fmt::format(fmt::runtime(form), row[key].get<double>());
  };
  std::vector<std::vector<std::string>> kills = {{"killed", "ready again s", "first update s"}};
  for (const auto& kill : result["kills"]) {
    kills.push_back({"shard " + json_text(kill["shard"]), number(kill, "ready_s", "{:.2f}"),
                     number(kill, "first_update_s", "{:.2f}")});
  }
  if (kills.size() > 1) fmt::print("{}\n", program::aligned_table(kills));
  std::vector<std::vector<std::string>> joins = {
      {"joined", "has weights s", "takes part s", "others' round ms", "meanwhile", "/ before", "longest"}};
  for (const auto& join : result["joins"]) {
    joins.push_back({fmt::format("worker {}", result["workers"].get<uint32_t>() - 1),
                     number(join, "has_weights_s", "{:.2f}"), number(join, "takes_part_s", "{:.2f}"),
                     number(join, "round_before_ms", "{:.1f}"), number(join, "round_meanwhile_ms", "{:.1f}"),
                     number(join, "round_ratio", "{:.2f}"), number(join, "round_longest_ms", "{:.1f}")});
  }
  if (joins.size() > 1) fmt::print("{}\n", program::aligned_table(joins));
  fmt::print("{} pushes in {} steps, a round {:.1f} ms: {} lost, {} counted twice, {} of {} weights wrong\n",
             json_text(result["pushes"]), json_text(result["steps"]), result["round_ms"].get<double>(),
             json_text(result["steps_lost"]), json_text(result["double_counted"]), json_text(result["wrong_weights"]),
             json_text(result["n"]));
}

program::Outcome run_recover(const RecoverFlags& flags) {
  RecoverOptions options = flags.options;
  auto job = worker::config_of(flags.job.draft);
  if (!job) return program::fail_with(job.error());
  options.job = std::move(*job);
  const auto result =
      run_cluster_bench("recover", [&options](const SayLine& say) { return bench_recover(options, say); });
  if (!result) return std::unexpected(result.error());
  print_result(*result, {flags.json}, print_recover_result);
  const bool exact =
      (*result)["steps_lost"] == 0 && (*result)["double_counted"] == 0 && (*result)["wrong_weights"] == 0;
  if (!exact)
    return program::fail_with(program::ExitCode::kInternal, "not every push was counted once: the law does not hold");
  return {};
}

}  // namespace

program::Command add_recover_bench(CLI::App& root) {
  auto flags = std::make_shared<RecoverFlags>();
  auto& options = flags->options;
  CLI::App* app =
      program::add_command(root, "recover", "shards that are killed, workers that join: time until the job continues");
  app->option_defaults()->group("Cluster");
  add_cluster_flags(*app, {flags->job.draft.spec.workers, 1, 32, options.shards});
  app->option_defaults()->group("Data");
  app->add_option("--dimension", options.n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{1} << 10, uint64_t{1} << 28));
  app->add_option("--density", options.density, "entries that a worker pushes, over the dimension")
      ->capture_default_str()
      ->check(in_range(1e-5, 0.5));
  app->option_defaults()->group("Measurement");
  app->add_option("--kills", options.kills, "of shards, one after the other")
      ->capture_default_str()
      ->check(in_range(0, 1'000));
  app->add_flag("--spare", options.spare, "a spare takes a killed shard's number; the shard is not started again");
  app->add_flag("--stop", options.stop, "with --spare and a table in etcd: shards are stopped, not killed");
  app->add_option("--table", options.table,
                  "membership table of the shards, or etcd://HOST:PORT/PREFIX; default: a new file")
      ->type_name("FILE")
      ->check(program::not_empty());
  app->add_option("--joins", options.joins, "of a new process, where a worker left before")
      ->capture_default_str()
      ->check(in_range(0, 64));
  app->add_option("--rounds", options.rounds, "between any two of them")
      ->capture_default_str()
      ->check(in_range(1, 1'000));
  flags->job.limit("heartbeat", 50, 60'000);
  flags->job.limit("parts_per_shard", 1, 64);
  flags->job.add_to(*app);
  app->option_defaults()->group("Compression");
  app->add_option("--codec", options.codec, "lossless, both ways, as train has it")->capture_default_str();
  add_seed_and_json(*app, flags->job.draft.spec.seed, "of the moments of the kills, and of the killed shards",
                    flags->json);
  app->footer(
      "A shard is killed (SIGKILL) at a random moment and started again at once, with nothing; the workers retain "
      "the updates that it needs.\n"
      "--spare: a process that waits (millrace-server --spare) takes the killed shard's number instead. The lease of "
      "a\n"
      "file ends with the shard's process, and the spare takes the number 0.3 s later. A lease in etcd ends 2 s after "
      "its\n"
      "last renewal. A spare also takes a number whose address refuses connections, as this machine does at once.\n"
      "Another spare is started before the next kill and waits for --rounds, outside the times.\n"
      "--stop: SIGSTOP in place of SIGKILL, as a host that is down: no connection ends or is refused, so the lease in "
      "etcd\n"
      "decides.\n"
      "first update: from the kill until every worker has an update of a round that it began afterwards. joined: a "
      "worker has\n"
      "left, the others continue, and a new process without any state takes its place; from its start until its own "
      "weights have\n"
      "the first thing that it pushed. The others' rounds meanwhile are compared with those before it was started.\n\n"
      "Every push leaves a mark of its own in every part, and 1 in each of its entries; all weights are compared with "
      "that at\n"
      "the end. A push that is missing is lost, one that is there twice was counted twice; both end the command with "
      "code 1.\n\n"
      "Examples:\n"
      "  millrace-bench recover --json\n"
      "  millrace-bench recover --kills 100 --joins 0 --dimension 1048576\n"
      "  millrace-bench recover --spare --kills 20 --joins 0\n\n" +
      program::exit_code_table());
  return {app, [flags] { return run_recover(*flags); }};
}

}  // namespace millrace::bench
