#include "worker/bench/bench_command.h"

#include <limits>

#include "monitoring/standard_streams.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"

namespace millrace::bench {

using program::in_range;

void add_cluster_flags(CLI::App& app, const ClusterFlags& flags) {
  app.add_option("--workers", flags.workers, "worker processes")
      ->capture_default_str()
      ->check(in_range(flags.workers_min, flags.workers_max));
  app.add_option("--shards", flags.shards, "server processes")->capture_default_str()->check(in_range(1, 16));
}

void add_seed_and_json(CLI::App& app, uint64_t& seed, const std::string& what, bool& json) {
  app.option_defaults()->group("Measurement");
  app.add_option("--seed", seed, what)
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  app.option_defaults()->group("Output");
  app.add_flag("--json", json, "one JSON object as the last line");
}

std::expected<nlohmann::json, program::Failure> run_cluster_bench(
    const std::string& name,
    const std::function<std::expected<nlohmann::json, program::Failure>(const SayLine&)>& bench) {
  auto result = bench([&name](const std::string& line) { monitoring::say("millrace-bench " + name + ": " + line); });
  if (program::interruption_requests().count() > 0) {
    return program::fail_with(program::ExitCode::kInterrupted, "interrupted; every process of the benchmark is ended");
  }
  return result;
}

}  // namespace millrace::bench
