#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/buffer.h"

namespace millrace {

/// Returns XXH3, 64 bits: for payload identity and container checksums. Not a MAC: it tells corruption and mix-ups, not
/// malice.
uint64_t hash64(ByteSpan bytes, uint64_t seed = 0);
uint64_t hash64(std::string_view text, uint64_t seed = 0);

}  // namespace millrace
