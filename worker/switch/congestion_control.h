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

/// The time after which an answer is overdue [RFC6298]: smoothed round trip plus four deviations. Samples are of turns
/// that were sent once only [RFC6298, 3], and hold what the slowest worker takes: an answer is a whole turn.
class RoundTrip {
 public:
  explicit RoundTrip(const RoundTripOptions& options) : options_(options) {}

  void sample(TimeNs taken);
  /// timeouts: of this turn so far; each doubles it, up to the cap.
  TimeNs timeout(uint32_t timeouts) const;
  TimeNs smoothed() const { return known_ ? smoothed_ : options_.initial_ns; }
  /// With so many turns out of those that may be: what a turn takes is partly that it waits behind the others, most of
  /// it where processors are the limit. Between the least of the latest thousand samples or two and smoothed().
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

/// How many of a worker's slots may have a turn under way (S5.8): c halves at a timeout or a
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
  /// The network marked a packet instead of dropping it. The next result is not clean: with one slot the window would
  /// open by every marked result.
  void marked(TimeNs now, TimeNs round_trip);
  /// A packet of a turn is lost, of those from or to this worker. A network that merely loses some packets does this
  /// all the time. Only where a quarter of the turns are so it is congestion.
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
