#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select/sign_filter.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <cmath>
#include <hwy/highway.h>

#include "kernels/base/check.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/sign_filter.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// As integers: bits with the wanted sign are not negative once that sign is flipped to 0.
void keep_sign_of(const float* HWY_RESTRICT values, size_t count, Sign sign, float* HWY_RESTRICT filtered) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  using Signed = hn::TFromD<decltype(di)>;
  const size_t lanes = hn::Lanes(df);
  const MagnitudeKey flip = sign == Sign::kPositive ? MagnitudeKey{0} : ~(~MagnitudeKey{0} >> 1);
  const auto flip_bits = hn::Set(di, static_cast<Signed>(flip));
  const auto magnitude_bits = hn::Set(di, static_cast<Signed>(~MagnitudeKey{0} >> 1));
  const auto below_infinity = hn::Set(di, static_cast<Signed>(kInfinityKey - 1));
  const auto below_zero = hn::Set(di, Signed{-1});
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::BitCast(di, hn::LoadU(df, values + i));
    const auto keep =
        hn::Or(hn::Gt(hn::Xor(bits, flip_bits), below_zero), hn::Gt(hn::And(bits, magnitude_bits), below_infinity));
    hn::StoreU(hn::BitCast(df, hn::IfThenElseZero(keep, bits)), df, filtered + i);
  }
  for (; i < count; ++i) {
    const bool keep = std::signbit(values[i]) == (sign == Sign::kNegative) || magnitude_key(values[i]) >= kInfinityKey;
    filtered[i] = keep ? values[i] : 0.0F;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(keep_sign_of);

void keep_sign(std::span<const float> values, Sign sign, std::span<float> filtered) {
  MILLRACE_CHECK(values.size() == filtered.size(), values.size(), filtered.size());
  HWY_DYNAMIC_DISPATCH(keep_sign_of)(values.data(), values.size(), sign, filtered.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
