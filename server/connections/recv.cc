#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "server/connections/connection_ledger.h"

/// Replaces the C library's recv() in programs that this file is linked into: ZeroMQ's calls come here, and their bytes
/// are counted (connection_ledger.h).
extern "C" ssize_t recv(int fd, void* buf, size_t n, int flags) {
  const long got = ::syscall(SYS_recvfrom, fd, buf, n, flags, nullptr, nullptr);
  if (got > 0 && (flags & MSG_PEEK) == 0) millrace::server::count_received(fd, static_cast<size_t>(got));
  return got;
}
