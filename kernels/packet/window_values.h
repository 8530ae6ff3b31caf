#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace {

/// The numbers of a window's datagram, as vector machines read them. Bytes may lie at any address; nothing is read or
/// written beyond the stated sizes. Threads: reentrant.

/// Writes values as i16, those beyond +-32,767 as the nearest of these.
///
/// out   [2 * values.size()]
/// kept  [at least values.size()] the decoded values; may be `values`.
void narrow_shorts(std::span<const int32_t> values, std::span<uint8_t> out, std::span<int32_t> kept);

/// Reads i16, little-endian, one behind the other. bytes [2 * out.size()].
void widen_shorts(ByteSpan bytes, std::span<int32_t> out);

/// Levels of 8 bits times `unit`, and of 4 bits (low half first, an odd number's last half left out). Products must be
/// i32.
///
/// bytes    [out.size()], or half as many (rounded up).
void scale_levels8(ByteSpan bytes, int32_t unit, std::span<int32_t> out);
void scale_levels4(ByteSpan bytes, int32_t unit, std::span<int32_t> out);

/// Returns whether each is larger than the one before it.
bool is_strictly_increasing(std::span<const uint16_t> indices);

}  // namespace millrace
