#pragma once

#include <cstdint>

namespace millrace {

/// Nanoseconds of a monotonic clock that the caller advances: the shells read CLOCK_MONOTONIC, simulations count. State
/// machines are handed the time and never ask for it.
using TimeNs = int64_t;

inline constexpr TimeNs kNsPerUs = 1'000;
inline constexpr TimeNs kNsPerMs = 1'000'000;
inline constexpr TimeNs kNsPerS = 1'000'000'000;

/// Returns the machine's monotonic clock. For shells, command line and benchmarks only.
TimeNs monotonic_now_ns();

}  // namespace millrace
