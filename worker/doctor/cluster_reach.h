#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "monitoring/http/http_protection.h"
#include "protocol/table/open_table.h"
#include "protocol/transport/transport.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/doctor/cluster_facts.h"

/// Collects the facts of a cluster. Changes no job: it connects, asks HTTP ports, and sends two datagrams to a
/// closed port of each host.
namespace millrace::doctor {

/// Reads the table, as `millrace cluster status` does: a missing file stays missing, an empty file becomes an empty
/// table.
///
/// fetch  as of http_ports_of().
TableFacts read_table_facts(const protocol::TableFlags& flags, const cluster_status::Fetch& fetch);

struct ReachOptions {
  int timeout_ms = 3'000;  ///< of each connection, answer and handshake
  std::optional<protocol::TransportKeys> keys = {};
  const monitoring::HttpCaller* caller = nullptr;  ///< as of http_get(); outlives the collector
};

/// Collects the facts of one shard after the other.
///
/// Threads  one at a time.
class ShardCollector {
 public:
  explicit ShardCollector(ReachOptions options) : options_(std::move(options)) {}

  /// Goes the way from this host to one shard: names, port, MTU, handshake, status, clock, transfer. Asks a host for
  /// its MTU once, as hosts limit the rate of such answers.
  ///
  /// Cost    at most fourteen times the time limit and 5 s; names: the system's resolver besides. Of the shard: 4 MiB
  ///         from its HTTP port.
  /// Limits  each answer has at most 16 MiB.
  ShardFacts collect(const ShardPlace& place);

 private:
  void connect_to_port(const std::string& address, ShardFacts& facts);

  ReachOptions options_;
  std::map<std::string, MtuFacts> mtus_;  ///< by host
};

}  // namespace millrace::doctor
