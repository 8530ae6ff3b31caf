#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/packed_sum.h"

/// DSAR_Split_allgather: the split of SSAR_Split_allgather, then an allgather of slices that have become dense,
/// quantized if asked for. For sums that fill up.
///
/// Forms   a slice travels in the form that takes fewer bytes; the result is dense.
/// Any P   the gathering is recursive doubling or Bruck's.
/// Bits    one rank adds, in the order of the ranks; where it quantizes, it uses its own decoding.
/// Law     the quantization error of a slice of the sum is in the `returned` of the slice's owner.
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all. Then its slice, N / P values at most, to P - 1
///         others.
/// Source  [SparCML19, 5.3.3, 6].
namespace millrace::peer {
namespace {

constexpr uint32_t kDsarSplit = 0;
constexpr uint32_t kDsarGather = 1;

class DsarSplitAllgather final : public Allreduce {
 public:
  explicit DsarSplitAllgather(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDsarSplitAllgather); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice> mine = co_await split_and_combine(channel, std::move(given), settings_, kDsarSplit);
    if (!mine) co_return std::unexpected(mine.error());
    const Slices slices(settings_.dimension, channel.size());
    Result<Packed> packed = pack_own_sum(channel, *mine, settings_);
    if (!packed) co_return std::unexpected(packed.error());
    const GatherOptions options{kDsarGather, AllgatherWay::kDoubling, JoinAs::kDense};
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

Result<std::unique_ptr<Allreduce>> make_dsar(const AllreduceSettings& settings) {
  const AlgorithmInfo& info = algorithm_info(AlgorithmId::kDsarSplitAllgather);
  if (Status status = check_sum_quantizer(settings, info.name); !status) return std::unexpected(status.error());
  return std::make_unique<DsarSplitAllgather>(settings);
}

void cost_of_dsar_split(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  chain.split_allgather();
}

}  // namespace

AlgorithmEntry dsar_split_allgather_entry() {
  return {.info = {.id = AlgorithmId::kDsarSplitAllgather,
                   .name = "dsar_split_allgather",
                   .source = "[SparCML19, 5.3.3]",
                   .result = ResultKind::kExactSum,
                   .bounded_volume = true},
          .make = make_dsar,
          .cost = cost_of_dsar_split};
}

}  // namespace millrace::peer
