#include "worker/peer/dense_vector.h"
#include "worker/peer/registry.h"
#include "worker/peer/slices.h"

/// The ring of dense vectors: a reduce-scatter and an allgather between neighbours. Bandwidth-optimal.
///
/// Any P   as it is.
/// Bits    the rank of a slice has its sum, added in the order of the ring.
/// Bytes   a rank: 2 (P - 1) messages of N / P values.
/// Source  Patarasuk and Yuan; the baseline of sparcml.txt, section 8.1.
namespace millrace::peer {
namespace {

constexpr uint32_t kReduceScatter = 0;
constexpr uint32_t kGather = 1u << 31;

template <typename T>
class DenseRing final : public Allreduce<T> {
 public:
  explicit DenseRing(const AllreduceSettings<T>& settings) : settings_(without_codecs(settings)) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDenseRing); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    if (Status status = check_contribution(own.view, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice<T>> mine =
        co_await ring_reduce_scatter(channel, std::move(own), settings_, kReduceScatter, JoinAs::kDense);
    if (!mine) co_return std::unexpected(mine.error());
    const GatherOptions options{kGather, AllgatherWay::kRing, JoinAs::kDense};
    co_return co_await gather_sum(channel, std::move(*mine), settings_, options, memory_);
  }

 private:
  AllreduceSettings<T> settings_;
  ResultMemory<T> memory_;
};

}  // namespace

AlgorithmEntry dense_ring_entry() {
  return entry_of<DenseRing>({.id = AlgorithmId::kDenseRing,
                              .name = "dense_ring",
                              .source = "Patarasuk and Yuan",
                              .result = ResultKind::kExactSum,
                              .dense_only = true,
                              .bounded_volume = true});
}

}  // namespace millrace::peer
