#pragma once

#include <functional>

#include "kernels/base/clock.h"

namespace millrace::peer {

/// What adding takes on this machine, for the planner (MachineSpeeds).
struct KernelSpeeds {
  double add_entry_s = 0;  ///< for each entry of the sparse streams that are summed
  double add_value_s = 0;  ///< for each value of the dense ones
};

/// Sums two sparse streams whose indices alternate, and two dense ones, some times each, and takes the fastest of each: a rank
/// that was interrupted once does not look slow.
///
/// clock  called before and after each sum. One that stands still (simulated time) leaves 0, and costs one sum.
/// Cost   3 ms, about; memory of 6 MiB.
KernelSpeeds measure_kernel_speeds(const std::function<TimeNs()>& clock);

}  // namespace millrace::peer
