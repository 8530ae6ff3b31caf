#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/slice_sum_at_least.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/reduce/slice_sum_at_least.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sums of one slice: 32 KiB, which stay in a first-level cache while they are added to, looked at and cleared.
constexpr uint64_t kSliceWidth = uint64_t{32'768} / sizeof(float);

// Where a slice holds an entry or more in this number of indices, it compares all of its sums, a vector at a time. That
// costs less than comparing at every addition. Measured with `millrace-bench reduce`.
constexpr uint64_t kCompareAllIndicesPerEntry = 20;

/// Calls add(offset, value) for the lane's entries below `end`, in the slice that begins at `begin`.
template <typename Add>
HWY_INLINE void ForLane(Lane& lane, uint64_t begin, uint64_t end, Add add) {
  const uint32_t base = static_cast<uint32_t>(begin);
  const uint32_t last = static_cast<uint32_t>(end - 1);
  const uint32_t* HWY_RESTRICT const index = lane.index;
  const float* HWY_RESTRICT const value = lane.value;
  const size_t lane_end = lane.end;
  size_t at = lane.at;
  for (; at + 4 <= lane_end && index[at + 3] <= last; at += 4) {
    add(index[at] - base, value[at]);
    add(index[at + 1] - base, value[at + 1]);
    add(index[at + 2] - base, value[at + 2]);
    add(index[at + 3] - base, value[at + 3]);
  }
  for (; at < lane_end && index[at] <= last; ++at) add(index[at] - base, value[at]);
  lane.at = at;
}

/// The bits of 64 lanes: mask(i) is that of the lanes from i on.
template <class D, typename Mask>
HWY_INLINE uint64_t Bits64(D d, Mask mask) {
  uint8_t bytes[8 + 8] = {};  // a mask of eight lanes and more is stored in place; eight bytes may be written
  uint64_t word = 0;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    if (hn::Lanes(d) >= 8) {
      hn::StoreMaskBits(d, mask(i), bytes + i / 8);
    } else {
      uint8_t few[8] = {};
      hn::StoreMaskBits(d, mask(i), few);
      word |= static_cast<uint64_t>(few[0]) << i;
    }
  }
  if (hn::Lanes(d) >= 8) std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Which of 64 sums are `edge` or more in magnitude.
HWY_INLINE uint64_t AtLeast64(const float* HWY_RESTRICT sums, float edge) {
  const hn::ScalableTag<float> d;
  const auto least = hn::Set(d, edge);
  return Bits64(d, [&](size_t i) HWY_ATTR { return hn::Ge(hn::Abs(hn::LoadU(d, sums + i)), least); });
}

/// Which of 64 flags are set; clears them.
HWY_INLINE uint64_t TakeFlags64(uint8_t* HWY_RESTRICT flags) {
  const hn::CappedTag<uint8_t, 64> d;
  const uint64_t word = Bits64(d, [&](size_t i) HWY_ATTR { return hn::Ne(hn::LoadU(d, flags + i), hn::Zero(d)); });
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) hn::StoreU(hn::Zero(d), d, flags + i);
  return word;
}

/// The words that are not empty.
struct Found {
  uint64_t word[kSliceWidth / 64];
  uint32_t at[kSliceWidth / 64];
  size_t count = 0;

  /// Listed without a branch: whether one is empty is a matter of chance.
  HWY_INLINE void add(uint64_t bits, size_t first) {
    word[count] = bits;
    at[count] = static_cast<uint32_t>(first);
    count += bits != 0 ? 1 : 0;
  }
};

/// Writes the entries of one word. Returns how many; up to kSliceSumSlack more are clobbered.
HWY_INLINE size_t TakeWord(uint64_t word, uint32_t base, const float* HWY_RESTRICT sums,
                           uint32_t* HWY_RESTRICT out_index, float* HWY_RESTRICT out_value) {
  const size_t count = static_cast<size_t>(std::popcount(word));
  // Two entries a turn, the one past the last included: most words have no more, so the branch is foreseen. An
  // exhausted word gives offset 64, which may be read, and the entry is overwritten by the next word's.
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

HWY_INLINE void ClearAll(float* HWY_RESTRICT sums, size_t count) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(hn::Set(d, -0.0F), d, sums + i);
}

/// Clears the sums of the entries from `at` to where the lane stands now.
HWY_INLINE void ClearLane(const Lane& lane, size_t at, uint64_t begin, float* HWY_RESTRICT sums) {
  const uint32_t base = static_cast<uint32_t>(begin);
  for (; at < lane.at; ++at) sums[lane.index[at] - base] = -0.0F;
}

/// One slice of SumAtLeast(): sums, and where the large ones are.
struct Slice {
  float* HWY_RESTRICT sums;
  uint8_t* HWY_RESTRICT flags;
  uint64_t begin;
  uint64_t end;
  float edge;

  size_t words() const { return static_cast<size_t>((end - begin + 63) / 64); }
};

/// Many entries: all are added, then all sums compared.
HWY_INLINE void AddThenCompare(std::span<Lane> lanes, const Slice& slice, Found& found) {
  float* HWY_RESTRICT const sums = slice.sums;
  for (Lane& lane : lanes) {
    ForLane(lane, slice.begin, slice.end, [sums](uint32_t offset, float value) HWY_ATTR { sums[offset] += value; });
  }
  for (size_t i = 0; i < slice.words(); ++i) found.add(AtLeast64(sums + 64 * i, slice.edge), 64 * i);
}

/// Few entries: each addition says whether its sum is large now; the last one's word counts.
HWY_INLINE void AddAndCompare(std::span<Lane> lanes, const Slice& slice, Found& found) {
  float* HWY_RESTRICT const sums = slice.sums;
  uint8_t* HWY_RESTRICT const flags = slice.flags;
  const float edge = slice.edge;
  for (Lane& lane : lanes) {
    ForLane(lane, slice.begin, slice.end, [sums, flags, edge](uint32_t offset, float value) HWY_ATTR {
      const float sum = sums[offset] + value;
      sums[offset] = sum;
      flags[offset] = std::fabs(sum) >= edge ? 1 : 0;
    });
  }
  for (size_t i = 0; i < slice.words(); ++i) found.add(TakeFlags64(flags + 64 * i), 64 * i);
}

size_t SumAtLeast(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch, float edge,
                  uint32_t* HWY_RESTRICT out_index, float* HWY_RESTRICT out_value) {
  static_assert(kSliceWidth <= SliceScratch::kWidth);
  uint64_t entries = 0;
  for (const Lane& lane : lanes) entries += lane.end - lane.at;
  const bool many = entries >= (end - begin) / kCompareAllIndicesPerEntry;
  alignas(64) uint8_t flags[kSliceWidth] = {};
  std::vector<size_t> first(lanes.size());
  float* HWY_RESTRICT const sums = scratch.sums.data();
  size_t written = 0;
  for (uint64_t base = begin; base < end; base += kSliceWidth) {
    const Slice slice{sums, flags, base, std::min(end, base + kSliceWidth), edge};
    Found found;
    for (size_t i = 0; i < lanes.size(); ++i) first[i] = lanes[i].at;
    if (many) {
      AddThenCompare(lanes, slice, found);
    } else {
      AddAndCompare(lanes, slice, found);
    }
    for (size_t i = 0; i < found.count; ++i) {
      written += TakeWord(found.word[i], static_cast<uint32_t>(base) + found.at[i], sums + found.at[i],
                          out_index + written, out_value + written);
    }
    if (many) {
      ClearAll(sums, 64 * slice.words());
    } else {
      for (size_t i = 0; i < lanes.size(); ++i) ClearLane(lanes[i], first[i], base, sums);
    }
  }
  return written;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(SumAtLeast);

size_t sum_scattered_at_least(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch, float edge,
                              uint32_t* out_index, float* out_value) {
  return HWY_DYNAMIC_DISPATCH(SumAtLeast)(lanes, begin, end, scratch, edge, out_index, out_value);
}

}  // namespace millrace
#endif
