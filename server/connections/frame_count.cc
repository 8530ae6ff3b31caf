#include "server/connections/frame_count.h"

#include <algorithm>

namespace millrace::server {
namespace {

constexpr uint8_t kGreetingBytes = 64;
constexpr uint8_t kSignatureEnd = 9;     ///< the last byte of the signature, before the version
constexpr uint8_t kMechanism = 12;       ///< where the name of the mechanism begins
constexpr uint8_t kHandshakeFrames = 2;  ///< of a client of CURVE: HELLO and INITIATE
constexpr auto kMoreFlag = std::byte{1};
constexpr auto kLongFlag = std::byte{2};
constexpr auto kCommandFlag = std::byte{4};
/// The shortest frame: flags and a length.
constexpr uint64_t kFrameBytesMin = 2;

}  // namespace

void FrameCount::take_greeting(std::byte byte) {
  const bool is_three = at_ == 0               ? byte == std::byte{0xff}
                        : at_ == kSignatureEnd ? (byte & std::byte{1}) != std::byte{0}
                                               : at_ != kSignatureEnd + 1 || byte >= std::byte{3};
  if (!is_three) {
    part_ = Part::kUnknown;
    return;
  }
  if (at_ == kMechanism && byte == std::byte{'C'}) before_hidden_ = kHandshakeFrames;
  if (++at_ == kGreetingBytes) part_ = Part::kFlags;
}

FrameCount::Unfinished FrameCount::count(std::span<const std::byte> bytes) {
  Unfinished unfinished;
  const auto end_frame = [&] {
    part_ = before_hidden_ == 1 ? Part::kHidden : Part::kFlags;
    if (before_hidden_ > 0) {
      --before_hidden_;
    } else if (is_last_) {
      unfinished = {.continues = false};
    }
  };
  while (!bytes.empty() && part_ != Part::kUnknown && part_ != Part::kHidden) {
    const uint64_t taken = part_ == Part::kBody ? std::min<uint64_t>(rest_, bytes.size()) : 1;
    const std::byte byte = bytes.front();
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
      part_ = Part::kBody;
      if (rest_ == 0) end_frame();
    } else {
      rest_ -= taken;
      if (rest_ == 0) end_frame();
    }
  }
  if (part_ == Part::kHidden) return {.continues = false};
  unfinished.frames += (bytes.size() + kFrameBytesMin - 1) / kFrameBytesMin;
  unfinished.bytes += bytes.size();
  return unfinished;
}

}  // namespace millrace::server
