#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/version.h"
#include "protocol/address/host_port.h"
#include "worker/cli/cluster_addresses.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/doctor/check.h"
#include "worker/doctor/cluster_checks.h"
#include "worker/doctor/cluster_places.h"
#include "worker/doctor/cluster_reach.h"
#include "worker/doctor/file_checks.h"
#include "worker/doctor/host_checks.h"
#include "worker/doctor/pair_checks.h"
#include "worker/doctor/pair_reach.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/program.h"

namespace millrace::cli {

using program::ExitCode;
using program::fail_with;
using program::Outcome;

namespace {

struct DoctorFlags {
  ClusterAddressFlags cluster;
  std::vector<std::string> listens;
  std::string key;
  std::string server_key;
  std::string allowed_keys;
  std::string job_keys;
  bool json = false;
};

void append(std::vector<doctor::Check>& checks, std::vector<doctor::Check> more) {
  for (doctor::Check& check : more) checks.push_back(std::move(check));
}

/// Asks the HTTP ports of the table, of --servers and of the addresses. Returns the shards of all of them.
std::vector<doctor::ShardPlace> find_shards(const DoctorFlags& flags, const doctor::TableFacts& table,
                                            const std::vector<std::string>& servers,
                                            const monitoring::HttpCaller* caller) {
  std::vector<std::string> ports = flags.cluster.addresses;
  for (const doctor::TableFacts::Shard& shard : table.shards) {
    if (!shard.http.empty() && shard.state != "gone") ports.push_back(shard.http);
  }
  for (const std::string& server : servers) {
    if (auto http = cluster_status::http_address_of(server)) ports.push_back(std::move(*http));
  }
  const cluster_status::Answers answers = cluster_status::ask_all(ports, fetch_of(flags.cluster, caller));
  return doctor::join_places(table, servers, answers);
}

Outcome check_cluster(const DoctorFlags& flags, const std::optional<protocol::TransportKeys>& keys,
                      doctor::Report& report) {
  std::vector<doctor::Check>& checks = report.checks;
  for (const std::string& address : flags.cluster.addresses) {
    if (const auto at = protocol::parse_host_port(address); !at) return fail_with(at.error());
  }
  const auto caller = monitoring::open_http_caller(flags.cluster.http_security, flags.cluster.addresses);
  if (!caller) return fail_with(caller.error());
  std::vector<std::string> servers;
  if (!flags.cluster.servers.empty()) {
    auto parsed = protocol::parse_server_addresses(flags.cluster.servers);
    if (!parsed) return fail_with(parsed.error());
    servers = std::move(*parsed);
  }
  doctor::TableFacts table;
  if (!flags.cluster.table.location.empty()) {
    table = doctor::read_table_facts(flags.cluster.table, fetch_of(flags.cluster, caller->get()));
    append(checks, doctor::judge_table(table));
  }
  const doctor::ReachOptions reach{.timeout_ms = flags.cluster.timeout_ms, .keys = keys, .caller = caller->get()};
  doctor::ShardCollector collector(reach);
  std::vector<doctor::ShardFacts> facts;
  for (const doctor::ShardPlace& place : find_shards(flags, table, servers, caller->get())) {
    facts.push_back(collector.collect(place));
    append(checks, doctor::judge_shard(facts.back(), {.software = software_name(), .has_keys = keys.has_value()}));
  }
  doctor::PairsFacts paths = doctor::collect_pairs(facts, reach);
  append(checks, doctor::judge_pairs(paths));
  report.pairs = std::move(paths.pairs);
  append(checks, doctor::judge_cluster(facts, table.location));
  return {};
}

bool is_cluster_given(const DoctorFlags& flags) {
  return !flags.cluster.addresses.empty() || !flags.cluster.servers.empty() || !flags.cluster.table.location.empty();
}

Outcome run_doctor(const DoctorFlags& flags) {
  if (flags.cluster.table.location.empty() && flags.cluster.table != protocol::TableFlags())
    return fail_with(ExitCode::kUsage, "--table-ca and the like are for --table etcd://HOST:PORT");
  if (flags.key.empty() != flags.server_key.empty())
    return fail_with(ExitCode::kUsage, "--key and --server-key go together");
  program::end_at_interruption();
  doctor::Report report{.software = software_name(), .host = doctor::host_name(), .checks = {}};
  doctor::HostFacts host = doctor::read_host_facts();
  host.server_starts = !flags.listens.empty();
  report.checks = doctor::judge_host(host);
  for (const std::string& address : flags.listens) report.checks.push_back(doctor::check_listen(address));
  std::optional<protocol::TransportKeys> keys;
  append(report.checks, doctor::check_key_files(flags.key, flags.server_key, keys));
  if (!flags.allowed_keys.empty())
    append(report.checks, doctor::check_allowed_keys(flags.allowed_keys, flags.server_key));
  if (!flags.job_keys.empty()) append(report.checks, doctor::check_job_keys(flags.job_keys));
  const bool is_killed = std::ranges::any_of(
      host.calls, [](const doctor::TriedCall& call) { return call.outcome == doctor::CallOutcome::kKills; });
  if (is_killed && is_cluster_given(flags)) {
    report.checks.push_back({"cluster", "cluster", doctor::Verdict::kNotChecked,
                             "the filter of system calls would kill this process as it connects"});
  } else if (const Outcome checked = check_cluster(flags, keys, report); !checked) {
    return checked;
  }
  fmt::print("{}", flags.json ? doctor::report_json(report) + "\n" : doctor::report_text(report));
  if (doctor::worst_of(report.checks) != doctor::Verdict::kProblem) return {};
  return fail_with(ExitCode::kUnfit, "a check found a problem; the report says what to change");
}

}  // namespace

program::Command add_doctor_command(CLI::App& root) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* app = program::add_command(root, "doctor", "checks this host and a cluster, and says what to change");
  app->option_defaults()->group("Host");
  const auto add_path = [app](const char* flag, std::string& path, const char* help, const char* type) {
    app->add_option(flag, path, help)->type_name(type)->check(program::not_empty());
  };
  app->add_option("--listen", flags->listens, "an address that a server is to have here; it must be free")
      ->type_name("HOST:PORT")
      ->check(program::checked([](const std::string& text) { return protocol::parse_host_port(text); }));
  add_path("--key", flags->key, "a worker's secret key; with --server-key each shard is asked whether it takes it",
           "FILE");
  add_path("--server-key", flags->server_key, "the public key of the shards", "FILE");
  add_path("--allowed-keys", flags->allowed_keys, "folder or list of the keys that a server lets in", "FOLDER");
  add_path("--job-keys", flags->job_keys, "folder with a file N.key for each job of path switch", "FOLDER");
  add_address_flags(*app, flags->cluster, "HTTP ports of shards: host:port host:port (of --http)");
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags->json, "one JSON object as the last line: every check");
  app->footer(
      "A line a check: ok, not checked (with the reason), warning or problem; below it what to change. Without an "
      "address\n"
      "the host alone is checked: descriptors, memory, huge pages, system calls, CPU, clock, MTU. With one also the "
      "table and\n"
      "its leases, and of each shard: name, port, latency, MTU, keys, HTTP port, version, memory, other shards, clock "
      "and\n"
      "bandwidth. One shard's address is enough, as for millrace status. No job is changed.\n\n"
      "Each shard also measures its paths from the others, one at a time: 2 MiB over each, about 60 s in all. The "
      "slowest one\n"
      "is judged, and a matrix has all. A shard does so by its HTTP port (--http).\n\n"
      "Run it where the program runs: with its user, in its container or unit. For a worker's paths run it on that "
      "worker's\n"
      "host, with the same addresses.\n\n"
      "Exit codes: 0 no problem (there may be warnings); 2 usage; 7 interrupted; 13 a problem.\n\n"
      "Examples:\n"
      "  millrace doctor --listen node3:7600 --allowed-keys /etc/millrace/keys\n"
      "  millrace doctor --servers node1:7600,node2:7600 --key worker-0.key --server-key cluster.pub\n"
      "  millrace doctor --table etcd://etcd1:2379,etcd2:2379 --json");
  return {app, [flags] { return run_doctor(*flags); }};
}

}  // namespace millrace::cli
