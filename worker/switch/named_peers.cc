#include "worker/switch/named_peers.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/datagram/header.h"

namespace millrace::worker {
namespace {

constexpr uint32_t kAskAllAfter = 2;
constexpr uint32_t kLeaveAfter = 3;

/// Where a datagram's header has its type.
constexpr size_t kTypeAt = 1;

bool is_of_type(ByteSpan packet, protocol::DatagramType type) {
  return packet.size() >= protocol::kDatagramHeaderBytes && packet[kTypeAt] == static_cast<uint8_t>(type);
}

}  // namespace

protocol::Endpoint NamedPeers::set(std::string_view name, std::vector<protocol::Endpoint> addresses) {
  MILLRACE_CHECK(!addresses.empty());
  auto peer = std::ranges::find(peers_, name, &Peer::name);
  if (peer == peers_.end()) {
    peers_.push_back({.name = std::string(name), .resolved = addresses.front(), .addresses = {}});
    peer = peers_.end() - 1;
  }
  const auto used =
      peer->addresses.empty() ? addresses.end() : std::ranges::find(addresses, peer->addresses[peer->used]);
  if (used == addresses.end()) peer->has_answered = false;
  peer->used = used == addresses.end() ? 0 : static_cast<size_t>(used - addresses.begin());
  peer->addresses = std::move(addresses);
  return peer->resolved;
}

std::optional<protocol::Endpoint> NamedPeers::endpoint_of(std::string_view name) const {
  const auto peer = std::ranges::find(peers_, name, &Peer::name);
  if (peer == peers_.end()) return std::nullopt;
  return peer->resolved;
}

std::string NamedPeers::take_silent() {
  for (Peer& peer : peers_) {
    if (peer.until_silent != 0) continue;
    peer.until_silent = kSilentAfter;
    return peer.name;
  }
  return {};
}

std::span<uint8_t> NamedPeers::room() {
  room_ = out_.room();
  return room_;
}

void NamedPeers::send(size_t bytes, const protocol::Endpoint& to) {
  const auto peer = std::ranges::find(peers_, to, &Peer::resolved);
  if (peer == peers_.end()) return out_.send(bytes, to);
  if (is_of_type(room_.first(bytes), protocol::DatagramType::kChallengeRequest)) return send_request(*peer, bytes);
  out_.send(bytes, peer->addresses[peer->used]);
}

void NamedPeers::send_request(Peer& peer, size_t bytes) {
  const bool ask_all = !peer.has_answered || peer.unanswered >= kAskAllAfter;
  ++peer.unanswered;
  if (peer.until_silent != 0) --peer.until_silent;
  if (!ask_all || peer.addresses.size() == 1) return out_.send(bytes, peer.addresses[peer.used]);
  copy_.assign(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes));
  out_.send_to_each(copy_, peer.addresses);
}

protocol::ReceivedPacket NamedPeers::received(const protocol::ReceivedPacket& packet) {
  for (Peer& peer : peers_) {
    const auto from = std::ranges::find(peer.addresses, packet.from);
    if (from == peer.addresses.end()) continue;
    const auto at = static_cast<size_t>(from - peer.addresses.begin());
    if (is_of_type(packet.bytes, protocol::DatagramType::kChallenge)) {
      if (at != peer.used && (!peer.has_answered || peer.unanswered >= kLeaveAfter)) peer.used = at;
      if (at == peer.used) {
        peer.has_answered = true;
        peer.unanswered = 0;
        peer.until_silent = kSilentAfter;
      }
    }
    protocol::ReceivedPacket known = packet;
    known.from = peer.resolved;
    return known;
  }
  return packet;
}

}  // namespace millrace::worker
