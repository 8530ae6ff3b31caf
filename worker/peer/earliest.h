#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::peer {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

/// A time for each of a fixed number of slots, and the earliest of them: a tournament tree.
///
/// Order    of equal times the lower slot comes first.
/// Cost     set(): log2(slots) comparisons at most; memory: 16 bytes a slot, so that thousands stay in a cache.
class Earliest {
 public:
  explicit Earliest(uint32_t slots) : leaves_(std::bit_ceil(slots)), times_(leaves_, kNever), winners_(leaves_) {
    for (uint32_t node = leaves_ - 1; node > 0; --node) winners_[node] = winner(2 * node);
  }

  uint32_t slot() const { return leaves_ == 1 ? 0 : winners_[1]; }
  TimeNs time() const { return times_[slot()]; }

  /// Slots that are likely to be the earliest soon, and sooner: first of a 64th and of an eighth of all, where the last set()
  /// was.
  uint32_t soon() const { return soon_; }
  uint32_t sooner() const { return sooner_; }

  void set(uint32_t slot, TimeNs time) {
    if (times_[slot] == time) return;
    times_[slot] = time;
    for (uint32_t node = (leaves_ + slot) / 2; node > 0; node /= 2) {
      const uint32_t left = winner(2 * node), right = winner(2 * node + 1);
      const uint32_t now = times_[right] < times_[left] ? right : left;
      // Another's win that stands is what was seen above already.
      if (winners_[node] == now && now != slot) return;
      winners_[node] = now;
      if (node / kSoon == 1) soon_ = now;
      if (node / kSooner == 1) sooner_ = now;
    }
  }

 private:
  static constexpr uint32_t kSoon = 64;  // nodes of that level of the tree
  static constexpr uint32_t kSooner = 8;

  uint32_t winner(uint32_t node) const { return node >= leaves_ ? node - leaves_ : winners_[node]; }

  uint32_t leaves_;
  uint32_t soon_ = 0;
  uint32_t sooner_ = 0;
  std::vector<TimeNs> times_;
  std::vector<uint32_t> winners_;  ///< by inner node, from 1
};

}  // namespace millrace::peer
