#include "monitoring/http/byte_channel.h"

#include <sys/socket.h>

#include <cerrno>

namespace millrace::monitoring {
namespace {

class PlainChannel : public ByteChannel {
 public:
  explicit PlainChannel(int socket) : socket_(socket) {}

  Moved read(std::span<char> into) override {
    for (;;) {
      const ssize_t got = ::recv(socket_, into.data(), into.size(), 0);
      if (got > 0) return {Outcome::kMoved, static_cast<size_t>(got)};
      if (got == 0) return {Outcome::kEnd};
      if (errno != EINTR) return {errno == EAGAIN ? Outcome::kWaitToRead : Outcome::kBroken};
    }
  }

  Moved write(std::string_view bytes) override {
    for (;;) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) return {Outcome::kMoved, static_cast<size_t>(sent)};
      if (errno != EINTR) return {errno == EAGAIN ? Outcome::kWaitToWrite : Outcome::kBroken};
    }
  }

  void end_writing() override { ::shutdown(socket_, SHUT_WR); }
  bool is_open() const override { return true; }
  std::string problem() const override { return {}; }

 private:
  const int socket_;
};

}  // namespace

std::unique_ptr<ByteChannel> open_plain_channel(const Descriptor& socket) {
  return std::make_unique<PlainChannel>(socket.number());
}

}  // namespace millrace::monitoring
