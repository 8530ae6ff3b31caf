#include "monitoring/service_notifier.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

namespace millrace::monitoring {
namespace {

constexpr size_t kNoticeBytesMax = 200;
constexpr suseconds_t kSendWaitUs = 100'000;
/// The longest interval that counts in nanoseconds, and a longer one is no watchdog.
constexpr uint64_t kWatchdogUsecMax = uint64_t{365} * 86'400 * 1'000'000;

std::string plain(std::string_view text) {
  std::string line(text.substr(0, kNoticeBytesMax));
  for (char& byte : line) {
    if (static_cast<unsigned char>(byte) < ' ' || byte == '\x7f') byte = '?';
  }
  return line;
}

/// Returns the number that is the whole of the text.
Result<uint64_t> number_of(std::string_view name, std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(ErrorCode::kInvalidArgument,
                std::string(name) + " is '" + plain(text) + "' in the environment, which is no number");
  return number;
}

Result<Descriptor> connected(std::string_view path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const bool has_form = path.size() >= 2 && (path.front() == '/' || path.front() == '@');
  if (!has_form || path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::kInvalidArgument,
                "NOTIFY_SOCKET is '" + plain(path) + "' in the environment: it is a path, or '@' and a name");
  std::ranges::copy(path, address.sun_path);
  if (path.front() == '@') address.sun_path[0] = '\0';
  // An abstract name ends with the address, a path with a zero byte.
  const size_t bytes = offsetof(sockaddr_un, sun_path) + path.size() + (path.front() == '/' ? 1 : 0);
  Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval wait{0, kSendWaitUs};
  if (!socket || ::setsockopt(socket.number(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) != 0 ||
      ::connect(socket.number(), std::bit_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes)) != 0) {
    return fail(ErrorCode::kIo, "the service manager's socket NOTIFY_SOCKET='" + plain(path) +
                                    "' cannot be reached: " + std::system_category().message(errno));
  }
  return socket;
}

}  // namespace

Result<ServiceNotifier> ServiceNotifier::from_environment() {
  return from({std::getenv("NOTIFY_SOCKET"), std::getenv("WATCHDOG_USEC"), std::getenv("WATCHDOG_PID")}, ::getpid());
}

Result<ServiceNotifier> ServiceNotifier::from(const Environment& environment, int64_t own_pid) {
  ServiceNotifier manager;
  if (environment.notify_socket == nullptr) return manager;
  Result<Descriptor> socket = connected(environment.notify_socket);
  if (!socket) return std::unexpected(socket.error());
  manager.socket_ = std::move(*socket);
  if (environment.watchdog_usec == nullptr) return manager;
  if (environment.watchdog_pid != nullptr) {
    const Result<uint64_t> watched = number_of("WATCHDOG_PID", environment.watchdog_pid);
    if (!watched) return std::unexpected(watched.error());
    if (*watched != static_cast<uint64_t>(own_pid)) return manager;
  }
  const Result<uint64_t> interval = number_of("WATCHDOG_USEC", environment.watchdog_usec);
  if (!interval) return std::unexpected(interval.error());
  if (*interval == 0 || *interval > kWatchdogUsecMax) return manager;
  manager.keep_alive_every_ = std::max<TimeNs>(static_cast<TimeNs>(*interval) * kNsPerUs / 2, kNsPerMs);
  manager.next_keep_alive_ = 0;
  return manager;
}

bool ServiceNotifier::send(const std::string& datagram) {
  if (!socket_) return true;
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.number(), datagram.data(), datagram.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(datagram.size());
}

Status ServiceNotifier::ready(std::string_view status) {
  if (send("READY=1\nSTATUS=" + plain(status))) return {};
  return fail(ErrorCode::kIo,
              "the service manager (NOTIFY_SOCKET) does not take READY=1: " + std::system_category().message(errno));
}

void ServiceNotifier::report(std::string_view status) { send("STATUS=" + plain(status)); }

void ServiceNotifier::reloading(TimeNs now) { send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now / kNsPerUs)); }

void ServiceNotifier::stopping(std::string_view status) { send("STOPPING=1\nSTATUS=" + plain(status)); }

void ServiceNotifier::keep_alive(TimeNs now) {
  if (keep_alive_every_ == 0 || now < next_keep_alive_) return;
  next_keep_alive_ = now + keep_alive_every_;
  send("WATCHDOG=1");
}

}  // namespace millrace::monitoring
