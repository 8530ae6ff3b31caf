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

// Returns the largest lane, at least `largest`.
template <class D, class V>
MagnitudeKey largest_lane(D di, V keys, MagnitudeKey largest) {
  HWY_ALIGN hn::TFromD<D> lane_max[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  hn::Store(keys, di, lane_max);
  for (size_t lane = 0; lane < hn::Lanes(di); ++lane) {
    const auto key = static_cast<MagnitudeKey>(lane_max[lane]);
    largest = key > largest ? key : largest;
  }
  return largest;
}

enum class Written : uint8_t { kNothing, kPositions, kPositionsAndKeys };

// Compresses to a register and stores the whole vector. The compressing store to memory is slow on some machines, and a
// branch per vector is mispredicted at the densities that matter.
template <Written kWritten>
ScannedBlock scan(const float* HWY_RESTRICT values, size_t count, uint32_t position, uint32_t key_min,
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
  auto most = hn::Zero(di);
  ScannedBlock block;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    prefetch_after(values + i);
    const auto key = hn::And(hn::BitCast(di, hn::LoadU(df, values + i)), magnitude_bits);
    const auto in = hn::Gt(key, below);
    most = hn::Max(most, key);
    if constexpr (kWritten == Written::kPositionsAndKeys) {
      hn::StoreU(hn::BitCast(du, hn::Compress(key, in)), du, keys + block.found);
    }
    if constexpr (kWritten != Written::kNothing) {
      hn::StoreU(hn::Compress(at, hn::RebindMask(du, in)), du, positions + block.found);
      at = hn::Add(at, step);
    }
    block.found += hn::CountTrue(di, in);
  }
  for (; i < count; ++i) {
    const uint32_t key = magnitude_key(values[i]);
    block.largest = key > block.largest ? key : block.largest;
    if constexpr (kWritten == Written::kPositionsAndKeys) keys[block.found] = key;
    if constexpr (kWritten != Written::kNothing) positions[block.found] = position + static_cast<uint32_t>(i);
    block.found += key >= key_min ? 1 : 0;
  }
  block.largest = largest_lane(di, most, block.largest);
  return block;
}

ScannedBlock scan_both(const float* values, size_t count, uint32_t position, uint32_t key_min, uint32_t* positions,
                       uint32_t* keys) {
  return scan<Written::kPositionsAndKeys>(values, count, position, key_min, positions, keys);
}

ScannedBlock scan_positions_alone(const float* values, size_t count, uint32_t position, uint32_t key_min,
                                  uint32_t* positions) {
  return scan<Written::kPositions>(values, count, position, key_min, positions, nullptr);
}

ScannedBlock scan_and_count(const float* values, size_t count, uint32_t key_min) {
  return scan<Written::kNothing>(values, count, 0, key_min, nullptr, nullptr);
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
  MagnitudeKey result = largest_lane(di, hn::Max(hn::Max(max0, max1), hn::Max(max2, max3)), 0);
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

HWY_EXPORT(scan_both);
HWY_EXPORT(scan_positions_alone);
HWY_EXPORT(scan_and_count);
HWY_EXPORT(max_key_of);

ScannedBlock scan_block(const float* values, size_t count, uint32_t position, MagnitudeKey key_min, uint32_t* positions,
                        MagnitudeKey* keys) {
  return HWY_DYNAMIC_DISPATCH(scan_both)(values, count, position, key_min, positions, keys);
}

ScannedBlock scan_positions(const float* values, size_t count, uint32_t position, MagnitudeKey key_min,
                            uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(scan_positions_alone)(values, count, position, key_min, positions);
}

ScannedBlock count_at_least(std::span<const float> values, MagnitudeKey key_min) {
  return HWY_DYNAMIC_DISPATCH(scan_and_count)(values.data(), values.size(), key_min);
}

MagnitudeKey max_key(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(max_key_of)(values.data(), values.size());
}

}  // namespace millrace
#endif  // HWY_ONCE
