#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/slice_cut.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/reduce/slice_cut.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sums of one slice: 32 KiB, which stay in a first-level cache while they are added to, looked at and cleared.
template <typename T>
constexpr uint64_t kWidth = uint64_t{32'768} / sizeof(T);

/// Adds the lane's entries below `end` to the slice that begins at `begin`.
template <typename T>
HWY_INLINE void AddLane(Lane<T>& lane, uint64_t begin, uint64_t end, T* HWY_RESTRICT sums) {
  const uint32_t base = static_cast<uint32_t>(begin);
  const uint32_t last = static_cast<uint32_t>(end - 1);
  const uint32_t* HWY_RESTRICT const index = lane.index;
  const T* HWY_RESTRICT const value = lane.value;
  const size_t lane_end = lane.end;
  size_t at = lane.at;
  for (; at + 4 <= lane_end && index[at + 3] <= last; at += 4) {
    sums[index[at] - base] += value[at];
    sums[index[at + 1] - base] += value[at + 1];
    sums[index[at + 2] - base] += value[at + 2];
    sums[index[at + 3] - base] += value[at + 3];
  }
  for (; at < lane_end && index[at] <= last; ++at) sums[index[at] - base] += value[at];
  lane.at = at;
}

/// Which of 64 sums are `edge` or more in magnitude, as bits.
template <typename T>
HWY_INLINE uint64_t AtLeast64(const T* HWY_RESTRICT sums, T edge) {
  const hn::ScalableTag<T> d;
  const auto least = hn::Set(d, edge);
  uint8_t bytes[8 + 8] = {};  // a mask of eight lanes and more is stored in place; eight bytes may be written
  uint64_t word = 0;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto in = hn::Ge(hn::Abs(hn::LoadU(d, sums + i)), least);
    if (hn::Lanes(d) >= 8) {
      hn::StoreMaskBits(d, in, bytes + i / 8);
    } else {
      uint8_t few[8] = {};
      hn::StoreMaskBits(d, in, few);
      word |= static_cast<uint64_t>(few[0]) << i;
    }
  }
  if (hn::Lanes(d) >= 8) std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// The words that are not empty, listed without a branch (whether one is, is a matter of chance). Returns how many.
template <typename T>
HWY_INLINE size_t FindAtLeast(const T* HWY_RESTRICT sums, size_t words, T edge, uint64_t* HWY_RESTRICT found_word,
                              uint32_t* HWY_RESTRICT found_at) {
  size_t found = 0;
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = AtLeast64(sums + 64 * i, edge);
    found_word[found] = word;
    found_at[found] = static_cast<uint32_t>(64 * i);
    found += word != 0 ? 1 : 0;
  }
  return found;
}

/// Writes the entries of one word. Returns how many; up to kSliceCutSlack more are clobbered.
template <typename T>
HWY_INLINE size_t TakeWord(uint64_t word, uint32_t base, const T* HWY_RESTRICT sums, uint32_t* HWY_RESTRICT out_index,
                           T* HWY_RESTRICT out_value) {
  const size_t count = static_cast<size_t>(std::popcount(word));
  // Two entries a turn, the one past the last included: most words have no more, so the branch is foreseen. An exhausted
  // word gives offset 64, which may be read, and the entry is overwritten by the next word's.
  size_t at = 0;
  do {
    for (size_t turn = 0; turn < 2; ++turn, ++at) {
      const uint32_t offset = static_cast<uint32_t>(std::countr_zero(word));
      out_index[at] = base + offset;
      out_value[at] = sums[offset];
      word &= word - 1;
    }
  } while (at < count);
  return count;
}

template <typename T>
HWY_INLINE void Clear(T* HWY_RESTRICT sums, size_t count) {
  const hn::ScalableTag<T> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(hn::Set(d, -T{0}), d, sums + i);
}

template <typename T>
size_t SumAtLeast(std::span<Lane<T>> lanes, uint64_t begin, uint64_t end, SliceScratch<T>& scratch, T edge,
                  uint32_t* HWY_RESTRICT out_index, T* HWY_RESTRICT out_value) {
  static_assert(kWidth<T> <= SliceScratch<T>::kWidth);
  uint64_t word[kWidth<T> / 64];
  uint32_t word_at[kWidth<T> / 64];
  T* HWY_RESTRICT const sums = scratch.sums.data();
  size_t written = 0;
  for (uint64_t base = begin; base < end; base += kWidth<T>) {
    const uint64_t slice_end = std::min(end, base + kWidth<T>);
    for (Lane<T>& lane : lanes) AddLane(lane, base, slice_end, sums);
    const size_t words = static_cast<size_t>((slice_end - base + 63) / 64);
    const size_t found = FindAtLeast(sums, words, edge, word, word_at);
    for (size_t i = 0; i < found; ++i) {
      written += TakeWord(word[i], static_cast<uint32_t>(base) + word_at[i], sums + word_at[i], out_index + written,
                          out_value + written);
    }
    Clear(sums, 64 * words);
  }
  return written;
}

size_t SumAtLeastF32(std::span<Lane<float>> lanes, uint64_t begin, uint64_t end, SliceScratch<float>& scratch,
                     float edge, uint32_t* out_index, float* out_value) {
  return SumAtLeast(lanes, begin, end, scratch, edge, out_index, out_value);
}
size_t SumAtLeastF64(std::span<Lane<double>> lanes, uint64_t begin, uint64_t end, SliceScratch<double>& scratch,
                     double edge, uint32_t* out_index, double* out_value) {
  return SumAtLeast(lanes, begin, end, scratch, edge, out_index, out_value);
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(SumAtLeastF32);
HWY_EXPORT(SumAtLeastF64);

size_t sum_scattered_at_least(std::span<Lane<float>> lanes, uint64_t begin, uint64_t end, SliceScratch<float>& scratch,
                              float edge, uint32_t* out_index, float* out_value) {
  return HWY_DYNAMIC_DISPATCH(SumAtLeastF32)(lanes, begin, end, scratch, edge, out_index, out_value);
}
size_t sum_scattered_at_least(std::span<Lane<double>> lanes, uint64_t begin, uint64_t end,
                              SliceScratch<double>& scratch, double edge, uint32_t* out_index, double* out_value) {
  return HWY_DYNAMIC_DISPATCH(SumAtLeastF64)(lanes, begin, end, scratch, edge, out_index, out_value);
}

}  // namespace millrace
#endif
