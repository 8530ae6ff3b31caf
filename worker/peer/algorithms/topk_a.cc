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
      : SelectedAllgather(AlgorithmId::kTopkA, Selection::kTopK, settings) {}
};

}  // namespace

AlgorithmEntry topk_a_entry() {
  return entry_of<TopkA>({.id = AlgorithmId::kTopkA,
                          .name = "topk_a",
                          .source = "[OkTopk22, 2]",
                          .result = ResultKind::kGlobalTopk,
                          .selects = true});
}

}  // namespace millrace::peer
