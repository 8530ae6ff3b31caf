#include "server/connections/frame_count.h"

#include <algorithm>

namespace millrace::server {
namespace {

constexpr uint8_t kGreetingBytes = 64;
constexpr uint8_t kSignatureEnd = 9;  ///< the last byte of the signature, before the version
constexpr auto kMoreFlag = std::byte{1};
constexpr auto kLongFlag = std::byte{2};
constexpr auto kCommandFlag = std::byte{4};
/// The shortest frame: flags and a length.
constexpr uint64_t kFrameBytesMin = 2;

/// Returns whether ZeroMQ passes a command on as a message: SUBSCRIBE and CANCEL, to a socket of any type.
///
/// name_bytes  its first byte, the length of its name.
bool is_passed_on(std::byte name_bytes) { return name_bytes == std::byte{9} || name_bytes == std::byte{6}; }

}  // namespace

void FrameCount::take_greeting(std::byte byte) {
  const bool is_three = at_ == 0               ? byte == std::byte{0xff}
                        : at_ == kSignatureEnd ? (byte & std::byte{1}) != std::byte{0}
                                               : at_ != kSignatureEnd + 1 || byte >= std::byte{3};
  if (!is_three) {
    part_ = Part::kUnknown;
  } else if (++at_ == kGreetingBytes) {
    part_ = Part::kFlags;
  }
}

void FrameCount::take_length(std::byte byte) {
  rest_ = rest_ << 8 | std::to_integer<uint64_t>(byte);
  if (--at_ != 0) return;
  part_ = rest_ == 0 ? Part::kFlags : Part::kBody;
  is_first_ = true;
}

FrameCount::Counts FrameCount::count(std::span<const std::byte> bytes) {
  Counts counts;
  while (!bytes.empty() && part_ != Part::kUnknown) {
    if (part_ == Part::kBody) {
      if (is_first_ && is_command_ && is_passed_on(bytes.front())) {
        is_command_ = false;
        ++counts.weight;
      }
      is_first_ = false;
      const uint64_t taken = std::min<uint64_t>(rest_, bytes.size());
      bytes = bytes.subspan(taken);
      rest_ -= taken;
      if (!is_command_) counts.weight += taken;
      if (rest_ == 0) part_ = Part::kFlags;
      continue;
    }
    const std::byte byte = bytes.front();
    bytes = bytes.subspan(1);
    if (part_ == Part::kGreeting) {
      take_greeting(byte);
    } else if (part_ == Part::kLength) {
      take_length(byte);
    } else {
      is_command_ = (byte & kCommandFlag) != std::byte{0} && (byte & kMoreFlag) == std::byte{0};
      at_ = (byte & kLongFlag) != std::byte{0} ? 8 : 1;
      rest_ = 0;
      part_ = Part::kLength;
      ++counts.frames;
      if (!is_command_) ++counts.weight;
    }
  }
  counts.frames += (bytes.size() + kFrameBytesMin - 1) / kFrameBytesMin;
  counts.weight += bytes.size();
  return counts;
}

}  // namespace millrace::server
