#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/clock.h"

namespace millrace::protocol {

/// Decides how long a call waits for a lock that other processes take and return. A call always waits for processes
/// that hold it briefly. After kInVainMax waits in vain in a row, the holder of the lock counts as stopped: it would
/// hold up every call. For kPauseFactor waits no call waits at all, then one does, and so on until a call gets the
/// lock. So a stopped process costs its callers kInVainMax waits, and from then on one wait in any 1 + kPauseFactor.
///
/// Time     `now` never goes back.
/// Threads  one at a time.
class LockWaitPolicy {
 public:
  static constexpr uint32_t kInVainMax = 3;
  static constexpr int64_t kPauseFactor = 10;

  explicit LockWaitPolicy(uint32_t wait_ms) : wait_ms_(wait_ms) {}

  /// Returns the wait of a call that begins now.
  uint32_t wait_ms(TimeNs now) const {
    const bool pauses = in_vain_ == kInVainMax && now - last_in_vain_ < kPauseFactor * wait_ms_ * kNsPerMs;
    return pauses ? 0 : wait_ms_;
  }
  void waited_in_vain(TimeNs now) {
    in_vain_ = std::min(in_vain_ + 1, kInVainMax);
    last_in_vain_ = now;
  }
  void had_it() { in_vain_ = 0; }

 private:
  uint32_t wait_ms_;
  uint32_t in_vain_ = 0;  ///< in a row
  TimeNs last_in_vain_ = 0;
};

}  // namespace millrace::protocol
