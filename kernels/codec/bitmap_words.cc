#include "kernels/codec/bitmap_words.h"

#include <array>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/bitmap_words.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
  const hn::CappedTag<uint32_t, kExpandSlack> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = word_at(bytes, at);
    if (word == 0) continue;
    for (size_t c = 0; c < 64; c += lanes) {
      const uint64_t chunk = (word >> c) & ((uint64_t{1} << lanes) - 1);
      const auto mask = hn::LoadMaskBits(d, std::bit_cast<std::array<uint8_t, 8>>(chunk).data());
      hn::StoreU(hn::Compress(hn::Iota(d, static_cast<uint32_t>(at * 8 + c)), mask), d, out);
      out += hwy::PopCount(chunk);
    }
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
