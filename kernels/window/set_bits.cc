#include "kernels/window/set_bits.h"

#include <array>
#include <bit>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/window/set_bits.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

// No word writes more than 64 numbers behind those found, which are at most 64 for each word before it: no slack is needed.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL  // targets are ordered, better first; these compress 16-bit lanes
size_t positions(const uint64_t* words, size_t count, uint16_t* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint16_t, 32> d;
  const size_t lanes = hn::Lanes(d);
  const auto step = hn::Set(d, static_cast<uint16_t>(lanes));
  auto numbers = hn::Iota(d, 0);
  size_t found = 0;
  for (size_t at = 0; at < count; ++at) {
    const std::array<uint8_t, 8> bytes = std::bit_cast<std::array<uint8_t, 8>>(words[at]);
    for (size_t c = 0; c < 64; c += lanes) {
      const auto mask = hn::LoadMaskBits(d, bytes.data() + c / 8);
      hn::StoreU(hn::Compress(numbers, mask), d, out + found);
      found += hn::CountTrue(d, mask);
      numbers = hn::Add(numbers, step);
    }
  }
  return found;
}
#else  // bit by bit, 4 at a time so that the branch is predictable
size_t positions(const uint64_t* words, size_t count, uint16_t* out) {
  size_t found = 0;
  for (size_t at = 0; at < count; ++at) {
    uint64_t word = words[at];
    const size_t here = hwy::PopCount(word);
    for (size_t j = 0; j < here; j += 4) {
      for (size_t i = 0; i < 4; ++i) {
        out[found + j + i] = static_cast<uint16_t>(at * 64 + static_cast<size_t>(std::countr_zero(word)));
        word &= word - 1;
      }
    }
    found += here;
  }
  return found;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(positions);

size_t set_bits(std::span<const uint64_t> words, std::span<uint16_t> out) {
  MILLRACE_CHECK(words.size() <= 1024 && out.size() >= 64 * words.size(), words.size(), out.size());
  return HWY_DYNAMIC_DISPATCH(positions)(words.data(), words.size(), out.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
