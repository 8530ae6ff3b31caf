#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// Returns whether indices[i] < indices[i + 1] for all i + 1 < count. SIMD.
bool strictly_increasing(const uint32_t* indices, size_t count);

/// Returns whether no bit pattern is that of NaN or infinity. SIMD.
bool all_finite_f32(const float* values, size_t count);

/// Computes out[i] = indices[i] - base. SIMD.
void moved_down(const uint32_t* indices, size_t count, uint32_t base, uint32_t* out);

/// Subtracts `base`, modulo 2^32, and returns whether `indices` are strictly increasing: moved_down() and
/// strictly_increasing() in one pass. False: `out` is unspecified. `out` does not overlap `indices`.
bool moved_down_increasing(const uint32_t* indices, size_t count, uint32_t base, uint32_t* out);

}  // namespace millrace
