#include "worker/training/optimizers/gradient_descent.h"

/// Momentum SGD on the exchanged gradient, the same velocity on all ranks: v = beta1 v + g, w -= rate v. It changes all
/// weights, also where the sum has nothing. Entries that a selection omits gain their momentum late: rgc's correction
/// is the remedy.
///
/// Source   [Polyak64], with the rate outside of the velocity (kernels/optimize/momentum.cc), dense.
namespace millrace::training {
namespace {

constexpr DescentForm kMomentumForm{
    .name = "momentum", .rate = RateIn::kUpdate, .before = BeforeExchange::kClipping, .rule = Optimizer::kMomentum};

Result<std::unique_ptr<PeerOptimizer>> make_momentum(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kMomentumForm);
}
Status check_momentum(const OptimizerOptions& options) { return check_gradient_descent(options, kMomentumForm); }

}  // namespace

OptimizerInfo momentum_optimizer() {
  return {.name = kMomentumForm.name,
          .source = "[Polyak64]; kernels/optimize",
          .summary = "momentum SGD after the sum, of all weights, the same on all ranks (--beta1)",
          .make = &make_momentum,
          .check = &check_momentum};
}

}  // namespace millrace::training
