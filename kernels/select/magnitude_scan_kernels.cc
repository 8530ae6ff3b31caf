#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select/magnitude_scan_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/select/magnitude_scan.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How far ahead of the loads to prefetch: a page, where the hardware's own prefetcher stops. Gains a fifth on the read
// pass and a third on scans, which the hardware does not run far enough ahead of.
constexpr size_t kPrefetchBytes = 4096;

template <typename T>
HWY_INLINE void prefetch_after(const T* at) {
  hwy::Prefetch(at + kPrefetchBytes / sizeof(T));
}

// Compress to a register and store the whole vector: the compressing store to memory is slow on some machines, and a
// branch per vector is mispredicted at the densities that matter.
size_t scan_f32(const float* HWY_RESTRICT values, size_t count, uint32_t position, uint32_t key_min,
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

size_t scan_f64(const double* HWY_RESTRICT values, size_t count, uint32_t position, uint64_t key_min,
                uint32_t* HWY_RESTRICT positions, uint64_t* HWY_RESTRICT keys) {
  const hn::ScalableTag<double> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const size_t lanes = hn::Lanes(df);
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFFFFFFFFFF);
  const auto below = hn::Set(di, static_cast<int64_t>(key_min) - 1);
  auto at = hn::Iota(du, position);
  const auto step = hn::Set(du, lanes);
  HWY_ALIGN uint64_t wide[HWY_MAX_BYTES / sizeof(uint64_t)];
  size_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    prefetch_after(values + i);
    const auto key = hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), magnitude_bits);
    const auto in = hn::Gt(key, below);
    hn::StoreU(hn::BitCast(du, hn::Compress(key, in)), du, keys + found);
    hn::Store(hn::Compress(at, hn::RebindMask(du, in)), du, wide);
    for (size_t lane = 0; lane < lanes; ++lane) positions[found + lane] = static_cast<uint32_t>(wide[lane]);
    found += hn::CountTrue(di, in);
    at = hn::Add(at, step);
  }
  for (; i < count; ++i) {
    const uint64_t key = magnitude_key(values[i]);
    keys[found] = key;
    positions[found] = position + static_cast<uint32_t>(i);
    found += key >= key_min ? 1 : 0;
  }
  return found;
}

// Four accumulators hide the latency of the maximum; the loads are what it costs.
template <typename T, typename Key>
Key max_key_of(const T* HWY_RESTRICT values, size_t count) {
  const hn::ScalableTag<T> df;
  const hn::RebindToSigned<decltype(df)> di;
  using Signed = hn::TFromD<decltype(di)>;
  const size_t lanes = hn::Lanes(df);
  const auto magnitude_bits = hn::Set(di, static_cast<Signed>(~Key{0} >> 1));
  auto max0 = hn::Zero(di);
  auto max1 = max0;
  auto max2 = max0;
  auto max3 = max0;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (size_t line = 0; line < 4 * lanes; line += 64 / sizeof(T)) prefetch_after(values + i + line);
    max0 = hn::Max(max0, hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), magnitude_bits));
    max1 = hn::Max(max1, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + lanes)), magnitude_bits));
    max2 = hn::Max(max2, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + 2 * lanes)), magnitude_bits));
    max3 = hn::Max(max3, hn::And(hn::BitCast(di, hn::LoadU(df, values + i + 3 * lanes)), magnitude_bits));
  }
  const auto all = hn::Max(hn::Max(max0, max1), hn::Max(max2, max3));
  HWY_ALIGN Signed lane_max[HWY_MAX_BYTES / sizeof(Signed)];
  hn::Store(all, di, lane_max);
  Key result = 0;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const Key key = static_cast<Key>(lane_max[lane]);
    result = key > result ? key : result;
  }
  for (; i < count; ++i) {
    const Key key = magnitude_key(values[i]);
    result = key > result ? key : result;
  }
  return result;
}

uint32_t max_key_f32(const float* values, size_t count) { return max_key_of<float, uint32_t>(values, count); }
uint64_t max_key_f64(const double* values, size_t count) { return max_key_of<double, uint64_t>(values, count); }

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(scan_f32);
HWY_EXPORT(scan_f64);
HWY_EXPORT(max_key_f32);
HWY_EXPORT(max_key_f64);

template <>
size_t scan_block<float>(const float* values, size_t count, uint32_t position, uint32_t key_min, uint32_t* positions,
                         uint32_t* keys) {
  return HWY_DYNAMIC_DISPATCH(scan_f32)(values, count, position, key_min, positions, keys);
}

template <>
size_t scan_block<double>(const double* values, size_t count, uint32_t position, uint64_t key_min, uint32_t* positions,
                          uint64_t* keys) {
  return HWY_DYNAMIC_DISPATCH(scan_f64)(values, count, position, key_min, positions, keys);
}

template <>
uint32_t max_key<float>(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(max_key_f32)(values.data(), values.size());
}

template <>
uint64_t max_key<double>(std::span<const double> values) {
  return HWY_DYNAMIC_DISPATCH(max_key_f64)(values.data(), values.size());
}

}  // namespace millrace
#endif  // HWY_ONCE
