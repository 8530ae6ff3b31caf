#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/result.h"
#include "monitoring/http/http_protection.h"
#include "protocol/table/open_table.h"
#include "worker/cluster_status/cluster_snapshot.h"

namespace millrace::cluster_status {

/// Where /status is asked, how: monitoring::http_get() outside of tests.
using Fetch = std::function<Result<nlohmann::json>(const std::string& http_address)>;

/// Holds the answers of all addresses.
struct Answers {
  std::vector<ShardAnswer> shards;
  std::vector<std::pair<std::string, nlohmann::json>> said;  ///< (address, object), of any process
  std::vector<std::pair<std::string, std::string>>
      unanswered;                               ///< (address, why): of those that were asked for by name
  std::map<uint32_t, std::string> why_missing;  ///< by shard: those found by themselves that did not answer
};

/// Distance of HTTP ports above the ports for workers, unless an option sets another: the default of `millrace serve`.
inline constexpr int kHttpOffset = 100;

/// Returns "127.0.0.1:7700" for "tcp://127.0.0.1:7600". Errors  invalid_argument: not such an address, no such port.
Result<std::string> http_address_of(std::string_view address, int offset = kHttpOffset);

/// Asks every address, then the shards that those know of and the user did not name. Their HTTP ports are at the
/// distance between the ports of a shard that answered.
Answers ask_all(const std::vector<std::string>& addresses, const Fetch& fetch);

/// Fetches /status of a process of Millrace, as an object.
///
/// Errors   as http_get(), with what to do about it; unavailable: the answer is no JSON object, or nested deeper than
///          parse_json() reads.
///
/// caller   as of http_get().
Result<nlohmann::json> fetch_status(const std::string& address, int timeout_ms,
                                    const monitoring::HttpCaller* caller = nullptr);

/// Holds the HTTP port of a shard as this host can ask it.
struct ShardHttp {
  std::string address = {};  ///< empty: it cannot be asked
  std::string trouble = {};  ///< why not; empty: the shard has never started, or there is none
};

/// Returns the HTTP ports of the shards of a table, by number. Where a shard's process wrote none (it has no --http, or
/// its version does not write it), http_address_of() gives it. Where the process listens at every address of its host,
/// the host is that of its address for workers. A loopback port of another host cannot be asked: `fetch` shows whether
/// the process at that port here is the shard.
std::vector<ShardHttp> http_ports_of(const protocol::ClusterView& cluster, const Fetch& fetch);

/// Returns the HTTP addresses of http_ports_of() that can be asked.
///
/// Errors  io: no such file; its own; unavailable: no shard has started, or none can be asked.
Result<std::vector<std::string>> http_addresses_in_table(const protocol::TableFlags& flags, const Fetch& fetch);

/// Returns the HTTP address of one shard, as the table has it.
Result<std::string> http_address_in_table(const protocol::ClusterView::Shard& shard);

}  // namespace millrace::cluster_status
