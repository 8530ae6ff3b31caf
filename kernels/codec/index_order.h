#pragma once

#include <span>

#include "kernels/base/buffer.h"

namespace millrace {

/// Copies little-endian u32 indices out of `bytes` and tells whether they are strictly increasing.
///
/// bytes    4 * out.size() bytes, any alignment.
/// Cost     one pass at memory speed, SIMD.
bool copy_increasing(ByteSpan bytes, std::span<uint32_t> out);

}  // namespace millrace
