#include "worker/training/optimizers/gradient_descent.h"

/// SVRG: every --snapshot-every steps the ranks keep the model w~ and sum the gradient G of all their rows at w~
/// exactly. A step exchanges g(w) - g(w~) of its rows, and all ranks apply the mean of these differences plus G. The
/// rate may stay constant: the gradient's variance goes to 0 with the distance from the minimum. With --unbiased
/// --select gspar:DENSITY GSpar draws from the difference.
///
/// Cost     of a step: the gradients of its rows at both models. Of a snapshot: a pass over the rows, and an exact
///          exchange.
/// Source   [GSpar18, equation 2, figure 2]; [SVRG13]; differs as variance_reduction.h says.
namespace millrace::training {
namespace {

constexpr DescentForm kSvrgForm{.name = "svrg", .rate = RateIn::kUpdate, .gradient = GradientOf::kDifference};

Result<std::unique_ptr<PeerOptimizer>> make_svrg(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kSvrgForm);
}

Status check_svrg(const OptimizerOptions& options) {
  if (options.job.guarantees.reproducible) {
    return fail(
        ErrorCode::kInvalidArgument,
        "svrg sums the gradient at a snapshot exactly, and --reproducible rounds sums to a grid: leave one out");
  }
  return check_gradient_descent(options, kSvrgForm);
}

}  // namespace

OptimizerInfo svrg_optimizer() {
  return {
      .name = kSvrgForm.name,
      .source = "[GSpar18, 2, equation 2]",
      .summary =
          "SVRG: a step sends its difference to the gradient at a snapshot, which is summed exactly (--snapshot-every)",
      .make = &make_svrg,
      .check = &check_svrg};
}

}  // namespace millrace::training
