#include "worker/peer/algorithms/split_allgather.h"

#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/packed_sum.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kSplitTag = 0;
constexpr uint32_t kSplitGatherTag = 1;

class SplitAllgather final : public Allreduce {
 public:
  SplitAllgather(AlgorithmId id, JoinAs join, const AllreduceSettings& settings)
      : id_(id), join_(join), settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(id_); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice> mine = co_await split_and_combine(channel, std::move(given), settings_, kSplitTag);
    if (!mine) co_return std::unexpected(mine.error());
    Result<Packed> packed = pack_own_sum(channel, *mine, settings_);
    if (!packed) co_return std::unexpected(packed.error());
    mine->sum = {};
    const Slices slices(settings_.dimension, channel.size());
    const GatherOptions options{kSplitGatherTag, AllgatherWay::kDoubling, join_};
    Result<SharedStream> sum =
        co_await gather_slices(channel, std::move(*packed), slices, settings_.op, options, memory_);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced{std::move(*sum),
                      joined_returns(settings_.dimension, mine->returned),
                      {},
                      joined_returns(settings_.dimension, mine->added)};
  }

 private:
  AlgorithmId id_;
  JoinAs join_;
  AllreduceSettings settings_;
  ResultMemory memory_;
};

}  // namespace

Result<std::unique_ptr<Allreduce>> make_split_allgather(AlgorithmId id, JoinAs join,
                                                        const AllreduceSettings& settings) {
  if (Status status = check_sum_quantizer(settings, algorithm_info(id).name); !status)
    return std::unexpected(status.error());
  return std::make_unique<SplitAllgather>(id, join, settings);
}

void cost_of_split_allgather(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  chain.split_allgather();
}

}  // namespace millrace::peer
