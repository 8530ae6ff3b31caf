#include "server/connections/frame_count.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace millrace::server {
namespace {

constexpr uint8_t kGreetingBytes = 64;
constexpr uint8_t kSignatureEnd = 9;     ///< the last byte of the signature, before the version
constexpr uint8_t kMechanism = 12;       ///< where the name of the mechanism begins
constexpr uint8_t kHandshakeFrames = 2;  ///< of a client of CURVE: HELLO and INITIATE
constexpr auto kMoreFlag = std::byte{1};
constexpr auto kLongFlag = std::byte{2};
constexpr auto kCommandFlag = std::byte{4};
constexpr std::string_view kReadyName = "\x05READY";
constexpr size_t kValueLengthBytes = 4;

/// Returns whether a frame is a whole READY without an identity in it. An empty Identity is none.
bool chooses_no_identity(std::string_view ready) {
  if (!ready.starts_with(kReadyName)) return false;
  ready.remove_prefix(kReadyName.size());
  while (!ready.empty()) {
    const size_t name_bytes = static_cast<uint8_t>(ready.front());
    ready.remove_prefix(1);
    if (ready.size() < name_bytes + kValueLengthBytes) return false;
    const std::string_view name = ready.substr(0, name_bytes);
    ready.remove_prefix(name_bytes);
    size_t value_bytes = 0;
    for (const char byte : ready.substr(0, kValueLengthBytes))
      value_bytes = value_bytes << 8 | static_cast<uint8_t>(byte);
    ready.remove_prefix(kValueLengthBytes);
    if (ready.size() < value_bytes || (name == "Identity" && value_bytes != 0)) return false;
    ready.remove_prefix(value_bytes);
  }
  return true;
}

}  // namespace

void FrameCount::take_greeting(std::byte byte) {
  const bool is_three = at_ == 0               ? byte == std::byte{0xff}
                        : at_ == kSignatureEnd ? (byte & std::byte{1}) != std::byte{0}
                                               : at_ != kSignatureEnd + 1 || byte >= std::byte{3};
  if (!is_three) {
    part_ = Part::kRefused;
    return;
  }
  if (at_ == kMechanism && byte == std::byte{'C'}) before_hidden_ = kHandshakeFrames;
  if (++at_ != kGreetingBytes) return;
  part_ = Part::kFlags;
  is_ready_due_ = before_hidden_ == 0;
}

void FrameCount::take_body(std::span<const std::byte> bytes) {
  rest_ -= bytes.size();
  if (!is_ready_due_) return;
  std::ranges::transform(bytes, ready_.begin() + ready_bytes_,
                         [](std::byte byte) { return std::to_integer<char>(byte); });
  ready_bytes_ = static_cast<uint8_t>(ready_bytes_ + bytes.size());
}

void FrameCount::end_frame(Unfinished& unfinished) {
  part_ = Part::kFlags;
  if (std::exchange(is_ready_due_, false) && !chooses_no_identity({ready_.data(), ready_bytes_}))
    part_ = Part::kRefused;
  if (before_hidden_ > 0) {
    hides_ends_ = --before_hidden_ == 0;
    if (hides_ends_) unfinished = {.continues = false};
  } else if (is_last_ && !hides_ends_) {
    unfinished = {.continues = false};
  }
}

FrameCount::Unfinished FrameCount::count(std::span<const std::byte> bytes) {
  Unfinished unfinished;
  while (!bytes.empty() && part_ != Part::kRefused) {
    const uint64_t taken = part_ == Part::kBody ? std::min<uint64_t>(rest_, bytes.size()) : 1;
    const std::span<const std::byte> piece = bytes.first(taken);
    const std::byte byte = piece.front();
    bytes = bytes.subspan(taken);
    unfinished.bytes += taken;
    if (part_ == Part::kGreeting) {
      take_greeting(byte);
    } else if (part_ == Part::kFlags) {
      is_last_ = (byte & (kMoreFlag | kCommandFlag)) == std::byte{0};
      at_ = (byte & kLongFlag) != std::byte{0} ? 8 : 1;
      rest_ = 0;
      part_ = Part::kLength;
      ++unfinished.frames;
    } else if (part_ == Part::kLength) {
      rest_ = rest_ << 8 | std::to_integer<uint64_t>(byte);
      if (--at_ != 0) continue;
      part_ = is_ready_due_ && rest_ > kReadyBytesMax ? Part::kRefused : Part::kBody;
      if (rest_ == 0) end_frame(unfinished);
    } else {
      take_body(piece);
      if (rest_ == 0) end_frame(unfinished);
    }
  }
  if (part_ == Part::kRefused) return {.is_refused = true};
  unfinished.hides_ends = hides_ends_;
  return unfinished;
}

}  // namespace millrace::server
