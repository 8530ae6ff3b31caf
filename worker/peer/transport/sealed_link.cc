#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/buffer.h"
#include "worker/peer/transport/tcp_link.h"

namespace millrace::peer {
namespace {

using protocol::kNoiseTagBytes;

constexpr size_t kLengthBytes = 2;
constexpr size_t kSealedMax = TcpLink::kRecordTextMax + kNoiseTagBytes;

/// Copies as many bytes from the parts as there is room for. Returns their number.
size_t take_text(std::span<const iovec> parts, std::span<uint8_t> out) {
  size_t taken = 0;
  for (const iovec& part : parts) {
    const size_t count = std::min(part.iov_len, out.size() - taken);
    if (count > 0) std::memcpy(out.data() + taken, part.iov_base, count);
    taken += count;
  }
  return taken;
}

/// Copies the bytes into the parts, which have room for them.
void hand_out(ByteSpan bytes, std::span<const iovec> parts) {
  for (const iovec& part : parts) {
    const size_t count = std::min(part.iov_len, bytes.size());
    if (count > 0) std::memcpy(part.iov_base, bytes.data(), count);
    bytes = bytes.subspan(count);
  }
}

size_t room_of(std::span<const iovec> parts) {
  size_t room = 0;
  for (const iovec& part : parts) room += part.iov_len;
  return room;
}

class SealedLink final : public TcpLink {
 public:
  SealedLink(Descriptor socket, const protocol::NoiseHandshake::Ciphers& ciphers)
      : TcpLink(std::move(socket)),
        ciphers_(ciphers),
        leaving_(kLengthBytes + kSealedMax),
        // Behind a record the length of the next one is read.
        arriving_(kLengthBytes + kSealedMax + kLengthBytes) {}

  LinkResult write(std::span<const iovec> parts) override {
    if (const LinkState state = send_rest(); state != LinkState::kOpen) return {.state = state};
    const std::span<uint8_t> record(leaving_);
    const size_t text_bytes = take_text(parts, record.subspan(kLengthBytes, kRecordTextMax));
    if (text_bytes == 0) return {};
    const size_t sealed_bytes = text_bytes + kNoiseTagBytes;
    leaving_[0] = static_cast<uint8_t>(sealed_bytes);
    leaving_[1] = static_cast<uint8_t>(sealed_bytes >> 8);
    ciphers_.sends.seal(record.subspan(kLengthBytes, sealed_bytes));
    leaving_bytes_ = kLengthBytes + sealed_bytes;
    sent_ = 0;
    return {.bytes = text_bytes, .state = send_rest()};
  }

  size_t output_bytes() const override { return leaving_bytes_ - sent_; }

  LinkResult read(std::span<const iovec> parts) override {
    for (;;) {
      if (has_length() && !is_length_possible()) return {.state = LinkState::kForged};
      if (has_length() && arrived_ >= record_bytes()) return open_record(parts);
      const size_t wanted = has_length() ? record_bytes() + kLengthBytes : kLengthBytes;
      const ssize_t found = ::recv(socket().number(), arriving_.data() + arrived_, wanted - arrived_, MSG_DONTWAIT);
      if (found == 0) return {.state = LinkState::kEnded};
      if (found > 0) {
        arrived_ += static_cast<size_t>(found);
      } else if (errno != EINTR) {
        return {.state = is_passing(errno) ? LinkState::kBlocked : LinkState::kEnded};
      }
    }
  }

 private:
  static bool is_passing(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

  LinkState send_rest() {
    while (sent_ < leaving_bytes_) {
      const ssize_t sent =
          ::send(socket().number(), leaving_.data() + sent_, leaving_bytes_ - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        sent_ += static_cast<size_t>(sent);
      } else if (errno != EINTR) {
        if (is_passing(errno)) return LinkState::kBlocked;
        leaving_bytes_ = sent_ = 0;
        return LinkState::kEnded;
      }
    }
    return LinkState::kOpen;
  }

  bool has_length() const { return arrived_ >= kLengthBytes; }
  size_t sealed_bytes() const { return arriving_[0] | static_cast<size_t>(arriving_[1]) << 8; }
  bool is_length_possible() const { return sealed_bytes() > kNoiseTagBytes && sealed_bytes() <= kSealedMax; }
  size_t record_bytes() const { return kLengthBytes + sealed_bytes(); }

  LinkResult open_record(std::span<const iovec> parts) {
    const size_t whole_bytes = record_bytes();
    const auto sealed = std::span(arriving_).subspan(kLengthBytes, sealed_bytes());
    const size_t text_bytes = sealed.size() - kNoiseTagBytes;
    if (!ciphers_.receives.open(sealed) || text_bytes > room_of(parts)) return {.state = LinkState::kForged};
    hand_out(sealed.first(text_bytes), parts);
    arrived_ -= whole_bytes;
    std::memmove(arriving_.data(), arriving_.data() + whole_bytes, arrived_);
    return {.bytes = text_bytes};
  }

  protocol::NoiseHandshake::Ciphers ciphers_;
  ByteBuffer leaving_;  ///< one record
  size_t leaving_bytes_ = 0;
  size_t sent_ = 0;  ///< of leaving_bytes_
  ByteBuffer arriving_;
  size_t arrived_ = 0;
};

}  // namespace

std::unique_ptr<TcpLink> sealed_link(Descriptor socket, const protocol::NoiseHandshake::Ciphers& ciphers) {
  return std::make_unique<SealedLink>(std::move(socket), ciphers);
}

}  // namespace millrace::peer
