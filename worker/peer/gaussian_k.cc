#include "worker/peer/registry.h"
#include "worker/peer/selected_allgather.h"

/// Gaussian-k: as topk_a, over what reaches a threshold that a normal fit of the values gives (kernels/select/gaussian.cc):
/// 3k/4 to 2k entries, where so many are not 0.
///
/// Bits      all add in the order of the ranks.
/// Bytes     a rank: what the others selected, (P - 1) k entries or so.
/// Source    oktopk.txt, sections 2 and 3.1.3 (Shi et al., Gaussian-k)
namespace millrace::peer {
namespace {

class GaussianK final : public SelectedAllgather {
 public:
  explicit GaussianK(const AllreduceSettings& settings)
      : SelectedAllgather(AlgorithmId::kGaussianK, Selection::kGaussian, settings) {}
};

}  // namespace

AlgorithmEntry gaussian_k_entry() {
  return entry_of<GaussianK>({.id = AlgorithmId::kGaussianK,
                              .name = "gaussian_k",
                              .source = "oktopk.txt, sections 2 and 3.1.3 (Shi et al.)",
                              .result = ResultKind::kGlobalTopk,
                              .selects = true});
}

}  // namespace millrace::peer
