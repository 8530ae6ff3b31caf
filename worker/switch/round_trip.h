#pragma once

#include <cstdint>
#include <deque>

#include "kernels/base/clock.h"

namespace millrace::worker {

struct RoundTripOptions {
  TimeNs initial_ns = 10 * kNsPerMs;
  TimeNs min_ns = kNsPerMs;
  TimeNs max_ns = 500 * kNsPerMs;
};

/// The time after which an answer is overdue (RFC 6298): smoothed round trip plus four deviations. Samples are of turns that
/// were sent once only (Karn), and hold what the slowest worker takes: an answer is a whole turn.
class RoundTrip {
 public:
  explicit RoundTrip(const RoundTripOptions& options) : options_(options) {}

  void sample(TimeNs taken);
  /// timeouts: of this turn so far; each doubles it, up to the cap.
  TimeNs timeout(uint32_t timeouts) const;
  TimeNs smoothed() const { return known_ ? smoothed_ : options_.initial_ns; }

 private:
  RoundTripOptions options_;
  bool known_ = false;
  TimeNs smoothed_ = 0;
  TimeNs deviation_ = 0;
};

/// How many of a worker's slots may have a turn under way (SWITCH.md, section 5, "Congestion"): c halves at a timeout or a
/// mark, once in a round trip; c turns in a row that were sent once only add one.
///
/// An answer that is held back still goes out after a round trip: other workers' slots wait for it, and two workers
/// that each held back what the other waits for would wait for ever.
class CongestionWindow {
 public:
  explicit CongestionWindow(uint32_t slots) : slots_(slots), active_(slots) {}

  uint32_t active() const { return active_; }
  void clean_result();
  void backed_off(TimeNs now, TimeNs round_trip);
  /// Later turns have come back before one, which was sent again. A network that merely loses some packets does this all the
  /// time, and with many workers often: a turn waits for each of them. Only where a quarter of the turns are so it is
  /// congestion.
  void overtaken(TimeNs now, TimeNs round_trip);

 private:
  uint32_t slots_;
  uint32_t active_;
  uint32_t clean_ = 0;
  uint32_t overtaken_ = 0;  ///< since the window last moved
  TimeNs halved_at_ = INT64_MIN;
};

}  // namespace millrace::worker
