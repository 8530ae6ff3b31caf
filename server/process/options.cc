#include "server/process/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/version.h"
#include "monitoring/usage_sentence.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/address/host_port.h"

namespace millrace::server {
namespace {

constexpr const char* kDescription =
    "millrace-server: one shard of Millrace, the parameter server for sparse gradients.\n"
    "\n"
    "A shard holds an index range of every tensor of every job, sums the workers' contributions to a step, keeps the "
    "globally\n"
    "largest entries where the job asks for it, and sends that one update back to all of them. All shards of a cluster "
    "share one\n"
    "membership table (an SQLite file); jobs come with the first worker that says Hello and need no set-up here.\n";

constexpr const char* kFooter =
    "Examples\n"
    "  One shard on this machine, port chosen by the system, addresses printed as JSON:\n"
    "    millrace-server --table /tmp/millrace.db --listen tcp://127.0.0.1:0 --json\n"
    "  The second of two shards, reachable from other machines, with /metrics, /healthz and /status on port 9090:\n"
    "    millrace-server --shard 1 --shards 2 --table /srv/millrace.db --listen tcp://0.0.0.0:7601 \\\n"
    "                    --advertise tcp://node1:7601 --http 0.0.0.0:9090\n"
    "  Shard 0 that takes over from a switch which does not answer (jobs of path switch; DIR has 7.key for job 7):\n"
    "    millrace-server --table /tmp/millrace.db --datagrams 127.0.0.1:0 --job-keys DIR\n"
    "  The same from a file (any flag without its dashes; the command line wins over the file):\n"
    "    millrace-server --config shard1.toml\n"
    "\n"
    "Signals\n"
    "  SIGTERM, SIGINT  no new steps; rounds in flight may finish for --drain-seconds; workers are notified; exit "
    "code 0.\n"
    "  SIGUSR2          saves the weights of all jobs with a store to --store-dir now.\n"
    "\n"
    "Exit codes\n"
    "  0  ended by a signal, in order\n"
    "  1  a fault of Millrace itself\n"
    "  2  usage: a flag is unknown, missing or out of range\n"
    "  3  the membership table is damaged\n"
    "  5  the membership table is of a cluster of another shape or version, or another process took this number\n"
    "  6  a port is in use, too few files may be open, or the membership table cannot be read or written\n";

/// Turns a size from one byte to 2^62 into a plain number; refuses any other text. CLI11's own conversion would take -1
/// and 10^30, modulo 2^64.
std::string to_bytes(std::string& text) {
  constexpr std::string_view kUnits = "kmgtpe";
  constexpr uint64_t kMost = uint64_t{1} << 62;
  uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, count);
  std::string unit(at, end);
  std::ranges::transform(unit, unit.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  size_t power = 0;
  bool known = unit.empty() || unit == "b";
  if (const size_t which = unit.empty() ? std::string::npos : kUnits.find(unit.front()); which != std::string::npos) {
    const std::string rest = unit.substr(1);
    known = rest.empty() || rest == "b" || rest == "i" || rest == "ib";
    power = which + 1;
  }
  if (error != std::errc() || !known || count == 0 || count > (kMost >> (10 * power)))
    return fmt::format(
        "'{}' is not a size: give a number of bytes from 1, or with a unit, as 64M or 2GiB (powers of 1024)", text);
  text = std::to_string(count << (10 * power));
  return {};
}

/// Refuses paths that SQLite would take for a table of the process's own, which no other shard sees.
std::string refuse_table(std::string& text) {
  if (!text.empty() && text != ":memory:") return {};
  return fmt::format("'{}' is not the name of a file that all shards can share", text);
}

void add_limits(CLI::App& app, Limits& limits, uint32_t& drain_seconds, uint32_t& abandon_seconds) {
  const CLI::Range from_one(1U, std::numeric_limits<uint32_t>::max());
  const std::string group = "Limits (a refusal names the one it met)";
  app.add_option("--jobs-max", limits.jobs_max, "Jobs open at a time")
      ->check(from_one)
      ->group(group)
      ->capture_default_str();
  app.add_option("--workers-max", limits.workers_max, "Workers of a job")
      ->check(from_one)
      ->group(group)
      ->capture_default_str();
  app.add_option("--tensors-max", limits.tensors_max, "Tensors of a job")
      ->check(from_one)
      ->group(group)
      ->capture_default_str();
  app.add_option("--parts-max", limits.parts_max, "Parts of a job, over all shards")
      ->check(from_one)
      ->group(group)
      ->capture_default_str();
  app.add_option("--message-bytes-max", limits.message_bytes_max, "Payload of one message")
      ->transform(CLI::Validator(to_bytes, "SIZE"))
      ->group(group)
      ->capture_default_str();
  app.add_option("--job-memory-bytes-max", limits.job_memory_bytes_max, "Open, decoded and kept bytes of one job")
      ->transform(CLI::Validator(to_bytes, "SIZE"))
      ->group(group)
      ->capture_default_str();
  app.add_option("--shard-memory-bytes-max", limits.shard_memory_bytes_max,
                 "The same of all jobs; each may always use its fair share")
      ->transform(CLI::Validator(to_bytes, "SIZE"))
      ->group(group)
      ->capture_default_str();
  app.add_option("--dead-after-ms-min", limits.dead_after_ms_min, "Least dead_after that a job may ask for")
      ->group(group)
      ->capture_default_str();
  app.add_option("--drain-seconds", drain_seconds, "At shutdown: time for rounds in flight")
      ->check(CLI::Range(0u, 86'400u))
      ->group(group)
      ->capture_default_str();
  app.add_option("--abandon-seconds", abandon_seconds, "A job ends when its last worker is silent for this time")
      ->check(CLI::Range(1u, 86'400u))
      ->group(group)
      ->capture_default_str();
}

/// Returns why the flags do not fit together, which the parser cannot see in one flag alone; empty: they do.
std::string refuse_together(const Options& options) {
  if (options.shard >= options.shards)
    return fmt::format("--shard: numbers are 0 to {} with --shards {}", options.shards - 1, options.shards);
  if (options.store_save_seconds != 0 && options.store_dir.empty())
    return "--store-save-seconds without --store-dir: there is no place to save to";
  if (options.datagrams.empty() != options.job_keys.empty())
    return "--datagrams and --job-keys go together: datagrams are authentic by the job's key";
  if (!options.datagrams.empty() && options.shard != 0)
    return "--datagrams: only shard 0 decides in place of a switch; leave it out here";
  if (options.advertise.ends_with(":0")) return "--advertise: others cannot reach port 0";
  return {};
}

/// Refuses text that is not tcp://HOST:PORT; ZeroMQ would take a port above 65535 modulo 65536.
std::string refuse_address(std::string& text) {
  const auto parsed = protocol::parse_tcp_address(text);
  return parsed ? std::string() : parsed.error().message;
}

std::string refuse_datagrams(std::string& text) {
  const auto parsed = protocol::parse_endpoint(text);
  return parsed ? std::string() : parsed.error().message;
}

std::string refuse_http(std::string& text) {
  const auto parsed = protocol::parse_host_port(text);
  return parsed ? std::string() : parsed.error().message;
}

}  // namespace

std::variant<Options, int> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, std::string(kServerProgram.name));
  app.footer(kFooter);
  app.set_version_flag("--version", "millrace-server " + std::string(project_version()));
  app.set_config("--config", "", "Reads flags from a TOML or INI file");
  app.allow_config_extras(CLI::config_extras_mode::error);  // a flag with a typing error is not to be left out silently
  app.add_option("--table", options.table, "Membership table: an SQLite file that all shards share; made if absent")
      ->required()
      ->check(CLI::Validator(refuse_table, ""))
      ->type_name("FILE");
  app.add_option("--shard", options.shard, "Number of this shard, from 0")
      ->check(CLI::Range(0u, 1023u))
      ->capture_default_str();
  app.add_option("--shards", options.shards, "Shards of the cluster; the same at all of them")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  app.add_option(
         "--listen", options.listen,
         "Address to accept workers and shards on, of a name every one that is this machine's; port 0 takes a free one")
      ->check(CLI::Validator(refuse_address, ""))
      ->type_name("tcp://HOST:PORT")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise, "Address that others use, where it is not the one bound")
      ->check(CLI::Validator(refuse_address, ""))
      ->type_name("tcp://HOST:PORT");
  app.add_option("--http", options.http, "Serves /metrics, /healthz and /status; port 0 takes a free one")
      ->check(CLI::Validator(refuse_http, ""))
      ->type_name("HOST:PORT");
  app.add_option("--store-dir", options.store_dir,
                 "Folder for the weights of jobs with a store: saved when a job is over, on SIGUSR2, and every "
                 "--store-save-seconds")
      ->type_name("FOLDER");
  app.add_option("--store-save-seconds", options.store_save_seconds, "Saves running jobs' stores so often; 0: never")
      ->check(CLI::Range(0u, 86'400u))
      ->capture_default_str();
  app.add_option(
         "--datagrams", options.datagrams,
         "Decides in place of the switch of jobs of path switch, on this UDP address, while the switch is silent; "
         "of shard 0 only. Workers receive this address; port 0 takes a free one")
      ->check(CLI::Validator(refuse_datagrams, ""))
      ->type_name("HOST:PORT");
  app.add_option(
         "--job-keys", options.job_keys,
         "Folder of those jobs' keys: N.key for the job with number N at the switch, as the switch has it: 64 "
         "hexadecimal digits, readable by its owner alone. N.racks beside it, where racks' switches add up in front "
         "of this shard, lists their workers: {\"racks\": [[0, 1], [2, 3]]}")
      ->type_name("FOLDER");
  app.add_option("--link-rate", options.link_rate,
                 "Bits per second from this shard to its workers, for jobs with codec auto; 0: taken for 1e9")
      ->check(CLI::Range(0.0, 1e15));
  app.add_option("--threads", options.threads, "Threads that compute; 0: one a core")->check(CLI::Range(0u, 1024u));
  app.add_flag("--json", options.json,
               "Prints the start line as JSON: address, http, shard, incarnation; instead of it: code, error");
  app.add_flag("--quiet", options.quiet, "Logs warnings and errors only");
  uint32_t drain_seconds = options.limits.drain_ms / 1000;
  uint32_t abandon_seconds = options.limits.abandon_ms / 1000;
  add_limits(app, options.limits, drain_seconds, abandon_seconds);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0
               ? app.exit(error)
               : kServerProgram.report_usage(monitoring::usage_sentence(app, error));  // --help comes here too
  }
  if (const std::string refusal = refuse_together(options); !refusal.empty())
    return kServerProgram.report_usage(refusal);
  options.limits.drain_ms = drain_seconds * 1000;
  options.limits.abandon_ms = abandon_seconds * 1000;
  return options;
}

}  // namespace millrace::server
