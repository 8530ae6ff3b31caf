#include <algorithm>
#include <array>

#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/dense_vector.h"
#include "worker/peer/collectives/reduce_scatter.h"

/// The ring of dense vectors: a reduce-scatter and an allgather between neighbours. Bandwidth-optimal.
///
/// Any P   as it is.
/// Bits    the rank of a slice has its sum, added in the order of the ring.
/// Bytes   a rank: 2 (P - 1) messages of N / P values. Slices of more than kPieceValues go in pieces. Each is passed on
///         as soon as it is added to, while it is in the second-level cache.
/// Source  [PatarasukYuan09]; the baseline of [SparCML19, 8.1].
namespace millrace::peer {
namespace {

constexpr uint32_t kDenseRingReduceScatter = 0;
constexpr uint32_t kDenseRingGather = 1u << 31;

/// 256 KiB of f32: with the addend, less than a second-level cache.
constexpr uint64_t kDenseRingPieceValues = uint64_t{1} << 16;

/// The slices in pieces; all ranks have the same.
class DenseRingPieces {
 public:
  explicit DenseRingPieces(const Slices& slices) : slices_(slices) {
    for (uint32_t at = 0; at < slices.count(); ++at) count_max_ = std::max(count_max_, count(at));
  }

  uint32_t count(uint32_t slice) const {
    return static_cast<uint32_t>((slices_.dimension(slice) + kDenseRingPieceValues - 1) / kDenseRingPieceValues);
  }
  uint64_t begin(uint32_t slice, uint32_t piece) const {
    return std::min(slices_.begin(slice) + piece * kDenseRingPieceValues, slices_.end(slice));
  }
  uint64_t end(uint32_t slice, uint32_t piece) const { return begin(slice, piece + 1); }
  uint32_t tag(uint32_t step, uint32_t piece) const { return step * count_max_ + piece; }

 private:
  Slices slices_;
  uint32_t count_max_ = 0;
};

class DenseRing final : public Allreduce {
 public:
  explicit DenseRing(const AllreduceSettings& settings) : settings_(without_codecs(settings)) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDenseRing); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    const bool in_pieces = channel.size() > 1 && settings_.dimension / channel.size() >= kDenseRingPieceValues;
    if (in_pieces) co_return co_await run_in_pieces(channel, std::move(given.own));
    Result<OwnSlice> mine =
        co_await ring_reduce_scatter(channel, std::move(given), settings_, kDenseRingReduceScatter, JoinAs::kDense);
    if (!mine) co_return std::unexpected(mine.error());
    const GatherOptions options{kDenseRingGather, AllgatherWay::kRing, JoinAs::kDense};
    co_return co_await gather_sum(channel, std::move(*mine), settings_, options, memory_);
  }

 private:
  Task<Result<Reduced>> run_in_pieces(Channel& channel, SharedStream own) {
    const Slices slices(settings_.dimension, channel.size());
    Stream sum = memory_.take_dense(settings_.dimension);
    const DenseRingPieces pieces(slices);
    if (Status status = co_await reduce_scatter(channel, own, pieces, sum.values); !status) {
      co_return std::unexpected(status.error());
    }
    own = {};
    if (Status status = co_await gather(channel, pieces, sum.values); !status) {
      co_return std::unexpected(status.error());
    }
    co_return Reduced{memory_.hold(std::move(sum), channel.size()), Stream::empty(settings_.dimension), {}};
  }

  /// sum: this rank's slice of it; its pieces are on their way to the next rank, as those of the allgather.
  Task<Status> reduce_scatter(Channel& channel, const SharedStream& own, DenseRingPieces pieces,
                              std::span<float> sum) const {
    const uint32_t size = channel.size(), rank = channel.rank();
    const uint32_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (uint32_t piece = 0; piece < pieces.count(previous); ++piece) {
      const uint64_t begin = pieces.begin(previous, piece), end = pieces.end(previous, piece);
      channel.send(next, kDenseRingReduceScatter + pieces.tag(0, piece), dense_packet(slice_of(own, begin, end)));
    }
    for (uint32_t step = 0; step + 1 < size; ++step) {
      const uint32_t at = (rank + 2 * size - 2 - step) % size;
      for (uint32_t piece = 0; piece < pieces.count(at); ++piece) {
        const uint64_t begin = pieces.begin(at, piece), end = pieces.end(at, piece);
        const Packet packet = co_await channel.receive(previous, kDenseRingReduceScatter + pieces.tag(step, piece));
        const Result<SharedStream> partial = unpack_addend(packet, end - begin, settings_.op);
        if (!partial) co_return std::unexpected(partial.error());
        const SharedStream mine = slice_of(own, begin, end);
        const std::array<StreamView, 2> both{partial->view, mine.view};
        channel.charge(reduce_time(end - begin + mine.view.count()));
        Result<Stream> added = combine(settings_.op, both);
        if (!added) co_return std::unexpected(added.error());
        const bool is_last = at == rank;
        if (is_last) {
          std::ranges::copy(added->values, sum.begin() + static_cast<ptrdiff_t>(begin));
          channel.charge(reduce_time(end - begin));
        }
        const uint32_t tag = is_last ? kDenseRingGather + pieces.tag(rank, piece)
                                     : kDenseRingReduceScatter + pieces.tag(step + 1, piece);
        channel.send(next, tag, dense_packet(SharedStream::from(std::move(*added))));
      }
    }
    co_return Status{};
  }

  Task<Status> gather(Channel& channel, DenseRingPieces pieces, std::span<float> sum) const {
    const uint32_t size = channel.size(), rank = channel.rank();
    const uint32_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (uint32_t step = 0; step + 1 < size; ++step) {
      const uint32_t at = (previous + size - step) % size;
      for (uint32_t piece = 0; piece < pieces.count(at); ++piece) {
        const uint64_t begin = pieces.begin(at, piece), end = pieces.end(at, piece);
        const Packet packet = co_await channel.receive(previous, kDenseRingGather + pieces.tag(at, piece));
        const Result<SharedStream> theirs = unpack(packet, end - begin, settings_.op);
        if (!theirs) co_return std::unexpected(theirs.error());
        if (!theirs->view.dense)
          co_return fail(ErrorCode::kMalformed, "dense_ring: a peer sent a piece that is sparse");
        std::ranges::copy(theirs->view.values, sum.begin() + static_cast<ptrdiff_t>(begin));
        if (step + 2 < size) channel.send(next, kDenseRingGather + pieces.tag(at, piece), packet);
        channel.charge(reduce_time(end - begin));
      }
    }
    co_return Status{};
  }

  /// Of a sparse stream a copy, of a dense one a view that shares it.
  Packet dense_packet(const SharedStream& stream) const {
    const SharedStream dense = stream.view.dense ? stream : SharedStream::from(to_dense(settings_.op, stream.view));
    // Without a codec it cannot fail.
    return std::move(pack(dense, {}, {}).value().packet);
  }

  AllreduceSettings settings_;
  ResultMemory memory_;
};

void cost_of_dense_ring(CostChain& chain) {
  const double slice = chain.n() * chain.slice_share();
  chain.send(slice * CostChain::kValueBytes, 2.0 * (chain.ranks() - 1));
  chain.add_dense(2 * slice * (chain.ranks() - 1) + chain.n());
}

}  // namespace

AlgorithmEntry dense_ring_entry() {
  return {.info = {.id = AlgorithmId::kDenseRing,
                   .name = "dense_ring",
                   .source = "[PatarasukYuan09]",
                   .result = ResultKind::kExactSum,
                   .dense_only = true,
                   .bounded_volume = true},
          .make = make_of<DenseRing>,
          .cost = cost_of_dense_ring,
          .message_values = [](uint64_t dimension, uint32_t ranks) {
            return std::min(values_of_slice(dimension, ranks), kDenseRingPieceValues);
          }};
}

}  // namespace millrace::peer
