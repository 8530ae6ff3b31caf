#include <array>
#include <bit>
#include <utility>

#include "worker/peer/dense_vector.h"
#include "worker/peer/registry.h"
#include "worker/peer/slices.h"

/// Rabenseifner's allreduce of dense vectors: a reduce-scatter by recursive halving, an allgather by recursive doubling.
///
/// Any P   ranks from 2^floor(log2 P) on give their vector to the rank so far below them, and are in charge of nothing; all
///         ranks take part in the allgather (the usual way has them get the whole result from their partner afterwards).
/// Bits    one rank adds up a slice, at each level the lower rank's first.
/// Bytes   a rank: log2 P messages of N / 2, N / 4, ... values, then (P - 1) / P of N; where ranks give
///         theirs away, N more at most.
/// Source  Rabenseifner; Thakur et al.; sparcml.txt, section 5.3.2.
namespace millrace::peer {
namespace {

constexpr uint32_t kFold = 0;
constexpr uint32_t kHalve = 1;
constexpr uint32_t kGather = 64;

template <typename T>
class DenseRabenseifner final : public Allreduce<T> {
 public:
  explicit DenseRabenseifner(const AllreduceSettings<T>& settings) : settings_(without_codecs(settings)) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDenseRabenseifner); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    Result<HeldStream<T>> dense = dense_vector(std::move(own), settings_);
    if (!dense) co_return std::unexpected(dense.error());
    HeldStream<T> sum = std::move(*dense);
    const uint32_t paired = std::bit_floor(channel.size());
    const Slices slices(settings_.dimension, paired);
    if (Status status = co_await halve(channel, slices, sum); !status) co_return std::unexpected(status.error());
    Result<Packed<T>> packed = pack(sum, settings_.wire.sums, {});
    if (!packed) co_return std::unexpected(packed.error());
    const GatherOptions options{kGather, AllgatherWay::kDoubling, JoinAs::kDense};
    Result<HeldStream<T>> all =
        co_await gather_slices(channel, std::move(*packed), slices, settings_.op, options, memory_);
    if (!all) co_return std::unexpected(all.error());
    co_return Reduced<T>{std::move(*all), Stream<T>::empty(settings_.dimension), {}};
  }

 private:
  /// sum: the rank's vector; then its slice of the sum.
  Task<Status> halve(Channel& channel, Slices slices, HeldStream<T>& sum) {
    const uint32_t rank = channel.rank();
    const uint32_t paired = slices.count();
    if (rank >= paired) {
      channel.send(rank - paired, kFold, pack_range(sum.view, 0, settings_.dimension));
      sum = {};
      co_return Status{};
    }
    if (rank + paired < channel.size()) {
      const Packet folded = co_await channel.receive(rank + paired, kFold);
      const Result<HeldStream<T>> theirs = unpack<T>(folded, settings_.dimension, settings_.op);
      if (!theirs) co_return std::unexpected(theirs.error());
      if (Status status = add(channel, sum, theirs->view, true); !status) co_return status;
    }
    uint32_t first = 0;
    for (uint32_t half = paired / 2, step = 0; half > 0; half /= 2, ++step) {
      const uint32_t partner = rank ^ half;
      const bool upper = (rank & half) != 0;
      // What this rank holds begins at slice `first`, of 2 * half.
      const std::array<uint64_t, 3> bounds{0, slices.begin(first + half) - slices.begin(first),
                                           slices.begin(first + 2 * half) - slices.begin(first)};
      std::vector<Packet> halves = pack_slices<T>(sum, bounds, settings_.op.neutral);
      if (upper) first += half;
      const uint64_t dimension = slices.begin(first + half) - slices.begin(first);
      if (bounds[2] - dimension != 0) channel.send(partner, kHalve + step, std::move(halves[upper ? 0 : 1]));
      const uint64_t begin = upper ? bounds[1] : 0;
      sum.view = {dimension, true, {}, sum.view.values.subspan(begin, dimension)};
      if (dimension == 0) continue;
      const Packet packet = co_await channel.receive(partner, kHalve + step);
      const Result<HeldStream<T>> theirs = unpack<T>(packet, dimension, settings_.op);
      if (!theirs) co_return std::unexpected(theirs.error());
      if (Status status = add(channel, sum, theirs->view, !upper); !status) co_return status;
    }
    co_return Status{};
  }

  Status add(Channel& channel, HeldStream<T>& sum, const StreamView<T>& theirs, bool own_first) const {
    std::array<StreamView<T>, 2> both{sum.view, theirs};
    if (!own_first) std::swap(both[0], both[1]);
    channel.charge(reduce_time(theirs.count()));
    Result<Stream<T>> added = combine<T>(settings_.op, both);
    if (!added) return std::unexpected(added.error());
    sum = HeldStream<T>::from(std::move(*added));
    return {};
  }

  AllreduceSettings<T> settings_;
  ResultMemory<T> memory_;
};

}  // namespace

AlgorithmEntry dense_rabenseifner_entry() {
  return entry_of<DenseRabenseifner>({.id = AlgorithmId::kDenseRabenseifner,
                                      .name = "dense_rabenseifner",
                                      .source = "Rabenseifner; Thakur et al.",
                                      .result = ResultKind::kExactSum,
                                      .dense_only = true,
                                      .bounded_volume = true});
}

}  // namespace millrace::peer
