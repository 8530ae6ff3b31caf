#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "switch_agg/aggregator.h"
#include "switch_agg/dpdk_ports.h"

namespace millrace::switch_agg {

/// What the command line (and the file that --config names) of `millrace-switch run` says.
struct RunOptions {
  protocol::Endpoint listen;
  std::string jobs_file;
  std::string http;            ///< "host:port"; empty: none
  std::string pmd = "kernel";  ///< or a driver of DPDK with its arguments
  uint32_t lcores = 1;
  AggregatorOptions limits;
  DpdkOptions dpdk;    ///< what concerns DPDK alone; the rest is filled in from the above
  bool json = false;   ///< the start line on stdout as JSON
  bool quiet = false;  ///< warnings and errors only
};

/// And of `millrace-switch bench`.
struct BenchOptions {
  std::string pmd = "net_ring";  ///< or "memory"
  uint32_t lcores = 1;
  uint32_t workers = 4;
  uint32_t slots = 64;
  uint32_t window_indices = 0;  ///< 0: as many that a contribution fills a packet
  uint32_t packet_bytes = 1400;
  double density = 0.01;
  uint64_t packets = 200'000;
  uint32_t rounds = 3;
  uint64_t seed = 1;
  bool json = false;
};

/// And of `millrace-switch load`: workers on another host, or in another network namespace.
struct LoadOptions {
  protocol::Endpoint to;
  protocol::Endpoint from;
  bool echo = false;   ///< what is there forwards packets back (dpdk-testpmd), it is no switch
  bool apart = false;  ///< each worker draws indices of its own
  uint32_t job = 7;
  uint32_t workers = 4;
  uint32_t slots = 32;
  uint32_t window_indices = 40'960;
  uint32_t packet_bytes = 1400;
  double density = 0.01;
  double seconds = 3;
};

/// Reads argv. An exit code instead: help or the version was asked for and printed, or the arguments are wrong and the
/// sentence that says how is on stderr.
std::variant<RunOptions, BenchOptions, LoadOptions, int> parse_options(int argc, const char* const* argv);

}  // namespace millrace::switch_agg
