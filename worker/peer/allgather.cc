#include "worker/peer/allgather.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "worker/peer/stream_wire.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kAlone = 32;  ///< tags of bodies that travel by themselves: after those of the rounds
constexpr uint32_t kFormShift = 56;
constexpr uint64_t kLengthMask = (uint64_t{1} << kFormShift) - 1;

/// What is exchanged in one round: `count` packets each way, whose ranks are taken modulo the size.
struct Round {
  uint32_t number = 0;
  uint32_t to = 0;
  uint32_t send_first = 0;
  uint32_t from = 0;
  uint32_t receive_first = 0;
  uint32_t count = 0;
};

/// The round that begins with 2^number packets on every rank.
Round round_of(uint32_t number, uint32_t rank, uint32_t size) {
  const uint32_t held = uint32_t{1} << number;
  if (std::has_single_bit(size)) {
    const uint32_t partner = rank ^ held;
    return {number, partner, rank & ~(held - 1), partner, partner & ~(held - 1), held};
  }
  const uint32_t from = (rank + held) % size;
  return {number, (rank + size - held) % size, rank, from, from, std::min(held, size - held)};
}

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

/// A table of (form, length), and the bodies that are small, each padded to 8 bytes. Of a large one only the entry: the length is
/// at least kBundledBytesMax, whatever it is.
Packet bundle_of(const std::vector<Packet>& packets, const std::vector<bool>& large, const Round& round) {
  const size_t size = packets.size();
  uint64_t bytes = round.count * sizeof(uint64_t);
  for (uint32_t i = 0; i < round.count; ++i) {
    const size_t at = (round.send_first + i) % size;
    if (!large[at]) bytes += padded(packets[at].body.bytes.size());
  }
  ByteBuffer bundle;
  bundle.reserve(bytes);
  ByteWriter out(bundle);
  for (uint32_t i = 0; i < round.count; ++i) {
    const size_t at = (round.send_first + i) % size;
    const uint64_t length = large[at] ? kBundledBytesMax : packets[at].body.bytes.size();
    out.put(uint64_t{static_cast<uint8_t>(packets[at].form)} << kFormShift | length);
  }
  constexpr std::array<uint8_t, 8> kPadding{};
  for (uint32_t i = 0; i < round.count; ++i) {
    const size_t at = (round.send_first + i) % size;
    const ByteSpan body = packets[at].body.bytes;
    if (large[at]) continue;
    out.put_bytes(body);
    out.put_bytes(ByteSpan(kPadding).first(padded(body.size()) - body.size()));
  }
  return {BodyForm::kNumbers, SharedBytes::from(std::move(bundle))};
}

std::unexpected<Error> bad_bundle(uint32_t from) {
  return fail(ErrorCode::kMalformed, "rank " + std::to_string(from) + " sent a bundle of packets that is not one");
}

/// Takes the small packets out, and notes which come by themselves. Hostile.
Status open_bundle(const Packet& bundle, const Round& round, std::vector<Packet>& packets, std::vector<bool>& large) {
  ByteReader in(bundle.body.bytes);
  const std::optional<ByteSpan> table = in.get_bytes(round.count * sizeof(uint64_t));
  if (bundle.form != BodyForm::kNumbers || !table) return bad_bundle(round.from);
  ByteReader entries(*table);
  for (uint32_t i = 0; i < round.count; ++i) {
    const uint64_t entry = entries.get<uint64_t>().value_or(0);
    const uint64_t form = entry >> kFormShift;
    const uint64_t length = entry & kLengthMask;
    if (form > static_cast<uint8_t>(BodyForm::kNumbers)) return bad_bundle(round.from);
    const size_t at = (round.receive_first + i) % packets.size();
    large[at] = length >= kBundledBytesMax;
    if (large[at]) continue;
    const std::optional<ByteSpan> body = in.get_bytes(padded(length));
    if (!body) return bad_bundle(round.from);
    packets[at] = {static_cast<BodyForm>(form), {bundle.body.owner, body->first(length)}};
  }
  if (in.remaining() != 0) return bad_bundle(round.from);
  return {};
}

Task<Status> by_doubling(Channel& channel, std::vector<Packet>& packets, uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t rank = channel.rank();
  std::vector<bool> large(size);
  large[rank] = packets[rank].body.bytes.size() >= kBundledBytesMax;
  for (uint32_t ahead = 1; large[rank] && ahead < size; ++ahead) {
    channel.send((rank + ahead) % size, first_tag + kAlone, packets[rank]);
  }
  for (uint32_t number = 0; (uint64_t{1} << number) < size; ++number) {
    const Round round = round_of(number, rank, size);
    channel.send(round.to, first_tag + number, bundle_of(packets, large, round));
    const Packet received = co_await channel.receive(round.from, first_tag + number);
    if (Status status = open_bundle(received, round, packets, large); !status)
      co_return std::unexpected(status.error());
  }
  for (uint32_t behind = 1; behind < size; ++behind) {
    const uint32_t from = (rank + size - behind) % size;
    if (large[from]) packets[from] = co_await channel.receive(from, first_tag + kAlone);
  }
  co_return Status{};
}

Task<Status> by_ring(Channel& channel, std::vector<Packet>& packets, uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t next = (channel.rank() + 1) % size;
  const uint32_t previous = (channel.rank() + size - 1) % size;
  for (uint32_t step = 0; step + 1 < size; ++step) {
    const uint32_t sent = (channel.rank() + size - step) % size;
    const uint32_t received = (previous + size - step) % size;
    channel.send(next, first_tag + sent, packets[sent]);
    packets[received] = co_await channel.receive(previous, first_tag + received);
  }
  co_return Status{};
}

}  // namespace

Task<Result<std::vector<Packet>>> allgather(Channel& channel, Packet own, uint32_t first_tag, AllgatherWay way) {
  std::vector<Packet> packets(channel.size());
  packets[channel.rank()] = std::move(own);
  Status status;
  switch (way) {
    case AllgatherWay::kDoubling: status = co_await by_doubling(channel, packets, first_tag); break;
    case AllgatherWay::kRing: status = co_await by_ring(channel, packets, first_tag); break;
  }
  if (!status) co_return std::unexpected(status.error());
  co_return std::move(packets);
}

template <typename N>
Task<Result<std::vector<std::vector<N>>>> allgather_numbers(Channel& channel, std::vector<N> own, uint32_t first_tag) {
  Packet packet = pack_numbers<N>(own);
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(packet), first_tag, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  std::vector<std::vector<N>> numbers;
  numbers.reserve(packets->size());
  for (const Packet& one : *packets) {
    Result<std::vector<N>> theirs = unpack_numbers<N>(one);
    if (!theirs) co_return std::unexpected(theirs.error());
    numbers.push_back(std::move(*theirs));
  }
  co_return std::move(numbers);
}

template Task<Result<std::vector<std::vector<uint32_t>>>> allgather_numbers(Channel&, std::vector<uint32_t>, uint32_t);
template Task<Result<std::vector<std::vector<uint64_t>>>> allgather_numbers(Channel&, std::vector<uint64_t>, uint32_t);
template Task<Result<std::vector<std::vector<float>>>> allgather_numbers(Channel&, std::vector<float>, uint32_t);
template Task<Result<std::vector<std::vector<double>>>> allgather_numbers(Channel&, std::vector<double>, uint32_t);

}  // namespace millrace::peer
