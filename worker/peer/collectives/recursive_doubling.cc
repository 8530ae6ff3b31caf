#include "worker/peer/collectives/recursive_doubling.h"

#include <array>
#include <bit>
#include <utility>

#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kRecursiveDoublingFold = 1;
constexpr uint32_t kRecursiveDoublingUnfold = 2;
constexpr uint32_t kStep = 16;

enum class Order : uint8_t { kOwnFirst = 1, kTheirsFirst = 2 };

enum class Next : uint8_t { kSent = 1, kKept = 2 };

/// sum.decoded = that plus the entries of `theirs`; ready to send where another rank waits for it.
Status add_recursive_doubling(Packed& sum, const Packet& theirs, Order order, Next next, Channel& channel,
                              const AllreduceSettings& settings) {
  const Result<SharedStream> other = unpack(theirs, settings.dimension, settings.op);
  if (!other) return std::unexpected(other.error());
  std::array<StreamView, 2> both{sum.decoded.view, other->view};
  if (order == Order::kTheirsFirst) std::swap(both[0], both[1]);
  channel.charge(reduce_time(both[0].count() + both[1].count()));
  Result<Stream> added = combine(settings.op, both);
  if (!added) return std::unexpected(added.error());
  sum = {{}, SharedStream::from(std::move(*added))};
  if (next == Next::kKept) return {};
  Result<Packed> packed = pack(sum.decoded, settings.wire.sums, {}, 0, channel.bodies());
  if (!packed) return std::unexpected(packed.error());
  sum = std::move(*packed);
  return {};
}

}  // namespace

Task<Result<SharedStream>> recursive_doubling(Channel& channel, Packed own, const AllreduceSettings& settings) {
  const uint32_t rank = channel.rank();
  const uint32_t paired = std::bit_floor(channel.size());
  if (rank >= paired) {
    channel.send(rank - paired, kRecursiveDoublingFold, std::move(own.packet));
    const Packet packet = co_await channel.receive(rank - paired, kRecursiveDoublingUnfold);
    co_return unpack(packet, settings.dimension, settings.op);
  }
  // Until the first addition, this rank's sum is its contribution as it was coded.
  Packed sum = std::move(own);
  const bool folds = rank + paired < channel.size();
  if (folds) {
    const Packet folded = co_await channel.receive(rank + paired, kRecursiveDoublingFold);
    const Status status = add_recursive_doubling(sum, folded, Order::kOwnFirst, Next::kSent, channel, settings);
    if (!status) co_return std::unexpected(status.error());
  }
  for (uint32_t bit = 1, step = 0; bit < paired; bit *= 2, ++step) {
    const uint32_t partner = rank ^ bit;
    channel.send(partner, kStep + step, sum.packet);
    const Packet theirs = co_await channel.receive(partner, kStep + step);
    const Order order = rank < partner ? Order::kOwnFirst : Order::kTheirsFirst;
    // No rank waits for the last sum, but for the folded ranks.
    const Next next = 2 * bit == paired && !folds ? Next::kKept : Next::kSent;
    const Status status = add_recursive_doubling(sum, theirs, order, next, channel, settings);
    if (!status) co_return std::unexpected(status.error());
  }
  if (folds) channel.send(rank + paired, kRecursiveDoublingUnfold, sum.packet);
  co_return std::move(sum.decoded);
}

}  // namespace millrace::peer
