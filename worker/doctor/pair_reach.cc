#include "worker/doctor/pair_reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "monitoring/http/http_client.h"
#include "worker/program/json_text.h"

namespace millrace::doctor {
namespace {

constexpr int kPathOk = 200;
constexpr int kPathNotFound = 404;
/// A shard needs 5.1 s at most, its resolver's time, and that of its table: etcd's may take 5 s.
constexpr int kPathAnswerMs = 15'000;

/// Returns the time under this key, in milliseconds; nothing: there is none.
std::optional<TimeNs> path_time_in(const nlohmann::json& said, const char* key) {
  constexpr double kMsMax = 1e6;
  const auto found = said.find(key);
  if (found == said.end() || !found->is_number()) return std::nullopt;
  const double ms = found->get<double>();
  if (!std::isfinite(ms) || ms < 0 || ms > kMsMax) return std::nullopt;
  return static_cast<TimeNs>(ms * static_cast<double>(kNsPerMs));
}

std::string path_text_in(const nlohmann::json& said, const char* key) {
  const auto found = said.find(key);
  return found != said.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Asks one shard for one path. Errors  unavailable: it would answer no other question of this kind either.
Result<PairFacts> ask_for_path(const ShardFacts& receiver, uint32_t sender, const ReachOptions& options) {
  const uint32_t number = (*receiver.status)->shard;
  const auto reply = monitoring::http_get(receiver.place.http, fmt::format("/path?shard={}", sender),
                                          std::max(options.timeout_ms, kPathAnswerMs), options.caller);
  if (!reply) return std::unexpected(reply.error());
  if (reply->status == kPathNotFound)
    return fail(ErrorCode::kUnavailable, fmt::format("shard {} has no /path: it has an earlier version", number));
  if (reply->status == kPathOk) return read_path_answer(number, sender, reply->body);
  PairFacts facts{.receiver = number, .sender = sender};
  facts.trouble = reply->body.substr(0, reply->body.find('\n'));
  if (facts.trouble.empty()) facts.trouble = fmt::format("it answers /path with {}", reply->status);
  return facts;
}

}  // namespace

PairFacts read_path_answer(uint32_t receiver, uint32_t sender, std::string_view answer) {
  constexpr uint64_t kBytesMax = monitoring::kHttpReplyBytesMax;
  PairFacts facts{.receiver = receiver, .sender = sender};
  const auto said = program::parse_json(answer);
  if (!said || !said->is_object() || !said->contains("shard") || (*said)["shard"] != sender) {
    facts.trouble = "its answer of /path is none of this path";
    return facts;
  }
  facts.connect_trouble = path_text_in(*said, "connect_problem");
  facts.round_trip = path_time_in(*said, "round_trip_ms");
  facts.transfer.trouble = path_text_in(*said, "transfer_problem");
  facts.transfer.late = path_time_in(*said, "late_ms").value_or(0);
  const auto bytes = said->find("bytes");
  const std::optional<TimeNs> best = path_time_in(*said, "best_ms");
  if (bytes != said->end() && bytes->is_number_unsigned() && bytes->get<uint64_t>() <= kBytesMax && best) {
    facts.transfer.bytes = bytes->get<uint64_t>();
    facts.transfer.best = *best;
  }
  if (facts.transfer.bytes == 0 && facts.transfer.late == 0 && facts.transfer.trouble.empty())
    facts.transfer.trouble = "its answer of /path has no transfer";
  return facts;
}

PairsFacts collect_pairs(const std::vector<ShardFacts>& shards, const ReachOptions& options) {
  PairsFacts facts;
  const TimeNs deadline = monotonic_now_ns() + kPairsTime;
  for (const ShardFacts& receiver : shards) {
    if (!receiver.status || !*receiver.status) continue;
    bool answers = true;
    for (const PeerShardStatus& peer : (*receiver.status)->peers) {
      if (!answers || facts.pairs.size() == kPairsMax || monotonic_now_ns() > deadline) {
        ++facts.left_out;
        continue;
      }
      Result<PairFacts> pair = ask_for_path(receiver, peer.shard, options);
      answers = pair.has_value();
      facts.pairs.push_back(pair ? std::move(*pair)
                                 : PairFacts{.receiver = (*receiver.status)->shard,
                                             .sender = peer.shard,
                                             .trouble = pair.error().message});
    }
  }
  return facts;
}

}  // namespace millrace::doctor
