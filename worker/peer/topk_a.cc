#include "worker/peer/local_selection.h"
#include "worker/peer/registry.h"
#include "worker/peer/selected_allgather.h"

/// TopkA: every rank's k largest, gathered by all and added there. Nothing is dropped of the sum: it has k to P k entries.
///
/// Bits      all add in the order of the ranks.
/// Bytes     a rank: (P - 1) k entries.
/// Source    oktopk.txt, section 2
namespace millrace::peer {
namespace {

template <typename T>
class TopkA final : public Allreduce<T> {
 public:
  explicit TopkA(const AllreduceSettings<T>& settings) : settings_(settings), selection_(Selection::kTopK, settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kTopkA); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    Result<Stream<T>> mine = selection_.take(own.view);
    if (!mine) co_return std::unexpected(mine.error());
    co_return co_await allgather_selected(channel, settings_, std::move(*mine));
  }

 private:
  AllreduceSettings<T> settings_;
  LocalSelection<T> selection_;
};

}  // namespace

AlgorithmEntry topk_a_entry() {
  return entry_of<TopkA>({.id = AlgorithmId::kTopkA,
                          .name = "topk_a",
                          .source = "oktopk.txt, section 2",
                          .result = ResultKind::kGlobalTopk,
                          .selects = true});
}

}  // namespace millrace::peer
