#include "worker/training/exchange/path_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/program/units.h"

namespace millrace::training {

using program::rounded_duration_text;

namespace {

peer::PlannedCost cost_among_peers(const PathQuestion& question) {
  const peer::AlgorithmInfo& info = peer::algorithm_info(question.algorithm);
  if (!info.chooses) return peer::planned_cost(info, question.shape, question.speeds);
  return peer::rank_algorithms(question.shape, question.speeds, peer::Wanted::kExactSum).front();
}

peer::PlannedCost cost_over_servers(const PathQuestion& question) {
  peer::MachineSpeeds speeds = question.speeds;
  speeds.latency_s = std::max(speeds.latency_s, question.server_latency_s);
  const peer::ServerShape servers{.shards = question.shards, .keeps_topk = question.keeps_topk};
  return peer::planned_server_cost(servers, question.shape, speeds);
}

}  // namespace

PathChoice choose_path(const PathQuestion& question) {
  PathChoice choice{.peers = cost_among_peers(question), .servers = cost_over_servers(question), .question = question};
  // A single rank has its sum already, which the models do not consider.
  const bool servers_win = question.shape.ranks > 1 && choice.servers.total_s() < choice.peers.total_s();
  choice.path = servers_win ? ExchangePath::kServers : ExchangePath::kPeers;
  return choice;
}

std::string path_choice_text(const PathChoice& choice) {
  const PathQuestion& asked = choice.question;
  return fmt::format(
      "by the cost models a step's sum takes peers {} ({}), servers {} ({} {}); {} of {} entries a rank, a message "
      "{} among ranks, {} to servers, {:.3g} GB/s",
      rounded_duration_text(choice.peers.total_s()), choice.peers.info.name,
      rounded_duration_text(choice.servers.total_s()), asked.shards, asked.shards == 1 ? "shard" : "shards",
      asked.shape.k, asked.shape.dimension, rounded_duration_text(asked.speeds.latency_s),
      rounded_duration_text(asked.server_latency_s), 1e-9 / asked.speeds.byte_s);
}

}  // namespace millrace::training
