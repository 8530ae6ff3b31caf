#include "protocol/address/stream_sockets.h"

#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace millrace::protocol {
namespace {

/// A port that is free on a name's first address may be taken on the second one.
constexpr int kListenTries = 8;
constexpr size_t kIpv4At = 12;  ///< where an IPv4 address begins in a mapped one

/// A listening socket; without one errno says why.
Descriptor listen_on(const HostAddress& host, uint16_t port, int backlog) {
  const SocketAddress address = socket_address(host, port);
  Descriptor socket = open_stream(address.family());
  if (!socket) return socket;
  const int on = 1;
  // Not SO_REUSEPORT: two processes would share the port without a word.
  ::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // [::] alone takes IPv4 as well.
  const int ipv6_only = host.text == "::" ? 0 : 1;
  if (address.family() == AF_INET6)
    ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &ipv6_only, sizeof ipv6_only);
  if (::bind(socket.number(), address.any(), address.length) == 0 && ::listen(socket.number(), backlog) == 0)
    return socket;
  const int error = errno;
  socket.close();
  errno = error;
  return socket;
}

uint16_t port_of(const Descriptor& socket) {
  sockaddr_storage bytes{};
  socklen_t length = sizeof bytes;
  if (::getsockname(socket.number(), std::bit_cast<sockaddr*>(&bytes), &length) != 0) return 0;
  // Both families have the port at one place.
  sockaddr_in address;
  std::memcpy(&address, &bytes, sizeof address);
  return ntohs(address.sin_port);
}

bool is_elsewhere(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

}  // namespace

SocketAddress socket_address(const HostAddress& host, uint16_t port) {
  SocketAddress address;
  if (host.is_ipv6()) {
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(port);
    ipv6.sin6_scope_id = host.scope;
    std::memcpy(&ipv6.sin6_addr, host.bytes.data(), sizeof ipv6.sin6_addr);
    std::memcpy(&address.bytes, &ipv6, sizeof ipv6);
    address.length = sizeof ipv6;
  } else {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    std::memcpy(&ipv4.sin_addr, host.bytes.data() + kIpv4At, sizeof ipv4.sin_addr);
    std::memcpy(&address.bytes, &ipv4, sizeof ipv4);
    address.length = sizeof ipv4;
  }
  return address;
}

Descriptor open_stream(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string system_message(int error) { return std::generic_category().message(error); }

Result<StreamListeners> listen_on_host(const HostPort& address, const HostResolver& resolver, int backlog) {
  const auto hosts = resolver(address.host);
  if (!hosts) return fail(ErrorCode::kIo, hosts.error().message);
  for (int tries = 1;; ++tries) {
    StreamListeners listeners{.sockets = {}, .port = address.port};
    int error = 0;
    for (const HostAddress& host : *hosts) {
      Descriptor socket = listen_on(host, listeners.port, backlog);
      if (socket) {
        listeners.port = port_of(socket);
        listeners.sockets.push_back(std::move(socket));
        continue;
      }
      error = errno;
      if (!is_elsewhere(error)) break;
    }
    if (!listeners.sockets.empty() && (error == 0 || is_elsewhere(error))) return listeners;
    if (error == EADDRINUSE && address.port == 0 && tries < kListenTries) continue;
    return fail(error == EADDRINUSE ? ErrorCode::kConflict : ErrorCode::kIo, system_message(error));
  }
}

}  // namespace millrace::protocol
