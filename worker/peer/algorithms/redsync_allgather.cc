#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/selected_allgather.h"

/// RedSync's allreduce: indices and values of every rank, packed into one message, are gathered on all. Each rank
/// decompresses them by adding one after the other. For few ranks, whose entries hardly overlap.
///
/// Any P   recursive doubling or Bruck's.
/// Bits    every rank adds in the order of the ranks.
/// Bytes   a rank: (P - 1) k entries.
/// Source  [RedSync19, 2.2, 2.4].
namespace millrace::peer {
namespace {

class RedsyncAllgather final : public Allreduce {
 public:
  explicit RedsyncAllgather(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kRedsyncAllgather); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    return allgather_and_combine(channel, settings_, std::move(given));
  }

 private:
  AllreduceSettings settings_;
};

void cost_of_redsync_allgather(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  chain.gather_contributions();
}

}  // namespace

AlgorithmEntry redsync_allgather_entry() {
  return {.info = {.id = AlgorithmId::kRedsyncAllgather,
                   .name = "redsync_allgather",
                   .source = "[RedSync19, 2.2]",
                   .result = ResultKind::kExactSum},
          .make = make_of<RedsyncAllgather>,
          .cost = cost_of_redsync_allgather};
}

}  // namespace millrace::peer
