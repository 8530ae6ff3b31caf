#include "protocol/datagram/replay_window.h"

#include <algorithm>

namespace millrace::protocol {

bool ReplayWindow::accept(uint64_t sequence) {
  if (sequence == 0) return false;
  if (highest_ == 0) judged_ = sequence - 1;
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
  if (sequence <= judged_) reordering_ = std::min(2 * reordering_, kReorderingMax);
  return true;
}

LostSequences ReplayWindow::take_lost() {
  LostSequences lost;
  if (highest_ < reordering_) return lost;
  const uint64_t end = highest_ - reordering_;
  if (highest_ - judged_ >= kWidth) judged_ = highest_ - kWidth + 1;  // older numbers are no longer known
  while (judged_ < end && (lost.first == 0 || judged_ - lost.first < 64)) {
    const uint64_t sequence = ++judged_;
    if (has_come(sequence)) continue;
    if (lost.first == 0) {
      lost.first = sequence;
    } else {
      lost.others |= uint64_t{1} << (sequence - lost.first - 1);
    }
  }
  return lost;
}

}  // namespace millrace::protocol
