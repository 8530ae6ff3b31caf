#include "worker/training/optimizers/gradient_descent.h"

/// Quantized TopK SGD: acc = residual + rate gradient; residual = acc - TopK(acc), TopK the k largest of every 512
/// consecutive entries. All subtract the sum of Q(TopK(acc)), Q unbiased, so that its error is dropped. 8 of 512 at 4
/// bits are the paper's for CIFAR-10.
///
/// Source   [SparCML19, 4, algorithm 1]; [SparCML19, 8.3] for the buckets. Where sums become dense, --algorithm
///          dsar_split_allgather --quantizer raw+qsgd4 quantizes those too.
namespace millrace::training {
namespace {

constexpr DescentForm kTopkSgdForm{.name = "topk_sgd"};

Result<std::unique_ptr<PeerOptimizer>> make_topk_sgd(const OptimizerSetup& setup) {
  return make_gradient_descent(setup, kTopkSgdForm);
}
Status check_topk_sgd(const OptimizerOptions& options) { return check_gradient_descent(options, kTopkSgdForm); }

}  // namespace

OptimizerInfo topk_sgd_optimizer() {
  return {.name = kTopkSgdForm.name,
          .source = "[SparCML19, 4, algorithm 1]",
          .summary = "the k largest of every 512 entries of residual + rate x gradient, quantized to 4 bits",
          .make = &make_topk_sgd,
          .check = &check_topk_sgd,
          .defaults = {.select = "bucket_topk:0.015625:512", .codec = "gap+qsgd4", .codec_error = CodecError::kDrop}};
}

}  // namespace millrace::training
