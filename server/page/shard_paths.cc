#include "server/page/shard_paths.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/plain_text.h"
#include "kernels/base/words.h"
#include "monitoring/http/http_sockets.h"
#include "monitoring/http/path_probe.h"
#include "protocol/address/host_port.h"
#include "server/page/cluster_watch.h"

namespace millrace::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPathTextBytesMax = 512;

double path_ms_of(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerMs); }

void add_connection(Json& said, const std::string& address) {
  const auto at = protocol::parse_host_port(protocol::without_tcp(address));
  const auto stream = at ? monitoring::connect_to_host(*at, ShardPaths::kConnectMs) : std::unexpected(at.error());
  if (!stream) {
    said["connect_problem"] = plain_text_of(fmt::format("{}: {}", address, stream.error().message), kPathTextBytesMax);
  } else if (const std::optional<TimeNs> round_trip = monitoring::handshake_round_trip(*stream)) {
    said["round_trip_ms"] = path_ms_of(*round_trip);
  }
}

/// Returns why a shard's HTTP port cannot be asked; empty: it can be.
std::string why_not_asked(const std::string& http, const std::string& address) {
  if (http.empty()) return "it has no HTTP port: give it --http";
  // Another process may have that port here.
  if (protocol::is_for_own_host(http, address))
    return fmt::format("its HTTP port {} is for its own host alone: give it an --http that other hosts reach", http);
  return "";
}

void add_transfers(Json& said, const protocol::ClusterView::Shard& shard, const monitoring::HttpCaller* caller) {
  const std::string http = reachable_http(shard.process);
  monitoring::TransferFacts facts;
  facts.trouble = why_not_asked(http, shard.entry.address);
  if (facts.trouble.empty())
    facts = monitoring::fetch_probe(http, ShardPaths::kTransfers, ShardPaths::kTimeoutMs, caller);
  if (!facts.trouble.empty()) {
    said["transfer_problem"] = plain_text_of(facts.trouble, kPathTextBytesMax);
  } else if (facts.late > 0) {
    said["late_ms"] = path_ms_of(facts.late);
  } else {
    said["bytes"] = facts.bytes;
    said["best_ms"] = path_ms_of(facts.best);
  }
}

}  // namespace

Result<std::string> ShardPaths::json(std::string_view query) {
  constexpr std::string_view kName = "shard=";
  const std::optional<uint32_t> number =
      query.starts_with(kName) ? number_from_text<uint32_t>(query.substr(kName.size())) : std::nullopt;
  if (!number) return fail(ErrorCode::kInvalidArgument, "ask for /path?shard=N, with the number of another shard");
  const std::unique_lock one(measuring_, std::try_to_lock);
  if (!one) return fail(ErrorCode::kUnavailable, "another path is being measured");
  const auto table = sources_.open_table();
  if (!table) return std::unexpected(table.error());
  const Result<protocol::ClusterView> view = (*table)->read_cluster();
  if (!view) return std::unexpected(view.error());
  if (*number >= view->shards.size())
    return fail(ErrorCode::kInvalidArgument, fmt::format("the table has no shard {}", *number));
  const protocol::ClusterView::Shard& shard = view->shards[*number];
  if (shard.entry.address == sources_.own_address)
    return fail(ErrorCode::kInvalidArgument, fmt::format("this process is shard {}", *number));
  if (!shard.has_process()) return fail(ErrorCode::kUnavailable, fmt::format("no process is shard {}", *number));
  Json said = {{"shard", *number}};
  add_connection(said, shard.entry.address);
  add_transfers(said, shard, sources_.caller().get());
  return said.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace::server
