#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/base/clock.h"
#include "server/connections/accept_limit.h"
#include "server/connections/connection_ledger.h"

/// Replaces the C library's accept4() in programs that this file is linked into: ZeroMQ's calls come here
/// (accept_limit.h). A connection over the limit counts as one that was closed before it was accepted: callers continue
/// with the next.
extern "C" int accept4(int fd, sockaddr* addr, socklen_t* addr_len, int flags) {
  const long accepted = ::syscall(SYS_accept4, fd, addr, addr_len, flags);
  if (accepted < 0) return static_cast<int>(accepted);
  if (static_cast<uint64_t>(accepted) < millrace::server::accept_limit()) {
    millrace::server::count_accepted();
    millrace::server::count_connection(static_cast<int>(accepted), millrace::monotonic_now_ns());
    return static_cast<int>(accepted);
  }
  ::close(static_cast<int>(accepted));
  millrace::server::count_over_accept_limit();
  errno = ECONNABORTED;
  return -1;
}
