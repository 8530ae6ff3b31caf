#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "millrace/millrace.h"
#include "monitoring/trace/span_recorder.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/peer/group/peer_group.h"
#include "worker/training/data/dataset.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/exchange/training_options.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/rate_schedule.h"
#include "worker/training/optimizers/compute_threads.h"

namespace millrace::training {

/// Holds the inputs of an optimizer. All outlive it.
struct OptimizerSetup {
  peer::PeerGroup& group;
  ComputeThreads& threads;
  const Dataset& data;                  ///< this rank's rows; dimension and rows_in_file are of all
  std::span<const uint64_t> rank_rows;  ///< [size] rows of each rank
  const OptimizerOptions& options;
  std::function<void(double seconds)> on_update = {};  ///< ExchangeSetup::on_update
  monitoring::SpanRecorder* spans = nullptr;           ///< ExchangeSetup::spans
};

/// Counts the work of a rank since it began.
struct OptimizerCounts {
  double compute_s = 0;               ///< gradients, and applying sums
  double waiting_s = 0;               ///< for sums
  uint64_t entries = 0;               ///< of this rank, in sums
  uint64_t sum_entries = 0;           ///< of sums that have ended
  double residual_norm = 0;           ///< L2 norm of the residual
  uint64_t steps = 0;                 ///< started
  uint64_t bytes_sent = 0;            ///< beside those through the group.
  uint64_t bytes_received = 0;        ///< beside those through the group.
  std::optional<Stats> session = {};  ///< path server: the session's own
};

/// Trains a linear model with other ranks: one rank's part. Steps are started in order, and end in order, with the same
/// model on all ranks after each end.
///
/// Errors   the group's where it has ended, on all ranks; non_finite: a gradient overflowed.
/// Threads  one.
class PeerOptimizer {
 public:
  virtual ~PeerOptimizer() = default;

  virtual uint64_t steps_per_epoch() const = 0;
  /// Begins an epoch; nothing is in flight. epoch: from 0.
  virtual void begin_epoch(uint32_t epoch) = 0;
  /// Computes a step of the epoch with the model as it is, and starts what ranks exchange for it. step: from 0, over
  /// all epochs.
  virtual Status start(uint64_t step) = 0;
  /// Waits for the oldest step in flight, and applies it to the model. REQUIRES: in_flight() > 0.
  virtual Status finish_oldest() = 0;
  virtual size_t in_flight() const = 0;

  virtual const LinearModel& model() const = 0;
  /// Cost  may be a pass over a residual: not every step.
  virtual OptimizerCounts counts() const = 0;
  /// Ends the training: all ranks have made their last step. REQUIRES: nothing is in flight.
  virtual Status end() { return {}; }
};

/// Holds an optimizer's defaults for options that are not given, in the words of the command line.
struct OptimizerDefaults {
  std::string_view algorithm = "ssar_split_allgather";
  std::string_view select = "none";
  std::string_view codec = "raw";
  std::string_view momentum = "none";
  std::optional<CodecError> codec_error = {};
};

/// Describes an optimizer. Its file defines `OptimizerInfo NAME_optimizer()`, and optimizer_list.h has the word.
struct OptimizerInfo {
  std::string_view name;     ///< "sgd"
  std::string_view source;   ///< "[SparCML19, 7, 8.2]" (kernels/REFERENCES.md)
  std::string_view summary;  ///< one line for --help
  Result<std::unique_ptr<PeerOptimizer>> (*make)(const OptimizerSetup& setup);
  /// Refuses options that it does not take, as far as this is known without data.
  Status (*check)(const OptimizerOptions& options);
  OptimizerDefaults defaults = {};
};

inline std::string_view name_of(const OptimizerInfo& optimizer) { return optimizer.name; }

/// Returns every optimizer of this build.
std::span<const OptimizerInfo> optimizers();
const OptimizerInfo* find_optimizer(std::string_view name);

/// Returns options with the optimizer's defaults.
OptimizerOptions default_options(const OptimizerInfo& optimizer);

/// Returns all options that affect a rank's weights, or the order in which it takes its rows: words KEY=VALUE, as in
/// JobConfig::recipe. Ranks must agree on this text.
std::string recipe_of(const OptimizerInfo& optimizer, const OptimizerOptions& options);

/// Returns the text on which ranks must agree.
std::string description_of(const OptimizerInfo& optimizer, const OptimizerOptions& options);

}  // namespace millrace::training
