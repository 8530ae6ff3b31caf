#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/dense_vector.h"
#include "worker/peer/collectives/reduce_scatter.h"

/// Rabenseifner's allreduce of dense vectors: a reduce-scatter by recursive halving, an allgather by recursive
/// doubling.
///
/// Any P   let F be 2^floor(log2 P): a rank r >= F gives its vector to rank r - F, and owns no slice. All ranks take
///         part in the allgather. (The usual way has them get the whole result from their partner afterwards.)
/// Bits    one rank adds up a slice, at each level the lower rank's first.
/// Bytes   a rank: log2 P messages of N / 2, N / 4, ... values, then (P - 1) / P of N; where ranks give
///         theirs away, N more at most. All that travels is dense.
/// Memory  a rank's part of the sum is sparse while that is smaller. In groups so large that they are simulated, a half
///         is sent in pieces, the next one when the partner's has come. Thousands of halves in flight would be
///         thousands of vectors.
/// Source  [Rabenseifner04]; [Thakur05]; [SparCML19, 5.3.2].
namespace millrace::peer {
namespace {

constexpr uint32_t kRabenseifnerFold = 0;
constexpr uint32_t kHalve = 1;
constexpr uint32_t kRabenseifnerGather = 64;
constexpr uint32_t kPieces = 1u << 30;  // those after the first one of a half
constexpr uint32_t kLevels = 32;

constexpr uint64_t kRabenseifnerPieceValues = uint64_t{1} << 17;

/// Values [begin, end) of a half, in pieces.
struct RabenseifnerPieces {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t each = 0;

  uint64_t count() const { return (end - begin + each - 1) / each; }
  uint64_t begin_of(uint64_t at) const { return begin + at * each; }
  uint64_t end_of(uint64_t at) const { return std::min(end, begin_of(at) + each); }
};

uint32_t tag_of(uint32_t level, uint64_t piece) {
  return piece == 0 ? kHalve + level : kPieces + static_cast<uint32_t>(piece) * kLevels + level;
}

class DenseRabenseifner final : public Allreduce {
 public:
  explicit DenseRabenseifner(const AllreduceSettings& settings) : settings_(without_codecs(settings)) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDenseRabenseifner); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    SharedStream sum = std::move(given.own);
    const uint32_t paired = std::bit_floor(channel.size());
    const Slices slices(settings_.dimension, paired);
    if (Status status = co_await halve(channel, slices, sum); !status) co_return std::unexpected(status.error());
    Result<Packed> packed = pack(dense_of(sum), settings_.wire.sums, {});
    if (!packed) co_return std::unexpected(packed.error());
    const GatherOptions options{kRabenseifnerGather, AllgatherWay::kDoubling, JoinAs::kDense};
    Result<SharedStream> all =
        co_await gather_slices(channel, std::move(*packed), slices, settings_.op, options, memory_);
    if (!all) co_return std::unexpected(all.error());
    co_return Reduced{std::move(*all), Stream::empty(settings_.dimension), {}};
  }

 private:
  SharedStream dense_of(const SharedStream& stream) const {
    return stream.view.dense ? stream : SharedStream::from(to_dense(settings_.op, stream.view));
  }

  /// Of a sparse stream a copy, of a dense one a view that shares it.
  /// sum: the rank's vector; then its slice of the sum.
  Task<Status> halve(Channel& channel, Slices slices, SharedStream& sum) {
    const uint32_t rank = channel.rank();
    const uint32_t paired = slices.count();
    if (rank >= paired) {
      channel.send(rank - paired, kRabenseifnerFold, pack_range(dense_of(sum).view, 0, settings_.dimension));
      sum = {};
      co_return Status{};
    }
    if (rank + paired < channel.size()) {
      const Packet folded = co_await channel.receive(rank + paired, kRabenseifnerFold);
      const Result<SharedStream> theirs = unpack(folded, settings_.dimension, settings_.op);
      if (!theirs) co_return std::unexpected(theirs.error());
      if (Status status = add(channel, sum, theirs->view, Order::kOwnFirst); !status) co_return status;
    }
    uint32_t first = 0;
    for (uint32_t half = paired / 2, step = 0; half > 0; half /= 2, ++step) {
      const uint32_t partner = rank ^ half;
      const bool upper = (rank & half) != 0;
      // This rank's part begins at slice `first`, of 2 * half.
      const uint64_t middle = slices.begin(first + half) - slices.begin(first);
      const uint64_t end = slices.begin(first + 2 * half) - slices.begin(first);
      const uint64_t each = channel.size() > ResultMemory::kKeptRanksMax ? kRabenseifnerPieceValues : end + 1;
      const RabenseifnerPieces low{0, middle, each}, high{middle, end, each};
      const Status status = co_await exchange(channel, sum, {partner, step, upper ? low : high, upper ? high : low});
      if (!status) co_return status;
      if (upper) first += half;
    }
    co_return Status{};
  }

  enum class Order : uint8_t { kOwnFirst = 1, kTheirsFirst = 2 };

  struct Exchange {
    uint32_t partner = 0;
    uint32_t level = 0;
    RabenseifnerPieces given;
    RabenseifnerPieces kept;
  };

  /// Leaves the half that is kept, with the partner's added.
  Task<Status> exchange(Channel& channel, SharedStream& sum, Exchange what) const {
    const Order order = channel.rank() < what.partner ? Order::kOwnFirst : Order::kTheirsFirst;
    std::vector<SharedStream> parts;
    for (uint64_t i = 0; i < std::max(what.given.count(), what.kept.count()); ++i) {
      if (i < what.given.count()) {
        const SharedStream given = dense_of(slice_of(sum, what.given.begin_of(i), what.given.end_of(i)));
        Result<Packed> packed = pack(given, {}, {});
        if (!packed) co_return std::unexpected(packed.error());
        channel.send(what.partner, tag_of(what.level, i), std::move(packed->packet));
      }
      if (i >= what.kept.count()) continue;
      SharedStream part = slice_of(sum, what.kept.begin_of(i), what.kept.end_of(i));
      const Packet packet = co_await channel.receive(what.partner, tag_of(what.level, i));
      const Result<SharedStream> theirs = unpack(packet, part.view.dimension, settings_.op);
      if (!theirs) co_return std::unexpected(theirs.error());
      if (Status status = add(channel, part, theirs->view, order); !status) co_return status;
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) {
      sum = std::move(parts[0]);
      co_return Status{};
    }
    std::vector<Piece> pieces;
    for (SharedStream& part : parts) pieces.push_back({std::move(part), Checked::kYes});
    Result<Stream> joined = join(settings_.op, pieces, JoinAs::kSmaller, {});
    if (!joined) co_return std::unexpected(joined.error());
    sum = SharedStream::from(std::move(*joined));
    co_return Status{};
  }

  Status add(Channel& channel, SharedStream& sum, const StreamView& theirs, Order order) const {
    channel.charge(reduce_time(theirs.count()));
    Stream sparse;
    std::array<StreamView, 2> both{sum.view, theirs};
    if (!sum.view.dense && theirs.dense) {
      sparse = stored_of(theirs);
      if (sparse.count() < dense_from_count(theirs.dimension)) both[1] = sparse.view();
    }
    if (order == Order::kTheirsFirst) std::swap(both[0], both[1]);
    Result<Stream> added = combine(settings_.op, both);
    if (!added) return std::unexpected(added.error());
    sum = SharedStream::from(std::move(*added));
    return {};
  }

  /// Returns the values of a dense vector that are not the neutral element.
  Stream stored_of(const StreamView& dense) const {
    if (settings_.op.neutral == 0) return to_sparse(dense);
    Stream out = Stream::empty(dense.dimension);
    for (size_t i = 0; i < dense.values.size(); ++i) {
      if (dense.values[i] == settings_.op.neutral) continue;
      out.indices.push_back(static_cast<uint32_t>(i));
      out.values.push_back(dense.values[i]);
    }
    return out;
  }

  AllreduceSettings settings_;
  ResultMemory memory_;
};

void cost_of_dense_rabenseifner(CostChain& chain) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  if (paired != chain.ranks()) {
    chain.send(chain.n() * CostChain::kValueBytes);
    chain.add_dense(chain.n());
  }
  for (double part = chain.n() / 2; part >= chain.n() / paired; part /= 2) {
    chain.send(part * CostChain::kValueBytes);
    chain.add_dense(part);
  }
  chain.gather(chain.n() / paired * CostChain::kValueBytes);
  chain.add_dense(chain.n());
}

}  // namespace

AlgorithmEntry dense_rabenseifner_entry() {
  return {.info = {.id = AlgorithmId::kDenseRabenseifner,
                   .name = "dense_rabenseifner",
                   .source = "[Rabenseifner04]; [Thakur05]",
                   .result = ResultKind::kExactSum,
                   .dense_only = true,
                   .bounded_volume = true},
          .make = make_of<DenseRabenseifner>,
          .cost = cost_of_dense_rabenseifner,
          .message_values = [](uint64_t dimension, uint32_t ranks) {
            return std::has_single_bit(ranks) ? values_of_slice(dimension, 2) : dimension;
          }};
}

}  // namespace millrace::peer
