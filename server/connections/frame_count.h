#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::server {

/// Counts the frames of a connection's bytes (ZMTP 3: a greeting of 64 bytes, then frames). Pure.
///
/// Other   ZeroMQ also accepts peers of ZMTP 1 and 2, and Millrace has none. Their bytes count as the most frames
///         that such bytes can be.
/// Cost    a step for each frame, and for each call.
class FrameCount {
 public:
  struct Counts {
    uint64_t frames = 0;  ///< that began, commands as well
    /// Of messages: one for each frame, and one for each byte of a body that arrived. Commands that ZeroMQ takes itself
    /// have none. Those that it may pass on as messages, or as parts of them, count as messages.
    uint64_t weight = 0;
  };
  /// Counts the next bytes.
  Counts count(std::span<const std::byte> bytes);

  /// Returns whether the bytes so far end within a command. ZeroMQ takes commands itself once they are whole.
  bool is_within_command() const { return part_ == Part::kBody && is_command_; }

  /// Returns the weight of one whole message, as count() has counted it.
  ///
  /// has_keys  CURVE adds kCurveBytes to each frame.
  enum class Keys : uint8_t { kNone = 1, kCurve = 2 };
  static uint64_t weight_of(uint64_t bytes, uint64_t frames, Keys keys) {
    return bytes + frames * (keys == Keys::kCurve ? 1 + kCurveBytes : 1);
  }
  /// A CURVE frame: the name of the command, a nonce, a MAC, and flags.
  static constexpr uint64_t kCurveBytes = 8 + 8 + 16 + 1;

 private:
  enum class Part : uint8_t { kGreeting = 0, kFlags = 1, kLength = 2, kBody = 3, kUnknown = 4 };
  void take_greeting(std::byte byte);
  void take_length(std::byte byte);

  uint64_t rest_ = 0;  ///< of the body; before that, its length
  uint8_t at_ = 0;     ///< bytes of the greeting so far; bytes that the length lacks
  Part part_ = Part::kGreeting;
  bool is_command_ = false;  ///< one that ZeroMQ takes itself, as far as is known
  bool is_first_ = false;    ///< the next byte of the body is its first
};

}  // namespace millrace::server
