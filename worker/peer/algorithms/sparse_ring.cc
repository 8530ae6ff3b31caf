#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/reduce_scatter.h"

/// The ring on sparse slices: partial sums of a slice go around, each rank adds its own part, and the sums go around
/// again.
///
/// Any P   as it is.
/// Bits    the rank of a slice has its sum, added in the order of the ring.
/// Bytes   a rank: P - 1 messages of partial sums (of a slice, k / P entries at first), P - 1 of sums; to neighbours
///         only. At most 2 (P - 1) / P of the dense vector: slices become dense where that is smaller.
/// Source  [SparCML19, 8.1] ("its sparse counterpart"); [PatarasukYuan09].
namespace millrace::peer {
namespace {

constexpr uint32_t kSparseRingReduceScatter = 0;
constexpr uint32_t kSparseRingGather = 1u << 31;

class SparseRing final : public Allreduce {
 public:
  explicit SparseRing(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kSparseRing); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice> mine =
        co_await ring_reduce_scatter(channel, std::move(given), settings_, kSparseRingReduceScatter, JoinAs::kSmaller);
    if (!mine) co_return std::unexpected(mine.error());
    const GatherOptions options{kSparseRingGather, AllgatherWay::kRing, JoinAs::kSmaller};
    co_return co_await gather_sum(channel, std::move(*mine), settings_, options, memory_);
  }

 private:
  AllreduceSettings settings_;
  ResultMemory memory_;
};

void cost_of_sparse_ring(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  const double share = chain.slice_share();
  for (uint32_t step = 1; step < chain.ranks(); ++step) {
    chain.send_sum(step, share);
    chain.add_sum(step, share);
    chain.add_sum(1, share);
  }
  chain.pass_sum(chain.ranks(), share);
  chain.add_sum(chain.ranks());
}

}  // namespace

AlgorithmEntry sparse_ring_entry() {
  return {.info = {.id = AlgorithmId::kSparseRing,
                   .name = "sparse_ring",
                   .source = "[SparCML19, 8.1]",
                   .result = ResultKind::kExactSum,
                   .bounded_volume = true},
          .make = make_of<SparseRing>,
          .cost = cost_of_sparse_ring,
          .message_values = values_of_slice};
}

}  // namespace millrace::peer
