#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/selected_allgather.h"

/// Gaussian-k: as topk_a, over the entries above a threshold that a normal fit of the values gives
/// (kernels/select/gaussian.cc). These are 3k/4 to 2k entries, where enough are not 0.
///
/// Bits      all add in the order of the ranks.
/// Bytes     a rank: the others' selected entries, (P - 1) k or so.
/// Source    [GaussianK19]; [OkTopk22, 2, 3.1.3]
namespace millrace::peer {
namespace {

class GaussianK final : public SelectedAllgather {
 public:
  explicit GaussianK(const AllreduceSettings& settings)
      : SelectedAllgather(AlgorithmId::kGaussianK, SelectionId::kGaussian, settings) {}
};

void cost_of_gaussian_k(CostChain& chain) {
  chain.select(chain.speeds().select.gaussian_s);
  chain.gather_contributions();
}

}  // namespace

AlgorithmEntry gaussian_k_entry() {
  return {.info = {.id = AlgorithmId::kGaussianK,
                   .name = "gaussian_k",
                   .source = "[GaussianK19]; [OkTopk22, 2, 3.1.3]",
                   .result = ResultKind::kGlobalTopk,
                   .selects = true},
          .make = make_of<GaussianK>,
          .cost = cost_of_gaussian_k};
}

}  // namespace millrace::peer
