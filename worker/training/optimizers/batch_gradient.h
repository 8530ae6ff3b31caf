#pragma once

#include <span>

#include "worker/training/model/linear_model.h"
#include "worker/training/optimizers/compute_threads.h"

namespace millrace::training {

/// Returns weight times the sum of the rows' gradients at `model`, each thread a share of the rows; loss_sum is theirs,
/// unweighted.
///
/// Order    the same bits for the same number of threads.
BatchGradient weighted_gradient(ComputeThreads& threads, const LinearModel& model, const Dataset& data,
                                std::span<const uint32_t> rows, double weight);

/// Holds sums over rows of a model's quality on them.
struct LossSums {
  double rows = 0;
  double loss = 0;
  double right = 0;  ///< rows with sign(margin) = label; a margin of 0 counts as negative
};

/// between  called by the calling thread now and then, and once at least; empty: nothing.
LossSums loss_sums(ComputeThreads& threads, const LinearModel& model, const Dataset& data,
                   const std::function<void()>& between);

}  // namespace millrace::training
