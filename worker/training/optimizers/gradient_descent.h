#pragma once

#include <memory>

#include "kernels/optimize/optimize.h"
#include "worker/training/optimizers/optimizer.h"

namespace millrace::training {

/// Says where the rate goes in.
enum class RateIn : uint8_t {
  kGradient = 1,  ///< into the summed gradient, and so into residuals: of the step in which it was computed (SparCML,
                  ///< Ok-Topk)
  kUpdate = 2,    ///< into the change of the weights: of the step that applies the sum (RedSync, momentum, Adam)
};

/// Says whether gradients may gain momentum and be clipped before they are exchanged. Clipping is of gradients without
/// the rate in.
enum class BeforeExchange : uint8_t { kNothing = 1, kClipping = 2, kMomentumAndClipping = 3 };

/// Says which gradient a step exchanges.
enum class GradientOf : uint8_t {
  kRows = 1,        ///< the mean gradient of its rows
  kDifference = 2,  ///< its difference to the gradient of the same rows at a snapshot of the model (SVRG)
};

/// Defines an optimizer by gradients, beside the options.
struct DescentForm {
  std::string_view name;
  RateIn rate = RateIn::kGradient;
  BeforeExchange before = BeforeExchange::kNothing;
  GradientOf gradient = GradientOf::kRows;
  Optimizer rule = Optimizer::kSgd;  ///< how the mean gradient changes the weights; kSgd: w -= rate g
};

/// Makes an optimizer by mini-batch descent. Every rank takes its rows of a step, weighs their gradient, and puts it
/// into an exchange. The weights give every row of the step the same influence, also where ranks have fewer rows than
/// others. All ranks apply the sum.
///
/// Gradient   of rank k: P / (rows of all ranks) times the sum over its rows, which is its batch's mean where batches
///            are alike. The mean over the ranks is that of the step.
/// L2         applied by each rank itself and never sent, so that contributions are as sparse as the data; not to the
///            intercept. Weights are multiplied by (1 - rate l2) before the step: of adam that is decoupled weight
///            decay.
/// Snapshots  SVRG takes one before each step whose number is a multiple of options.snapshot_every. The steps in flight
///            end first, so that a step ends with the snapshot that it began with.
/// Dense      rules other than kSgd process all weights in every step (kernels/optimize/dense.h).
Result<std::unique_ptr<PeerOptimizer>> make_gradient_descent(const OptimizerSetup& setup, const DescentForm& form);

/// Errors  invalid_argument: rate * l2 of 1 or more; momentum or clipping where the form has none; those of
///         check_exchange().
Status check_gradient_descent(const OptimizerOptions& options, const DescentForm& form);

}  // namespace millrace::training
