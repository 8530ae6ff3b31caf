#include "worker/switch/round_trip.h"

#include <algorithm>
#include <cstdlib>

namespace millrace::worker {

void RoundTrip::sample(TimeNs taken) {
  if (!known_) {
    known_ = true;
    smoothed_ = taken;
    deviation_ = taken / 2;
    return;
  }
  deviation_ += (std::abs(taken - smoothed_) - deviation_) / 4;
  smoothed_ += (taken - smoothed_) / 8;
}

TimeNs RoundTrip::timeout(uint32_t timeouts) const {
  TimeNs once = known_ ? smoothed_ + 4 * deviation_ : options_.initial_ns;
  once = std::clamp(once, options_.min_ns, options_.max_ns);
  for (uint32_t i = 0; i < timeouts && once < options_.max_ns; ++i) once *= 2;
  return std::min(once, options_.max_ns);
}

void CongestionWindow::clean_result() {
  if (++clean_ < active_) return;
  clean_ = 0;
  overtaken_ = 0;
  active_ = std::min(active_ + 1, slots_);
}

void CongestionWindow::overtaken(TimeNs now, TimeNs round_trip) {
  constexpr uint32_t kFewest = 8;  // so many alone say nothing
  ++overtaken_;
  if (overtaken_ < kFewest || overtaken_ * 4 < active_) return;
  backed_off(now, round_trip);
}

void CongestionWindow::backed_off(TimeNs now, TimeNs round_trip) {
  clean_ = 0;
  overtaken_ = 0;
  if (halved_at_ != INT64_MIN && now - halved_at_ < round_trip) return;  // one loss takes several slots at once
  halved_at_ = now;
  active_ = std::max<uint32_t>(1, active_ / 2);
}

}  // namespace millrace::worker
