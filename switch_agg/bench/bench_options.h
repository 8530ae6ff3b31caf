#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "protocol/datagram/packet_sink.h"

namespace millrace::switch_agg {

/// Options of `millrace-switch-bench traffic`.
struct BenchOptions {
  std::string pmd = "net_ring";  ///< or "memory"
  uint32_t lcores = 1;
  uint32_t workers = 4;
  uint32_t slots = 64;
  uint32_t window_indices = 0;  ///< 0: as many that a contribution fills a packet
  uint32_t packet_bytes = 1400;
  double density = 0.01;
  uint64_t packets = 200'000;
  uint32_t repeats = 3;
  uint64_t seed = 1;
  bool json = false;
};

/// Options of `millrace-switch-bench load`: workers on another host, or in another network namespace.
struct LoadOptions {
  protocol::Endpoint to;
  protocol::Endpoint from;
  bool echo = false;   ///< the peer forwards packets back (dpdk-testpmd); it is no switch
  bool apart = false;  ///< each worker draws indices of its own
  uint32_t job = 7;
  uint32_t workers = 4;
  uint32_t slots = 32;
  uint32_t window_indices = 40'960;
  uint32_t packet_bytes = 1400;
  double density = 0.01;
  double seconds = 3;
};

/// Parses argv. Returns an exit code instead if it printed help or the version, or if the arguments are wrong; then a
/// sentence on stderr says how.
std::variant<BenchOptions, LoadOptions, int> parse_bench_options(int argc, const char* const* argv);

}  // namespace millrace::switch_agg
