#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/magnitude/magnitude_scan_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void prefetch_after(const float* at) { hwy::Prefetch(at + kPrefetchBytes / sizeof(float)); }

// Compresses to a register and stores the whole vector. The compressing store to memory is slow on some machines, and a
// branch per vector is mispredicted at the densities that matter.
size_t scan(const float* HWY_RESTRICT values, size_t count, uint32_t position, uint32_t key_min,
            uint32_t* HWY_RESTRICT positions, uint32_t* HWY_RESTRICT keys) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const size_t lanes = hn::Lanes(df);
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  // Keys have no sign bit, so signed comparison (the one that every ISA has) orders them; x >= m is x > m - 1.
  const auto below = hn::Set(di, static_cast<int32_t>(key_min) - 1);
  auto at = hn::Iota(du, position);
  const auto step = hn::Set(du, static_cast<uint32_t>(lanes));
  size_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    prefetch_after(values + i);
    const auto key = hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), magnitude_bits);
    const auto in = hn::Gt(key, below);
    hn::StoreU(hn::BitCast(du, hn::Compress(key, in)), du, keys + found);
    hn::StoreU(hn::Compress(at, hn::RebindMask(du, in)), du, positions + found);
    found += hn::CountTrue(di, in);
    at = hn::Add(at, step);
  }
  for (; i < count; ++i) {
    const uint32_t key = magnitude_key(values[i]);
    keys[found] = key;
    positions[found] = position + static_cast<uint32_t>(i);
    found += key >= key_min ? 1 : 0;
  }
  return found;
}

// Four accumulators hide the latency of the maximum; the loads are the cost.
MagnitudeKey max_key_of(const float* HWY_RESTRICT values, size_t count) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  using Signed = hn::TFromD<decltype(di)>;
  const size_t lanes = hn::Lanes(df);
  const auto magnitude_bits = hn::Set(di, static_cast<Signed>(~MagnitudeKey{0} >> 1));
  auto max0 = hn::Zero(di);
  auto max1 = max0;
  auto max2 = max0;
  auto max3 = max0;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (size_t line = 0; line < 4 * lanes; line += 64 / sizeof(float)) prefetch_after(values + i + line);
    max0 = hn::Max(max0, hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), magnitude_bits));
    max1 = hn::Max(max1, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + lanes)), magnitude_bits));
    max2 = hn::Max(max2, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + 2 * lanes)), magnitude_bits));
    max3 = hn::Max(max3, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + 3 * lanes)), magnitude_bits));
  }
  const auto all = hn::Max(hn::Max(max0, max1), hn::Max(max2, max3));
  HWY_ALIGN Signed lane_max[HWY_MAX_BYTES / sizeof(Signed)];
  hn::Store(all, di, lane_max);
  MagnitudeKey result = 0;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const MagnitudeKey key = static_cast<MagnitudeKey>(lane_max[lane]);
    result = key > result ? key : result;
  }
  for (; i < count; ++i) {
    const MagnitudeKey key = magnitude_key(values[i]);
    result = key > result ? key : result;
  }
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(scan);
HWY_EXPORT(max_key_of);

size_t scan_block(const float* values, size_t count, uint32_t position, MagnitudeKey key_min, uint32_t* positions,
                  MagnitudeKey* keys) {
  return HWY_DYNAMIC_DISPATCH(scan)(values, count, position, key_min, positions, keys);
}

MagnitudeKey max_key(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(max_key_of)(values.data(), values.size());
}

}  // namespace millrace
#endif  // HWY_ONCE
