#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/standard_streams.h"
#include "protocol/address/host_port.h"
#include "worker/cli/commands.h"
#include "worker/launch/shard_process.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/scratch_folder.h"

namespace millrace::cli {

using launch::ShardProcess;
using program::ExitCode;
using program::fail_with;
using program::in_range;
using program::not_empty;
using program::Outcome;

namespace {

constexpr int kServeLookEveryMs = 200;
constexpr int kLookAtEndEveryMs = 20;

struct ServeFlags {
  uint32_t shards = 2;
  std::string host = "127.0.0.1";
  uint16_t port = 7600;
  uint16_t http_port = 7700;
  std::string table;
  std::string store_dir;
  uint32_t store_save_seconds = 0;
  std::string job_keys;
  uint16_t datagram_port = 0;
  double link_rate = 0;
  int grace_ms = 35'000;
  bool json = false;
};

Result<std::vector<ShardProcess>> start_shards(const ServeFlags& flags, const std::string& table) {
  std::vector<ShardProcess> shards;
  for (uint32_t shard = 0; shard < flags.shards; ++shard) {
    launch::ShardProcessOptions options;
    options.shard = shard;
    options.shards = flags.shards;
    options.host = flags.host;
    options.table = table;
    options.store_dir = flags.store_dir;
    options.store_save_seconds = flags.store_save_seconds;
    options.link_rate = flags.link_rate;
    if (shard == 0 && !flags.job_keys.empty()) {
      options.datagrams = flags.host + ":" + std::to_string(flags.datagram_port);
      options.job_keys = flags.job_keys;
    }
    if (flags.port != 0) options.port = static_cast<uint16_t>(flags.port + shard);
    const uint32_t http_port = flags.http_port == 0 ? 0 : flags.http_port + shard;
    options.http = flags.host + ":" + std::to_string(http_port);
    auto started = ShardProcess::start(options);
    if (!started) {
      // No process knows of the shards that started: they have nothing to end in order, and nothing to report.
      for (ShardProcess& other : shards) other.process().kill_now();
      return std::unexpected(started.error());
    }
    shards.push_back(std::move(*started));
  }
  return shards;
}

Outcome announce(const ServeFlags& flags, const std::vector<ShardProcess>& shards) {
  std::string servers;
  nlohmann::json rows = nlohmann::json::array();
  for (const ShardProcess& shard : shards) {
    const std::string address(protocol::without_tcp(shard.address()));
    servers += (servers.empty() ? "" : ",") + address;
    rows.push_back({{"address", shard.address()}, {"http", shard.http_address()}});
    if (!flags.json) {
      const std::string status = shard.http_address().empty() ? "" : ", status on http://" + shard.http_address() + "/";
      fmt::print("shard {}: {}{}\n", rows.size() - 1, shard.address(), status);
    }
  }
  if (flags.json) {
    fmt::print("{}\n",
               program::json_text(nlohmann::json{{"event", "listening"}, {"servers", servers}, {"shards", rows}}));
  } else {
    fmt::print("workers: millrace train --servers {} …\nCtrl-C ends the shards in order.\n", servers);
  }
  const Status written = monitoring::flush_output();
  return written ? Outcome() : fail_with(written.error());
}

/// The host is one, and the ports of all shards exist.
Outcome check_addresses(const ServeFlags& flags) {
  if (!protocol::parse_host_port(flags.host + ":0"))
    return fail_with(ExitCode::kUsage, fmt::format("--host: '{}' is not a host; IPv6 goes in brackets", flags.host));
  for (const auto& [name, first] : {std::pair("--port", flags.port), std::pair("--http-port", flags.http_port)}) {
    const uint32_t last = first + flags.shards - 1;
    if (first == 0 || last <= std::numeric_limits<uint16_t>::max()) continue;
    return fail_with(ExitCode::kUsage, fmt::format("{} {} leaves no port for shard {}; the largest is 65535", name,
                                                   first, std::numeric_limits<uint16_t>::max() + 1 - first));
  }
  return {};
}

/// Asks all shards to end; after grace_ms, or at a second request, those that still run are killed.
void stop_shards(std::vector<ShardProcess>& shards, int grace_ms, const program::InterruptionRequests& requests) {
  const TimeNs deadline = monotonic_now_ns() + grace_ms * kNsPerMs;
  for (ShardProcess& shard : shards) shard.process().ask_to_end();
  const auto ended = [](ShardProcess& shard) { return shard.process().try_wait().has_value(); };
  while (!std::ranges::all_of(shards, ended) && requests.count() < 2 && monotonic_now_ns() < deadline)
    ::poll(nullptr, 0, kLookAtEndEveryMs);
  for (ShardProcess& shard : shards) shard.process().kill_now();
}

Outcome run_serve(const ServeFlags& flags) {
  if (Outcome outcome = check_addresses(flags); !outcome) return outcome;
  if (flags.store_save_seconds != 0 && flags.store_dir.empty())
    return fail_with(ExitCode::kUsage, "--store-save-seconds without --store-dir: there is no place to save to");
  const program::InterruptionRequests& requests = program::interruption_requests();
  std::atomic<bool>& save_requested = program::save_request_flag();
  std::optional<program::ScratchFolder> folder;
  std::string table = flags.table;
  if (table.empty()) {
    auto made = program::ScratchFolder::make("millrace-serve");
    if (!made) return fail_with(made.error());
    table = folder.emplace(std::move(*made)).path() + "/table.db";
  }
  auto shards = start_shards(flags, table);
  // Ctrl-C reaches a shard that is starting, too.
  if (!shards && requests.count() > 0) return {};
  if (!shards) return std::unexpected(program::failure_of(shards.error(), program::ErrorPlace::kShard));
  Outcome outcome = announce(flags, *shards);
  while (requests.count() == 0 && outcome) {
    ::poll(nullptr, 0, kServeLookEveryMs);
    if (save_requested.exchange(false)) {
      for (ShardProcess& shard : *shards) shard.process().send_signal(SIGUSR2);
    }
    for (size_t shard = 0; shard < shards->size() && outcome; ++shard) {
      const auto report = (*shards)[shard].process().try_wait();
      // A signal to the whole process group reaches the shards as well: then their end is ours.
      if (!report || requests.count() > 0) continue;
      outcome = fail_with(ExitCode::kJobEnded, fmt::format("shard {} ended (exit code {}); the others are ended too",
                                                           shard, report->exit_code));
    }
  }
  stop_shards(*shards, flags.grace_ms, requests);
  if (requests.count() > 1) {
    return fail_with(program::last_interruption_code(),
                     "ended by a second signal: rounds in flight were not waited for");
  }
  return outcome;
}

}  // namespace

program::Command add_serve_command(CLI::App& root) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* app = root.add_subcommand("serve", "runs all shards of a small cluster on this machine");
  app->add_option("--shards", flags->shards, "server processes")->capture_default_str()->check(in_range(1, 64));
  app->add_option("--host", flags->host, "address to listen on")->capture_default_str();
  app->add_option("--port", flags->port, "of the first shard, the next ones count up; 0: free ones")
      ->capture_default_str()
      ->check(in_range(0, 65535));
  app->add_option("--http-port", flags->http_port,
                  "status page of the first shard, the next ones count up; 0: free ones")
      ->capture_default_str()
      ->check(in_range(0, 65535));
  app->add_option(
         "--store-dir", flags->store_dir,
         "folder for the weights of jobs with a store: saved when a job is over, on SIGUSR2 (default: nowhere)")
      ->check(not_empty());
  app->add_option(
         "--job-keys", flags->job_keys,
         "folder of the keys of jobs of path switch (N.key for job N at the switch): shard 0 decides in place of "
         "a switch that does not answer, or is the one that --path switch:HOST:PORT names; with N.racks beside it "
         "({\"racks\": [[0, 1], [2, 3]]}) racks' switches may add up in front of it (default: such jobs wait)")
      ->check(not_empty());
  app->add_option("--datagram-port", flags->datagram_port, "with --job-keys: where it does; 0: a free one")
      ->capture_default_str()
      ->check(in_range(0, 65535));
  app->add_option("--link-rate", flags->link_rate,
                  "bits per second from each shard to its workers, for jobs with --codec-down auto; 0: taken for 1e9")
      ->check(in_range(0.0, 1e15));
  app->add_option("--store-save-seconds", flags->store_save_seconds, "saves stores of running jobs so often; 0: never")
      ->capture_default_str()
      ->check(in_range(0, 86'400));
  app->add_option("--table", flags->table, "membership table, kept between runs (default: a temporary one)")
      ->check(not_empty());
  app->add_option("--grace-ms", flags->grace_ms, "at the end: time for rounds in flight")
      ->capture_default_str()
      ->check(in_range(0, 86'400'000));
  app->add_flag("--json", flags->json, "the addresses as one JSON object, once all shards listen");
  app->footer(
      "Each shard is a millrace-server process; run those yourself, on several machines, for a larger cluster. SIGINT "
      "or SIGTERM\n"
      "ends them in order, with exit code 0; a second one at once, with 130 or 143. The same signal again within a "
      "second "
      "(as\n"
      "timeout sends it, to a process and its group) is the same request.\n"
      "SIGUSR2 is passed on: all shards save the weights of jobs with a store to --store-dir now.\n\n"
      "Example:\n"
      "  millrace serve --shards 2");
  return {app, [flags] { return run_serve(*flags); }};
}

}  // namespace millrace::cli
