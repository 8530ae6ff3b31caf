#include "switch_agg/udp_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/endpoint_text.h"

namespace millrace::switch_agg {
namespace {

/// sendmmsg is tried so often again on a full queue before what is left is dropped: a burst is sent faster than one packet
/// leaves a queue of a loopback device, and the receiver's timer costs a thousand times as much.
constexpr int kSendTries = 3;

socklen_t fill_address(const protocol::Endpoint& endpoint, int family, sockaddr_storage& out) {
  if (family == AF_INET) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.port);
    std::memcpy(&address.sin_addr, endpoint.address.data() + 12, sizeof address.sin_addr);
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
    Ipv4Address ip;
    std::memcpy(ip.data(), &address.sin_addr, ip.size());
    return {mapped_address(ip), ntohs(address.sin_port)};
  }
  sockaddr_in6 address;
  std::memcpy(&address, &from, sizeof address);
  std::memcpy(endpoint.address.data(), &address.sin6_addr, endpoint.address.size());
  endpoint.port = ntohs(address.sin6_port);
  return endpoint;
}

/// One burst's buffers with the kernel's view of them, one way.
struct Burst {
  explicit Burst(size_t packet_bytes) : slot_bytes(packet_bytes), bytes(packet_bytes * PacketPort::kBurst) {
    for (size_t i = 0; i < PacketPort::kBurst; ++i) {
      pieces[i] = {bytes.data() + i * slot_bytes, slot_bytes};
      messages[i].msg_hdr = {};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_name = &addresses[i];
    }
  }
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;

  size_t slot_bytes;
  std::vector<uint8_t> bytes;
  std::array<sockaddr_storage, PacketPort::kBurst> addresses{};
  std::array<iovec, PacketPort::kBurst> pieces{};
  std::array<mmsghdr, PacketPort::kBurst> messages{};
};

std::unexpected<Error> failed(std::string_view what, const protocol::Endpoint& address, int number) {
  return fail(ErrorCode::kIo, fmt::format("cannot {} UDP {}: {}", what, endpoint_text(address),
                                          std::error_code(number, std::generic_category()).message()));
}

}  // namespace

struct UdpPort::State {
  explicit State(const UdpPortOptions& options)
      : in(options.packet_bytes_max), out(options.packet_bytes_max), address(options.listen) {}
  ~State() {
    if (socket >= 0) ::close(socket);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int socket = -1;
  int family = AF_INET;
  Burst in;
  Burst out;
  size_t gathered = 0;
  /// The buffer that room() gives. They are used in turn, each for a message at least, so it is of none of those gathered.
  size_t next_buffer = 0;
  std::array<protocol::ReceivedPacket, kBurst> received;
  protocol::Endpoint address;
};

UdpPort::UdpPort(std::unique_ptr<State> state) : state_(std::move(state)) {}
UdpPort::~UdpPort() = default;

Result<std::unique_ptr<UdpPort>> UdpPort::open(const UdpPortOptions& options) {
  MILLRACE_CHECK(options.packet_bytes_max >= 64 && options.packet_bytes_max <= 65'507, options.packet_bytes_max);
  auto state = std::make_unique<State>(options);
  state->family = ipv4_of(options.listen) ? AF_INET : AF_INET6;
  state->socket = ::socket(state->family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (state->socket < 0) return failed("open a socket for", options.listen, errno);
  const int off = 0;
  const int wanted = options.socket_buffer_bytes;
  if (state->family == AF_INET6) ::setsockopt(state->socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  // Less than was asked for is no failure.
  ::setsockopt(state->socket, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted);
  ::setsockopt(state->socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
  sockaddr_storage name{};
  socklen_t name_bytes = fill_address(options.listen, state->family, name);
  // The system's own interface takes every kind of address as a sockaddr.
  if (::bind(state->socket, std::bit_cast<const sockaddr*>(&name), name_bytes) != 0)
    return failed("listen on", options.listen, errno);
  name_bytes = sizeof name;
  if (::getsockname(state->socket, std::bit_cast<sockaddr*>(&name), &name_bytes) != 0)
    return failed("listen on", options.listen, errno);
  state->address = read_address(name);
  return std::unique_ptr<UdpPort>(new UdpPort(std::move(state)));
}

const protocol::Endpoint& UdpPort::address() const { return state_->address; }

std::span<const protocol::ReceivedPacket> UdpPort::receive() {
  Burst& in = state_->in;
  for (mmsghdr& message : in.messages) {
    message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    message.msg_hdr.msg_flags = 0;
  }
  // An error is nobody's packet: EAGAIN, or what ICMP said about one that was sent before.
  const int count = ::recvmmsg(state_->socket, in.messages.data(), kBurst, MSG_DONTWAIT, nullptr);
  size_t taken = 0;
  for (int i = 0; i < count; ++i) {
    const mmsghdr& message = in.messages[i];
    if ((message.msg_hdr.msg_flags & MSG_TRUNC) != 0) {
      ++counters_.too_long;
      continue;
    }
    state_->received[taken++] = {{in.bytes.data() + i * in.slot_bytes, message.msg_len}, read_address(in.addresses[i])};
    counters_.bytes_in += message.msg_len;
  }
  counters_.packets_in += taken;
  return std::span(state_->received).first(taken);
}

std::span<uint8_t> UdpPort::room() {
  if (state_->gathered == kBurst) flush();
  Burst& out = state_->out;
  return {out.bytes.data() + state_->next_buffer * out.slot_bytes, out.slot_bytes};
}

void UdpPort::send(size_t bytes, const protocol::Endpoint& to) {
  MILLRACE_CHECK(state_->gathered < kBurst, state_->gathered);
  if (gather(state_->next_buffer, bytes, to)) state_->next_buffer = (state_->next_buffer + 1) % kBurst;
}

size_t UdpPort::send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) {
  const std::span<uint8_t> shared = room();
  MILLRACE_CHECK(packet.size() <= shared.size(), packet.size(), shared.size());
  std::ranges::copy(packet, shared.begin());
  const size_t buffer = state_->next_buffer;
  for (const protocol::Endpoint& one : to) {
    if (gather(buffer, packet.size(), one)) state_->next_buffer = (buffer + 1) % kBurst;
  }
  return to.size();
}

bool UdpPort::gather(size_t buffer, size_t bytes, const protocol::Endpoint& to) {
  Burst& out = state_->out;
  MILLRACE_CHECK(bytes <= out.slot_bytes, bytes);
  if (state_->family == AF_INET && !ipv4_of(to)) {
    ++counters_.send_refused;
    return false;
  }
  const size_t at = state_->gathered++;
  out.pieces[at] = {out.bytes.data() + buffer * out.slot_bytes, bytes};
  out.messages[at].msg_hdr.msg_namelen = fill_address(to, state_->family, out.addresses[at]);
  ++counters_.packets_out;
  counters_.bytes_out += bytes;
  if (state_->gathered == kBurst) flush();
  return true;
}

void UdpPort::flush() {
  Burst& out = state_->out;
  size_t sent = 0;
  int tries = 0;
  while (sent < state_->gathered) {
    const auto left = static_cast<unsigned>(state_->gathered - sent);
    const int count = ::sendmmsg(state_->socket, out.messages.data() + sent, left, MSG_DONTWAIT);
    if (count > 0) {
      sent += count;
      continue;
    }
    if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR) {
      if (++tries < kSendTries) continue;
      counters_.send_full += left;
      break;
    }
    // The first one was refused, or what came back for an earlier one is told here: the others go on.
    ++counters_.send_refused;
    ++sent;
  }
  state_->gathered = 0;
}

void UdpPort::wait(int timeout_ms) {
  pollfd readable{state_->socket, POLLIN, 0};
  ::poll(&readable, 1, timeout_ms);
}

}  // namespace millrace::switch_agg
