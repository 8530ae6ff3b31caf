#include "protocol/transport/tcp_counter.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace millrace::protocol {
namespace {

/// Returns the socket's cookie; 0: it is no socket, or the system has no cookies.
uint64_t cookie_of(int descriptor) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  return ::getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}  // namespace

TcpCounter::TcpCounter(int descriptor) : descriptor_(descriptor), cookie_(cookie_of(descriptor)) {}

std::optional<TcpCounter::Counts> TcpCounter::read() const {
  if (cookie_ == 0) return std::nullopt;
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received)) return std::nullopt;
  if (cookie_of(descriptor_) != cookie_) return std::nullopt;  // after the counts: they are of this socket
  return Counts{.acknowledged = info.tcpi_bytes_acked, .received = info.tcpi_bytes_received};
}

}  // namespace millrace::protocol
