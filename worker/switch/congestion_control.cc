#include "worker/switch/congestion_control.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace millrace::worker {

void RoundTrip::sample(TimeNs taken) {
  if (!known_) {
    known_ = true;
    floor_before_ = floor_ = taken;
    smoothed_ = taken;
    deviation_ = taken / 2;
    return;
  }
  floor_ = std::min(floor_, taken);
  if (++samples_ == kFloorSamples) {
    samples_ = 0;
    floor_before_ = std::exchange(floor_, taken);
  }
  deviation_ += (std::abs(taken - smoothed_) - deviation_) / 4;
  smoothed_ += (taken - smoothed_) / 8;
}

TimeNs RoundTrip::expected(uint32_t out, uint32_t slots) const {
  if (!known_ || out >= slots) return smoothed();
  const TimeNs floor = std::min({floor_before_, floor_, smoothed_});
  return floor + (smoothed_ - floor) * out / slots;
}

TimeNs RoundTrip::timeout(uint32_t timeouts) const {
  TimeNs once = known_ ? smoothed_ + 4 * deviation_ : options_.initial_ns;
  once = std::clamp(once, options_.min_ns, options_.max_ns);
  for (uint32_t i = 0; i < timeouts && once < options_.max_ns; ++i) once *= 2;
  return std::min(once, options_.max_ns);
}

void CongestionWindow::clean_result() {
  if (std::exchange(marked_, false)) return;
  if (++clean_ < active_) return;
  clean_ = 0;
  lost_ = 0;
  active_ = std::min(active_ + 1, slots_);
}

void CongestionWindow::lost(TimeNs now, TimeNs round_trip) {
  constexpr uint32_t kFewest = 8;  // fewer losses show nothing
  ++lost_;
  if (lost_ < kFewest || lost_ * 4 < active_) return;
  backed_off(now, round_trip);
}

void CongestionWindow::marked(TimeNs now, TimeNs round_trip) {
  marked_ = true;
  backed_off(now, round_trip);
}

void CongestionWindow::backed_off(TimeNs now, TimeNs round_trip) {
  clean_ = 0;
  lost_ = 0;
  if (halved_at_ != INT64_MIN && now - halved_at_ < round_trip) return;  // one loss takes several slots at once
  halved_at_ = now;
  active_ = std::max<uint32_t>(1, active_ / 2);
}

}  // namespace millrace::worker
