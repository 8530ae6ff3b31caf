#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace millrace::server {
namespace {

constexpr const char* kDescription =
    "millrace-server: one shard of Millrace, the parameter server for sparse gradients.\n"
    "\n"
    "A shard holds an index range of every tensor of every job, sums what the workers send into a step, keeps the "
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
    "  The same from a file (any flag without its dashes; the command line wins over the file):\n"
    "    millrace-server --config shard1.toml\n"
    "\n"
    "Signals\n"
    "  SIGTERM, SIGINT  no new steps; rounds in flight may finish for --drain-seconds; workers are told; exit code "
    "0.\n";

void add_limits(CLI::App& app, Limits& limits, uint32_t& drain_seconds, uint32_t& abandon_seconds) {
  const std::string group = "Limits (a refusal names the one it met)";
  app.add_option("--jobs-max", limits.jobs_max, "Jobs open at a time")->group(group)->capture_default_str();
  app.add_option("--workers-max", limits.workers_max, "Workers of a job")->group(group)->capture_default_str();
  app.add_option("--tensors-max", limits.tensors_max, "Tensors of a job")->group(group)->capture_default_str();
  app.add_option("--parts-max", limits.parts_max, "Parts of a job, over all shards")
      ->group(group)
      ->capture_default_str();
  app.add_option("--message-bytes-max", limits.message_bytes_max, "Payload of one message")
      ->transform(CLI::AsSizeValue(false))
      ->group(group)
      ->capture_default_str();
  app.add_option("--job-memory-bytes-max", limits.job_memory_bytes_max, "Open, decoded and kept bytes of one job")
      ->transform(CLI::AsSizeValue(false))
      ->group(group)
      ->capture_default_str();
  app.add_option("--shard-memory-bytes-max", limits.shard_memory_bytes_max,
                 "The same of all jobs; each may always use its fair share")
      ->transform(CLI::AsSizeValue(false))
      ->group(group)
      ->capture_default_str();
  app.add_option("--dead-after-ms-min", limits.dead_after_ms_min, "Least dead_after_ms that a job may ask for")
      ->group(group)
      ->capture_default_str();
  app.add_option("--drain-seconds", drain_seconds, "At shutdown: time for rounds in flight")
      ->check(CLI::Range(0u, 86'400u))
      ->group(group)
      ->capture_default_str();
  app.add_option("--abandon-seconds", abandon_seconds, "A job whose last worker is silent for so long ends")
      ->check(CLI::Range(1u, 86'400u))
      ->group(group)
      ->capture_default_str();
}

}  // namespace

std::variant<Options, int> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, "millrace-server");
  app.footer(kFooter);
  app.set_config("--config", "", "Reads flags from a TOML or INI file");
  app.add_option("--table", options.table, "Membership table: an SQLite file that all shards share; made if absent")
      ->required()
      ->type_name("FILE");
  app.add_option("--shard", options.shard, "Number of this shard, from 0")->capture_default_str();
  app.add_option("--shards", options.shards, "Shards of the cluster; the same at all of them")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  app.add_option("--listen", options.listen, "Address to accept workers and shards on; port 0 takes a free one")
      ->type_name("tcp://HOST:PORT")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise, "Address that others use, where it is not the one bound")
      ->type_name("tcp://HOST:PORT");
  app.add_option("--http", options.http, "Serves /metrics, /healthz and /status; port 0 takes a free one")
      ->type_name("HOST:PORT");
  app.add_option("--threads", options.threads, "Threads that compute; 0: one a core")->check(CLI::Range(0u, 1024u));
  app.add_flag("--json", options.json, "Prints the start line as JSON: address, http, shard, life");
  app.add_flag("--quiet", options.quiet, "Logs warnings and errors only");
  uint32_t drain_seconds = options.limits.drain_ms / 1000;
  uint32_t abandon_seconds = options.limits.abandon_ms / 1000;
  add_limits(app, options.limits, drain_seconds, abandon_seconds);
  try {
    app.parse(argc, argv);
    if (options.shard >= options.shards) {
      const std::string most = std::to_string(options.shards - 1);
      return app.exit(CLI::ValidationError(
          "--shard", "numbers are 0 to " + most + " with --shards " + std::to_string(options.shards)));
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  options.limits.drain_ms = drain_seconds * 1000;
  options.limits.abandon_ms = abandon_seconds * 1000;
  return options;
}

}  // namespace millrace::server
