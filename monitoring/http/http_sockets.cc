#include "monitoring/http/http_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "protocol/address/stream_sockets.h"

namespace millrace::monitoring {
namespace {

/// Waits for the connection that `socket` has begun. Returns 0, or the error number.
int finish_connecting(const Descriptor& socket, int timeout_ms) {
  pollfd writable{socket.number(), POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&writable, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  if (ready < 0 || ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

}  // namespace

Result<Descriptor> connect_to_host(const protocol::HostPort& address, int timeout_ms,
                                   const protocol::HostResolver& resolver) {
  const auto hosts = resolver(address.host);
  if (!hosts) return std::unexpected(hosts.error());
  const int share_ms = std::max(1, timeout_ms / static_cast<int>(hosts->size()));
  int error = 0;
  for (const protocol::HostAddress& host : *hosts) {
    const protocol::SocketAddress at = protocol::socket_address(host, address.port);
    Descriptor socket = protocol::open_stream(at.family());
    if (!socket) {
      error = errno;
      continue;
    }
    error = ::connect(socket.number(), at.any(), at.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = finish_connecting(socket, share_ms);
    if (error == 0) return socket;
  }
  return fail(ErrorCode::kUnavailable, protocol::system_message(error));
}

std::optional<TimeNs> handshake_round_trip(const Descriptor& stream) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(stream.number(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_rtt == 0)
    return std::nullopt;
  return TimeNs{info.tcpi_rtt} * kNsPerUs;
}

}  // namespace millrace::monitoring
