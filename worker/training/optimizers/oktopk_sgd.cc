#include "worker/training/optimizers/gradient_descent.h"

/// Ok-Topk SGD: acc = residual + rate gradient. The O(k) allreduce, or servers that re-select, return u, the k largest
/// entries of the ranks' sum of acc. Then residual = acc but for the entries that contributed to u; w -= u / P.
///
/// Source   [OkTopk22, 4, algorithm 2]. Over servers the threshold is that of the union of all shards' sums, not of the
///          ranks' regions.
namespace millrace::training {
namespace {

constexpr DescentForm kOktopkSgdForm{.name = "oktopk_sgd"};

Result<std::unique_ptr<PeerOptimizer>> make_oktopk_sgd(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kOktopkSgdForm);
}
Status check_oktopk_sgd(const OptimizerOptions& options) {
  if (options.job.contributions.unbiased) {
    return fail(ErrorCode::kInvalidArgument,
                "oktopk_sgd needs the residual, and --unbiased keeps none: take --optimizer sgd with it");
  }
  return check_gradient_descent(options, kOktopkSgdForm);
}

}  // namespace

OptimizerInfo oktopk_sgd_optimizer() {
  return {.name = kOktopkSgdForm.name,
          .source = "[OkTopk22, 4, algorithm 2]",
          .summary = "of the sum of residual + rate x gradient the k largest entries; what did not contribute stays",
          .make = &make_oktopk_sgd,
          .check = &check_oktopk_sgd,
          .defaults = {.algorithm = "oktopk", .select = "topk:0.01"}};
}

}  // namespace millrace::training
