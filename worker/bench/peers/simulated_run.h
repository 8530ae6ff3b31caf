#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/peers/sample_streams.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/simulation/simulation.h"

namespace millrace::peer {

/// Holds the parameters of `millrace-bench simulate`.
struct SimulatedRunOptions {
  SimulationOptions network;
  AllreduceSettings settings;  ///< dimension and k as the samples'
  SampleOptions samples;
  uint32_t steps = 2;
};

/// Holds the results of one step of one algorithm.
struct SimulatedStep {
  /// True: the step evaluates again the values that other steps reuse (oktopk: thresholds, boundaries).
  bool evaluates = false;
  double virtual_s = 0;
  // Sent by a rank.
  uint64_t messages_max = 0;
  double messages_mean = 0;
  uint64_t bytes_max = 0;  ///< headers too
  double bytes_mean = 0;
  /// 4-byte words of bodies, of the rank that sent or received most.
  double words_max = 0;
  double work_s_max = 0;  ///< charged
  /// All ranks the same bits; exact sums: equal to the sum, index by index; top-k: own = sum + kept + returned.
  bool correct = false;
};

struct SimulatedRun {
  std::vector<SimulatedStep> steps;
  uint64_t messages = 0;
  double wall_s = 0;
};

/// Runs `id` on samples, step after step, and checks each.
///
/// Cost     memory for all of a step's contributions and for the algorithm's state; for one of the results.
/// Errors   as make_allreduce and the simulation.
Result<SimulatedRun> run_simulated(AlgorithmId id, const SimulatedRunOptions& options);

/// Returns whether step `step` (from 0) evaluates the values again that other steps reuse.
bool evaluates_in(AlgorithmId id, const AllreduceSettings& settings, uint64_t step);
/// Returns the share of such steps in the long run.
double evaluating_share(AlgorithmId id, const AllreduceSettings& settings);

/// Returns the words that the paper allows a rank of Ok-Topk: 6k (P - 1) / P.
/// Source   [OkTopk22, table 1].
double words_bound(uint64_t k, uint32_t ranks);

}  // namespace millrace::peer
