#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// Byte b of every value, one plane behind the other from the lowest: planes[b * values.size() + i]. SIMD for f32.
///
/// planes   [values.size() * sizeof(T)].
template <typename T>
void to_planes(std::span<const T> values, uint8_t* planes);

/// The reverse. planes[b] [values.size()]: the b-th bytes.
template <typename T>
void from_planes(const uint8_t* const* planes, std::span<T> values);

}  // namespace millrace
