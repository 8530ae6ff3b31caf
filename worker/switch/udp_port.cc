#include "worker/switch/udp_port.h"

#include <poll.h>

#include <algorithm>

#include "protocol/datagram/udp_bursts.h"

namespace millrace::worker {
namespace {

constexpr int kSocketBufferBytes = 4 << 20;
constexpr size_t kMappedAt = 12;  // where an IPv4 address begins
constexpr std::array<uint8_t, kMappedAt> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

}  // namespace

SwitchUdpPort::SwitchUdpPort(std::unique_ptr<protocol::UdpBursts> bursts) : bursts_(std::move(bursts)) {}
SwitchUdpPort::~SwitchUdpPort() = default;

Result<std::unique_ptr<SwitchUdpPort>> SwitchUdpPort::open(const protocol::Endpoint& peer, size_t packet_bytes_max) {
  protocol::Endpoint any;
  if (std::ranges::equal(kMappedPrefix, std::span(peer.address).first(kMappedAt))) {
    std::ranges::copy(kMappedPrefix, any.address.begin());
  }
  auto bursts = protocol::UdpBursts::open(any, packet_bytes_max, kSocketBufferBytes);
  if (!bursts) return fail(ErrorCode::kIo, "cannot open a UDP socket: " + bursts.error().message);
  return std::unique_ptr<SwitchUdpPort>(new SwitchUdpPort(std::move(*bursts)));
}

std::span<uint8_t> SwitchUdpPort::room() { return bursts_->room(); }

void SwitchUdpPort::send(size_t bytes, const protocol::Endpoint& to) { bursts_->send(bytes, to); }

void SwitchUdpPort::flush() { bursts_->flush(); }

std::span<const protocol::ReceivedPacket> SwitchUdpPort::receive() { return bursts_->receive(); }

void SwitchUdpPort::wait(TimeNs at_most) {
  pollfd readable{bursts_->descriptor(), POLLIN, 0};
  const TimeNs bounded = std::max<TimeNs>(at_most, 0);
  const timespec time{.tv_sec = bounded / kNsPerS, .tv_nsec = bounded % kNsPerS};
  ::ppoll(&readable, 1, &time, nullptr);
}

uint64_t SwitchUdpPort::packets_lost() const {
  return bursts_->counters().send_full + bursts_->counters().send_refused;
}

uint64_t SwitchUdpPort::bytes_out() const { return bursts_->counters().bytes_out; }

uint64_t SwitchUdpPort::bytes_in() const { return bursts_->counters().bytes_in; }

int SwitchUdpPort::descriptor() const { return bursts_->descriptor(); }

uint16_t SwitchUdpPort::local_port() const { return bursts_->address().port; }

}  // namespace millrace::worker
