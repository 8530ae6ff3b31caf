#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/selected_allgather.h"

/// TopkA: every rank's k largest, gathered by all and added there. Nothing is dropped of the sum: it has k to P k
/// entries.
///
/// Bits      all add in the order of the ranks.
/// Bytes     a rank: (P - 1) k entries.
/// Source    [OkTopk22, 2]
namespace millrace::peer {
namespace {

class TopkA final : public SelectedAllgather {
 public:
  explicit TopkA(const AllreduceSettings& settings)
      : SelectedAllgather(AlgorithmId::kTopkA, SelectionId::kTopK, settings) {}
};

void cost_of_topk_a(CostChain& chain) {
  chain.select(chain.speeds().select.topk_s);
  chain.gather_contributions();
}

}  // namespace

AlgorithmEntry topk_a_entry() {
  return {.info = {.id = AlgorithmId::kTopkA,
                   .name = "topk_a",
                   .source = "[OkTopk22, 2]",
                   .result = ResultKind::kGlobalTopk,
                   .selects = true},
          .make = make_of<TopkA>,
          .cost = cost_of_topk_a};
}

}  // namespace millrace::peer
