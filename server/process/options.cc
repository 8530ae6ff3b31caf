#include "server/process/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/units.h"
#include "kernels/base/version.h"
#include "monitoring/command_line/completion.h"
#include "monitoring/command_line/config_flag.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/command_line/table_flags.h"
#include "monitoring/command_line/text_check.h"
#include "monitoring/command_line/usage_sentence.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/address/host_port.h"
#include "protocol/job/job_spec.h"

namespace millrace::server {

using monitoring::add_duration;
using monitoring::add_rate;
using monitoring::add_size;
using monitoring::checked;
using monitoring::in_ms;
using monitoring::in_range;
using monitoring::in_seconds;
using monitoring::not_empty;

namespace {

constexpr TimeNs kDay = 86'400 * kNsPerS;

constexpr const char* kDescription =
    "millrace-server: one shard of Millrace, the parameter server for sparse gradients.\n"
    "\n"
    "A shard holds an index range of every tensor of every job, sums the workers' contributions to a step, keeps the "
    "globally\n"
    "largest entries where the job asks for it, and sends that one update back to all of them. All shards of a cluster "
    "share one\n"
    "membership table (an SQLite file, or etcd); jobs come with the first worker that says Hello and need no set-up "
    "here.\n";

constexpr const char* kFooter =
    "Examples\n"
    "  One shard on this machine, port chosen by the system, addresses printed as JSON:\n"
    "    millrace-server --table /tmp/millrace.db --listen 127.0.0.1:0 --json\n"
    "  The second of two shards, reachable from other machines, with /metrics, /healthz, /readyz and /status on port "
    "9090 of this one:\n"
    "    millrace-server --shard 1 --shards 2 --table /srv/millrace.db --listen 0.0.0.0:7601 \\\n"
    "                    --advertise node1:7601 --key keys/cluster.key --allowed-keys keys --http 127.0.0.1:9090\n"
    "  The same with the table in etcd, for shards on several machines:\n"
    "    millrace-server --shard 1 --shards 2 --table etcd://etcd1:2379,etcd2:2379,etcd3:2379 --listen 0.0.0.0:7601 "
    "\\\n"
    "                    --advertise node1:7601 --key keys/cluster.key --allowed-keys keys\n"
    "  A spare for any of them:\n"
    "    millrace-server --spare --table etcd://etcd1:2379,etcd2:2379,etcd3:2379 --listen 0.0.0.0:7601 \\\n"
    "                    --advertise node3:7601 --key keys/cluster.key --allowed-keys keys\n"
    "  Shard 0 that takes over from a switch which does not answer (jobs of path switch; DIR has 7.key for job 7):\n"
    "    millrace-server --table /tmp/millrace.db --datagrams 127.0.0.1:0 --job-keys DIR\n"
    "  The same from a file, with lines as table = \"/tmp/millrace.db\" (the command line wins over it):\n"
    "    millrace-server --config shard1.toml\n"
    "\n"
    "Signals\n"
    "  SIGTERM, SIGINT  a spare that waits takes the number; else rounds in flight may finish, and jobs end. Both\n"
    "                   within --drain; exit code 0.\n"
    "  SIGHUP           reads --allowed-keys, --policy, --job-keys and the files of the --http flags again; opens "
    "--audit-log\n"
    "                   again. A running job keeps its job key.\n"
    "  SIGUSR2          saves the weights of all jobs with a store to --store-dir now.\n"
    "\n"
    "Exit codes\n"
    "  0  ended by a signal, in order\n"
    "  1  a fault of Millrace itself\n"
    "  2  usage: a flag is unknown, missing or out of range\n"
    "  3  the membership table is damaged\n"
    "  5  the membership table is of a cluster of another shape or version, or another process took this number\n"
    "  6  a port is in use, too few files may be open, or the membership table cannot be read or written\n";

void add_limits(CLI::App& app, Limits& limits) {
  app.option_defaults()->group("Limits (a refusal names the one it met)");
  app.add_option("--jobs-max", limits.jobs_max, "Jobs open at a time")
      ->check(in_range(1U, std::numeric_limits<uint32_t>::max()))
      ->capture_default_str();
  // No job may have more (protocol::validate()).
  app.add_option("--workers-max", limits.workers_max, "Workers of a job")
      ->check(in_range(1U, protocol::kWorkersMax))
      ->capture_default_str();
  app.add_option("--tensors-max", limits.tensors_max, "Tensors of a job")
      ->check(in_range(1U, protocol::kTensorsMax))
      ->capture_default_str();
  app.add_option("--parts-max", limits.parts_max, "Parts of a job, over all shards")
      ->check(in_range(1U, protocol::kPartsMax))
      ->capture_default_str();
  add_size(app, "--message-bytes-max", limits.message_bytes_max, "One contribution, or one returned update", 1,
           kSizeMax);
  add_size(app, "--job-memory-bytes-max", limits.job_memory_bytes_max, "Open, decoded and kept bytes of one job", 1,
           kSizeMax);
  add_size(app, "--shard-memory-bytes-max", limits.shard_memory_bytes_max,
           "The same of all jobs; each may always use its fair share", 1, kSizeMax);
  add_duration(app, "--dead-after-min", in_ms(limits.dead_after_ms_min), "Least dead_after that a job may ask for",
               {.most = kDay});
  add_duration(app, "--drain", in_ms(limits.drain_ms), "At shutdown: time for a spare or rounds in flight",
               {.most = kDay});
  add_duration(app, "--abandon-after", in_ms(limits.abandon_ms),
               "A job ends when its last worker is silent for this time", {.least = kNsPerS, .most = kDay});
}

/// Returns why the server may not listen where it is asked to, or what its keys lack.
std::string refuse_access(const Options& options) {
  if (options.access.key.empty() != options.access.allowed_keys.empty())
    return "--key and --allowed-keys go together: the key of this cluster, and those that may connect";
  const bool has_keys = !options.access.key.empty();
  if (!has_keys && !options.access.policy.empty()) return "--policy: rights are those of keys; give --key as well";
  if (has_keys && options.insecure) return "--insecure: this server has keys; leave one of them out";
  const Result<protocol::HostPort> listen = protocol::parse_tcp_address(options.listen);
  if (has_keys || options.insecure || !listen || protocol::is_loopback_host(listen->host)) return {};
  return fmt::format(
      "--listen {}: other machines may reach this address; give --key and --allowed-keys (millrace keys new), or say "
      "--insecure: every process that reaches the port may then join, end and read every job",
      protocol::without_tcp(options.listen));
}

/// Returns why the flags do not fit together, which the parser cannot see in one flag alone; empty: they do.
std::string refuse_together(const Options& options) {
  if (std::string refusal = protocol::refuse_table(options.table); !refusal.empty()) return refusal;
  if (options.shard >= options.shards)
    return fmt::format("--shard: numbers are 0 to {} with --shards {}", options.shards - 1, options.shards);
  if (std::string refusal = refuse_access(options); !refusal.empty()) return refusal;
  if (std::string refusal = monitoring::refuse_http(options.http, options.http_security); !refusal.empty())
    return refusal;
  if (options.store_save_seconds != 0 && options.store_dir.empty())
    return "--store-save-every without --store-dir: there is no place to save to";
  if (options.spare && !options.datagrams.empty()) return "--datagrams: a spare does not replace a switch";
  if (options.datagrams.empty() != options.job_keys.empty())
    return "--datagrams and --job-keys go together: datagrams are authentic by the job's key";
  if (!options.datagrams.empty() && options.shard != 0)
    return "--datagrams: only shard 0 decides in place of a switch; leave it out here";
  return {};
}

/// Turns HOST:PORT into tcp://HOST:PORT, which is taken as it is: the start line has it. Refuses any other text; ZeroMQ
/// would take a port above 65535 modulo 65536.
std::string to_address(std::string& text, protocol::PortZero port_zero) {
  const auto parsed = protocol::parse_host_port(protocol::without_tcp(text), port_zero);
  if (!parsed) return parsed.error().message;
  text = protocol::tcp_address(parsed->host, parsed->port);
  return {};
}

void add_cluster_flags(CLI::App& app, Options& options) {
  app.option_defaults()->group("Cluster");
  app.add_option(
         "--table", options.table.location,
         "Membership table that all shards share: an SQLite file, made if absent, or "
         "etcd://HOST:PORT,HOST:PORT[/PREFIX] with client ports of etcd 3.4 or later (default prefix: millrace)")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  CLI::Option* shard = app.add_option("--shard", options.shard, "Number of this shard, from 0")
                           ->check(in_range(0u, 1023u))
                           ->capture_default_str();
  CLI::Option* shards = app.add_option("--shards", options.shards, "Shards of the cluster; the same at all of them")
                            ->check(in_range(1u, 1024u))
                            ->capture_default_str();
  app.add_flag("--spare", options.spare,
               "Waits until a shard's process is gone, takes its number and serves its jobs; leave out --shard and "
               "--shards")
      ->excludes(shard)
      ->excludes(shards);
  app.add_option(
         "--listen", options.listen,
         "Address to accept workers and shards on, of a name every one that is this machine's; port 0 takes a free one")
      ->transform(CLI::Validator([](std::string& text) { return to_address(text, protocol::PortZero::kAllowed); }, ""))
      ->type_name("HOST:PORT")
      ->default_str("127.0.0.1:7600");
  app.add_option("--advertise", options.advertise, "Address that others use, where it is not the one bound")
      ->transform(CLI::Validator([](std::string& text) { return to_address(text, protocol::PortZero::kRefused); }, ""))
      ->type_name("HOST:PORT");
  app.add_option("--threads", options.threads, "Threads that compute; 0: one a core")
      ->check(in_range(0u, 1024u))
      ->capture_default_str();
}

void add_table_flags(CLI::App& app, protocol::TableFlags& table) {
  monitoring::add_etcd_flags(app, table, monitoring::HelpCase::kCapital);
  add_duration(app, "--table-wait", in_ms(table.etcd_wait_ms),
               "Longest time that a call to etcd may take; all jobs of the shard wait for it",
               {.least = 20 * kNsPerMs, .most = 10 * kNsPerS});
}

void add_access_flags(CLI::App& app, Options& options) {
  app.option_defaults()->group("Security");
  app.add_option("--key", options.access.key,
                 "Secret key of the cluster, the same at all its shards (millrace keys new); encrypts every connection "
                 "and lets in the keys of --allowed-keys alone")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--allowed-keys", options.access.allowed_keys,
                 "Public keys that may connect: a folder of NAME.pub files, or a file of lines NAME DIGITS; read again "
                 "on SIGHUP")
      ->type_name("FOLDER")
      ->check(not_empty());
  app.add_option("--policy", options.access.policy,
                 "Rights and quotas of keys, and rights of named tokens (further lines NAME TOKEN of "
                 "--http-token-file), as JSON (deploy/SECURITY.md); without it every one of them may do everything; "
                 "read again on SIGHUP")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_flag("--insecure", options.insecure,
               "Without keys: may listen on addresses that other machines reach. Every process that reaches the port "
               "may join, end and read every job");
  app.add_option("--audit-log", options.access.audit_log,
                 "Appends joins, leaves, refusals and removals, one JSON line each; opened again on SIGHUP")
      ->type_name("FILE")
      ->check(not_empty());
}

void add_job_flags(CLI::App& app, Options& options) {
  app.option_defaults()->group("Compression");
  add_rate(app, "--link-rate", options.link_rate,
           "Of the link from this shard to its workers, for jobs with codec auto (default: 1gbit)");
  app.option_defaults()->group("Store");
  app.add_option("--store-dir", options.store_dir,
                 "Folder for the weights of jobs with a store: saved when a job is over, on SIGUSR2, and every "
                 "--store-save-every")
      ->type_name("FOLDER")
      ->check(not_empty());
  add_duration(app, "--store-save-every", in_seconds(options.store_save_seconds),
               "Time between two saves of running jobs' stores; 0s: none", {.most = kDay});
  app.option_defaults()->group("Switch");
  app.add_option(
         "--datagrams", options.datagrams,
         "Decides in place of the switch of jobs of path switch, on this UDP address, while the switch is silent; "
         "of shard 0 only. Workers receive this address; port 0 takes a free one")
      ->check(checked([](const std::string& text) { return protocol::parse_endpoint(text); }))
      ->type_name("HOST:PORT");
  app.add_option("--job-keys", options.job_keys,
                 "Folder of those jobs' keys: N.key for the job with number N at the switch, as the switch has it: 64 "
                 "hexadecimal digits, readable by its owner and group alone; read again on SIGHUP, for jobs that begin "
                 "later. N.racks "
                 "beside it, where racks' switches add up in front of this shard, lists their workers: {\"racks\": "
                 "[[0, 1], [2, 3]]}")
      ->type_name("FOLDER")
      ->check(not_empty());
}

void add_output_flags(CLI::App& app, Options& options) {
  app.option_defaults()->group("Output");
  app.add_option("--http", options.http,
                 "Serves the page of the cluster, /metrics, /healthz, /readyz and /status; port 0 takes a free one")
      ->check(checked([](const std::string& text) { return protocol::parse_host_port(text); }))
      ->type_name("HOST:PORT");
  monitoring::add_http_port_flags(app, options.http_security, monitoring::HelpCase::kCapital);
  monitoring::add_http_ca_flag(app, options.http_security, monitoring::HelpCase::kCapital);
  app.add_option("--page-workers", options.page_workers,
                 "HTTP ports of workers (their --http): the page shows their residuals and times beside the shards' "
                 "numbers")
      ->check(checked([](const std::string& text) { return protocol::parse_host_port(text); }))
      ->delimiter(',')
      ->type_name("LIST")
      ->expected(1, 256);
  app.add_flag("--json", options.json,
               "Prints the start line as JSON: address, http, shard, incarnation; instead of it: code, error");
  app.add_flag("--quiet", options.quiet, "Logs warnings and errors only");
}

}  // namespace

std::variant<Options, int> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, std::string(kServerProgram.name));
  app.footer(kFooter);
  app.set_version_flag("--version", "millrace-server " + std::string(project_version()));
  monitoring::shape_command_line(app);
  monitoring::add_config_flag(app);
  add_cluster_flags(app, options);
  add_access_flags(app, options);
  add_table_flags(app, options.table);
  add_job_flags(app, options);
  add_output_flags(app, options);
  add_limits(app, options.limits);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0
               ? app.exit(error)
               : kServerProgram.report_usage(monitoring::usage_sentence(app, error));  // --help comes here too
  }
  if (const std::string refusal = refuse_together(options); !refusal.empty())
    return kServerProgram.report_usage(refusal);
  return options;
}

}  // namespace millrace::server
