#pragma once

#include <cstdint>

namespace millrace::protocol {

/// Decides whether bytes that arrive delay the time-out of a message: over a slow link it arrives for long, or behind
/// others. Other traffic must not hide a lost message for ever, so the delay has a bound in bytes.
class ArrivingBytes {
 public:
  static constexpr uint64_t kLeast = 4'096;     ///< between two looks: heartbeats have less
  static constexpr uint64_t kMost = 128 << 20;  ///< before the message, or of it

  /// Returns whether these bytes delay the time-out.
  bool delay(uint64_t bytes) {
    if (bytes < kLeast || sum_ > kMost) return false;
    sum_ += bytes;
    return true;
  }
  /// Begins to wait for the next message.
  void restart() { sum_ = 0; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace millrace::protocol
