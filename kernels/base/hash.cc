#include "kernels/base/hash.h"

#include <xxhash.h>

namespace millrace {

uint64_t hash64(ByteSpan bytes, uint64_t seed) { return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed); }

uint64_t hash64(std::string_view text, uint64_t seed) { return XXH3_64bits_withSeed(text.data(), text.size(), seed); }

}  // namespace millrace
