#include "worker/switch/udp_port.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "kernels/base/check.h"

namespace millrace::worker {
namespace {

constexpr int kSocketBufferBytes = 4 << 20;
constexpr std::array<uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

bool is_ipv4(const protocol::Endpoint& endpoint) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), endpoint.address.begin());
}

socklen_t fill_address(const protocol::Endpoint& endpoint, sockaddr_storage& out) {
  if (is_ipv4(endpoint)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.port);
    std::memcpy(&address.sin_addr, endpoint.address.data() + kMappedPrefix.size(), sizeof address.sin_addr);
    std::memcpy(&out, &address, sizeof address);
    return sizeof address;
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(endpoint.port);
  std::memcpy(&address.sin6_addr, endpoint.address.data(), sizeof address.sin6_addr);
  std::memcpy(&out, &address, sizeof address);
  return sizeof address;
}

protocol::Endpoint read_address(const sockaddr_storage& from) {
  protocol::Endpoint endpoint;
  if (from.ss_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, &from, sizeof address);
    std::ranges::copy(kMappedPrefix, endpoint.address.begin());
    std::memcpy(endpoint.address.data() + kMappedPrefix.size(), &address.sin_addr, sizeof address.sin_addr);
    endpoint.port = ntohs(address.sin_port);
    return endpoint;
  }
  sockaddr_in6 address;
  std::memcpy(&address, &from, sizeof address);
  std::memcpy(endpoint.address.data(), &address.sin6_addr, endpoint.address.size());
  endpoint.port = ntohs(address.sin6_port);
  return endpoint;
}

/// The system's interface takes every kind of address as a sockaddr.
union SocketName {
  sockaddr_storage storage;
  sockaddr any;
};

struct Burst {
  explicit Burst(size_t packet_bytes) : slot_bytes(packet_bytes), bytes(packet_bytes * SwitchUdpPort::kBurst) {
    for (size_t i = 0; i < SwitchUdpPort::kBurst; ++i) {
      pieces[i] = {bytes.data() + i * slot_bytes, slot_bytes};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_name = &addresses[i];
    }
  }
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;

  size_t slot_bytes;
  std::vector<uint8_t> bytes;
  std::array<sockaddr_storage, SwitchUdpPort::kBurst> addresses{};
  std::array<iovec, SwitchUdpPort::kBurst> pieces{};
  std::array<mmsghdr, SwitchUdpPort::kBurst> messages{};
};

}  // namespace

struct SwitchUdpPort::State {
  explicit State(size_t packet_bytes_max) : in(packet_bytes_max), out(packet_bytes_max) {}
  ~State() {
    if (socket >= 0) ::close(socket);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int socket = -1;
  Burst in;
  Burst out;
  size_t gathered = 0;
  uint64_t lost = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint16_t local_port = 0;
  std::array<protocol::ReceivedPacket, kBurst> received;
};

SwitchUdpPort::SwitchUdpPort(std::unique_ptr<State> state) : state_(std::move(state)) {}
SwitchUdpPort::~SwitchUdpPort() = default;

Result<std::unique_ptr<SwitchUdpPort>> SwitchUdpPort::open(const protocol::Endpoint& peer, size_t packet_bytes_max) {
  auto state = std::make_unique<State>(packet_bytes_max);
  state->socket = ::socket(is_ipv4(peer) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (state->socket < 0) {
    return fail(ErrorCode::kIo, "cannot open a UDP socket: " + std::generic_category().message(errno));
  }
  const int wanted = kSocketBufferBytes;  // less than was asked for is no failure
  ::setsockopt(state->socket, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted);
  ::setsockopt(state->socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
  protocol::Endpoint any;
  if (is_ipv4(peer)) std::ranges::copy(kMappedPrefix, any.address.begin());
  SocketName name{};
  socklen_t name_bytes = fill_address(any, name.storage);
  const bool bound = ::bind(state->socket, &name.any, name_bytes) == 0;
  name_bytes = sizeof name;
  if (!bound || ::getsockname(state->socket, &name.any, &name_bytes) != 0) {
    return fail(ErrorCode::kIo, "cannot bind a UDP socket: " + std::generic_category().message(errno));
  }
  state->local_port = read_address(name.storage).port;
  return std::unique_ptr<SwitchUdpPort>(new SwitchUdpPort(std::move(state)));
}

std::span<uint8_t> SwitchUdpPort::room() {
  if (state_->gathered == kBurst) flush();
  Burst& out = state_->out;
  return {out.bytes.data() + state_->gathered * out.slot_bytes, out.slot_bytes};
}

void SwitchUdpPort::send(size_t bytes, const protocol::Endpoint& to) {
  Burst& out = state_->out;
  MILLRACE_CHECK(state_->gathered < kBurst && bytes <= out.slot_bytes, state_->gathered, bytes);
  const size_t at = state_->gathered++;
  out.pieces[at].iov_len = bytes;
  out.messages[at].msg_hdr.msg_namelen = fill_address(to, out.addresses[at]);
}

void SwitchUdpPort::flush() {
  size_t sent = 0;
  while (sent < state_->gathered) {
    const auto left = static_cast<unsigned>(state_->gathered - sent);
    const int count = ::sendmmsg(state_->socket, state_->out.messages.data() + sent, left, MSG_DONTWAIT);
    if (count > 0) {
      for (const iovec& piece : std::span(state_->out.pieces).subspan(sent, static_cast<size_t>(count))) {
        state_->bytes_out += piece.iov_len;
      }
      sent += static_cast<size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    ++state_->lost;  // a full queue, or no route: the timer sends it again
    ++sent;
  }
  state_->gathered = 0;
}

std::span<const protocol::ReceivedPacket> SwitchUdpPort::receive() {
  Burst& in = state_->in;
  for (mmsghdr& message : in.messages) {
    message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    message.msg_hdr.msg_flags = 0;
  }
  const int count = ::recvmmsg(state_->socket, in.messages.data(), kBurst, MSG_DONTWAIT, nullptr);
  size_t taken = 0;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const mmsghdr& message = in.messages[at];
    state_->bytes_in += message.msg_len;
    if ((message.msg_hdr.msg_flags & MSG_TRUNC) != 0) continue;
    state_->received[taken++] = {{in.bytes.data() + at * in.slot_bytes, message.msg_len},
                                 read_address(in.addresses[at])};
  }
  return std::span(state_->received).first(taken);
}

void SwitchUdpPort::wait(TimeNs at_most) {
  pollfd readable{state_->socket, POLLIN, 0};
  const TimeNs bounded = std::max<TimeNs>(at_most, 0);
  const timespec time{.tv_sec = bounded / kNsPerS, .tv_nsec = bounded % kNsPerS};
  ::ppoll(&readable, 1, &time, nullptr);
}

uint64_t SwitchUdpPort::packets_lost() const { return state_->lost; }

uint64_t SwitchUdpPort::bytes_out() const { return state_->bytes_out; }

uint64_t SwitchUdpPort::bytes_in() const { return state_->bytes_in; }

int SwitchUdpPort::descriptor() const { return state_->socket; }

uint16_t SwitchUdpPort::local_port() const { return state_->local_port; }

}  // namespace millrace::worker
