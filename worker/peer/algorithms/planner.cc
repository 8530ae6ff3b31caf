#include "worker/peer/algorithms/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include "kernels/base/check.h"
#include "worker/peer/algorithms/oktopk_threshold.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/collectives/allgather.h"

namespace millrace::peer {
namespace {

constexpr double kHeader = kMessageHeaderBytes;
constexpr double kTableBytes = 8;  ///< of a packet in a bundle (allgather.h)
constexpr double kPlanValueBytes = sizeof(float);
constexpr double kPlanPairBytes = kPlanValueBytes + sizeof(uint32_t);

/// Adds up a cost, message by message along the longest chain.
class Chain {
 public:
  Chain(const SumShape& shape, const MachineSpeeds& speeds)
      : shape_(shape),
        speeds_(speeds),
        n_(static_cast<double>(shape.dimension)),
        k_(static_cast<double>(shape.k)),
        ranks_(shape.ranks) {}

  double n() const { return n_; }
  double k() const { return k_; }
  uint32_t ranks() const { return ranks_; }

  /// Adds `count` messages with bodies of `body` bytes each, one after the other.
  void send(double body, double count = 1) {
    latency_ += count * speeds_.latency_s;
    transfer_ += count * (kHeader + body) * speeds_.byte_s;
  }
  /// Adds the entries of sparse streams, or the values of streams that are smaller dense.
  void add_sparse(double entries) { add_ += entries * speeds_.add_entry_s; }
  void add_dense(double values) { add_ += values * speeds_.add_value_s; }
  /// Adds a sum of `draws` contributions in `share` of the dimension, `times` over.
  void add_sum(double draws, double share = 1, double times = 1) {
    const double count = support(draws);
    is_dense(count) ? add_dense(times * n_ * share) : add_sparse(times * count * share);
  }

  /// Adds `count` messages, one after the other, of a sum of `draws` contributions in `share` of the dimension.
  void send_sum(double draws, double share = 1, double count = 1) {
    send(bytes(draws, share), count);
    code(draws, share, count, count);
  }
  /// Adds `count` messages of `entries` entries each.
  void send_entries(double entries, const EntryCoding& coding, double count = 1) {
    send(entries * coding.bytes, count);
    code_entries(entries, coding, count, count);
  }
  /// Adds an allgather of such a sum's packets: each is encoded once, and passed on unchanged.
  void gather_sum(double draws, double share = 1) {
    gather(bytes(draws, share));
    code(draws, share, 1, ranks_ - 1.0);
  }
  /// Such a sum passed on around a ring: encoded once.
  void pass_sum(double draws, double share) {
    send(bytes(draws, share), ranks_ - 1.0);
    code(draws, share, 1, ranks_ - 1.0);
  }
  /// Times that such a sum is encoded and decoded.
  void code(double draws, double share, double encodes, double decodes) {
    const double count = support(draws);
    if (is_dense(count)) return;
    code_entries(count * share, coding_of(draws), encodes, decodes);
  }
  /// Of a sum of `draws` contributions in `share` of the dimension, in the form that is smaller.
  double bytes(double draws, double share = 1) const {
    const double count = support(draws);
    return (is_dense(count) ? n_ * kPlanValueBytes : count * coding_of(draws).bytes) * share;
  }
  void select(double value_s) { select_of(n_, value_s); }
  void select_of(double values, double value_s) { select_ += values * value_s; }
  /// Adds the encoding and decoding of `entries` entries, each the given number of times.
  void code_entries(double entries, const EntryCoding& coding, double encodes, double decodes) {
    encode_ += encodes * entries * coding.encode_s;
    decode_ += decodes * entries * coding.decode_s;
  }
  /// Adds a server's link: `messages` messages, with `copies` times `bytes` bytes in all.
  void send_over_link(double bytes, double messages, double copies) {
    latency_ += messages * speeds_.latency_s;
    transfer_ += (messages * kHeader + copies * bytes) * speeds_.byte_s;
  }
  /// For a message without bytes.
  void wait() { latency_ += speeds_.latency_s; }
  const MachineSpeeds& speeds() const { return speeds_; }

  /// Adds an allgather of packets of `body` bytes, by recursive doubling or Bruck's algorithm.
  void gather(double body) {
    for (uint64_t held = 1; held < ranks_; held *= 2) {
      const auto count = static_cast<double>(std::min<uint64_t>(held, ranks_ - held));
      if (body >= static_cast<double>(kBundledBytesMax)) {
        send(kTableBytes * count);
        send(body, count);
      } else {
        send((kTableBytes + std::ceil(body / 8) * 8) * count);
      }
    }
  }

  /// Adds the work that one of `period` steps does besides, as a mean over the steps.
  void amortise(const Chain& besides, uint32_t period) {
    reevaluate_ += (besides.latency_ + besides.transfer_ + besides.add_) / period;
  }
  /// A chain of its own, for amortise().
  Chain besides() const { return {shape_, speeds_}; }
  const SumShape& shape() const { return shape_; }

  PlannedCost cost(const AlgorithmInfo& info) const {
    return {info, select_, encode_, decode_, latency_, transfer_, add_, reevaluate_};
  }

 private:
  double support(double draws) const { return expected_support(shape_.dimension, shape_.k, draws); }
  const EntryCoding& coding_of(double draws) const { return draws > 1 ? speeds_.sums : speeds_.contribution; }
  bool is_dense(double count) const { return count * kPlanPairBytes >= n_ * kPlanValueBytes; }

  const SumShape& shape_;
  const MachineSpeeds& speeds_;
  double n_;
  double k_;
  uint32_t ranks_;
  double select_ = 0;
  double encode_ = 0;
  double decode_ = 0;
  double latency_ = 0;
  double transfer_ = 0;
  double add_ = 0;
  double reevaluate_ = 0;
};

double slice_share(const Chain& chain) { return 1.0 / chain.ranks(); }

/// Adds recursive doubling, with the ranks above the power of two. `send` sends a sum of a number of contributions;
/// `add` adds two such sums.
template <typename Send, typename Add>
void doubling(Chain& chain, Send send, Add add) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  const uint32_t folded = chain.ranks() - paired;
  const bool folds = folded != 0;
  if (folds) {
    send(1.0);
    add(1.0);
  }
  for (uint32_t bit = 1; bit < paired; bit *= 2) {
    // The lowest ranks also have another rank's entries: their groups hold most, and the others are blocked on them.
    const double draws = bit + std::min(bit, folded);
    send(draws);
    add(draws);
  }
  if (folds) send(static_cast<double>(chain.ranks()));
}

void dense_ring(Chain& chain) {
  const double slice = chain.n() * slice_share(chain);
  chain.send(slice * kPlanValueBytes, 2.0 * (chain.ranks() - 1));
  chain.add_dense(2 * slice * (chain.ranks() - 1) + chain.n());
}

void dense_recursive_doubling(Chain& chain) {
  doubling(
      chain, [&](double) { chain.send(chain.n() * kPlanValueBytes); }, [&](double) { chain.add_dense(2 * chain.n()); });
}

void dense_rabenseifner(Chain& chain) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  if (paired != chain.ranks()) {
    chain.send(chain.n() * kPlanValueBytes);
    chain.add_dense(chain.n());
  }
  for (double part = chain.n() / 2; part >= chain.n() / paired; part /= 2) {
    chain.send(part * kPlanValueBytes);
    chain.add_dense(part);
  }
  chain.gather(chain.n() / paired * kPlanValueBytes);
  chain.add_dense(chain.n());
}

void split(Chain& chain) {
  chain.send_sum(1, slice_share(chain), chain.ranks() - 1);
  chain.add_sparse(chain.k());
}

void split_allgather(Chain& chain) {
  split(chain);
  chain.gather_sum(chain.ranks(), slice_share(chain));
  chain.add_sum(chain.ranks());
}

void sparse_ring(Chain& chain) {
  const double share = slice_share(chain);
  for (uint32_t step = 1; step < chain.ranks(); ++step) {
    chain.send_sum(step, share);
    chain.add_sum(step, share);
    chain.add_sum(1, share);
  }
  chain.pass_sum(chain.ranks(), share);
  chain.add_sum(chain.ranks());
}

void gather_contributions(Chain& chain) {
  chain.gather_sum(1);
  chain.add_sum(1, 1, chain.ranks());
}

/// Up the tree, where each node adds and selects, and down.
void gtopk(Chain& chain) {
  for (uint32_t bit = 1; bit < chain.ranks(); bit *= 2) {
    chain.send_entries(chain.k(), chain.speeds().sums);
    chain.add_sparse(2 * chain.k());
    chain.send_entries(chain.k(), chain.speeds().sums);
  }
}

/// Adds sum_numbers() of `count` numbers.
void sum_of_numbers(Chain& chain, double count) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  const double bytes = count * sizeof(uint64_t);
  if (paired != chain.ranks()) chain.send(bytes, 2);
  for (double part = bytes / 2; part >= bytes / paired; part /= 2) chain.send(part, 2);
}

/// Boundaries averaged every tau steps; the global threshold every tau' steps, digit by digit, for which each rank
/// looks at the sums of its region.
void reevaluate(Chain& chain) {
  Chain boundaries = chain.besides();
  sum_of_numbers(boundaries, chain.ranks());
  chain.amortise(boundaries, chain.shape().boundary_period);
  Chain threshold = chain.besides();
  threshold.add_sum(chain.ranks(), slice_share(chain));
  int left = kThresholdBits;
  while (left > 0) {
    const int bits = std::min(left, threshold_digit_bits(chain.shape().k));
    sum_of_numbers(threshold, std::exp2(bits));
    left -= bits;
  }
  chain.amortise(threshold, chain.shape().threshold_period);
}

/// With entries evenly distributed: the split, two numbers of each region, the gathering of k entries; and the periodic
/// work.
void oktopk(Chain& chain) {
  const double share = slice_share(chain);
  chain.send_entries(chain.k() * share, chain.speeds().contribution, chain.ranks() - 1);
  chain.add_sparse(chain.k());
  chain.gather(2 * sizeof(uint32_t));
  for (uint32_t bit = 1; bit < chain.ranks(); bit *= 2) {
    chain.send_entries(chain.k() * share * std::min(bit, chain.ranks() - bit), chain.speeds().sums);
  }
  reevaluate(chain);
}

/// What selects a rank's contribution, for each value of its gradient.
double selection_s(AlgorithmId id, const SumShape& shape, const SelectionSpeeds& speeds) {
  switch (id) {
    case AlgorithmId::kDenseRing:
    case AlgorithmId::kDenseRecursiveDoubling:
    case AlgorithmId::kDenseRabenseifner:
    case AlgorithmId::kAuto: return 0;
    case AlgorithmId::kTopkA:
    case AlgorithmId::kGtopk: return speeds.topk_s;
    case AlgorithmId::kGaussianK: return speeds.gaussian_s;
    case AlgorithmId::kOktopk:
      return (speeds.reevaluate_s + (shape.threshold_period - 1.0) * speeds.reuse_s) / shape.threshold_period;
    default: return speeds.callers_s;
  }
}

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
  Chain chain(shape, speeds);
  if (shape.ranks == 1) return chain.cost(info);
  chain.select(selection_s(info.id, shape, speeds.select));
  switch (info.id) {
    case AlgorithmId::kDenseRing: dense_ring(chain); break;
    case AlgorithmId::kDenseRecursiveDoubling: dense_recursive_doubling(chain); break;
    case AlgorithmId::kDenseRabenseifner: dense_rabenseifner(chain); break;
    case AlgorithmId::kSsarRecursiveDoubling:
      doubling(chain, [&](double draws) { chain.send_sum(draws); }, [&](double draws) { chain.add_sum(draws, 1, 2); });
      break;
    case AlgorithmId::kSsarSplitAllgather:
    case AlgorithmId::kDsarSplitAllgather: split_allgather(chain); break;
    case AlgorithmId::kSparseRing: sparse_ring(chain); break;
    case AlgorithmId::kTopkA:
    case AlgorithmId::kGaussianK:
    case AlgorithmId::kRedsyncAllgather: gather_contributions(chain); break;
    case AlgorithmId::kGtopk: gtopk(chain); break;
    case AlgorithmId::kOktopk: oktopk(chain); break;
    case AlgorithmId::kAuto: break;  // that of its choice
  }
  return chain.cost(info);
}

PlannedCost planned_server_cost(const ServerShape& servers, const SumShape& shape, const MachineSpeeds& speeds) {
  MILLRACE_CHECK(servers.shards > 0 && shape.ranks > 0 && shape.threshold_period > 0, servers.shards, shape.ranks);
  const double shards = servers.shards, workers = shape.ranks;
  Chain chain(shape, speeds);
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
    Chain histograms = chain.besides();
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
    const char* const why =
        static_cast<double>(shape.k) * kPlanPairBytes >= static_cast<double>(shape.dimension) * kPlanValueBytes
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
