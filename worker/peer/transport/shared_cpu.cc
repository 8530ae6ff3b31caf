#include "worker/peer/transport/shared_cpu.h"

#include <algorithm>

namespace millrace::peer {
namespace {

constexpr TimeNs kLate = kNsPerMs;  // an idle core wakes a thread that sleeps on it sooner than that.
// A thread that rests long enough is no longer late, and no longer notices that the core is shared.
constexpr TimeNs kSharedFor = kNsPerS;
constexpr TimeNs kRestMax = 2 * kNsPerMs;

}  // namespace

void CoreShare::works(TimeNs now, TimeNs cpu) {
  works_since_ = now;
  cpu_before_ = cpu;
}

TimeNs CoreShare::rests(TimeNs now, TimeNs cpu) const {
  if (now >= shared_until_) return 0;
  const TimeNs worked = cpu - cpu_before_, others_worked = now - works_since_ - worked;
  return std::clamp<TimeNs>(worked - others_worked, 0, kRestMax);
}

void CoreShare::woke(TimeNs now, TimeNs late) {
  if (late > kLate) shared_until_ = now + kSharedFor;
}

}  // namespace millrace::peer
