#include "worker/peer/allgather.h"
#include "worker/peer/contribution.h"
#include "worker/peer/registry.h"

/// RedSync's allreduce: indices and values of every rank, packed into one message, are gathered on all, and each rank
/// decompresses them by adding one after the other. For few ranks, whose entries hardly overlap.
///
/// Any P   recursive doubling or Bruck's.
/// Bits    every rank adds in the order of the ranks.
/// Bytes   a rank: (P - 1) k entries.
/// Source  redsync.txt, sections 2.3 and 2.4.
namespace millrace::peer {
namespace {

constexpr uint32_t kGather = 0;

template <typename T>
class RedsyncAllgather final : public Allreduce<T> {
 public:
  explicit RedsyncAllgather(const AllreduceSettings<T>& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kRedsyncAllgather); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    Result<CodedContribution<T>> coded = code_contribution(own, settings_, channel);
    if (!coded) co_return std::unexpected(coded.error());
    if (channel.size() == 1) co_return Reduced<T>{std::move(coded->sent), std::move(coded->returned), {}};
    const Result<std::vector<Packet>> packets =
        co_await allgather(channel, std::move(coded->packet), kGather, AllgatherWay::kDoubling);
    if (!packets) co_return std::unexpected(packets.error());
    std::vector<HeldStream<T>> held;
    std::vector<StreamView<T>> views;
    uint64_t entries = 0;
    for (uint32_t rank = 0; rank < channel.size(); ++rank) {
      Result<HeldStream<T>> theirs = rank == channel.rank()
                                         ? Result<HeldStream<T>>(std::move(coded->sent))
                                         : unpack<T>((*packets)[rank], settings_.dimension, settings_.op);
      if (!theirs) co_return std::unexpected(theirs.error());
      held.push_back(std::move(*theirs));
      views.push_back(held.back().view);
      entries += views.back().count();
    }
    channel.charge(reduce_time(entries));
    Result<Stream<T>> sum = combine<T>(settings_.op, views);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced<T>{HeldStream<T>::from(std::move(*sum)), std::move(coded->returned), {}};
  }

 private:
  AllreduceSettings<T> settings_;
};

}  // namespace

AlgorithmEntry redsync_allgather_entry() {
  return entry_of<RedsyncAllgather>({.id = AlgorithmId::kRedsyncAllgather,
                                     .name = "redsync_allgather",
                                     .source = "redsync.txt, section 2.3",
                                     .result = ResultKind::kExactSum});
}

}  // namespace millrace::peer
