#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/magnitude/tail_sums_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/magnitude/prefetch.h"
#include "kernels/magnitude/tail_sums.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kSumLanes = 16;

TailSums tail_sums_of(const float* HWY_RESTRICT values, size_t count, uint32_t cut) {
  const hn::CappedTag<double, kSumLanes / 2> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::RebindToSigned<decltype(df)> di;
  constexpr size_t kWidth = hn::MaxLanes(d);
  constexpr size_t kVectors = kSumLanes / kWidth;
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  const auto limit = hn::Set(di, static_cast<int32_t>(cut));
  hn::Vec<decltype(d)> sum[kVectors], magnitude[kVectors], squares[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = magnitude[v] = squares[v] = hn::Zero(d);
  uint64_t below = 0;
  size_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    hwy::Prefetch(values + i + kPrefetchBytes / sizeof(float));
    HWY_UNROLL(16)
    for (size_t v = 0; v < kVectors; ++v) {
      const auto value = hn::LoadU(df, values + i + v * kWidth);
      const auto in = hn::Lt(hn::And(hn::BitCast(di, value), magnitude_bits), limit);
      below += hn::CountTrue(di, in);
      const auto wide = hn::PromoteTo(d, hn::IfThenElseZero(hn::RebindMask(df, in), value));
      sum[v] = hn::Add(sum[v], wide);
      magnitude[v] = hn::Add(magnitude[v], hn::Abs(wide));
      // The square of an f32 is exact in f64: fused or not, the sum is the same.
      squares[v] = hn::MulAdd(wide, wide, squares[v]);
    }
  }
  HWY_ALIGN double lanes[3][kSumLanes];
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(sum[v], d, lanes[0] + v * kWidth);
    hn::Store(magnitude[v], d, lanes[1] + v * kWidth);
    hn::Store(squares[v], d, lanes[2] + v * kWidth);
  }
  for (size_t lane = 0; i < count; ++i, ++lane) {
    if (magnitude_key(values[i]) >= cut) continue;
    ++below;
    const double wide = static_cast<double>(values[i]);
    lanes[0][lane] += wide;
    lanes[1][lane] += wide < 0 ? -wide : wide;
    lanes[2][lane] += wide * wide;
  }
  TailSums sums;
  sums.above = count - below;
  for (size_t lane = 0; lane < kSumLanes; ++lane) {
    sums.sum += lanes[0][lane];
    sums.magnitude += lanes[1][lane];
    sums.squares += lanes[2][lane];
  }
  return sums;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(tail_sums_of);

TailSums tail_sums_f32(const float* values, size_t count, uint32_t cut) {
  return HWY_DYNAMIC_DISPATCH(tail_sums_of)(values, count, cut);
}

}  // namespace millrace
#endif  // HWY_ONCE
