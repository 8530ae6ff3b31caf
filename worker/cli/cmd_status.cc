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
#include "monitoring/command_line/table_flags.h"
#include "monitoring/standard_streams.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_port.h"
#include "protocol/table/open_table.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/cluster_status/report.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"

namespace millrace::cli {

using program::fail_with;

namespace {

constexpr int kStatusLookEveryMs = 50;
constexpr TimeNs kStatusDay = 86'400 * kNsPerS;

struct StatusFlags {
  std::vector<std::string> addresses;
  std::string servers;
  protocol::TableFlags table;
  int timeout_ms = 3'000;
  double stalled_after_s = 5;
  uint32_t watch_ms = 0;
  bool json = false;
};

/// All HTTP addresses that the flags come to.
std::expected<std::vector<std::string>, program::Failure> addresses_of(const StatusFlags& flags) {
  std::vector<std::string> addresses = flags.addresses;
  std::vector<std::string> for_workers;
  const auto add = [&addresses](std::string http) {
    if (std::ranges::find(addresses, http) == addresses.end()) addresses.push_back(std::move(http));
  };
  if (!flags.servers.empty()) {
    auto servers = protocol::parse_server_addresses(flags.servers);
    if (!servers) return fail_with(servers.error());
    for_workers = std::move(*servers);
  }
  if (!flags.table.location.empty()) {
    auto in_table = cluster_status::http_addresses_in_table(flags.table);
    if (!in_table) return fail_with(in_table.error());
    for (std::string& http : *in_table) add(std::move(http));
  } else if (flags.table != protocol::TableFlags()) {
    return fail_with(program::ExitCode::kUsage, "--table-ca and the like are for --table etcd://HOST:PORT");
  }
  for (const std::string& address : for_workers) {
    auto http = cluster_status::http_address_of(address);
    if (!http) return fail_with(http.error());
    add(std::move(*http));
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
      cluster_status::picture_of(answers.shards, answers.why_missing, flags.stalled_after_s, switch_jobs);
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
  if (flags.watch_ms == 0) return show(flags, *addresses);
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
  app->option_defaults()->group("Cluster");
  app->add_option("addresses", flags->addresses, "HTTP ports: host:port host:port (of --http)");
  app->add_option("--servers", flags->servers,
                  "host:port,host:port as for train: asked at these ports + 100, where serve puts the status")
      ->type_name("LIST")
      ->check(program::checked([](const std::string& text) { return protocol::parse_server_addresses(text); }));
  app->add_option("--table", flags->table.location,
                  "the servers' membership table, or etcd://HOST:PORT: all shards in it, where their --http says")
      ->type_name("FILE")
      ->check(program::not_empty());
  monitoring::add_duration(*app, "--timeout", monitoring::in_ms(flags->timeout_ms),
                           "for connecting and for reading, each", {.least = kNsPerMs, .most = 600 * kNsPerS});
  monitoring::add_etcd_flags(*app, flags->table, monitoring::HelpCase::kSmall);
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
