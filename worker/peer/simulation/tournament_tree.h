#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::peer {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

/// Holds a time for each of a fixed number of slots, and finds the earliest of them: a tournament tree.
///
/// Order    of equal times the lower slot comes first.
/// Cost     set(): log2(slots) comparisons at most; put() of many, then rebuild(): one a slot; before(): log2(slots)
///          for each slot found at most. Memory: 16 bytes a slot, so that thousands stay in a cache.
class Earliest {
 public:
  explicit Earliest(uint32_t slots) : leaves_(std::bit_ceil(slots)), times_(leaves_, kNever), winners_(leaves_) {
    rebuild();
  }

  uint32_t slot() const { return leaves_ == 1 ? 0 : winners_[1]; }
  TimeNs time() const { return times_[slot()]; }

  /// Lists the slots whose time is before `end`, ascending.
  void before(TimeNs end, std::vector<uint32_t>& out) const {
    out.clear();
    collect(leaves_ == 1 ? 0 : 1, end, out);
  }

  void set(uint32_t slot, TimeNs time) {
    if (times_[slot] == time) return;
    times_[slot] = time;
    for (uint32_t node = (leaves_ + slot) / 2; node > 0; node /= 2) {
      const uint32_t left = winner(2 * node), right = winner(2 * node + 1);
      const uint32_t now = times_[right] < times_[left] ? right : left;
      // If another slot's win stands, the nodes above have seen it already.
      if (winners_[node] == now && now != slot) return;
      winners_[node] = now;
    }
  }

  /// Sets many slots' times, in place of set(); other calls are invalid until rebuild().
  void put(uint32_t slot, TimeNs time) { times_[slot] = time; }
  void rebuild() {
    for (uint32_t node = leaves_ - 1; node > 0; --node) {
      const uint32_t left = winner(2 * node), right = winner(2 * node + 1);
      winners_[node] = times_[right] < times_[left] ? right : left;
    }
  }

 private:
  uint32_t winner(uint32_t node) const { return node >= leaves_ ? node - leaves_ : winners_[node]; }

  void collect(uint32_t node, TimeNs end, std::vector<uint32_t>& out) const {
    if (times_[node == 0 ? 0 : winner(node)] >= end) return;
    if (node == 0 || node >= leaves_) {
      out.push_back(winner(node == 0 ? leaves_ : node));
      return;
    }
    collect(2 * node, end, out);
    collect(2 * node + 1, end, out);
  }

  uint32_t leaves_;
  std::vector<TimeNs> times_;
  std::vector<uint32_t> winners_;  ///< by inner node, from 1
};

}  // namespace millrace::peer
