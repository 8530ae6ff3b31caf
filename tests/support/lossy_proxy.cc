#include "tests/support/lossy_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "kernels/base/check.h"

namespace millrace::testing {
namespace {

sockaddr_in loopback(uint16_t port) {
  return {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
}

bool send_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

LossyProxy::LossyProxy(uint16_t to_port) : to_port_(to_port) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = loopback(0);
  socklen_t size = sizeof at;
  MILLRACE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0);
  MILLRACE_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  MILLRACE_CHECK(::listen(listener_, 8) == 0);
  MILLRACE_CHECK(::pipe(stop_) == 0);
  port_ = ntohs(at.sin_port);
  thread_ = std::thread([this] { run(); });
}

LossyProxy::~LossyProxy() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  ::close(listener_);
}

void LossyProxy::run() {
  for (;;) {
    std::array<pollfd, 2> wait = {pollfd{listener_, POLLIN, 0}, pollfd{stop_[0], POLLIN, 0}};
    ::poll(wait.data(), wait.size(), -1);
    if (wait[1].revents != 0) return;
    const int client = ::accept(listener_, nullptr, nullptr);
    if (client < 0) continue;
    serve(client);
    ::close(client);
  }
}

void LossyProxy::serve(int client) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in at = loopback(to_port_);
  bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
  std::array<char, 65'536> bytes;
  while (open) {
    std::array<pollfd, 3> wait = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}, pollfd{stop_[0], POLLIN, 0}};
    ::poll(wait.data(), wait.size(), -1);
    if (wait[2].revents != 0) break;
    for (const bool from_server : {false, true}) {
      if (!open || wait[from_server ? 1 : 0].revents == 0) continue;
      const ssize_t got = ::recv(from_server ? server : client, bytes.data(), bytes.size(), 0);
      open = got > 0;
      if (open && from_server && lose_.load() > 0) {
        --lose_;
        open = false;
      }
      if (open) open = send_all(from_server ? client : server, bytes.data(), static_cast<size_t>(got));
    }
  }
  ::close(server);
}

}  // namespace millrace::testing
