#pragma once

#include <memory>

#include "worker/training/exchange/exchange.h"
#include "worker/training/model/variance_reduction.h"
#include "worker/training/optimizers/optimizer.h"

namespace millrace::training {

/// Takes SVRG's snapshots of the model on the ranks, with the gradient of all ranks' rows at each.
///
/// Exact    a second exchange sums the gradients at a snapshot: it selects nothing, quantizes nothing and keeps nothing
///          for later. Over servers it is a second job, NAME.snapshots beside the steps' job NAME.
/// Order    take() is a collective: all ranks call it at the same step, with no step in flight.
/// Source   [GSpar18, equation 2]; [SVRG13].
class Snapshots {
 public:
  /// Errors  as make_exchange().
  static Result<std::unique_ptr<Snapshots>> make(const OptimizerSetup& setup);

  /// Takes a snapshot of `model`.
  ///
  /// Cost    a pass over this rank's rows, and one exchange.
  /// Errors  the exchange's; non_finite: a gradient overflowed.
  Status take(const LinearModel& model);
  const VarianceReduction& reduction() const { return reduction_; }
  ExchangeCounts counts() const { return exchange_->counts(); }
  Status end() { return exchange_->end(); }

 private:
  Snapshots(const OptimizerSetup& setup, std::unique_ptr<Exchange> exchange);
  Stream full_gradient(const LinearModel& model);

  OptimizerSetup setup_;
  std::unique_ptr<Exchange> exchange_;
  VarianceReduction reduction_;
  uint64_t taken_ = 0;
};

/// Returns the options of the exchange that sums the gradients at a snapshot. options: those of the steps.
OptimizerOptions snapshot_options(const OptimizerOptions& options);

}  // namespace millrace::training
