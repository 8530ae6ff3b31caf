#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Holds the times of selecting, for each value of a dense gradient; 0 where contributions come selected.
struct SelectionSpeeds {
  double callers_s = 0;     ///< the caller's selection: of exact sums, redsync_allgather and servers
  double topk_s = 0;        ///< exact top-k: of topk_a and gtopk, and of what servers keep of a sum
  double gaussian_s = 0;    ///< of gaussian_k
  double reevaluate_s = 0;  ///< of oktopk: a step that finds the rank's own threshold exactly
  double reuse_s = 0;       ///< of oktopk: a step by an earlier threshold
};

/// Holds the inputs of the cost models: measured, or given by the user of `millrace advise` and simulations.
struct MachineSpeeds {
  double latency_s = 1e-6;  ///< alpha: of a message, of each port it goes through
  double byte_s = 8e-10;    ///< beta
  // What simulations charge (Channel::charge); on a machine measure_kernel_speeds() says.
  double add_entry_s = 2e-9;  ///< for each entry of a sparse stream that goes into a sum, or into a result
  double add_value_s = 2e-9;  ///< the same of a dense one
  SelectionSpeeds select = {};
  EntryCoding contribution = {};  ///< of a rank's contribution
  EntryCoding sums = {};          ///< of sums of several contributions
};

/// Describes the sum to plan: of `ranks` streams of `k` of `dimension` entries each.
struct SumShape {
  uint64_t dimension = 0;
  uint64_t k = 0;
  uint32_t ranks = 1;
  uint32_t threshold_period = 32;  ///< oktopk: tau'
  uint32_t boundary_period = 64;   ///< oktopk: tau
};

/// Holds the terms of the papers' models.
struct PlannedCost {
  AlgorithmInfo info;
  double select_s = 0;  ///< RedSync's T_select
  double encode_s = 0;  ///< DeepReduce's encoding and decoding
  double decode_s = 0;
  double latency_s = 0;   ///< alpha terms
  double transfer_s = 0;  ///< beta terms, headers among them
  double add_s = 0;
  /// Oktopk: time of finding thresholds and boundaries, averaged over the steps of their periods.
  double reevaluate_s = 0;
  double total_s() const { return select_s + encode_s + decode_s + latency_s + transfer_s + add_s + reevaluate_s; }
};

/// Returns the expected number of distinct indices among `draws` supports of k of n indices each, uniform and
/// independent. It is n (1 - (1 - k / n)^draws), SparCML's alternating sum in closed form.
///
/// REQUIRES: k <= n, n > 0.
/// Source   [SparCML19, appendix B.1].
double expected_support(uint64_t n, uint64_t k, double draws);

/// Returns the time of one allreduce from a dense gradient on, of uniform supports, on ranks that send and receive one
/// message at a time. A message's header counts. Sums that are smaller dense travel as values, without a codec; dense
/// algorithms select nothing.
///
/// Source   the papers' models, with the expected sizes of supports between their bounds: [SparCML19, 5.3.1 to 5.3.3];
///          [RedSync19, 2.4]; [Thakur05] for dense algorithms. [OkTopk22, table 1] is for ranks with equal supports. It
///          includes the periodic work of [OkTopk22, algorithm 1] every tau and tau' steps (lines 5 to 12), as in
///          oktopk_regions.h and oktopk_threshold.h.
PlannedCost planned_cost(const AlgorithmInfo& info, const SumShape& shape, const MachineSpeeds& speeds);

/// Servers that sum: each on a host of its own, whose link has the ranks' rate.
struct ServerShape {
  uint32_t shards = 1;
  bool keeps_topk = false;  ///< only the k largest of the sum are returned; else all of it
};

/// Returns the time of one step through servers. Every worker sends each shard its share, and gets that share of the
/// result. A host sends and receives one message at a time. A direction of a link is busy with the larger of one
/// worker's bytes and those of all workers at a shard. A shard decodes and adds every worker's share, and encodes the
/// result once; a worker decodes and applies it. Shards that keep the k largest select them exactly. They exchange
/// histograms every threshold_period steps: the latency counts, the bytes do not.
PlannedCost planned_server_cost(const ServerShape& servers, const SumShape& shape, const MachineSpeeds& speeds);

/// Says which results will do.
enum class Wanted : uint8_t {
  kExactSum = 1,   ///< exact sums only
  kAnyResult = 2,  ///< global top-k ones too
};

/// Returns the registry's algorithms, the fastest first. Order  of equal times: the lower number.
std::vector<PlannedCost> rank_algorithms(const SumShape& shape, const MachineSpeeds& speeds, Wanted wanted);

/// Returns the same with servers among them, behind algorithms of the same time.
std::vector<PlannedCost> rank_with_servers(const SumShape& shape, const MachineSpeeds& speeds, Wanted wanted,
                                           uint32_t shards);

/// Compares the best cost of a sum that travels dense with that of one that travels sparse.
struct DenseAndSparse {
  PlannedCost dense;   ///< the first algorithm of a ranking that sends every value
  PlannedCost sparse;  ///< the first other one, servers included

  /// Returns whether dense wins; of equal times, dense.
  bool dense_wins() const { return dense.total_s() <= sparse.total_s(); }
};

/// Returns both; nothing where the ranking lacks one of them.
std::optional<DenseAndSparse> dense_and_sparse(const std::vector<PlannedCost>& ranking);

/// Returns whether the dense or the sparse ones win here, and why, in a sentence or two for a person.
std::string reason_of(const std::vector<PlannedCost>& ranking, const SumShape& shape);

}  // namespace millrace::peer
