#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace millrace::protocol {

/// Sequence numbers that are missing among those that have come.
struct LostSequences {
  uint64_t first = 0;   ///< 0: none is
  uint64_t others = 0;  ///< bit i: first + 1 + i is missing too

  /// Calls f(sequence) for each number. A hostile sender may name any, but none is below `first`.
  template <typename F>
  void for_each(F&& f) const {
    if (first == 0) return;
    f(first);
    for (uint64_t left = others; left != 0; left &= left - 1) {
      const uint64_t sequence = first + 1 + static_cast<uint64_t>(std::countr_zero(left));
      if (sequence < first) return;
      f(sequence);
    }
  }
  bool operator==(const LostSequences&) const = default;
};

/// Holds which sequence numbers under one key have come (S2.4): a window of 2048 up to the highest. An older number is
/// refused, new or not: the sender resends so late a datagram under a new number.
class ReplayWindow {
 public:
  static constexpr uint64_t kWidth = 2048;

  /// Returns whether `sequence` is new; it is known from then on. Call it for verified datagrams only: a forged number
  /// would push true ones out. 0 never is new (sessions begin at 1).
  bool accept(uint64_t sequence);

  /// Returns the highest accepted number; 0: none was.
  uint64_t highest() const { return highest_; }

  /// Returns numbers that have not come though three later ones have: most likely they were lost on the way. Each is
  /// returned once. If such a number comes after all, packets are out of order by more than three. From then on twice
  /// as many later ones are required.
  ///
  /// Returns  those of up to 65 in a row that are new; none: `first` is 0. Ask until there are none.
  LostSequences take_lost();

 private:
  /// Packets of one sender mostly stay in order (three duplicate acknowledgements of TCP, [RFC5681]).
  static constexpr uint64_t kReordering = 3;
  static constexpr uint64_t kReorderingMax = 256;
  bool has_come(uint64_t sequence) const { return (seen_[sequence % kWidth / 64] >> (sequence % 64) & 1) != 0; }

  uint64_t highest_ = 0;
  uint64_t reordering_ = kReordering;
  /// Numbers up to here were judged, and the lost ones returned. None is lost before the first that came.
  uint64_t judged_ = 0;
  /// Bit s % kWidth of s in (highest - kWidth, highest]; the bits of those to come are cleared as `highest_` passes
  /// them.
  std::array<uint64_t, kWidth / 64> seen_{};
};

}  // namespace millrace::protocol
