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

/// Computes the time after which an answer is overdue [RFC6298]: smoothed round trip plus four deviations. Samples are
/// of turns that were sent once only [RFC6298, 3]. They include the delay of the slowest worker: an answer is a whole
/// turn.
class RoundTrip {
 public:
  explicit RoundTrip(const RoundTripOptions& options) : options_(options) {}

  void sample(TimeNs taken);
  /// timeouts: of this turn so far; each doubles it, up to the cap.
  TimeNs timeout(uint32_t timeouts) const;
  TimeNs smoothed() const { return known_ ? smoothed_ : options_.initial_ns; }
  /// Returns the expected time of a turn with `out` of `slots` turns under way. A turn spends a part of its time behind
  /// the others, and most of it where processors are the limit. The result is between the least of the latest one to
  /// two thousand samples and smoothed().
  TimeNs expected(uint32_t out, uint32_t slots) const;

 private:
  static constexpr uint32_t kFloorSamples = 1024;

  RoundTripOptions options_;
  TimeNs floor_before_ = 0;  ///< the least of the kFloorSamples before these
  TimeNs floor_ = 0;         ///< and of these
  uint32_t samples_ = 0;     ///< of these
  bool known_ = false;
  TimeNs smoothed_ = 0;
  TimeNs deviation_ = 0;
};

/// Limits the slots of a worker that may have a turn under way (S5.8). The limit c halves at a time-out or a mark, at
/// most once in a round trip. After c turns in a row that were sent once only, c grows by one.
///
/// A held answer is sent after one round trip at the latest. Other workers' slots are blocked on it, and two workers
/// could otherwise block each other forever.
class CongestionWindow {
 public:
  explicit CongestionWindow(uint32_t slots) : slots_(slots), active_(slots) {}

  uint32_t active() const { return active_; }
  void clean_result();
  void backed_off(TimeNs now, TimeNs round_trip);
  /// Notes that the network marked a packet instead of dropping it. The next result is not clean: with one slot the
  /// window would open by every marked result.
  void marked(TimeNs now, TimeNs round_trip);
  /// Notes a lost packet of a turn, from or to this worker. A lossy network loses some packets all the time. Losses
  /// count as congestion only if a quarter of the turns have them.
  void lost(TimeNs now, TimeNs round_trip);

 private:
  uint32_t slots_;
  uint32_t active_;
  uint32_t clean_ = 0;
  bool marked_ = false;
  uint32_t lost_ = 0;  ///< turns, since the window last moved
  TimeNs halved_at_ = INT64_MIN;
};

}  // namespace millrace::worker
