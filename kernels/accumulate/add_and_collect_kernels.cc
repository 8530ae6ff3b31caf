#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/accumulate/add_and_collect_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/magnitude/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kCollectWord = 64;

/// Adds a block; bit i of `in` says whether sum i reaches key_min. `in` is all zeros before.
void AddAndMark(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, size_t count, float scale,
                uint32_t key_min, uint8_t* HWY_RESTRICT in) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  // As in the scan: x >= m is x > m - 1, and keys have no sign bit.
  const auto below = hn::Set(di, static_cast<int32_t>(key_min) - 1);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hwy::Prefetch(values + i + kPrefetchBytes / sizeof(float));
    hwy::Prefetch(target + i + kPrefetchBytes / sizeof(float));
    // The product is rounded before it is added, as in add_scaled().
    const auto sum = hn::Add(hn::LoadU(d, target + i), hn::Mul(factor, hn::LoadU(d, values + i)));
    hn::StoreU(sum, d, target + i);
    const auto mask = hn::Gt(hn::And(hn::BitCast(di, sum), magnitude_bits), below);
    if (hn::Lanes(d) >= 8) {
      hn::StoreMaskBits(di, mask, in + i / 8);
    } else {
      uint8_t few[8] = {};  // StoreMaskBits may write as many
      hn::StoreMaskBits(di, mask, few);
      in[i / 8] = static_cast<uint8_t>(in[i / 8] | few[0] << i % 8);
    }
  }
  for (; i < count; ++i) {
    target[i] += scale * values[i];
    if (magnitude_key(target[i]) >= key_min) in[i / 8] = static_cast<uint8_t>(in[i / 8] | 1u << i % 8);
  }
}

size_t AddAndCollect(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, size_t count, float scale,
                     uint32_t position, uint32_t key_min, uint32_t* HWY_RESTRICT positions,
                     uint32_t* HWY_RESTRICT keys) {
  uint8_t in[kScanBlock / 8 + 8] = {};
  AddAndMark(target, values, count, scale, key_min, in);
  size_t found = 0;
  for (size_t at = 0; at < count; at += kCollectWord) {
    uint64_t word;
    std::memcpy(&word, in + at / 8, sizeof(word));
    const size_t in_word = static_cast<size_t>(std::popcount(word));
    // Two entries a turn, those past the last included: a word mostly needs one turn, so the branch is foreseen. An
    // exhausted word gives entries that the next word's overwrite.
    size_t taken = 0;
    do {
      positions[found + taken] = position + static_cast<uint32_t>(at + std::countr_zero(word));
      word &= word - 1;
      positions[found + taken + 1] = position + static_cast<uint32_t>(at + std::countr_zero(word));
      word &= word - 1;
      taken += kCollectSlack;
    } while (taken < in_word);
    found += in_word;
  }
  for (size_t i = 0; i < found; ++i) keys[i] = magnitude_key(target[positions[i] - position]);
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/base/check.h"

namespace millrace {

HWY_EXPORT(AddAndCollect);

size_t add_and_collect_block(std::span<float> target, std::span<const float> values, float scale, uint32_t position,
                             MagnitudeKey key_min, uint32_t* positions, MagnitudeKey* keys) {
  MILLRACE_CHECK(target.size() == values.size() && target.size() <= kScanBlock, target.size(), values.size());
  return HWY_DYNAMIC_DISPATCH(AddAndCollect)(target.data(), values.data(), target.size(), scale, position, key_min,
                                             positions, keys);
}

}  // namespace millrace
#endif  // HWY_ONCE
