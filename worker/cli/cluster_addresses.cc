#include "worker/cli/cluster_addresses.h"

#include <algorithm>
#include <utility>

#include "kernels/base/clock.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/command_line/table_flags.h"
#include "protocol/address/host_port.h"
#include "worker/program/flag_range.h"

namespace millrace::cli {

using program::fail_with;

void add_address_flags(CLI::App& app, ClusterAddressFlags& flags, const std::string& which) {
  app.option_defaults()->group("Cluster");
  app.add_option("addresses", flags.addresses, which);
  app.add_option("--servers", flags.servers,
                 "host:port,host:port as for train: asked at these ports + 100, where serve puts the status")
      ->type_name("LIST")
      ->check(program::checked([](const std::string& text) { return protocol::parse_server_addresses(text); }));
  app.add_option("--table", flags.table.location,
                 "the servers' membership table, or etcd://HOST:PORT: all shards in it, where their --http says")
      ->type_name("FILE")
      ->check(program::not_empty());
  monitoring::add_duration(app, "--timeout", monitoring::in_ms(flags.timeout_ms),
                           "for connecting and for reading, each", {.least = kNsPerMs, .most = 600 * kNsPerS});
  monitoring::add_http_caller_flags(app, flags.http_security, monitoring::HelpCase::kSmall);
  monitoring::add_etcd_flags(app, flags.table, monitoring::HelpCase::kSmall);
}

std::expected<std::vector<std::string>, program::Failure> addresses_of(const ClusterAddressFlags& flags,
                                                                       const cluster_status::Fetch& fetch) {
  std::vector<std::string> addresses = flags.addresses;
  std::vector<std::string> for_workers;
  const auto add = [&addresses](std::string http) {
    if (std::ranges::find(addresses, http) == addresses.end()) addresses.push_back(std::move(http));
  };
  if (!flags.servers.empty()) {
    auto servers = protocol::parse_server_addresses(flags.servers);
    if (!servers) return fail_with(servers.error());
    for_workers = std::move(*servers);
  }
  if (!flags.table.location.empty()) {
    auto in_table = cluster_status::http_addresses_in_table(flags.table, fetch);
    if (!in_table) return fail_with(in_table.error());
    for (std::string& http : *in_table) add(std::move(http));
  } else if (flags.table != protocol::TableFlags()) {
    return fail_with(program::ExitCode::kUsage, "--table-ca and the like are for --table etcd://HOST:PORT");
  }
  for (const std::string& address : for_workers) {
    auto http = cluster_status::http_address_of(address);
    if (!http) return fail_with(http.error());
    add(std::move(*http));
  }
  return addresses;
}

cluster_status::Fetch fetch_of(const ClusterAddressFlags& flags, const monitoring::HttpCaller* caller) {
  return [&flags, caller](const std::string& address) {
    return cluster_status::fetch_status(address, flags.timeout_ms, caller);
  };
}

}  // namespace millrace::cli
