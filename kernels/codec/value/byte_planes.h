#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// Writes byte b of every value, one plane behind the other from the lowest: planes[b * values.size() + i]. SIMD.
///
/// planes   [values.size() * sizeof(float)].
void to_planes(std::span<const float> values, uint8_t* planes);

/// Reads values from planes. planes[b] [values.size()]: the b-th bytes.
void from_planes(const uint8_t* const* planes, std::span<float> values);

}  // namespace millrace
