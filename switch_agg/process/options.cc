#include "switch_agg/process/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "monitoring/command_line/completion.h"
#include "monitoring/command_line/config_flag.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/command_line/text_check.h"
#include "monitoring/command_line/usage_sentence.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/address/host_port.h"
#include "switch_agg/process/command_line.h"

namespace millrace::switch_agg {

using monitoring::add_size;
using monitoring::checked;
using monitoring::in_range;
using monitoring::not_empty;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

constexpr const char* kDescription =
    "millrace-switch: adds up the sparse windows of gradients that workers send by UDP, in a switch's place.\n"
    "\n"
    "It holds a few slots a job; a slot takes one window from every worker, sums it, and sends the one result to all. "
    "Jobs and\n"
    "their keys come from a file; packets of any other job, or without a job's key, are dropped and counted.\n";

constexpr const char* kExamples =
    "Examples\n"
    "  On kernel sockets, for a laptop; no privileges:\n"
    "    millrace-switch run --listen 127.0.0.1:7700 --jobs jobs.json --http 127.0.0.1:9091\n"
    "  On two cores and an interface of the kernel that DPDK reads and writes by itself (root):\n"
    "    millrace-switch run --listen 10.0.0.1:7700 --jobs jobs.json --pmd net_af_packet,iface=eth1 --lcores 2\n"
    "  The same past the kernel's own stack (AF_XDP; packets for other programs still reach it on other queues):\n"
    "    millrace-switch run --listen 10.0.0.1:7700 --jobs jobs.json --pmd net_af_xdp,iface=eth1\n"
    "  On a network card that vfio-pci has, with huge pages (deploy/switch-host.sh says how):\n"
    "    millrace-switch run --listen 10.0.0.1:7700 --jobs jobs.json --pmd 0000:01:00.0 --huge-pages --lcores 4\n"
    "  A rack's aggregator: rack.json has a job of \"role\": \"combine\" with its \"rack\" (workers), \"rack_number\" "
    "and\n"
    "  \"shard\", the address of the aggregator that decides: another millrace-switch whose job lists \"racks\", or "
    "shard 0\n"
    "  (millrace-server --datagrams, with \"racks\" in JOB-KEYS/JOB.racks). Workers get both addresses\n"
    "  (--path switch --switch-address HOST:PORT --rack HOST:PORT):\n"
    "    millrace-switch run --listen 10.0.3.1:7700 --jobs rack.json --http 127.0.0.1:9091\n"
    "  How fast one core of this machine is: millrace-switch-bench traffic --pmd net_ring --json\n";

constexpr const char* kFooter =
    "Signals\n"
    "  SIGTERM, SIGINT  ends at once; a switch has nothing to save: workers go on by the shards, or past their rack.\n"
    "                   Exit code 0.\n"
    "  SIGHUP           reads the file of jobs again: new jobs begin, changed ones begin again, removed ones end.\n"
    "\n"
    "Exit codes\n"
    "  0  ended by a signal, in order\n"
    "  1  a fault of Millrace itself\n"
    "  2  usage: a flag is unknown, missing or out of range; the file of jobs is wrong\n"
    "  5  this build has no DPDK\n"
    "  6  a port is in use, a file cannot be read, a device cannot be opened\n";

struct RunTexts {
  std::string listen = "127.0.0.1:7700";
  std::string gateway;
  uint64_t dpdk_memory = DpdkOptions().memory_mib * kMiB;
};

void add_limits(CLI::App& run, RunOptions& options) {
  run.option_defaults()->group("Limits");
  run.add_option("--jobs-max", options.limits.jobs_max, "Jobs at a time")
      ->check(in_range(1u, 4096u))
      ->capture_default_str();
  run.add_option("--slots-max", options.limits.slots_max, "Slots of all jobs together, on each lcore")
      ->check(in_range(1u, kAggregatorSlotsMax))
      ->capture_default_str();
  run.add_option("--window-indices-max", options.limits.window_indices_max,
                 "Indices of a window; a slot takes 5.75 bytes for each")
      ->check(in_range(64u, protocol::kWindowIndicesMax))
      ->capture_default_str();
  add_size(run, "--packet-bytes-max", options.limits.packet_bytes_max,
           "UDP payload that the path's MTU takes: 1472 of 1500, 8972 of 9000", 1200, 8972);
}

void add_dpdk(CLI::App& run, RunOptions& options, RunTexts& texts, bool& huge_pages) {
  run.option_defaults()->group("DPDK");
  run.add_option("--prefix-bits", options.dpdk.prefix_bits, "Of the network of --listen")
      ->check(in_range(0u, 32u))
      ->capture_default_str();
  run.add_option("--gateway", texts.gateway, "Router to other networks")
      ->type_name("ADDRESS")
      ->check(checked([](const std::string& text) { return protocol::parse_endpoint(text + ":0"); }));
  run.add_flag("--huge-pages", huge_pages, "Uses huge pages");
  add_size(run, "--dpdk-memory", texts.dpdk_memory, "Memory of DPDK's buffers without huge pages", 64 * kMiB,
           (uint64_t{1} << 20) * kMiB);
}

void add_run(CLI::App& run, RunOptions& options, RunTexts& texts) {
  monitoring::add_config_flag(run);
  run.option_defaults()->group("Switch");
  run.add_option("--listen", texts.listen, "UDP address; port 0 takes a free one (kernel sockets)")
      ->type_name("HOST:PORT")
      ->check(checked([](const std::string& text) { return protocol::parse_endpoint(text); }))
      ->capture_default_str();
  run.add_option("--jobs", options.jobs_file, "The jobs, as JSON (switch_agg/README.md)")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  run.add_option("--pmd", options.pmd, "kernel: sockets; or a driver of DPDK with its arguments; or a PCI address")
      ->type_name("DRIVER")
      ->capture_default_str();
  run.add_option("--lcores", options.lcores,
                 "Threads, each with slots of its own; a job is on lcore (its number) modulo N")
      ->check(in_range(1u, 64u))
      ->capture_default_str();
  run.option_defaults()->group("Output");
  run.add_option("--http", options.http, "Serves /metrics, /healthz, /readyz and /status; port 0 takes a free one")
      ->check(checked([](const std::string& text) { return protocol::parse_host_port(text); }))
      ->type_name("HOST:PORT");
  monitoring::add_http_port_flags(run, options.http_security, monitoring::HelpCase::kCapital);
  run.add_flag("--json", options.json, "Prints the start line as JSON: addresses, http; instead of it: code, error");
  run.add_flag("--quiet", options.quiet, "Logs warnings and errors only");
  add_limits(run, options);
}

/// Returns the fault of a combination of flags, which the parser cannot see; empty where there is none.
std::string refuse_together(const RunOptions& options) {
  if (std::string refusal = monitoring::refuse_http(options.http, options.http_security); !refusal.empty())
    return refusal;
  const bool kernel = options.pmd == "kernel";
  if (options.limits.window_indices_max % 64 != 0) return "--window-indices-max: must be a multiple of 64";
  if (!kernel && !ipv4_of(options.listen)) return "--listen: with DPDK the address must be IPv4";
  if (!kernel && options.listen.port == 0) return "--listen: DPDK cannot choose a free port, give one";
  return {};
}

}  // namespace

std::variant<RunOptions, int> parse_options(int argc, const char* const* argv) {
  RunOptions options;
  RunTexts texts;
  bool huge_pages = false;
  CLI::App app(kDescription, std::string(kSwitchProgram.name));
  app.footer(fmt::format("{}\n{}\n{}\n", kExamples, kFooter, version_text(kSwitchProgram.name)));
  app.set_version_flag("--version", version_text(kSwitchProgram.name));
  monitoring::shape_command_line(app);
  app.require_subcommand(1);
  CLI::App* run = app.add_subcommand("run", "Serves jobs");
  run->footer(kExamples);
  add_run(*run, options, texts);
  add_dpdk(*run, options, texts, huge_pages);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0
               ? app.exit(error)
               : kSwitchProgram.report_usage(monitoring::usage_sentence(monitoring::named_command(app),
                                                                        error));  // --help comes here too
  }
  options.listen = protocol::parse_endpoint(texts.listen).value();
  if (const std::string refusal = refuse_together(options); !refusal.empty())
    return kSwitchProgram.report_usage(refusal);
  if (!texts.gateway.empty()) options.dpdk.gateway = ipv4_of(protocol::parse_endpoint(texts.gateway + ":0").value());
  if (!texts.gateway.empty() && !options.dpdk.gateway)
    return kSwitchProgram.report_usage("--gateway: the address must be IPv4");
  options.dpdk.memory_mib = static_cast<uint32_t>(texts.dpdk_memory / kMiB);
  options.dpdk.memory = huge_pages ? DpdkMemory::kHugePages : DpdkMemory::kPlain;
  options.dpdk.device = options.pmd;
  options.dpdk.address = ipv4_of(options.listen).value_or(Ipv4Address{});
  options.dpdk.port = options.listen.port;
  options.dpdk.lanes = options.lcores;
  options.dpdk.packet_bytes_max = options.limits.packet_bytes_max;
  return options;
}

}  // namespace millrace::switch_agg
