#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monitoring/standard_streams.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_port.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/report.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"

namespace millrace::cli {

using program::fail_with;
using program::in_range;

namespace {

constexpr int kStatusLookEveryMs = 50;

struct StatusFlags {
  std::vector<std::string> addresses;
  std::string servers;
  std::string table;
  int timeout_ms = 3'000;
  double still_after = 5;
  double watch = 0;
  bool json = false;
};

/// All HTTP addresses that the flags come to.
std::expected<std::vector<std::string>, program::Failure> addresses_of(const StatusFlags& flags) {
  std::vector<std::string> addresses = flags.addresses;
  std::vector<std::string> for_workers;
  if (!flags.servers.empty()) {
    auto servers = protocol::parse_server_addresses(flags.servers);
    if (!servers) return fail_with(servers.error());
    for_workers = std::move(*servers);
  }
  if (!flags.table.empty()) {
    auto in_table = cluster_status::addresses_in_table(flags.table);
    if (!in_table) return fail_with(in_table.error());
    std::ranges::copy(*in_table, std::back_inserter(for_workers));
  }
  for (const std::string& address : for_workers) {
    auto http = cluster_status::http_address_of(address);
    if (!http) return fail_with(http.error());
    if (std::ranges::find(addresses, *http) == addresses.end()) addresses.push_back(std::move(*http));
  }
  if (addresses.empty()) {
    return fail_with(
        program::ExitCode::kUsage,
        "no address of a shard: give HTTP addresses (millrace status 127.0.0.1:7700), --servers or --table");
  }
  return addresses;
}

program::Outcome show(const StatusFlags& flags, const std::vector<std::string>& addresses) {
  const cluster_status::Answers answers = cluster_status::ask_all(
      addresses, [&](const std::string& address) { return cluster_status::fetch_status(address, flags.timeout_ms); });
  std::vector<SwitchJobStatus> switch_jobs;
  for (const auto& [address, said] : answers.said)
    std::ranges::copy(monitoring::read_switch_jobs(said), std::back_inserter(switch_jobs));
  const cluster_status::ClusterSnapshot picture =
      cluster_status::picture_of(answers.shards, answers.why_missing, flags.still_after, switch_jobs);
  if (flags.json) {
    fmt::print("{}\n", program::json_text(cluster_status::report_json(picture, answers)));
  } else {
    fmt::print("{}", cluster_status::report_text(picture, answers));
  }
  return cluster_status::outcome_of(picture, answers);
}

program::Outcome run_status(const StatusFlags& flags) {
  const auto addresses = addresses_of(flags);
  if (!addresses) return std::unexpected(addresses.error());
  if (flags.watch == 0) return show(flags, *addresses);
  const program::InterruptionRequests& requests = program::interruption_requests();
  while (requests.count() == 0) {
    if (!flags.json) {
      const std::time_t now = std::time(nullptr);
      std::tm local{};
      localtime_r(&now, &local);
      fmt::print("--- {:02}:{:02}:{:02}\n", local.tm_hour, local.tm_min, local.tm_sec);
    }
    (void)show(flags, *addresses);  // it prints its own errors; watching continues
    if (const Status written = monitoring::flush_output(); !written) return fail_with(written.error());
    for (double waited_ms = 0; waited_ms < flags.watch * 1e3 && requests.count() == 0;
         waited_ms += kStatusLookEveryMs) {
      ::poll(nullptr, 0, kStatusLookEveryMs);
    }
  }
  return {};
}

}  // namespace

program::Command add_status_command(CLI::App& root) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* app = root.add_subcommand("status", "the process that a job is blocked on, since when, and why");
  app->add_option("addresses", flags->addresses, "HTTP ports: host:port host:port (of --http)");
  app->add_option("--servers", flags->servers,
                  "host:port,host:port as for train: asked at these ports + 100, where serve puts the status")
      ->check(program::not_empty());
  app->add_option("--table", flags->table, "the servers' membership table: all shards in it, at their ports + 100")
      ->check(program::not_empty());
  app->add_option("--still-after", flags->still_after, "seconds without a step after which a job counts as stalled")
      ->capture_default_str()
      ->check(in_range(0.01, 86'400.0));
  app->add_option("--watch", flags->watch, "seconds between two reports, until Ctrl-C (exit code 0)")
      ->check(in_range(0.1, 86'400.0));
  app->add_option("--timeout-ms", flags->timeout_ms, "for connecting and for reading, each")
      ->capture_default_str()
      ->check(in_range(1, 600'000));
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
      "Example:\n"
      "  millrace status 127.0.0.1:7700 127.0.0.1:7701");
  return {app, [flags] { return run_status(*flags); }};
}

}  // namespace millrace::cli
