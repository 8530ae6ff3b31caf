#include <fmt/core.h>
#include <fmt/ranges.h>
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
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/http/secure/http_security.h"
#include "monitoring/standard_streams.h"
#include "protocol/address/host_port.h"
#include "worker/cli/commands.h"
#include "worker/launch/shard_process.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/program/scratch_folder.h"

namespace millrace::cli {

using launch::ShardProcess;
using program::ExitCode;
using program::fail_with;
using program::in_range;
using program::not_empty;
using program::Outcome;
using protocol::HostPort;

namespace {

constexpr int kServeLookEveryMs = 200;
constexpr int kLookAtEndEveryMs = 20;
constexpr uint16_t kHttpPort = 7700;
constexpr TimeNs kPastDrain = 25 * kNsPerS;
constexpr TimeNs kServeDay = 86'400 * kNsPerS;

struct ServeFlags {
  uint32_t shards = 2;
  std::string listen = "127.0.0.1:7600";
  std::string http;  ///< empty: port 7700 of http_host_of()
  monitoring::HttpSecurityOptions http_security;
  std::string datagrams;  ///< empty: with --job-keys a free port of the host of --listen
  std::string table;
  std::string store_dir;
  uint32_t store_save_seconds = 0;
  std::string job_keys;
  std::string key;
  std::string allowed_keys;
  std::string policy;
  std::string audit_log;
  bool insecure = false;
  double link_rate = 0;
  uint32_t drain_ms = 10'000;
  bool json = false;
};

/// Holds the addresses of shard 0; the ports of the next ones count up, unless they are 0.
struct FirstAddresses {
  HostPort listen;
  HostPort http;
};

/// Returns an address of a shard.
HostPort address_of(HostPort first, uint32_t shard) {
  if (first.port != 0) first.port = static_cast<uint16_t>(first.port + shard);
  return first;
}

Result<std::vector<ShardProcess>> start_shards(const ServeFlags& flags, const FirstAddresses& first,
                                               const std::string& table) {
  std::vector<ShardProcess> shards;
  for (uint32_t shard = 0; shard < flags.shards; ++shard) {
    launch::ShardProcessOptions options;
    options.shard = shard;
    options.shards = flags.shards;
    const HostPort listen = address_of(first.listen, shard);
    options.host = listen.host;
    options.port = listen.port;
    const HostPort http = address_of(first.http, shard);
    options.http = protocol::host_port_text(http.host, http.port);
    options.http_security = flags.http_security;
    options.table = table;
    options.store_dir = flags.store_dir;
    options.store_save_seconds = flags.store_save_seconds;
    options.link_rate = flags.link_rate;
    options.key = flags.key;
    options.allowed_keys = flags.allowed_keys;
    options.policy = flags.policy;
    options.audit_log = flags.audit_log;
    options.insecure = flags.insecure;
    if (shard == 0 && !flags.job_keys.empty()) {
      options.datagrams = flags.datagrams.empty() ? protocol::host_port_text(first.listen.host, 0) : flags.datagrams;
      options.job_keys = flags.job_keys;
    }
    options.drain_ms = flags.drain_ms;
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
      fmt::print("shard {}: {}, status on {}://{}/\n", rows.size() - 1, shard.address(),
                 flags.http_security.tls.empty() ? "http" : "https", shard.http_address());
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

/// Returns the host of the HTTP ports where --http is absent: that of --listen. Where other machines reach that host
/// and these ports are not protected: loopback.
std::string http_host_of(const ServeFlags& flags, const HostPort& listen) {
  const std::string http = protocol::host_port_text(listen.host, kHttpPort);
  return monitoring::refuse_http(http, flags.http_security).empty() ? listen.host : "127.0.0.1";
}

/// Returns the addresses, or refuses one that is none, or that leaves no port for the last shard.
std::expected<FirstAddresses, program::Failure> first_addresses(const ServeFlags& flags) {
  const auto read = [&flags](std::string_view name,
                             const std::string& text) -> std::expected<HostPort, program::Failure> {
    const auto parsed = protocol::parse_host_port(text);
    if (!parsed) return fail_with(ExitCode::kUsage, fmt::format("{}: {}", name, parsed.error().message));
    if (parsed->port == 0 || parsed->port + flags.shards - 1 <= std::numeric_limits<uint16_t>::max()) return *parsed;
    return fail_with(ExitCode::kUsage, fmt::format("{} {} leaves no port for shard {}; the largest is 65535", name,
                                                   text, std::numeric_limits<uint16_t>::max() + 1 - parsed->port));
  };
  const auto listen = read("--listen", flags.listen);
  if (!listen) return std::unexpected(listen.error());
  if (flags.http.empty()) return FirstAddresses{.listen = *listen, .http = {http_host_of(flags, *listen), kHttpPort}};
  const auto http = read("--http", flags.http);
  if (!http) return std::unexpected(http.error());
  return FirstAddresses{.listen = *listen, .http = *http};
}

/// Asks all shards to end, and kills those that still run at a second request. Without a folder for saves those, too,
/// that still run some time after they should have drained. Returns the numbers of the killed ones.
std::vector<size_t> stop_shards(std::vector<ShardProcess>& shards, const ServeFlags& flags,
                                const program::InterruptionRequests& requests) {
  const TimeNs deadline = monotonic_now_ns() + flags.drain_ms * kNsPerMs + kPastDrain;
  for (ShardProcess& shard : shards) shard.process().ask_to_end();
  const auto ended = [](ShardProcess& shard) { return shard.process().try_wait().has_value(); };
  bool is_late = false;
  while (!std::ranges::all_of(shards, ended) && requests.count() < 2) {
    if (!is_late && monotonic_now_ns() >= deadline) {
      if (flags.store_dir.empty()) break;
      is_late = true;
      monitoring::say("millrace serve: shards still save weights to --store-dir; a second signal ends them at once");
    }
    ::poll(nullptr, 0, kLookAtEndEveryMs);
  }
  std::vector<size_t> killed;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    if (!ended(shards[shard])) killed.push_back(shard);
    shards[shard].process().kill_now();
  }
  return killed;
}

/// Returns why the shards would not start as they are asked to; they would say the same.
std::string refuse_access(const ServeFlags& flags, const HostPort& listen) {
  if (flags.key.empty() != flags.allowed_keys.empty())
    return "--key and --allowed-keys go together: the key of this cluster, and those that may connect";
  if (!flags.policy.empty() && flags.key.empty())
    return "--policy has the rights of keys: give --key and --allowed-keys, too";
  if (!flags.key.empty() && flags.insecure) return "--insecure: this cluster has keys; leave one of them out";
  if (!flags.key.empty() || flags.insecure || protocol::is_loopback_host(listen.host)) return {};
  return fmt::format(
      "--listen {}: other machines may reach this address; give --key and --allowed-keys (millrace keys new), or say "
      "--insecure: every process that reaches the port may then join, end and read every job",
      flags.listen);
}

Outcome run_serve(const ServeFlags& flags) {
  const auto first = first_addresses(flags);
  if (!first) return std::unexpected(first.error());
  if (const std::string refusal = refuse_access(flags, first->listen); !refusal.empty())
    return fail_with(ExitCode::kUsage, refusal);
  if (const std::string refusal =
          monitoring::refuse_http(protocol::host_port_text(first->http.host, first->http.port), flags.http_security);
      !refusal.empty())
    return fail_with(ExitCode::kUsage, refusal);
  if (flags.http.empty() && first->http.host != first->listen.host) {
    monitoring::say(
        "millrace serve: the HTTP ports are on 127.0.0.1; --http-tls and --http-token-file, or "
        "--http-insecure, put them on the host of --listen");
  }
  if (flags.store_save_seconds != 0 && flags.store_dir.empty())
    return fail_with(ExitCode::kUsage, "--store-save-every without --store-dir: there is no place to save to");
  const program::InterruptionRequests& requests = program::interruption_requests();
  std::atomic<bool>& save_requested = program::save_request_flag();
  // Without such files there is nothing to read again, and a terminal that hangs up ends the cluster.
  const monitoring::HttpSecurityOptions& security = flags.http_security;
  const bool has_files = !flags.key.empty() || !flags.job_keys.empty() || !flags.audit_log.empty() ||
                         !security.tls.empty() || !security.token_file.empty();
  std::atomic<bool>* reload_requested = has_files ? &program::reload_request_flag() : nullptr;
  std::optional<program::ScratchFolder> folder;
  std::string table = flags.table;
  if (table.empty()) {
    auto made = program::ScratchFolder::make("millrace-serve");
    if (!made) return fail_with(made.error());
    table = folder.emplace(std::move(*made)).path() + "/table.db";
  }
  auto shards = start_shards(flags, *first, table);
  // Ctrl-C reaches a shard that is starting, too.
  if (!shards && requests.count() > 0) return {};
  if (!shards) return std::unexpected(program::failure_of(shards.error(), program::ErrorPlace::kShard));
  Outcome outcome = announce(flags, *shards);
  while (requests.count() == 0 && outcome) {
    ::poll(nullptr, 0, kServeLookEveryMs);
    if (save_requested.exchange(false)) {
      for (ShardProcess& shard : *shards) shard.process().send_signal(SIGUSR2);
    }
    if (reload_requested != nullptr && reload_requested->exchange(false)) {
      for (ShardProcess& shard : *shards) shard.process().send_signal(SIGHUP);
    }
    for (size_t shard = 0; shard < shards->size() && outcome; ++shard) {
      const auto report = (*shards)[shard].process().try_wait();
      // A signal to the whole process group reaches the shards as well: then their end is ours.
      if (!report || requests.count() > 0) continue;
      outcome = fail_with(ExitCode::kJobEnded, fmt::format("shard {} ended (exit code {}); the others are ended too",
                                                           shard, report->exit_code));
    }
  }
  const std::vector<size_t> killed = stop_shards(*shards, flags, requests);
  if (requests.count() > 1) {
    return fail_with(program::last_interruption_code(),
                     "ended by a second signal: rounds in flight were not waited for");
  }
  if (outcome && !killed.empty()) {
    return fail_with(ExitCode::kJobEnded, fmt::format("shard {} did not end within --drain and {} s, and was killed",
                                                      fmt::join(killed, ", "), kPastDrain / kNsPerS));
  }
  return outcome;
}

void add_access_flags(CLI::App& app, ServeFlags& flags) {
  app.option_defaults()->group("Security");
  app.add_option("--key", flags.key, "secret key of the cluster (millrace keys new); encrypts every connection")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--allowed-keys", flags.allowed_keys,
                 "public keys that may connect: a folder of NAME.pub files, or a file of lines NAME DIGITS")
      ->type_name("FOLDER")
      ->check(not_empty());
  app.add_option("--policy", flags.policy, "rights and quotas of the allowed keys (default: each may do everything)")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_flag("--insecure", flags.insecure, "without keys: may listen on addresses that other machines reach");
  app.add_option("--audit-log", flags.audit_log, "appends joins, leaves, refusals and removals, one JSON line each")
      ->type_name("FILE")
      ->check(not_empty());
}

}  // namespace

program::Command add_serve_command(CLI::App& root) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* app = program::add_command(root, "serve", "runs all shards of a small cluster on this machine");
  const auto address = program::checked([](const std::string& text) { return protocol::parse_host_port(text); });
  app->option_defaults()->group("Cluster");
  app->add_option("--shards", flags->shards, "server processes")->capture_default_str()->check(in_range(1, 64));
  app->add_option("--listen", flags->listen,
                  "where shard 0 listens; the ports of the next ones count up; port 0: free ones")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->check(address);
  app->add_option("--table", flags->table, "membership table, kept between runs (default: a temporary one)")
      ->type_name("FILE")
      ->check(not_empty());
  monitoring::add_duration(*app, "--drain", monitoring::in_ms(flags->drain_ms), "at the end: time for rounds in flight",
                           {.most = kServeDay});
  add_access_flags(*app, *flags);
  app->option_defaults()->group("Compression");
  monitoring::add_rate(*app, "--link-rate", flags->link_rate,
                       "of the link from each shard to its workers, for jobs with --codec-down auto (default: 1gbit)");
  app->option_defaults()->group("Store");
  app->add_option(
         "--store-dir", flags->store_dir,
         "folder for the weights of jobs with a store: saved when a job is over, on SIGUSR2 (default: nowhere)")
      ->type_name("FOLDER")
      ->check(not_empty());
  monitoring::add_duration(*app, "--store-save-every", monitoring::in_seconds(flags->store_save_seconds),
                           "time between two saves of running jobs' stores; 0s: none", {.most = kServeDay});
  app->option_defaults()->group("Switch");
  app->add_option(
         "--job-keys", flags->job_keys,
         "folder of the keys of jobs of path switch (N.key for job N at the switch): shard 0 decides in place of "
         "a switch that does not answer, or is the one that --switch-address names; with N.racks beside it "
         "({\"racks\": [[0, 1], [2, 3]]}) racks' switches may add up in front of it (default: such jobs wait)")
      ->type_name("FOLDER")
      ->check(not_empty());
  app->add_option(
         "--datagrams", flags->datagrams,
         "with --job-keys: the UDP address where shard 0 does; port 0: a free one (default: a free port of the "
         "host of --listen)")
      ->type_name("HOST:PORT")
      ->check(address);
  app->option_defaults()->group("Output");
  app->add_option(
         "--http", flags->http,
         "status page of shard 0; the ports of the next ones count up; port 0: free ones (default: port 7700 of "
         "the host of --listen; of 127.0.0.1 where other machines reach that host, and these ports have neither "
         "--http-tls with --http-token-file nor --http-insecure)")
      ->type_name("HOST:PORT")
      ->check(address);
  monitoring::add_http_port_flags(*app, flags->http_security, monitoring::HelpCase::kSmall);
  monitoring::add_http_ca_flag(*app, flags->http_security, monitoring::HelpCase::kSmall);
  app->add_flag("--json", flags->json, "the addresses as one JSON object, once all shards listen");
  app->footer(
      "Each shard is a millrace-server process; run those yourself, on several machines, for a larger cluster. SIGINT "
      "or SIGTERM\n"
      "ends them in order, with exit code 0; a second one at once, with 130 or 143. The same signal again within a "
      "second (as\n"
      "timeout sends it, to a process and its group) is the same request. With --store-dir the last saves have no time "
      "limit;\n"
      "without it a shard that runs 25 s longer than --drain is killed, with exit code 8.\n"
      "SIGUSR2 is passed on: all shards save the weights of jobs with a store to --store-dir now.\n"
      "With --key, --job-keys, --audit-log, --http-tls or --http-token-file SIGHUP makes all shards open these files "
      "again.\n\n"
      "Examples:\n"
      "  millrace serve --shards 2\n"
      "  millrace serve --listen 192.0.2.1:7600 --key keys/cluster.key --allowed-keys keys --http 127.0.0.1:0\n"
      "  millrace serve --http 127.0.0.1:0 --store-dir saves --store-save-every 10m");
  return {app, [flags] { return run_serve(*flags); }};
}

}  // namespace millrace::cli
