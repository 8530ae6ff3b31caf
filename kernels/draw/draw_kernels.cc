#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/draw/draw_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/draw/draw.h"
#include "kernels/magnitude/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The word's upper 23 bits as a number in [1, 2), without a conversion; never above 1 + word / 2^32. The product and
// the sum round by less than 2^-22, so that with 2^-20 more nothing that is to be drawn is left out.
size_t draw_candidates_of(const float* HWY_RESTRICT values, const uint32_t* HWY_RESTRICT words, size_t count,
                          float inverse, uint32_t* HWY_RESTRICT positions) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const size_t lanes = hn::Lanes(df);
  const auto exponent_of_one = hn::Set(du, 0x3F800000u);
  const auto factor = hn::Set(df, inverse);
  const auto above_one = hn::Set(df, 1 + 0x1p-20f);
  auto at = hn::Iota(du, 0);
  const auto step = hn::Set(du, static_cast<uint32_t>(lanes));
  size_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hwy::Prefetch(values + i + kPrefetchBytes / sizeof(float));
    const auto value = hn::LoadU(df, values + i);
    const auto word = hn::Or(hn::ShiftRight<9>(hn::LoadU(du, words + i)), exponent_of_one);
    const auto in = hn::Lt(hn::BitCast(df, word), hn::MulAdd(hn::Abs(value), factor, above_one));
    hn::StoreU(hn::Compress(at, hn::RebindMask(du, in)), du, positions + found);
    found += hn::CountTrue(df, in);
    at = hn::Add(at, step);
  }
  for (; i < count; ++i) positions[found++] = static_cast<uint32_t>(i);
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(draw_candidates_of);

size_t draw_candidates_f32(const float* values, const uint32_t* words, size_t count, float inverse,
                           uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(draw_candidates_of)(values, words, count, inverse, positions);
}

}  // namespace millrace
#endif  // HWY_ONCE
