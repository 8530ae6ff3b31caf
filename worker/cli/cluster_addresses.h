#pragma once

#include <CLI/CLI.hpp>
#include <expected>
#include <string>
#include <vector>

#include "monitoring/http/secure/http_security.h"
#include "protocol/table/open_table.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// Holds the flags that say where the HTTP ports of a cluster are.
struct ClusterAddressFlags {
  std::vector<std::string> addresses;
  std::string servers;
  protocol::TableFlags table;
  int timeout_ms = 3'000;
  monitoring::HttpSecurityOptions http_security;  ///< of a client
};

/// Adds the flags to the group Cluster; `which` says which processes' ports the addresses are.
void add_address_flags(CLI::App& app, ClusterAddressFlags& flags, const std::string& which);

/// Returns all HTTP addresses that the flags come to, each once; there may be none.
///
/// fetch   as of http_ports_of().
/// Errors  usage; those of the table.
std::expected<std::vector<std::string>, program::Failure> addresses_of(const ClusterAddressFlags& flags,
                                                                       const cluster_status::Fetch& fetch);

/// Returns fetch_status() with the time limit of the flags. Both outlive it.
cluster_status::Fetch fetch_of(const ClusterAddressFlags& flags, const monitoring::HttpCaller* caller);

}  // namespace millrace::cli
