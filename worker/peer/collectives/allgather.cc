#include "worker/peer/collectives/allgather.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kAlone = 32;  ///< tags of bodies that travel by themselves: after those of the rounds
constexpr uint32_t kFormShift = 56;
constexpr uint64_t kLengthMask = (uint64_t{1} << kFormShift) - 1;

/// Describes the exchange of one round: `count` packets each way, whose ranks are taken modulo the size.
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

uint64_t allgather_padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

/// A table of (form, length), and the bodies that are small, each padded to 8 bytes.
Packet bundle_of(const std::vector<Packet>& packets, const Round& round) {
  const size_t size = packets.size();
  uint64_t bytes = round.count * sizeof(uint64_t);
  for (uint32_t i = 0; i < round.count; ++i) {
    const uint64_t length = packets[(round.send_first + i) % size].body.bytes.size();
    if (length < kBundledBytesMax) bytes += allgather_padded(length);
  }
  ByteBuffer bundle;
  bundle.reserve(bytes);
  ByteWriter out(bundle);
  for (uint32_t i = 0; i < round.count; ++i) {
    const Packet& packet = packets[(round.send_first + i) % size];
    out.put(uint64_t{static_cast<uint8_t>(packet.form)} << kFormShift | packet.body.bytes.size());
  }
  constexpr std::array<uint8_t, 8> kPadding{};
  for (uint32_t i = 0; i < round.count; ++i) {
    const ByteSpan body = packets[(round.send_first + i) % size].body.bytes;
    if (body.size() >= kBundledBytesMax) continue;
    out.put_bytes(body);
    out.put_bytes(ByteSpan(kPadding).first(allgather_padded(body.size()) - body.size()));
  }
  return {BodyForm::kNumbers, SharedBytes::from(std::move(bundle))};
}

void send_round(Channel& channel, const std::vector<Packet>& packets, uint32_t first_tag, const Round& round) {
  channel.send(round.to, first_tag + round.number, bundle_of(packets, round));
  for (uint32_t i = 0; i < round.count; ++i) {
    const auto at = static_cast<uint32_t>((round.send_first + i) % packets.size());
    if (packets[at].body.bytes.size() < kBundledBytesMax) continue;
    channel.send(round.to, first_tag + kAlone + at, packets[at]);
  }
}

std::unexpected<Error> bad_bundle(uint32_t from) {
  return fail(ErrorCode::kMalformed, "rank " + std::to_string(from) + " sent a bundle of packets that is not one");
}

/// Takes the small packets out; returns whose come by themselves. Hostile.
Result<std::vector<uint32_t>> open_bundle(const Packet& bundle, const Round& round, std::vector<Packet>& packets) {
  ByteReader in(bundle.body.bytes);
  const std::optional<ByteSpan> table = in.get_bytes(round.count * sizeof(uint64_t));
  if (bundle.form != BodyForm::kNumbers || !table) return bad_bundle(round.from);
  ByteReader entries(*table);
  std::vector<uint32_t> alone;
  for (uint32_t i = 0; i < round.count; ++i) {
    const uint64_t entry = entries.get<uint64_t>().value_or(0);
    const uint64_t form = entry >> kFormShift;
    const uint64_t length = entry & kLengthMask;
    if (form > static_cast<uint8_t>(BodyForm::kNumbers)) return bad_bundle(round.from);
    const auto at = static_cast<uint32_t>((round.receive_first + i) % packets.size());
    if (length >= kBundledBytesMax) {
      alone.push_back(at);
      continue;
    }
    const std::optional<ByteSpan> body = in.get_bytes(allgather_padded(length));
    if (!body) return bad_bundle(round.from);
    packets[at] = {static_cast<BodyForm>(form), {bundle.body.owner, body->first(length)}};
  }
  if (in.remaining() != 0) return bad_bundle(round.from);
  return alone;
}

Task<Status> by_doubling(Channel& channel, std::vector<Packet>& packets, uint32_t first_tag) {
  const uint32_t size = channel.size();
  for (uint32_t number = 0; (uint64_t{1} << number) < size; ++number) {
    const Round round = round_of(number, channel.rank(), size);
    send_round(channel, packets, first_tag, round);
    const Packet received = co_await channel.receive(round.from, first_tag + number);
    const Result<std::vector<uint32_t>> alone = open_bundle(received, round, packets);
    if (!alone) co_return std::unexpected(alone.error());
    for (const uint32_t at : *alone) {
      packets[at] = co_await channel.receive(round.from, first_tag + kAlone + at);
      // Bodies that are passed on are listed by their length.
      if (packets[at].body.bytes.size() < kBundledBytesMax) co_return bad_bundle(round.from);
    }
  }
  co_return Status{};
}

Task<Status> by_ring(Channel& channel, std::vector<Packet>& packets, uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t next = (channel.rank() + 1) % size;
  const uint32_t previous = (channel.rank() + size - 1) % size;
  Packet latest = packets[channel.rank()];
  for (uint32_t step = 0; step + 1 < size; ++step) {
    const uint32_t sent = (channel.rank() + size - step) % size;
    const uint32_t received = (previous + size - step) % size;
    channel.send(next, first_tag + sent, std::move(latest));
    latest = co_await channel.receive(previous, first_tag + received);
    packets[received] = latest;
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
