#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/packed_sum.h"

/// SSAR_Split_allgather: every rank owns an equal range of the indices. It gets all entries of the others in it and
/// adds them up, and all ranks gather the slices of the sum. For much data.
///
/// Any P   the gathering is recursive doubling or Bruck's.
/// Bits    one rank adds, in the order of the ranks; where it quantizes, it uses its own decoding.
/// Law     the sums are exact, unless the settings have a quantizer for them. Its error on a slice is in the `returned`
///         of the slice's owner.
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all, then its slice of the sum to P - 1 others. The
///         latter are from 2 (P - 1) / P k to P k entries. Sums are dense where that is smaller, slice by slice.
/// Source  [SparCML19, 5.3.2].
namespace millrace::peer {
namespace {

constexpr uint32_t kSsarSplit = 0;
constexpr uint32_t kSsarGather = 1;

class SsarSplitAllgather final : public Allreduce {
 public:
  explicit SsarSplitAllgather(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kSsarSplitAllgather); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice> mine = co_await split_and_combine(channel, std::move(given), settings_, kSsarSplit);
    if (!mine) co_return std::unexpected(mine.error());
    const GatherOptions options{kSsarGather, AllgatherWay::kDoubling, JoinAs::kSmaller};
    Result<Packed> packed = pack_own_sum(channel, *mine, settings_);
    if (!packed) co_return std::unexpected(packed.error());
    mine->sum = {};
    const Slices slices(settings_.dimension, channel.size());
    Result<SharedStream> sum =
        co_await gather_slices(channel, std::move(*packed), slices, settings_.op, options, memory_);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced{std::move(*sum),
                      joined_returns(settings_.dimension, mine->returned),
                      {},
                      joined_returns(settings_.dimension, mine->added)};
  }

 private:
  AllreduceSettings settings_;
  ResultMemory memory_;
};

Result<std::unique_ptr<Allreduce>> make_ssar(const AllreduceSettings& settings) {
  const AlgorithmInfo& info = algorithm_info(AlgorithmId::kSsarSplitAllgather);
  if (Status status = check_sum_quantizer(settings, info.name); !status) return std::unexpected(status.error());
  return std::make_unique<SsarSplitAllgather>(settings);
}

void cost_of_ssar_split(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  chain.split_allgather();
}

}  // namespace

AlgorithmEntry ssar_split_allgather_entry() {
  return {.info = {.id = AlgorithmId::kSsarSplitAllgather,
                   .name = "ssar_split_allgather",
                   .source = "[SparCML19, 5.3.2]",
                   .result = ResultKind::kExactSum},
          .make = make_ssar,
          .cost = cost_of_ssar_split};
}

}  // namespace millrace::peer
