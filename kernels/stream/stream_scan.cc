#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/stream/stream_scan.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "kernels/stream/stream_scan.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Answers are asked for once a block: an early end is worth having, a branch a vector is not.
constexpr size_t kBlock = 2048;

bool StrictlyIncreasing(const uint32_t* HWY_RESTRICT indices, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto sign = hn::Set(d, 0x8000'0000u);
  size_t i = 0;
  while (i + lanes < count) {
    const size_t end = std::min(i + kBlock, count);
    auto right_order = hn::Set(di, -1);
    for (; i + lanes < end; i += lanes) {
      // Signed comparison, the one that every instruction set has, of values moved by 2^31 orders them as unsigned.
      const auto left = hn::BitCast(di, hn::Xor(hn::LoadU(d, indices + i), sign));
      const auto right = hn::BitCast(di, hn::Xor(hn::LoadU(d, indices + i + 1), sign));
      right_order = hn::And(right_order, hn::VecFromMask(di, hn::Lt(left, right)));
    }
    if (!hn::AllTrue(di, hn::MaskFromVec(right_order))) return false;
    if (end == count) break;
  }
  for (; i + 1 < count; ++i) {
    if (indices[i] >= indices[i + 1]) return false;
  }
  return true;
}

bool AllFinite(const float* HWY_RESTRICT values, size_t count) {
  constexpr uint32_t kExponent = 0x7f80'0000u;
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(du, kExponent);
  size_t i = 0;
  while (i + lanes <= count) {
    const size_t end = std::min(i + kBlock, count);
    auto wrong = hn::Zero(du);
    for (; i + lanes <= end; i += lanes) {
      const auto bits = hn::And(hn::BitCast(du, hn::LoadU(d, values + i)), mask);
      wrong = hn::Or(wrong, hn::VecFromMask(du, hn::Eq(bits, mask)));
    }
    if (!hn::AllFalse(du, hn::MaskFromVec(wrong))) return false;
  }
  for (; i < count; ++i) {
    if ((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent) return false;
  }
  return true;
}

void MovedDown(const uint32_t* HWY_RESTRICT indices, size_t count, uint32_t base, uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, base);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Sub(hn::LoadU(d, indices + i), by), d, out + i);
  for (; i < count; ++i) out[i] = indices[i] - base;
}

bool MovedDownIncreasing(const uint32_t* HWY_RESTRICT indices, size_t count, uint32_t base,
                         uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto sign = hn::Set(d, 0x8000'0000u);
  const auto by = hn::Set(d, base);
  size_t i = 0;
  while (i + lanes < count) {
    const size_t end = std::min(i + kBlock, count);
    auto right_order = hn::Set(di, -1);
    for (; i + lanes < end; i += lanes) {
      const auto here = hn::LoadU(d, indices + i);
      const auto left = hn::BitCast(di, hn::Xor(here, sign));
      const auto right = hn::BitCast(di, hn::Xor(hn::LoadU(d, indices + i + 1), sign));
      right_order = hn::And(right_order, hn::VecFromMask(di, hn::Lt(left, right)));
      hn::StoreU(hn::Sub(here, by), d, out + i);
    }
    if (!hn::AllTrue(di, hn::MaskFromVec(right_order))) return false;
    if (end == count) break;
  }
  for (; i < count; ++i) {
    if (i + 1 < count && indices[i] >= indices[i + 1]) return false;
    out[i] = indices[i] - base;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(StrictlyIncreasing);
HWY_EXPORT(AllFinite);
HWY_EXPORT(MovedDown);
HWY_EXPORT(MovedDownIncreasing);

bool strictly_increasing(const uint32_t* indices, size_t count) {
  return HWY_DYNAMIC_DISPATCH(StrictlyIncreasing)(indices, count);
}
bool all_finite_f32(const float* values, size_t count) { return HWY_DYNAMIC_DISPATCH(AllFinite)(values, count); }
void moved_down(const uint32_t* indices, size_t count, uint32_t base, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(MovedDown)(indices, count, base, out);
}
bool moved_down_increasing(const uint32_t* indices, size_t count, uint32_t base, uint32_t* out) {
  return HWY_DYNAMIC_DISPATCH(MovedDownIncreasing)(indices, count, base, out);
}

}  // namespace millrace
#endif
