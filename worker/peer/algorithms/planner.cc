#include "worker/peer/algorithms/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "kernels/base/check.h"
#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"

namespace millrace::peer {
namespace {

void sort_by_time(std::vector<PlannedCost>& ranking) {
  std::ranges::stable_sort(ranking, {}, [](const PlannedCost& one) { return one.total_s(); });
}

}  // namespace

double expected_support(uint64_t n, uint64_t k, double draws) {
  MILLRACE_CHECK(n > 0 && k <= n, n, k);
  if (k == n) return draws > 0 ? static_cast<double>(n) : 0;
  // 1 - (1 - p)^draws without losing a small p.
  return static_cast<double>(n) * -std::expm1(draws * std::log1p(-static_cast<double>(k) / static_cast<double>(n)));
}

PlannedCost planned_cost(const AlgorithmInfo& info, const SumShape& shape, const MachineSpeeds& speeds) {
  MILLRACE_CHECK(shape.ranks > 0 && shape.threshold_period > 0 && shape.boundary_period > 0, shape.ranks);
  CostChain chain(shape, speeds);
  const AlgorithmEntry& entry = algorithm_entry(info.id);
  if (shape.ranks > 1 && entry.cost != nullptr) entry.cost(chain);
  return chain.cost(info);
}

PlannedCost planned_server_cost(const ServerShape& servers, const SumShape& shape, const MachineSpeeds& speeds) {
  MILLRACE_CHECK(servers.shards > 0 && shape.ranks > 0 && shape.threshold_period > 0, servers.shards, shape.ranks);
  const double shards = servers.shards, workers = shape.ranks;
  CostChain chain(shape, speeds);
  // Of a host's link in one direction: the number of messages, and the bytes in multiples of one worker's.
  const double messages = std::max(workers, shards), copies = std::max(1.0, workers / shards);
  chain.select(speeds.select.callers_s);
  chain.send_over_link(chain.bytes(1), messages, copies);
  chain.code(1, 1, 1, workers / shards);
  chain.add_sum(1, 1, workers / shards);
  if (servers.keeps_topk) {
    chain.select_of(expected_support(shape.dimension, shape.k, workers) / shards, speeds.select.topk_s);
    chain.send_over_link(chain.k() * speeds.sums.bytes, messages, copies);
    chain.code_entries(chain.k(), speeds.sums, 1 / shards, 1);
    chain.add_sparse(chain.k());
    CostChain histograms = chain.besides();
    if (servers.shards > 1) histograms.wait();
    chain.amortise(histograms, shape.threshold_period);
  } else {
    chain.send_over_link(chain.bytes(workers), messages, copies);
    chain.code(workers, 1, 1 / shards, 1);
    chain.add_sum(workers);
  }
  return chain.cost({.id = AlgorithmId{0},
                     .name = servers.keeps_topk ? "servers_topk" : "servers",
                     .source = "sharded servers",
                     .result = servers.keeps_topk ? ResultKind::kGlobalTopk : ResultKind::kExactSum});
}

std::vector<PlannedCost> rank_algorithms(const SumShape& shape, const MachineSpeeds& speeds, Wanted wanted) {
  std::vector<PlannedCost> ranking;
  for (const AlgorithmInfo& info : algorithms()) {
    if (info.chooses || (wanted == Wanted::kExactSum && info.result != ResultKind::kExactSum)) continue;
    ranking.push_back(planned_cost(info, shape, speeds));
  }
  sort_by_time(ranking);
  return ranking;
}

std::vector<PlannedCost> rank_with_servers(const SumShape& shape, const MachineSpeeds& speeds, Wanted wanted,
                                           uint32_t shards) {
  std::vector<PlannedCost> ranking = rank_algorithms(shape, speeds, wanted);
  for (const bool keeps_topk : {false, true}) {
    if (keeps_topk && wanted == Wanted::kExactSum) continue;
    ranking.push_back(planned_server_cost({shards, keeps_topk}, shape, speeds));
  }
  sort_by_time(ranking);
  return ranking;
}

std::optional<DenseAndSparse> dense_and_sparse(const std::vector<PlannedCost>& ranking) {
  const auto first = [&ranking](bool dense) {
    return std::ranges::find(ranking, dense, [](const PlannedCost& one) { return one.info.dense_only; });
  };
  const auto dense = first(true), sparse = first(false);
  if (dense == ranking.end() || sparse == ranking.end()) return std::nullopt;
  return DenseAndSparse{*dense, *sparse};
}

std::string reason_of(const std::vector<PlannedCost>& ranking, const SumShape& shape) {
  if (shape.ranks == 1 || ranking.empty()) return "One rank has the sum already.";
  const auto best = dense_and_sparse(ranking);
  if (!best) return "There is nothing to compare it with.";
  const PlannedCost &dense = best->dense, &sparse = best->sparse;
  const double support = expected_support(shape.dimension, shape.k, shape.ranks);
  const double share = support / static_cast<double>(shape.dimension);
  char text[512];
  if (best->dense_wins()) {
    const char* const why = static_cast<double>(shape.k) * CostChain::kPairBytes >=
                                    static_cast<double>(shape.dimension) * CostChain::kValueBytes
                                ? "each contribution takes as many bytes sparse as dense"
                            : sparse.latency_s > dense.total_s() ? "the sparse one's messages alone take longer"
                                                                 : "the sum fills up on its way";
    std::snprintf(
        text, sizeof(text),
        "Dense wins: %s takes %.2f x the time of the best sparse one, %s; %s (the sum of %u ranks has %.1f %% "
        "of the indices).",
        std::string(dense.info.name).c_str(), dense.total_s() / sparse.total_s(), std::string(sparse.info.name).c_str(),
        why, shape.ranks, 100 * share);
  } else {
    std::snprintf(text, sizeof(text),
                  "Sparse wins: %s takes %.3g x the time of the best dense one, %s (the sum of %u ranks has %.1f %% of "
                  "the indices).",
                  std::string(sparse.info.name).c_str(), sparse.total_s() / dense.total_s(),
                  std::string(dense.info.name).c_str(), shape.ranks, 100 * share);
  }
  return text;
}

}  // namespace millrace::peer
