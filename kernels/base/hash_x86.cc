#include <xxh_x86dispatch.h>
// After the dispatch header, which renames what xxhash.h declares.
#include "kernels/base/hash.h"

namespace millrace {

// The library's own runtime dispatch: the same hash with the widest vectors there are, two to three times as fast.
uint64_t hash64(ByteSpan bytes, uint64_t seed) {
  return XXH3_64bits_withSeed_dispatch(bytes.data(), bytes.size(), seed);
}

uint64_t hash64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed_dispatch(text.data(), text.size(), seed);
}

}  // namespace millrace
