#include "protocol/datagram/replay_window.h"

namespace millrace::protocol {

bool ReplayWindow::accept(uint64_t sequence) {
  if (sequence == 0) return false;
  if (sequence > highest_) {
    if (sequence - highest_ >= kWidth) {
      seen_.fill(0);
    } else {
      for (uint64_t s = highest_ + 1; s != sequence; ++s) seen_[s % kWidth / 64] &= ~(uint64_t{1} << (s % 64));
    }
    highest_ = sequence;
    seen_[sequence % kWidth / 64] |= uint64_t{1} << (sequence % 64);
    return true;
  }
  if (highest_ - sequence >= kWidth) return false;
  uint64_t& word = seen_[sequence % kWidth / 64];
  const uint64_t bit = uint64_t{1} << (sequence % 64);
  if ((word & bit) != 0) return false;
  word |= bit;
  return true;
}

}  // namespace millrace::protocol
