#include "worker/training/optimizers/gradient_descent.h"

/// Mini-batch SGD: every rank contributes the rate times its share of the mean gradient over all ranks' batches, and
/// all subtract the sum. It works with every selection, codec and algorithm of the sum.
///
/// Source   [SparCML19, 7, 8.2] (MPI-OPT).
namespace millrace::training {
namespace {

constexpr DescentForm kSgdForm{.name = "sgd"};

Result<std::unique_ptr<PeerOptimizer>> make_sgd(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kSgdForm);
}
Status check_sgd(const OptimizerOptions& options) { return check_gradient_descent(options, kSgdForm); }

}  // namespace

OptimizerInfo sgd_optimizer() {
  return {.name = kSgdForm.name,
          .source = "[SparCML19, 7, 8.2]",
          .summary = "mini-batch SGD, with all the other options",
          .make = &make_sgd,
          .check = &check_sgd};
}

}  // namespace millrace::training
