#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/buffer.h"

namespace millrace {

/// Entries behind its result that expand_bits() may overwrite.
inline constexpr size_t kExpandSlack = 16;

/// Returns the number of set bits.
uint64_t count_bits(ByteSpan bytes);

/// Writes the positions of the set bits, low bits first, to out [count_bits(bytes) + kExpandSlack].
///
/// Cost     one pass over the bytes; SIMD compress of 16 positions at a time, zero words skipped.
void expand_bits(ByteSpan bytes, uint32_t* out);

}  // namespace millrace
