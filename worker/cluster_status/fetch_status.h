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

/// Returns the HTTP addresses of a cluster's shards, read out of its membership table. Where a shard's process wrote
/// none (it has no --http, or its version does not write it), http_address_of() gives it. Where the process listens at
/// every address of its host, the host is that of its address for workers.
///
/// Errors  io: no such file; its own; unavailable: no shard has started.
Result<std::vector<std::string>> http_addresses_in_table(const protocol::TableFlags& flags);

/// Returns the HTTP address of one shard, for http_addresses_in_table().
Result<std::string> http_address_in_table(const protocol::ClusterView::Shard& shard);

}  // namespace millrace::cluster_status
