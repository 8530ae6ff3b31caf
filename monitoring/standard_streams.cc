#include "monitoring/standard_streams.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace millrace::monitoring {
namespace {

void write_line(std::string_view text, std::string_view end) noexcept {
  // One call, so that lines of several processes on one terminal do not mix.
  iovec pieces[2];
  pieces[0] = {const_cast<char*>(text.data()), text.size()};
  pieces[1] = {const_cast<char*>(end.data()), end.size()};
  ssize_t written = -1;
  do {
    written = ::writev(STDERR_FILENO, pieces, 2);
  } while (written < 0 && errno == EINTR);
}

}  // namespace

void hold_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one: those below are open by now.
    if (::open("/dev/null", O_RDWR) < 0) break;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

void write_error(std::string_view text) noexcept { write_line(text, {}); }

void say(std::string_view line) noexcept { write_line(line, "\n"); }

Status flush_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return {};
  return fail(ErrorCode::kIo, std::string("standard output could not be written") +
                                  (reason != 0 ? std::string(": ") + std::strerror(reason) : std::string()));
}

}  // namespace millrace::monitoring
