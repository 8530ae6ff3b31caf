#include "worker/training/optimizers/gradient_descent.h"

/// Residual gradient compression: U = m U + G, residual V += U (nesterov: G + m U; nesterov_printed: G + U). G is
/// clipped to the threshold times the square root of the ranks, since the update is a mean (local_clip.h). The selected
/// entries of V are summed, and set to 0 in V and in U; w -= rate times the mean.
///
/// With --select ...:dense=STEPS the first steps are the paper's warm-up: momentum SGD, uncompressed, whose U is not
/// masked. by_size treats all steps of a model of up to 4,096 weights so. With --select by_size:D:signs --codec-up
/// raw+sign_mean the other steps send entries of one sign as their mean, and drop its error.
///
/// Source   [RedSync19, algorithm 4, appendices B and C] (clipping, warm-up); differs as
///          worker/core/residual/momentum.h says.
namespace millrace::training {
namespace {

constexpr DescentForm kRgcForm{.name = "rgc", .rate = RateIn::kUpdate, .before = BeforeExchange::kMomentumAndClipping};

Result<std::unique_ptr<PeerOptimizer>> make_rgc(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kRgcForm);
}
Status check_rgc(const OptimizerOptions& options) { return check_gradient_descent(options, kRgcForm); }

}  // namespace

OptimizerInfo rgc_optimizer() {
  return {.name = kRgcForm.name,
          .source = "[RedSync19, appendices B and C, algorithm 4]",
          .summary = "RedSync: momentum correction with masking (--momentum), clipping (--clip), the largest 0.1 %",
          .make = &make_rgc,
          .check = &check_rgc,
          .defaults = {.algorithm = "redsync_allgather",
                       .select = "by_size:0.001",
                       .momentum = "correction:0.9",
                       .codec_error = CodecError::kDrop}};
}

}  // namespace millrace::training
