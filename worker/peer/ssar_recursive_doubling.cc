#include <array>
#include <bit>

#include "kernels/reduce/reduce.h"
#include "worker/peer/contribution.h"
#include "worker/peer/registry.h"

/// SSAR_Recursive_double: sparse recursive doubling. In step i ranks 2^i apart exchange all that they have, and each adds
/// the two; after log2 P steps all have the sum. Latency-optimal: for little data.
///
/// Any P   ranks from 2^floor(log2 P) on give what they have to the rank so far below them, and get the sum from it.
/// Bits    both partners add the lower rank's sum first: the same bits.
/// Bytes   a rank: log2 P messages, of k to min(N, 2^i k) entries each.
/// Source  sparcml.txt, section 5.3.1.
namespace millrace::peer {
namespace {

constexpr uint32_t kFold = 1;
constexpr uint32_t kUnfold = 2;
constexpr uint32_t kStep = 16;

template <typename T>
class SsarRecursiveDoubling final : public Allreduce<T> {
 public:
  explicit SsarRecursiveDoubling(const AllreduceSettings<T>& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kSsarRecursiveDoubling); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    Result<CodedContribution<T>> coded = code_contribution(own, settings_, channel);
    if (!coded) co_return std::unexpected(coded.error());
    HeldStream<T> sum = coded->sent;
    const uint32_t rank = channel.rank();
    const uint32_t paired = std::bit_floor(channel.size());
    if (rank >= paired) {
      channel.send(rank - paired, kFold, std::move(coded->packet));
      const Packet packet = co_await channel.receive(rank - paired, kUnfold);
      Result<HeldStream<T>> all = unpack<T>(packet, settings_.dimension);
      if (!all) co_return std::unexpected(all.error());
      co_return Reduced<T>{std::move(*all), std::move(coded->returned), {}};
    }
    // Until it was added to, what this rank has is its contribution as it was coded.
    Packet packet = std::move(coded->packet);
    const bool folds = rank + paired < channel.size();
    if (folds) {
      const Packet folded = co_await channel.receive(rank + paired, kFold);
      if (Status status = add(sum, folded, Order::kOwnFirst, channel, packet); !status) {
        co_return std::unexpected(status.error());
      }
    }
    for (uint32_t bit = 1, step = 0; bit < paired; bit *= 2, ++step) {
      const uint32_t partner = rank ^ bit;
      channel.send(partner, kStep + step, packet);
      const Packet theirs = co_await channel.receive(partner, kStep + step);
      const Order order = rank < partner ? Order::kOwnFirst : Order::kTheirsFirst;
      if (Status status = add(sum, theirs, order, channel, packet); !status) co_return std::unexpected(status.error());
    }
    if (folds) channel.send(rank + paired, kUnfold, packet);
    co_return Reduced<T>{std::move(sum), std::move(coded->returned), {}};
  }

 private:
  enum class Order : uint8_t { kOwnFirst = 1, kTheirsFirst = 2 };

  /// sum = sum and what `theirs` holds; packet: the new sum, ready to send.
  Status add(HeldStream<T>& sum, const Packet& theirs, Order order, Channel& channel, Packet& packet) const {
    const Result<HeldStream<T>> other = unpack<T>(theirs, settings_.dimension);
    if (!other) return std::unexpected(other.error());
    std::array<StreamView<T>, 2> both{sum.view, other->view};
    if (order == Order::kTheirsFirst) std::swap(both[0], both[1]);
    channel.charge(reduce_time(both[0].count() + both[1].count()));
    Result<Stream<T>> added = combine<T>(settings_.op, both);
    if (!added) return std::unexpected(added.error());
    sum = HeldStream<T>::from(std::move(*added));
    Result<Packed<T>> packed = pack(sum, settings_.wire.sums, {});
    if (!packed) return std::unexpected(packed.error());
    packet = std::move(packed->packet);
    return {};
  }

  AllreduceSettings<T> settings_;
};

}  // namespace

AlgorithmEntry ssar_recursive_doubling_entry() {
  return entry_of<SsarRecursiveDoubling>({.id = AlgorithmId::kSsarRecursiveDoubling,
                                          .name = "ssar_recursive_doubling",
                                          .source = "sparcml.txt, section 5.3.1",
                                          .result = ResultKind::kExactSum});
}

}  // namespace millrace::peer
