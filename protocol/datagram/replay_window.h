#pragma once

#include <array>
#include <cstdint>

namespace millrace::protocol {

/// Which sequence numbers under one key have come: a window of 2048 up to the highest. What is older is refused, new or not: a
/// datagram that is so late is resent under a new number.
class ReplayWindow {
 public:
  static constexpr uint64_t kWidth = 2048;

  /// Whether `sequence` is new; it is known from then on. Call it with what has been verified only: a forged number would push
  /// true ones out. 0 never is new (sessions begin at 1).
  bool accept(uint64_t sequence);

 private:
  uint64_t highest_ = 0;
  /// Bit s % kWidth of s in (highest - kWidth, highest]; the bits of those to come are cleared as `highest_` passes them.
  std::array<uint64_t, kWidth / 64> seen_{};
};

}  // namespace millrace::protocol
