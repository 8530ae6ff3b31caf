#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/slice_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "kernels/reduce/slice_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void Fill(float* HWY_RESTRICT at, size_t count, float value) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto values = hn::Set(d, value);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(values, d, at + i);
  for (; i < count; ++i) at[i] = value;
}

/// The sums of one word of the bitmap, back to nothing.
HWY_INLINE void Clear64(float* HWY_RESTRICT sums) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) hn::StoreU(hn::Set(d, -0.0F), d, sums + i);
}

void Add(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, target + i), hn::LoadU(d, values + i)), d, target + i);
  }
  for (; i < count; ++i) target[i] += values[i];
}

void AddScaled(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, size_t count, float scale) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto product = hn::Mul(factor, hn::LoadU(d, values + i));
    hn::StoreU(hn::Add(hn::LoadU(d, target + i), product), d, target + i);
  }
  for (; i < count; ++i) target[i] += scale * values[i];
}

/// Adds the lane's entries below `end` to the slice that begins at `begin`.
HWY_INLINE void Scatter(Lane& lane, uint64_t begin, uint64_t end, float* HWY_RESTRICT sums,
                        uint64_t* HWY_RESTRICT present) {
  const uint32_t base = static_cast<uint32_t>(begin);
  const uint32_t last = static_cast<uint32_t>(end - 1);
  const uint32_t* HWY_RESTRICT const index = lane.index;
  const float* HWY_RESTRICT const value = lane.value;
  const size_t lane_end = lane.end;
  const auto add = [&](size_t at) {
    const uint32_t offset = index[at] - base;
    sums[offset] += value[at];
    present[offset / 64] |= uint64_t{1} << (offset % 64);
  };
  size_t at = lane.at;
  for (; at + 4 <= lane_end && index[at + 3] <= last; at += 4) {
    add(at);
    add(at + 1);
    add(at + 2);
    add(at + 3);
  }
  for (; at < lane_end && index[at] <= last; ++at) add(at);
  lane.at = at;
}

/// Takes the entries of one word of the bitmap out of the scratch. Returns how many.
HWY_INLINE size_t TakeWord(uint64_t word, uint32_t base, float* HWY_RESTRICT sums, uint32_t* HWY_RESTRICT out_index,
                           float* HWY_RESTRICT out_value) {
  const size_t count = static_cast<size_t>(std::popcount(word));
  const auto take = [&](size_t at) {
    const uint32_t offset = static_cast<uint32_t>(std::countr_zero(word));
    out_index[at] = base + offset;
    out_value[at] = sums[offset];
    word &= word - 1;
  };
  // Four entries a turn, those past the last included: a word mostly needs one turn, so the branch is foreseen. An
  // exhausted word gives offset 64, which may be read, and the entry is overwritten by the next word's.
  size_t at = 0;
  do {
    take(at);
    take(at + 1);
    take(at + 2);
    take(at + 3);
    at += 4;
  } while (at < count);
  Clear64(sums);
  return count;
}

HWY_INLINE size_t TakeFullWord(uint32_t base, float* HWY_RESTRICT sums, uint32_t* HWY_RESTRICT out_index,
                               float* HWY_RESTRICT out_value) {
  const hn::ScalableTag<uint32_t> d;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) {
    hn::StoreU(hn::Iota(d, base + static_cast<uint32_t>(i)), d, out_index + i);
  }
  std::copy_n(sums, 64, out_value);
  Clear64(sums);
  return 64;
}

/// The words of the bitmap that are not empty, listed without a branch: whether a word is, is a matter of chance.
HWY_INLINE size_t FindWords(const uint64_t* HWY_RESTRICT present, size_t words, uint32_t* HWY_RESTRICT occupied) {
  size_t found = 0;
  for (size_t i = 0; i < words; ++i) {
    occupied[found] = static_cast<uint32_t>(i);
    found += present[i] != 0 ? 1 : 0;
  }
  return found;
}

size_t SumScattered(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch,
                    uint32_t* HWY_RESTRICT out_index, float* HWY_RESTRICT out_value) {
  size_t written = 0;
  uint32_t occupied[SliceScratch::kWidth / 64];
  float* HWY_RESTRICT const sums = scratch.sums.data();
  uint64_t* HWY_RESTRICT const present = scratch.present.data();
  for (uint64_t base = begin; base < end; base += SliceScratch::kWidth) {
    const uint64_t slice_end = std::min(end, base + SliceScratch::kWidth);
    for (Lane& lane : lanes) Scatter(lane, base, slice_end, sums, present);
    const size_t words = FindWords(present, (slice_end - base + 63) / 64, occupied);
    for (size_t i = 0; i < words; ++i) {
      const size_t at = occupied[i];
      const uint64_t word = std::exchange(present[at], 0);
      const uint32_t first = static_cast<uint32_t>(base + 64 * at);
      written += word == ~uint64_t{0} ? TakeFullWord(first, sums + 64 * at, out_index + written, out_value + written)
                                      : TakeWord(word, first, sums + 64 * at, out_index + written, out_value + written);
    }
  }
  return written;
}

/// One slice [begin, end) of the dense sum; `at` are the positions of the sparse streams, which move on.
void SumDenseSlice(std::span<const StreamView> streams, uint64_t begin, uint64_t end, std::span<size_t> at,
                   float* HWY_RESTRICT out) {
  const size_t count = end - begin;
  const bool copied = streams.front().dense;
  if (copied) {
    std::copy_n(streams.front().values.data() + begin, count, out);
  } else {
    Fill(out, count, -0.0F);
  }
  for (size_t i = copied ? 1 : 0; i < streams.size(); ++i) {
    const StreamView& stream = streams[i];
    if (stream.dense) {
      Add(out, stream.values.data() + begin, count);
      continue;
    }
    size_t position = at[i];
    for (; position < stream.indices.size() && stream.indices[position] < end; ++position) {
      out[stream.indices[position] - begin] += stream.values[position];
    }
    at[i] = position;
  }
}

void SumIntoDense(std::span<const StreamView> streams, std::span<float> out) {
  constexpr uint64_t kWidth = SliceScratch::kWidth;
  std::vector<size_t> at(streams.size(), 0);
  for (uint64_t begin = 0; begin < out.size(); begin += kWidth) {
    SumDenseSlice(streams, begin, std::min<uint64_t>(out.size(), begin + kWidth), at, out.data() + begin);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/base/check.h"

namespace millrace {

HWY_EXPORT(SumScattered);
HWY_EXPORT(SumIntoDense);
HWY_EXPORT(AddScaled);

size_t sum_scattered(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch, uint32_t* out_index,
                     float* out_value) {
  return HWY_DYNAMIC_DISPATCH(SumScattered)(lanes, begin, end, scratch, out_index, out_value);
}
void sum_into_dense(std::span<const StreamView> streams, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(SumIntoDense)(streams, out);
}
void add_scaled_dense(std::span<float> target, std::span<const float> values, float scale) {
  MILLRACE_CHECK(target.size() == values.size(), target.size(), values.size());
  HWY_DYNAMIC_DISPATCH(AddScaled)(target.data(), values.data(), target.size(), scale);
}

}  // namespace millrace
#endif
