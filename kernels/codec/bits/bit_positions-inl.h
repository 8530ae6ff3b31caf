// A body for Highway's files: compiled once per instruction set, hence the toggle in place of #pragma once.
#if defined(MILLRACE_BIT_POSITIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_BIT_POSITIONS_INL_H_
#undef MILLRACE_BIT_POSITIONS_INL_H_
#else
#define MILLRACE_BIT_POSITIONS_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

/// Entries behind its result that store_positions() may overwrite.
constexpr size_t kPositionsSlack = 16;

/// Writes first + i for every set bit i of `word`, increasing, and returns how many there are.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // targets are ordered, better first
HWY_INLINE size_t store_positions(uint64_t word, uint32_t first, uint32_t* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint32_t, kPositionsSlack> d;
  const size_t lanes = hn::Lanes(d);
  const std::array<uint8_t, 8> bytes = std::bit_cast<std::array<uint8_t, 8>>(word);
  auto numbers = hn::Add(hn::Iota(d, 0), hn::Set(d, first));  // Iota of a variable is written lane by lane
  size_t count = 0;
  for (size_t c = 0; c < 64; c += lanes) {
    const auto mask = hn::LoadMaskBits(d, bytes.data() + c / 8);
    hn::StoreU(hn::Compress(numbers, mask), d, out + count);
    count += hn::CountTrue(d, mask);
    numbers = hn::Add(numbers, hn::Set(d, static_cast<uint32_t>(lanes)));
  }
  return count;
}
#else  // a compress is no single instruction there: bit by bit, 8 at a time so that the branch is predictable
HWY_INLINE size_t store_positions(uint64_t word, uint32_t first, uint32_t* out) {
  const size_t count = hwy::PopCount(word);
  for (size_t j = 0; j < count; j += 8) {
    for (size_t i = 0; i < 8; ++i) {
      out[j + i] = first + static_cast<uint32_t>(std::countr_zero(word));
      word &= word - 1;
    }
  }
  return count;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#endif  // MILLRACE_BIT_POSITIONS_INL_H_
