#include "worker/training/optimizers/gradient_descent.h"

/// Adam after the sparse allreduce, as Ok-Topk trains BERT. Gradients, without the rate, are summed with their
/// residuals, and every rank applies the same step of Adam to the mean.
///
/// Dense    An entry that the sum does not carry has a gradient of 0: its moments decay, and the first one still moves
///          its weight. The paper does so too: it puts the sum into PyTorch's dense gradient. A lazy Adam would leave
///          such an entry and its moments unchanged (torch.optim.SparseAdam, and a store of the servers:
///          kernels/optimize/optimize.h).
/// Source   [OkTopk22, 5] (BERT: beta1 0.9, beta2 0.999, weight decay 0.01, which is --l2);
///          [Adam15, algorithm 1], with bias correction.
namespace millrace::training {
namespace {

constexpr DescentForm kAdamForm{
    .name = "adam", .rate = RateIn::kUpdate, .before = BeforeExchange::kClipping, .rule = Optimizer::kAdam};

Result<std::unique_ptr<PeerOptimizer>> make_adam(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kAdamForm);
}
Status check_adam(const OptimizerOptions& options) { return check_gradient_descent(options, kAdamForm); }

}  // namespace

OptimizerInfo adam_optimizer() {
  return {.name = kAdamForm.name,
          .source = "[OkTopk22, 5] (BERT); [Adam15, algorithm 1]",
          .summary = "Adam after an allreduce of the largest gradients, dense, the same on all ranks (Ok-Topk's BERT)",
          .make = &make_adam,
          .check = &check_adam,
          .defaults = {.algorithm = "oktopk", .select = "topk:0.01"}};
}

}  // namespace millrace::training
