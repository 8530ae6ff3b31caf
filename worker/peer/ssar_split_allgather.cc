#include "worker/peer/contribution.h"
#include "worker/peer/registry.h"
#include "worker/peer/slices.h"

/// SSAR_Split_allgather: every rank is in charge of an equal range of the indices, gets all that the others have there, adds
/// it up, and all ranks gather the slices of the sum. For much data.
///
/// Any P   the gathering is recursive doubling or Bruck's.
/// Bits    one rank adds, in the order of the ranks.
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all, then its slice of the sum to P - 1 others: from
///         2 (P - 1) / P k to P k entries; sums are dense where that is smaller, slice by slice.
/// Source  sparcml.txt, section 5.3.2.
namespace millrace::peer {
namespace {

constexpr uint32_t kSplit = 0;
constexpr uint32_t kGather = 1;

template <typename T>
class SsarSplitAllgather final : public Allreduce<T> {
 public:
  explicit SsarSplitAllgather(const AllreduceSettings<T>& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kSsarSplitAllgather); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    if (Status status = check_contribution(own.view, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice<T>> mine = co_await split_and_combine(channel, std::move(own), settings_, kSplit);
    if (!mine) co_return std::unexpected(mine.error());
    const GatherOptions options{kGather, AllgatherWay::kDoubling, JoinAs::kSmaller};
    co_return co_await gather_sum(channel, std::move(*mine), settings_, options, memory_);
  }

 private:
  AllreduceSettings<T> settings_;
  ResultMemory<T> memory_;
};

}  // namespace

AlgorithmEntry ssar_split_allgather_entry() {
  return entry_of<SsarSplitAllgather>({.id = AlgorithmId::kSsarSplitAllgather,
                                       .name = "ssar_split_allgather",
                                       .source = "sparcml.txt, section 5.3.2",
                                       .result = ResultKind::kExactSum});
}

}  // namespace millrace::peer
