#include "kernels/codec/bits/bitmap_words.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/bits/bitmap_words.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bits/bit_positions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
HWY_INLINE uint64_t word_at(ByteSpan bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, bytes.size() - at < 8 ? bytes.size() - at : 8);
  return word;
}

uint64_t count(ByteSpan bytes) {
  uint64_t total = 0;
  for (size_t at = 0; at < bytes.size(); at += 8) total += hwy::PopCount(word_at(bytes, at));
  return total;
}

void expand(ByteSpan bytes, uint32_t* out) {
  static_assert(kPositionsSlack <= kExpandSlack);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = word_at(bytes, at);
    if (word != 0) out += store_positions(word, static_cast<uint32_t>(at * 8), out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(count);
HWY_EXPORT(expand);

uint64_t count_bits(ByteSpan bytes) { return HWY_DYNAMIC_DISPATCH(count)(bytes); }
void expand_bits(ByteSpan bytes, uint32_t* out) { HWY_DYNAMIC_DISPATCH(expand)(bytes, out); }

}  // namespace millrace
#endif  // HWY_ONCE
