#include "worker/session/switch_socket.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/io/udp_bursts.h"

namespace millrace::worker {
namespace {

constexpr int kSocketBufferBytes = 4 << 20;

}  // namespace

SwitchUdpPort::SwitchUdpPort(const protocol::JobNumbers& of, size_t packet_bytes_max) : of_(of) {
  if (of_.lanes > 1) room_.resize(packet_bytes_max);
}

SwitchUdpPort::~SwitchUdpPort() {
  if (poll_ >= 0) ::close(poll_);
}

Result<std::unique_ptr<SwitchUdpPort>> SwitchUdpPort::open(const protocol::Endpoint& peer, size_t packet_bytes_max,
                                                           const protocol::JobNumbers& of) {
  MILLRACE_CHECK(of.lanes >= 1 && of.lanes <= protocol::kLanesMax, of.lanes);
  protocol::Endpoint any;
  if (peer.is_ipv4()) std::ranges::copy(protocol::Endpoint::kIpv4Prefix, any.address.begin());
  auto port = std::unique_ptr<SwitchUdpPort>(new SwitchUdpPort(of, packet_bytes_max));
  for (uint32_t lane = 0; lane < of.lanes; ++lane) {
    auto bursts = protocol::UdpBursts::open(any, packet_bytes_max, kSocketBufferBytes);
    if (!bursts) return fail(ErrorCode::kIo, "cannot open a UDP socket: " + bursts.error().message);
    port->sockets_.push_back(std::move(*bursts));
  }
  if (of.lanes > 1) {
    if (const Status polled = port->poll_all(); !polled) return std::unexpected(polled.error());
  }
  return port;
}

/// One descriptor that is readable where one of the sockets is.
Status SwitchUdpPort::poll_all() {
  poll_ = ::epoll_create1(EPOLL_CLOEXEC);
  bool polled = poll_ >= 0;
  for (uint32_t lane = 0; polled && lane < of_.lanes; ++lane) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = lane;
    polled = ::epoll_ctl(poll_, EPOLL_CTL_ADD, sockets_[lane]->descriptor(), &event) == 0;
  }
  if (polled) return {};
  return fail(ErrorCode::kIo, "cannot wait for several UDP sockets (epoll): no file descriptor is left? (ulimit -n)");
}

std::span<uint8_t> SwitchUdpPort::room() { return of_.lanes == 1 ? sockets_.front()->room() : std::span(room_); }

void SwitchUdpPort::send(size_t bytes, const protocol::Endpoint& to) {
  if (of_.lanes == 1) return sockets_.front()->send(bytes, to);
  const ByteSpan packet = ByteSpan(room_).first(bytes);
  const uint32_t lane = of_.lane_of(protocol::job_number_of(packet).value_or(of_.job)).value_or(0);
  protocol::UdpBursts& socket = *sockets_[lane];
  std::ranges::copy(packet, socket.room().begin());
  socket.send(bytes, to);
}

void SwitchUdpPort::flush() {
  for (const auto& socket : sockets_) socket->flush();
}

std::span<const protocol::ReceivedPacket> SwitchUdpPort::receive() {
  if (of_.lanes == 1) return sockets_.front()->receive();
  received_.clear();
  std::array<epoll_event, protocol::kLanesMax> ready;
  const int count = ::epoll_wait(poll_, ready.data(), static_cast<int>(ready.size()), 0);
  for (int at = 0; at < count; ++at) {
    const auto packets = sockets_[ready[static_cast<size_t>(at)].data.u32]->receive();
    received_.insert(received_.end(), packets.begin(), packets.end());
  }
  return received_;
}

protocol::UdpBursts::Counters SwitchUdpPort::counters() const {
  protocol::UdpBursts::Counters sum;
  for (const auto& socket : sockets_) sum.add(socket->counters());
  return sum;
}

int SwitchUdpPort::descriptor() const { return of_.lanes == 1 ? sockets_.front()->descriptor() : poll_; }

}  // namespace millrace::worker
