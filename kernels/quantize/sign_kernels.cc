// Every instruction set gives the same bits: the build does not contract a * b + c into one rounding
// (-ffp-contract=off).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/sign_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/quantize/sign_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 8;              // sums, and values a byte
using DF = hn::CappedTag<float, kLanes>;  // vectors of which a whole number is eight values
using DD = hn::CappedTag<double, kLanes>;
using DN = hn::Rebind<float, DD>;  // as many f32

SignSums sums(const float* values, size_t count) {
  const size_t lanes = hn::Lanes(DD());
  HWY_ALIGN double positive[kLanes] = {};
  HWY_ALIGN double negative[kLanes] = {};
  SignSums result;
  const size_t whole = count / kLanes * kLanes;
  const auto zero = hn::Zero(DN());
  for (size_t lane = 0; lane < kLanes; lane += lanes) {
    auto above = hn::Zero(DD());
    auto below = hn::Zero(DD());
    for (size_t i = lane; i < whole; i += kLanes) {
      const auto value = hn::LoadU(DN(), values + i);
      above = hn::Add(above, hn::PromoteTo(DD(), hn::Max(value, zero)));
      below = hn::Add(below, hn::PromoteTo(DD(), hn::Max(hn::Neg(value), zero)));
      result.positives += hn::CountTrue(DN(), hn::Gt(value, zero));
      result.negatives += hn::CountTrue(DN(), hn::Lt(value, zero));
    }
    hn::Store(above, DD(), positive + lane);
    hn::Store(below, DD(), negative + lane);
  }
  for (size_t i = whole; i < count; ++i) {
    if (values[i] > 0) positive[i - whole] += double{values[i]}, ++result.positives;
    if (values[i] < 0) negative[i - whole] -= double{values[i]}, ++result.negatives;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    result.positive += positive[lane];
    result.negative += negative[lane];
  }
  return result;
}

void round_signs(const float* values, size_t count, float positive, float negative, uint8_t* bytes, float* decoded) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const auto above = hn::Set(d, positive);
  const auto below = hn::Set(d, negative);
  HWY_ALIGN uint8_t bits[8];  // StoreMaskBits may write as many
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    uint32_t byte = 0;
    for (size_t lane = 0; lane < kLanes; lane += lanes) {
      const auto is_negative = hn::Lt(hn::LoadU(d, values + i + lane), hn::Zero(d));
      hn::StoreMaskBits(d, is_negative, bits);
      byte |= uint32_t{bits[0]} << lane;
      hn::StoreU(hn::IfThenElse(is_negative, below, above), d, decoded + i + lane);
    }
    bytes[i / kLanes] = static_cast<uint8_t>(byte);
  }
  uint32_t last = 0;
  for (size_t i = whole; i < count; ++i) {
    const bool is_negative = values[i] < 0;
    last |= (is_negative ? 1u : 0u) << (i - whole);
    decoded[i] = is_negative ? negative : positive;
  }
  if (whole < count) bytes[whole / kLanes] = static_cast<uint8_t>(last);
}

void values_of_signs(const uint8_t* HWY_RESTRICT bytes, size_t count, float positive, float negative,
                     float* HWY_RESTRICT values) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const auto above = hn::Set(d, positive);
  const auto below = hn::Set(d, negative);
  HWY_ALIGN uint8_t bits[8] = {};  // LoadMaskBits may read as many
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; lane += lanes) {
      bits[0] = static_cast<uint8_t>(bytes[i / kLanes] >> lane);
      hn::StoreU(hn::IfThenElse(hn::LoadMaskBits(d, bits), below, above), d, values + i + lane);
    }
  }
  for (size_t i = whole; i < count; ++i) {
    values[i] = (bytes[whole / kLanes] >> (i - whole) & 1) != 0 ? negative : positive;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(sums);
HWY_EXPORT(round_signs);
HWY_EXPORT(values_of_signs);

SignSums sign_sums(const float* values, size_t count) { return HWY_DYNAMIC_DISPATCH(sums)(values, count); }

void sign_round(const float* values, size_t count, float positive, float negative, uint8_t* bytes, float* decoded) {
  HWY_DYNAMIC_DISPATCH(round_signs)(values, count, positive, negative, bytes, decoded);
}

void sign_values(const uint8_t* bytes, size_t count, float positive, float negative, float* values) {
  HWY_DYNAMIC_DISPATCH(values_of_signs)(bytes, count, positive, negative, values);
}

}  // namespace millrace
#endif  // HWY_ONCE
