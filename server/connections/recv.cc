#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "server/connections/connection_ledger.h"

/// Replaces the C library's recv() in programs that this file is linked into: ZeroMQ's calls come here, and their bytes
/// are counted (connection_ledger.h). A connection that is refused or over its limit counts as one that its peer has
/// reset: ZeroMQ frees its unfinished message, and closes it.
extern "C" ssize_t recv(int fd, void* buf, size_t n, int flags) {
  const long got = ::syscall(SYS_recvfrom, fd, buf, n, flags, nullptr, nullptr);
  if ((flags & MSG_PEEK) != 0) return got;
  if (got > 0) {
    const std::span bytes(static_cast<const std::byte*>(buf), static_cast<size_t>(got));
    if (millrace::server::count_received(fd, bytes, n)) return got;
    errno = ECONNRESET;
    return -1;
  }
  const int error = errno;
  if (got == 0 || (error != EAGAIN && error != EINTR)) millrace::server::count_closed(fd);
  errno = error;
  return got;
}
