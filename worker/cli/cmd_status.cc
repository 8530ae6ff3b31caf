#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/standard_streams.h"
#include "monitoring/status/status_json.h"
#include "worker/cli/cluster_addresses.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/cluster_status/report.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"

namespace millrace::cli {

using program::fail_with;

namespace {

constexpr int kStatusLookEveryMs = 50;
constexpr TimeNs kStatusDay = 86'400 * kNsPerS;

struct StatusFlags {
  ClusterAddressFlags cluster;
  double stalled_after_s = 5;
  uint32_t watch_ms = 0;
  bool json = false;
};

program::Outcome show(const StatusFlags& flags, const std::vector<std::string>& addresses,
                      const monitoring::HttpCaller* caller) {
  const cluster_status::Answers answers = cluster_status::ask_all(addresses, fetch_of(flags.cluster, caller));
  std::vector<SwitchJobStatus> switch_jobs;
  for (const auto& [address, said] : answers.said)
    std::ranges::copy(monitoring::read_switch_jobs(said), std::back_inserter(switch_jobs));
  const cluster_status::ClusterSnapshot picture =
      cluster_status::picture_of(answers.shards, answers.why_missing, flags.stalled_after_s, switch_jobs);
  if (flags.json) {
    fmt::print("{}\n", program::json_text(cluster_status::report_json(picture, answers)));
  } else {
    fmt::print("{}", cluster_status::report_text(picture, answers));
  }
  return cluster_status::outcome_of(picture, answers);
}

program::Outcome run_status(const StatusFlags& flags) {
  const auto caller = monitoring::open_http_caller(flags.cluster.http_security, flags.cluster.addresses);
  if (!caller) return fail_with(caller.error());
  const auto addresses = addresses_of(flags.cluster, fetch_of(flags.cluster, caller->get()));
  if (!addresses) return std::unexpected(addresses.error());
  if (addresses->empty()) {
    return fail_with(
        program::ExitCode::kUsage,
        "no address of a shard: give HTTP addresses (millrace status 127.0.0.1:7700), --servers or --table");
  }
  if (flags.watch_ms == 0) return show(flags, *addresses, caller->get());
  const program::InterruptionRequests& requests = program::interruption_requests();
  while (requests.count() == 0) {
    if (!flags.json) {
      const std::time_t now = std::time(nullptr);
      std::tm local{};
      localtime_r(&now, &local);
      fmt::print("--- {:02}:{:02}:{:02}\n", local.tm_hour, local.tm_min, local.tm_sec);
    }
    (void)show(flags, *addresses, caller->get());  // it prints its own errors; watching continues
    if (const Status written = monitoring::flush_output(); !written) return fail_with(written.error());
    for (uint32_t waited_ms = 0; waited_ms < flags.watch_ms && requests.count() == 0; waited_ms += kStatusLookEveryMs) {
      ::poll(nullptr, 0, kStatusLookEveryMs);
    }
  }
  return {};
}

}  // namespace

program::Command add_status_command(CLI::App& root) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* app = program::add_command(root, "status", "the process that a job is blocked on, since when, and why");
  add_address_flags(*app, flags->cluster, "HTTP ports: host:port host:port (of --http)");
  app->option_defaults()->group("Output");
  monitoring::add_duration(*app, "--stalled-after", monitoring::in_seconds(flags->stalled_after_s),
                           "a job without a step for this time counts as stalled",
                           {.least = 10 * kNsPerMs, .most = kStatusDay});
  monitoring::add_duration(*app, "--watch", monitoring::in_ms(flags->watch_ms),
                           "time between two reports, until Ctrl-C (exit code 0)",
                           {.least = 100 * kNsPerMs, .most = kStatusDay})
      ->default_str("one report");
  app->add_flag("--json", flags->json,
                "one JSON object as the last line: jobs, shards, and the answer of each address");
  app->footer(
      "One address is enough where all shards' HTTP ports lie as far from their ports for workers: the others are "
      "found. "
      "The\n"
      "same of one shard is at http://HOST:PORT/ in a browser, and at /metrics for Prometheus. A worker's port (train "
      "--http) is\n"
      "shown as it is. So is a switch's (millrace-switch run --http). The job's verdict has the switch's report: the "
      "workers\n"
      "that it is blocked on, and those whose packets it rejects.\n\n"
      "Exit codes: 0 all jobs move, or none is open; 4 an address, or a shard of the cluster, does not answer; 9 a job "
      "is\n"
      "stalled; 10 a job waits for its start; 11 workers of a job have applied other updates; 12 a job's audit has a "
      "mismatch. Of\n"
      "several the first of 4, 11, 12, 9, 10.\n\n"
      "Examples:\n"
      "  millrace status 127.0.0.1:7700 127.0.0.1:7701\n"
      "  millrace status --servers 127.0.0.1:7600,127.0.0.1:7601 --watch 2s");
  return {app, [flags] { return run_status(*flags); }};
}

}  // namespace millrace::cli
