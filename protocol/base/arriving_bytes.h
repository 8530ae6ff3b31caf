#pragma once

#include <cstdint>

namespace millrace::protocol {

/// Decides whether bytes that arrive delay the time-out of a message: over a slow link it arrives for long, or behind
/// others. Other traffic must not hide a lost message for ever, so the delay has a bound in bytes.
class ArrivingBytes {
 public:
  static constexpr uint64_t kLeast = 4'096;     ///< between two looks: heartbeats have less
  static constexpr uint64_t kMost = 256 << 20;  ///< before the message, or of it: as long as one may be by default

  /// Returns whether these bytes delay the time-out. most: bound on their sum, where messages may be longer than kMost.
  bool delay(uint64_t bytes, uint64_t most = kMost) {
    if (bytes < kLeast || sum_ > most) return false;
    sum_ += bytes;
    return true;
  }
  /// Begins to wait for the next message.
  void restart() { sum_ = 0; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace millrace::protocol
