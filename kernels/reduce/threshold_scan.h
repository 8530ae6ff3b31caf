#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// Entries past the last that scan_at_least() may write.
inline constexpr size_t kThresholdScanSlack = 64;

/// Writes base + i for every i with |values[i]| >= edge, in order; returns how many. `positions` has room for
/// count + kThresholdScanSlack. SIMD, without a branch that depends on the values.
size_t scan_at_least(const float* values, size_t count, float edge, uint32_t base, uint32_t* positions);

}  // namespace millrace
