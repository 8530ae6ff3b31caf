#include "kernels/base/clock.h"

#include <ctime>

namespace millrace {

TimeNs monotonic_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kNsPerS + now.tv_nsec;
}

}  // namespace millrace
