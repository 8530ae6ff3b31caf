#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "monitoring/http/secure/http_security.h"
#include "monitoring/program.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {

inline constexpr monitoring::ServerProgram kSwitchProgram{"millrace-switch", monitoring::ErrorPlace::kSwitch};

/// Holds the options of `millrace-switch run`, from the command line and the file that --config names.
struct RunOptions {
  protocol::Endpoint listen;
  std::string jobs_file;
  std::string http;  ///< "host:port"; empty: none
  monitoring::HttpSecurityOptions http_security;
  std::string pmd = "kernel";  ///< or a driver of DPDK with its arguments
  uint32_t lcores = 1;
  AggregatorOptions limits;
  DpdkOptions dpdk;    ///< what concerns DPDK alone; the rest is filled in from the above
  bool json = false;   ///< the start line on stdout as JSON
  bool quiet = false;  ///< warnings and errors only
};

/// Parses argv. Returns an exit code instead if it printed help or the version, or if the arguments are wrong; then a
/// sentence on stderr says how.
std::variant<RunOptions, int> parse_options(int argc, const char* const* argv);

}  // namespace millrace::switch_agg
