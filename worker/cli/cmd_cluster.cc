#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/command_line/table_flags.h"
#include "monitoring/http/secure/http_security.h"
#include "protocol/address/host_port.h"
#include "protocol/table/membership_table.h"
#include "protocol/table/open_table.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/cluster_table.h"
#include "worker/cluster_status/end_over_http.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"

namespace millrace::cli {

using program::Command;
using program::fail_with;
using program::Outcome;

namespace {

constexpr int kLookEveryMs = 20;

struct ClusterFlags {
  protocol::TableFlags table;
  cluster_status::DrainOptions drain;
  std::string job;
  std::string reason;
  std::string http;  ///< of a shard; empty: the table
  monitoring::HttpSecurityOptions http_security;
  bool force = false;
  bool json = false;
};

void print_json(const nlohmann::json& json) { fmt::print("{}\n", program::json_text(json)); }

/// Runs one of the subcommands on the table that the flags name.
template <typename Work>
Outcome with_table(const ClusterFlags& flags, const Work& work) {
  auto table = cluster_status::open_existing_table(flags.table);
  if (!table) return fail_with(table.error());
  return work(**table);
}

Outcome show_cluster(const ClusterFlags& flags) {
  return with_table(flags, [&](protocol::MembershipTable& open) -> Outcome {
    const auto table = cluster_status::read_cluster_table(open);
    if (!table) return fail_with(table.error());
    if (flags.json) {
      print_json(cluster_status::cluster_json(*table));
    } else {
      fmt::print("{}", cluster_status::cluster_text(*table));
    }
    return cluster_status::outcome_of(*table);
  });
}

Outcome run_drain(ClusterFlags flags) {
  const program::InterruptionRequests& requests = program::interruption_requests();
  flags.drain.is_interrupted = [&requests] { return requests.count() > 0; };
  flags.drain.wait = [] { ::poll(nullptr, 0, kLookEveryMs); };
  return with_table(flags, [&](protocol::MembershipTable& open) -> Outcome {
    const TimeNs begin = monotonic_now_ns();
    const auto drained = cluster_status::drain_shard(open, flags.drain);
    if (!drained) return std::unexpected(drained.error());
    const double seconds = static_cast<double>(monotonic_now_ns() - begin) / 1e9;
    if (flags.json) {
      print_json({{"shard", flags.drain.shard},
                  {"from", drained->from.address},
                  {"to", drained->to.address},
                  {"incarnation", drained->to.incarnation},
                  {"seconds", seconds}});
    } else {
      fmt::print("shard {} moved from {} to {} in {:.1f} s\n", flags.drain.shard,
                 protocol::without_tcp(drained->from.address), protocol::without_tcp(drained->to.address), seconds);
    }
    return {};
  });
}

Outcome end_by_table(const ClusterFlags& flags) {
  return with_table(flags, [&](protocol::MembershipTable& open) -> Outcome {
    const std::string reason = "an operator ended the job" + (flags.reason.empty() ? "" : ": " + flags.reason);
    return cluster_status::end_job(open, flags.job, reason);
  });
}

Outcome end_by_shard(const ClusterFlags& flags) {
  const auto caller = monitoring::open_http_caller(flags.http_security, {flags.http});
  if (!caller) return fail_with(caller.error());
  return cluster_status::end_over_http(flags.http, flags.job, flags.reason, caller->get());
}

Outcome run_end(const ClusterFlags& flags) {
  if ((flags.table == protocol::TableFlags()) == flags.http.empty())
    return fail_with(program::ExitCode::kUsage, "give either --table, or --http of a shard");
  const Outcome ended = flags.http.empty() ? end_by_table(flags) : end_by_shard(flags);
  if (!ended) return ended;
  if (flags.json) {
    print_json({{"ended", flags.job}});
  } else {
    fmt::print("job '{}' has ended\n", flags.job);
  }
  return {};
}

Outcome run_remove(const ClusterFlags& flags) {
  return with_table(flags, [&](protocol::MembershipTable& open) -> Outcome {
    using cluster_status::OpenJobs;
    const Outcome removed = cluster_status::remove_cluster(open, flags.force ? OpenJobs::kForget : OpenJobs::kRefuse);
    if (!removed) return removed;
    if (flags.json) {
      print_json({{"removed", true}});
    } else {
      fmt::print("the table has no cluster any more; the next one may have another number of shards\n");
    }
    return {};
  });
}

CLI::App* add_subcommand(CLI::App& cluster, const std::string& name, const std::string& description,
                         ClusterFlags& flags) {
  CLI::App* app = program::add_command(cluster, name, description);
  app->option_defaults()->group("Cluster");
  app->add_option("--table", flags.table.location,
                  "the servers' membership table, or etcd://HOST:PORT,HOST:PORT[/PREFIX]")
      ->required()
      ->type_name("FILE")
      ->check(program::not_empty());
  monitoring::add_etcd_flags(*app, flags.table, monitoring::HelpCase::kSmall);
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags.json, "one JSON object as the last line");
  return app;
}

Command add_status(CLI::App& cluster) {
  auto flags = std::make_shared<ClusterFlags>();
  CLI::App* app =
      add_subcommand(cluster, "status", "shards, spares and jobs, as the membership table has them", *flags);
  app->footer(
      "States of a shard: ready; draining: its process serves until a spare takes its number; gone: it has no\n"
      "process; never started. millrace status asks the shards, and says why a job does not move.\n\n"
      "Exit codes: 0 every shard has a process; 4 one has none, or the table does not answer.\n\n"
      "Examples:\n"
      "  millrace cluster status --table /var/lib/millrace/table.db\n"
      "  millrace cluster status --table etcd://etcd1:2379,etcd2:2379 --table-ca ca.pem --json");
  return {app, [flags] { return show_cluster(*flags); }};
}

Command add_drain(CLI::App& cluster) {
  auto flags = std::make_shared<ClusterFlags>();
  CLI::App* app = add_subcommand(cluster, "drain", "moves a shard to a spare that waits; no step is lost", *flags);
  app->option_defaults()->group("Cluster");
  app->add_option("shard", flags->drain.shard, "number of the shard")
      ->required()
      ->type_name("SHARD")
      ->check(program::in_range(0u, 1023u));
  monitoring::add_duration(*app, "--timeout", monitoring::in_ns(flags->drain.timeout),
                           "for an answer; then the request is withdrawn",
                           {.least = kNsPerMs, .most = 86'400 * kNsPerS});
  app->footer(
      "The shard's process serves its jobs until a spare has its number. Then it tells its workers the spare's "
      "address, "
      "and ends\n"
      "with exit code 0. It ends recoveries and saves under way first: give --timeout for them. It refuses, and keeps "
      "its\n"
      "number, while a job's weights are in no save and none is under way, and where it replaces a switch.\n\n"
      "Exit codes: 0 moved; 2 no such shard; 4 no process has the number, or it has not moved in time; 5 no spare "
      "waits, or the\n"
      "process refuses; 7 interrupted, and withdrawn.\n\n"
      "A rolling restart: start one spare of the new version for each shard, then drain one shard after the other.\n\n"
      "Examples:\n"
      "  millrace cluster drain 1 --table /var/lib/millrace/table.db\n"
      "  for n in 0 1 2; do millrace cluster drain $n --table etcd://etcd1:2379 || break; done");
  return {app, [flags] { return run_drain(*flags); }};
}

Command add_end(CLI::App& cluster) {
  auto flags = std::make_shared<ClusterFlags>();
  CLI::App* app =
      add_subcommand(cluster, "end", "ends a job: its workers stop with an error that has the reason", *flags);
  app->option_defaults()->group("Cluster");
  app->add_option("job", flags->job, "name of the job")->required()->type_name("JOB");
  app->add_option("--reason", flags->reason, "for the workers' error, and the shards' logs")->type_name("TEXT");
  app->get_option("--table")->required(false);
  app->option_defaults()->group("In place of the table");
  app->add_option("--http", flags->http,
                  "HTTP port of a shard (its --http): a named token with the right 'end' is enough")
      ->type_name("HOST:PORT")
      ->check(program::checked([](const std::string& text) { return protocol::parse_host_port(text); }));
  monitoring::add_http_caller_flags(*app, flags->http_security, monitoring::HelpCase::kSmall);
  app->footer(
      "Each shard aborts the job's workers with code unavailable, and saves its store once more. The next job may have "
      "the name at\nonce. So stop first what starts the workers again (torchrun, Kubernetes, systemd): they would "
      "begin it.\n\n"
      "Exit codes: 0 ended; 2 no such job is open; 4 table or shard does not answer, and the job may have ended; 5 its "
      "membership\n"
      "changes all the time, or the shard refuses the token.\n\n"
      "Examples:\n"
      "  millrace cluster end night --reason \"wrong data\" --table /var/lib/millrace/table.db\n"
      "  millrace cluster end night --http node1:7700 --http-ca ca.pem --http-token-file my.token");
  return {app, [flags] { return run_end(*flags); }};
}

Command add_remove(CLI::App& cluster) {
  auto flags = std::make_shared<ClusterFlags>();
  CLI::App* app = add_subcommand(cluster, "remove", "forgets a cluster whose processes have all ended", *flags);
  app->option_defaults()->group("Cluster");
  app->add_flag("--force", flags->force, "forgets open jobs, too; their saves remain");
  app->footer(
      "The next cluster with this table may have another number of shards. Numbers of jobs are not given again.\n\n"
      "Exit codes: 0 removed; 4 the table does not answer; 5 processes hold leases, or jobs are open.\n\n"
      "Examples:\n"
      "  millrace cluster remove --table /var/lib/millrace/table.db\n"
      "  millrace cluster remove --table etcd://etcd1:2379/team/second");
  return {app, [flags] { return run_remove(*flags); }};
}

}  // namespace

Command add_cluster_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("cluster", "shows and changes a cluster by its membership table");
  app->require_subcommand(1);
  const std::array commands = {add_status(*app), add_drain(*app), add_end(*app), add_remove(*app)};
  app->footer("Each of them has its own help: millrace cluster drain --help");
  return {app, [commands] {
            return std::ranges::find_if(commands, [](const Command& one) { return one.app->parsed(); })->run();
          }};
}

}  // namespace millrace::cli
