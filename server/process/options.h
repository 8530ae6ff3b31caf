#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "monitoring/http/secure/http_security.h"
#include "monitoring/program.h"
#include "protocol/table/open_table.h"
#include "server/access/access.h"
#include "server/base/limits.h"

namespace millrace::server {

inline constexpr monitoring::ServerProgram kServerProgram{"millrace-server", monitoring::ErrorPlace::kShard};

/// The options of millrace-server from its command line and configuration file.
struct Options {
  uint32_t shard = 0;
  uint32_t shards = 1;
  bool spare = false;  ///< takes the number of a shard that is gone; `shard` and `shards` come from the table
  std::string listen = "tcp://127.0.0.1:7600";
  std::string advertise;  ///< empty: as bound
  protocol::TableFlags table;
  AccessFiles access;
  bool insecure = false;  ///< listens on any address without keys
  std::string http;       ///< "host:port"; empty: none
  monitoring::HttpSecurityOptions http_security;
  std::vector<std::string> page_workers;  ///< "host:port" of workers that the page shows
  std::string store_dir;                  ///< folder of the saves of jobs' stores; empty: none
  uint32_t store_save_seconds = 0;        ///< 0: when asked, and at a job's end
  std::string datagrams;                  ///< "host:port" of the aggregator of datagrams; empty: none
  std::string job_keys;                   ///< folder of the keys of jobs of path switch
  double link_rate = 0;                   ///< bits per second to the workers; 0: not known
  uint32_t threads = 0;                   ///< 0: one a core
  bool json = false;                      ///< the start line on stdout as JSON
  bool quiet = false;                     ///< warnings and errors only
  Limits limits;
};

/// Reads argv (and the file that --config names). An exit code instead: help was asked for and printed, or the
/// arguments are wrong and a sentence on stderr has the reason.
std::variant<Options, int> parse_options(int argc, const char* const* argv);

}  // namespace millrace::server
