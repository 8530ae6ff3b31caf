#pragma once

#include <cstdint>
#include <string>

#include "worker/peer/algorithms/planner.h"
#include "worker/training/exchange/training_options.h"

namespace millrace::training {

/// Holds the inputs of `--path auto`.
struct PathQuestion {
  peer::SumShape shape;         ///< k: entries of a rank's contribution
  peer::MachineSpeeds speeds;   ///< of the ranks, and among them
  double server_latency_s = 0;  ///< of a message to a server, or from one
  uint32_t shards = 1;
  peer::AlgorithmId algorithm = peer::AlgorithmId::kAuto;  ///< of the peers
  bool keeps_topk = false;                                 ///< servers send the k largest entries of the sum back
};

/// Holds a path, and the predicted costs of a step's sum over either path.
struct PathChoice {
  ExchangePath path = ExchangePath::kPeers;
  peer::PlannedCost peers;  ///< of the question's algorithm; kAuto: of the fastest one with exact sums
  peer::PlannedCost servers;
  PathQuestion question;
};

/// Returns the path whose sum takes less time by the planner's models; peers where both take the same. Pure.
///
/// Servers have the ranks' speeds and the rate among the ranks. A message to a server takes server_latency_s, or the
/// latency among ranks where that is longer: a process has to be woken for it too.
PathChoice choose_path(const PathQuestion& question);

/// Returns a sentence for people: what either path takes, and of which numbers that was made.
std::string path_choice_text(const PathChoice& choice);

}  // namespace millrace::training
