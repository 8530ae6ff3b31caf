#include "worker/cluster_status/fetch_status.h"

#include <fmt/format.h>

#include <limits>
#include <set>

#include "monitoring/http/http_client.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_port.h"
#include "worker/cluster_status/cluster_table.h"
#include "worker/program/json_text.h"

namespace millrace::cluster_status {
namespace {

Result<protocol::HostPort> parse_address(std::string_view address) {
  return protocol::parse_host_port(protocol::without_tcp(address));
}

/// How to get from a shard's address for workers to its HTTP address, as one shard that answered shows it.
struct Rule {
  std::string host;       ///< of its address for workers
  std::string http_host;  ///< where it answered
  int offset = 0;
};

std::optional<Rule> rule_of(const ShardAnswer& answer) {
  const auto own = parse_address(answer.said.address);
  const auto http = parse_address(answer.http);
  if (!own || !http) return std::nullopt;
  return Rule{own->host, http->host, int{http->port} - int{own->port}};
}

/// A shard on the same host is where that one answered; on another host under the name that workers use.
Result<std::string> apply_rule(const Rule& rule, const std::string& address) {
  const auto parsed = parse_address(address);
  if (!parsed) return std::unexpected(parsed.error());
  const std::string& host = parsed->host == rule.host ? rule.http_host : parsed->host;
  return http_address_of(protocol::host_port_text(host, parsed->port), rule.offset);
}

void ask(const std::string& address, const Fetch& fetch, Answers& answers) {
  auto said = fetch(address);
  if (!said) {
    answers.unanswered.emplace_back(address, said.error().message);
    return;
  }
  if (auto shard = monitoring::read_status(*said)) answers.shards.push_back({address, std::move(*shard)});
  answers.said.emplace_back(address, std::move(*said));
}

void look_for(const PeerShardStatus& peer, const Rule& rule, const Fetch& fetch, Answers& answers) {
  const Result<std::string> http = apply_rule(rule, peer.address);
  Result<nlohmann::json> said = http ? fetch(*http) : Result<nlohmann::json>(std::unexpected(http.error()));
  std::string why;
  if (!said) {
    why = said.error().message;
  } else if (auto shard = monitoring::read_status(*said);
             shard && shard->shard == peer.shard && shard->address == peer.address) {
    answers.shards.push_back({*http, std::move(*shard)});
    answers.said.emplace_back(*http, std::move(*said));
    return;
  } else {
    why = fmt::format("what answers at {} is not shard {}", *http, peer.shard);
  }
  // A loopback port of this host says nothing about another host's.
  const auto http_at = http ? parse_address(*http) : std::unexpected(http.error());
  const bool is_other_host = protocol::is_loopback_host(rule.http_host) && http_at && http_at->host != rule.http_host;
  answers.why_missing[peer.shard] =
      fmt::format("{}; it was looked for by the rule of the others' ports: name its --http address{}", why,
                  is_other_host ? ", which must not be a loopback address" : "");
}

}  // namespace

Result<std::string> http_address_of(std::string_view address, int offset) {
  const auto parsed = parse_address(address);
  const int port = parsed ? int{parsed->port} + offset : 0;
  if (!parsed || parsed->port == 0 || port < 1 || port > std::numeric_limits<uint16_t>::max()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is not tcp://HOST:PORT with a port {} above it", address, offset));
  }
  return protocol::host_port_text(parsed->host, static_cast<uint16_t>(port));
}

Answers ask_all(const std::vector<std::string>& addresses, const Fetch& fetch) {
  Answers answers;
  for (const std::string& address : addresses) ask(address, fetch, answers);
  std::set<uint32_t> known;
  for (const ShardAnswer& answer : answers.shards) known.insert(answer.said.shard);
  const size_t named = answers.shards.size();
  for (size_t at = 0; at < named; ++at) {
    const std::optional<Rule> rule = rule_of(answers.shards[at]);
    const std::vector<PeerShardStatus> peers = answers.shards[at].said.peers;
    for (const PeerShardStatus& peer : peers) {
      if (rule && !peer.address.empty() && known.insert(peer.shard).second) look_for(peer, *rule, fetch, answers);
    }
  }
  return answers;
}

Result<nlohmann::json> fetch_status(const std::string& address, int timeout_ms, const monitoring::HttpCaller* caller) {
  const auto reply = monitoring::http_get(address, "/status", timeout_ms, caller);
  if (!reply) {
    if (reply.error().code != ErrorCode::kUnavailable) return std::unexpected(reply.error());
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("{} Status is where --http of the server says (millrace-server --http {}), not at its port for "
                    "workers",
                    reply.error().message, address));
  }
  constexpr int kUnauthorized = 401;
  if (reply->status == kUnauthorized) {
    return fail(ErrorCode::kUnavailable, address + (caller != nullptr && !caller->token().empty()
                                                        ? " has another token than that of --http-token-file"
                                                        : " asks for a token: give its --http-token-file"));
  }
  if (reply->status != 200) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} answers /status with {}: is it a process of Millrace?", address, reply->status));
  }
  auto status = program::parse_json(reply->body);
  if (!status || !status->is_object()) {
    const std::string reason = status ? "" : " (" + status.error().message + ")";
    return fail(ErrorCode::kUnavailable, address + " answers /status with something else than a JSON object" + reason);
  }
  return status;
}

Result<std::string> http_address_in_table(const protocol::ClusterView::Shard& shard) {
  const auto http = protocol::parse_host_port(shard.process.http);
  if (!http) return http_address_of(shard.entry.address);
  if (!protocol::is_every_host(http->host)) return shard.process.http;
  const auto address = parse_address(shard.entry.address);
  if (!address) return std::unexpected(address.error());
  return protocol::host_port_text(address->host, http->port);
}

std::vector<ShardHttp> http_ports_of(const protocol::ClusterView& cluster, const Fetch& fetch) {
  std::map<std::string, Result<nlohmann::json>> served;  // by HTTP port of this host
  // Returns why the shard at `address` cannot be asked; empty: it answers here.
  const auto why_not_asked = [&](const std::string& http, const std::string& address) -> std::string {
    auto at = served.find(http);
    if (at == served.end()) at = served.emplace(http, fetch(http)).first;
    const Result<nlohmann::json>& said = at->second;
    if (!said) {
      return fmt::format("{}; another host cannot ask {}: it needs an --http that other hosts reach",
                         said.error().message, http);
    }
    const auto shard = monitoring::read_status(*said);
    if (shard && shard->address == address) return "";
    return fmt::format("its HTTP port {} is for its own host alone: give it an --http that other hosts reach", http);
  };
  std::vector<ShardHttp> ports;
  for (const protocol::ClusterView::Shard& shard : cluster.shards) {
    ShardHttp& port = ports.emplace_back();
    if (shard.entry.incarnation == 0) continue;
    const Result<std::string> http = http_address_in_table(shard);
    if (!http) {
      port.trouble = http.error().message;
      continue;
    }
    if (protocol::is_for_own_host(*http, shard.entry.address)) port.trouble = why_not_asked(*http, shard.entry.address);
    if (port.trouble.empty()) port.address = *http;
  }
  return ports;
}

Result<std::vector<std::string>> http_addresses_in_table(const protocol::TableFlags& flags, const Fetch& fetch) {
  const auto table = open_existing_table(flags);
  if (!table) return std::unexpected(table.error());
  const auto cluster = (*table)->read_cluster();
  if (!cluster) return std::unexpected(cluster.error());
  std::vector<std::string> addresses;
  std::string trouble = "no shard has started with this table yet";
  for (ShardHttp& port : http_ports_of(*cluster, fetch)) {
    if (!port.trouble.empty()) trouble = std::move(port.trouble);
    if (!port.address.empty()) addresses.push_back(std::move(port.address));
  }
  if (addresses.empty()) return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", flags.location, trouble));
  return addresses;
}

}  // namespace millrace::cluster_status
