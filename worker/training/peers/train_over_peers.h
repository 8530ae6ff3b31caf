#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "worker/training/optimizers/optimizer.h"

namespace millrace::training {

/// Holds the options, the same on all ranks, but for the number of threads.
struct PeerTrainOptions {
  const OptimizerInfo* optimizer = nullptr;
  OptimizerOptions options;
  /// Both paths can do it, and the ranks choose options.path before they train (measure_paths()).
  bool chooses_path = false;
  std::string path_reason = {};  ///< why options.path was taken, where it was not asked for; empty: not chosen yet
  uint32_t epochs = 3;
  uint64_t steps_max = 0;  ///< ends the run early; 0: never
  uint32_t threads = 1;    ///< that compute on this rank
};

/// Holds a model's quality on rows of all ranks.
struct PeerEvaluation {
  double loss = 0;  ///< mean of the model's own loss
  double accuracy = 0;
};

/// Holds an epoch's times and results: the same on all ranks.
struct PeerEpoch {
  uint32_t epoch = 0;  ///< from 1
  uint64_t steps = 0;
  double rate = 0;            ///< of its last step
  PeerEvaluation train;       ///< with the model that the epoch left
  double objective = 0;       ///< train.loss + l2 / 2 |w|^2, without the intercept: the minimised function
  PeerEvaluation held_out;    ///< where there is held-out data
  double entries_mean = 0;    ///< in the sum, of a rank and step
  uint64_t bytes_max = 0;     ///< sent by the rank that sent most, to ranks and servers, headers among them
  uint64_t bytes_sum = 0;     ///< sent by all ranks
  uint64_t received_max = 0;  ///< by the rank that received most
  uint64_t received_sum = 0;  ///< by all ranks
  double seconds = 0;         ///< of the slowest rank, without evaluation
  double compute_s = 0;       ///< of it, computing: mean of the ranks
  double waiting_s = 0;       ///< of it, waiting for sums: mean of the ranks
};

struct PeerTrainResult {
  LinearModel model;
  std::vector<PeerEpoch> epochs;
  uint64_t steps = 0;
  bool interrupted = false;  ///< between two steps, the same ones on all ranks
  /// Messages of other ranks that this rank dropped. It is 0 unless a rank is at fault.
  uint64_t messages_unexpected = 0;
};

/// Holds a rank's position, for displays: sums since it began.
struct PeerProgress {
  uint64_t steps = 0;          ///< ended
  uint64_t dense_bytes = 0;    ///< bytes of a dense exchange of them, one way
  OptimizerCounts counts;      ///< beside those through the group
  peer::Traffic traffic = {};  ///< through the group
};

/// Holds callbacks, called on the thread that trains, of every rank; an empty one is not called.
struct PeerTrainObserver {
  std::function<void(const PeerEpoch&)> on_epoch = {};
  /// After each: from the start of its computation to its applied sum.
  std::function<void(double seconds)> on_step = {};
  std::function<void(double seconds)> on_update = {};         ///< path server, after each: from its push to its update
  std::function<void(const PeerProgress&)> on_progress = {};  ///< once a second, and at the end
  monitoring::SpanRecorder* spans = nullptr;                  ///< takes the spans of this rank's steps; nullptr: none
};

/// Trains with all ranks of the group; each calls it. After every epoch the ranks compare their models, bit for bit.
///
/// data      this rank's rows (read_shared_file.h). held_out: the same of held-out data; nullptr: none, on all ranks.
/// stop      becomes true on any rank: all end within half a second and a step, at the same step.
/// Errors    the group's; the optimizer's; internal: the ranks' models differ.
Result<PeerTrainResult> train_over_peers(peer::PeerGroup& group, const Dataset& data, const Dataset* held_out,
                                         const PeerTrainOptions& options, const PeerTrainObserver& observer,
                                         const std::atomic<bool>& stop);

}  // namespace millrace::training
