#include "worker/peer/transport/tcp_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace millrace::peer {
namespace {

class PlainLink final : public TcpLink {
 public:
  using TcpLink::TcpLink;

  LinkResult write(std::span<const iovec> parts) override {
    msghdr call{};
    call.msg_iov = const_cast<iovec*>(parts.data());
    call.msg_iovlen = parts.size();
    return result_of(::sendmsg(socket().number(), &call, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  size_t output_bytes() const override { return 0; }

  LinkResult read(std::span<const iovec> parts) override {
    size_t room = 0;
    for (const iovec& part : parts) room += part.iov_len;
    const ssize_t found = ::readv(socket().number(), parts.data(), static_cast<int>(parts.size()));
    if (found == 0) return {.state = LinkState::kEnded};
    LinkResult result = result_of(found);
    // A short read has emptied the socket.
    if (result.state == LinkState::kOpen && result.bytes > 0 && result.bytes < room) result.state = LinkState::kBlocked;
    return result;
  }

 private:
  static LinkResult result_of(ssize_t moved) {
    if (moved >= 0) return {.bytes = static_cast<size_t>(moved)};
    if (errno == EINTR) return {};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {.state = LinkState::kBlocked};
    return {.state = LinkState::kEnded};
  }
};

}  // namespace

bool TcpLink::has_ended() const {
  uint8_t byte = 0;
  const ssize_t found = ::recv(socket_.number(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
  return found == 0 || (found < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool TcpLink::has_closed() const {
  pollfd polled{socket_.number(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

std::unique_ptr<TcpLink> plain_link(Descriptor socket) { return std::make_unique<PlainLink>(std::move(socket)); }

}  // namespace millrace::peer
