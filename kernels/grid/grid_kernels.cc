#include "kernels/grid/grid_kernels.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/grid/grid_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// To the nearest, ties to even, for |x| < 2^51: behind the sum an f64 has no bits left for a fraction.
constexpr double kNoFraction = 0x1.8p52;

uint32_t round_all(const float* values, size_t count, double inverse, double most, int32_t* out) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<int32_t, decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, inverse);
  const auto upper = hn::Set(d, most);
  const auto lower = hn::Set(d, -most);
  const auto no_fraction = hn::Set(d, kNoFraction);
  size_t at_bound = 0;
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto scaled = hn::Mul(hn::PromoteTo(d, hn::LoadU(df, values + at)), by);
    const auto bounded = hn::Min(hn::Max(scaled, lower), upper);
    at_bound += hn::CountTrue(d, hn::Ge(hn::Abs(scaled), upper));
    const auto integer = hn::Sub(hn::Add(bounded, no_fraction), no_fraction);
    hn::StoreU(hn::DemoteTo(di, integer), di, out + at);
  }
  for (; at < count; ++at) {
    const double scaled = static_cast<double>(values[at]) * inverse;
    const double bounded = std::min(std::max(scaled, -most), most);
    at_bound += std::fabs(scaled) >= most ? 1 : 0;
    out[at] = static_cast<int32_t>((bounded + kNoFraction) - kNoFraction);
  }
  return static_cast<uint32_t>(at_bound);
}

void scale_f32(const int32_t* integers, size_t count, double step, float* out) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<int32_t, decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, step);
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    hn::StoreU(hn::DemoteTo(df, hn::Mul(hn::PromoteTo(d, hn::LoadU(di, integers + at)), by)), df, out + at);
  }
  for (; at < count; ++at) out[at] = static_cast<float>(static_cast<double>(integers[at]) * step);
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(round_all);
HWY_EXPORT(scale_f32);

uint32_t round_to_integers(std::span<const float> values, double inverse, double most, std::span<int32_t> out) {
  MILLRACE_CHECK(values.size() == out.size(), values.size(), out.size());
  return HWY_DYNAMIC_DISPATCH(round_all)(values.data(), values.size(), inverse, most, out.data());
}

void scale_integers(std::span<const int32_t> integers, double step, std::span<float> out) {
  MILLRACE_CHECK(integers.size() == out.size(), integers.size(), out.size());
  HWY_DYNAMIC_DISPATCH(scale_f32)(integers.data(), integers.size(), step, out.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
