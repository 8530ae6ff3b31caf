// Every instruction set gives the same bits: the build does not contract a * b + c into one rounding
// (-ffp-contract=off).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/half_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/quantize/half_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using DH = hn::Rebind<uint16_t, DU>;
using VF = hn::Vec<D>;
using VU = hn::Vec<DU>;

VU low_half(VU bits) { return hn::And(bits, hn::Set(DU(), 0xFFFFu)); }

/// Codes are in 0 to 65,535. DemoteTo takes signed lanes only, in this version of the library.
void store_codes(VU codes, uint16_t* out) { hn::StoreU(hn::DemoteTo(DH(), hn::BitCast(DI(), codes)), DH(), out); }

struct Bf16 {
  /// Adding a uniform number below the last kept bit carries into it with the probability of the omitted part.
  VU round(VF value, VU word) const {
    return hn::ShiftRight<16>(hn::Add(hn::BitCast(DU(), value), hn::ShiftRight<16>(word)));
  }
  VF value_of(VU code) const { return hn::BitCast(D(), hn::ShiftLeft<16>(code)); }
};

struct F16 {
  // 2^-exponent and 2^exponent: both are normal f32.
  explicit F16(int exponent) : down(power(-exponent)), up(power(exponent)) {}

  static VF power(int exponent) { return hn::BitCast(D(), hn::Set(DU(), static_cast<uint32_t>(exponent + 127) << 23)); }

  VU round(VF value, VU word) const {
    const DU du;
    const VF magnitude = hn::Mul(hn::Abs(value), down);
    // As for bf16, where f16 has all of its 11 bits.
    const VU bits = hn::Add(hn::BitCast(du, magnitude), hn::ShiftRight<19>(word));
    const VU normal = hn::Sub(hn::ShiftRight<13>(bits), hn::Set(du, (127u - 15u) << 10));
    // Below them it counts multiples of 2^-24.
    const VF exact = hn::Mul(magnitude, hn::Set(D(), 0x1p24F));
    const auto floor = hn::ConvertTo(DI(), hn::Min(exact, hn::Set(D(), 1024.0F)));
    const VF fraction = hn::Sub(exact, hn::ConvertTo(D(), floor));
    const VF uniform = hn::Mul(hn::ConvertTo(D(), hn::BitCast(DI(), hn::ShiftRight<8>(word))), hn::Set(D(), 0x1p-24F));
    const VU up_one = hn::And(hn::BitCast(du, hn::VecFromMask(D(), hn::Lt(uniform, fraction))), hn::Set(du, 1u));
    const VU counted = hn::Add(hn::BitCast(du, floor), up_one);
    const auto is_normal = hn::Ge(magnitude, hn::Set(D(), 0x1p-14F));
    const VU code = hn::IfThenElse(hn::RebindMask(du, is_normal), normal, counted);
    return hn::Or(code, hn::And(hn::ShiftRight<16>(hn::BitCast(du, value)), hn::Set(du, 0x8000u)));
  }

  VF value_of(VU code) const {
    const DU du;
    const VU rest = hn::And(code, hn::Set(du, 0x7FFFu));
    const VF normal = hn::BitCast(D(), hn::Add(hn::ShiftLeft<13>(rest), hn::Set(du, (127u - 15u) << 23)));
    const VF counted = hn::Mul(hn::ConvertTo(D(), hn::BitCast(DI(), rest)), hn::Set(D(), 0x1p-24F));
    const auto is_normal = hn::Gt(hn::BitCast(DI(), rest), hn::Set(DI(), 1023));
    const VF magnitude = hn::Mul(hn::IfThenElse(hn::RebindMask(D(), is_normal), normal, counted), up);
    return hn::Or(magnitude, hn::BitCast(D(), hn::ShiftLeft<16>(hn::And(code, hn::Set(du, 0x8000u)))));
  }

  VF down, up;
};

template <class Format>
void round_all(const Format& format, const float* values, const uint32_t* words, size_t count, uint16_t* codes,
               float* decoded) {
  const size_t lanes = hn::Lanes(D());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VU code = format.round(hn::LoadU(D(), values + i), hn::LoadU(DU(), words + i));
    store_codes(code, codes + i);
    hn::StoreU(format.value_of(code), D(), decoded + i);
  }
  if (i == count) return;
  HWY_ALIGN float last_values[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN uint32_t last_words[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN uint16_t last_codes[HWY_MAX_BYTES / sizeof(float)] = {};
  for (size_t lane = 0; i + lane < count; ++lane) {
    last_values[lane] = values[i + lane];
    last_words[lane] = words[i + lane];
  }
  const VU code = format.round(hn::Load(D(), last_values), hn::Load(DU(), last_words));
  store_codes(code, last_codes);
  hn::Store(format.value_of(code), D(), last_values);
  for (size_t lane = 0; i + lane < count; ++lane) {
    codes[i + lane] = last_codes[lane];
    decoded[i + lane] = last_values[lane];
  }
}

template <class Format>
void values_all(const Format& format, const uint16_t* HWY_RESTRICT codes, size_t count, float* HWY_RESTRICT values) {
  const size_t lanes = hn::Lanes(D());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(format.value_of(hn::PromoteTo(DU(), hn::LoadU(DH(), codes + i))), D(), values + i);
  }
  if (i == count) return;
  HWY_ALIGN uint16_t last_codes[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN float last_values[HWY_MAX_BYTES / sizeof(float)];
  for (size_t lane = 0; i + lane < count; ++lane) last_codes[lane] = codes[i + lane];
  hn::Store(format.value_of(hn::PromoteTo(DU(), hn::LoadU(DH(), last_codes))), D(), last_values);
  for (size_t lane = 0; i + lane < count; ++lane) values[i + lane] = last_values[lane];
}

/// The value's bits without its sign, as signed lanes: they compare as the magnitudes do, NaN above infinity.
VU magnitude_bits(VF value) { return hn::And(hn::BitCast(DU(), value), hn::Set(DU(), 0x7FFFFFFFu)); }

hn::Mask<DU> is_at_least(VU bits, uint32_t least) {
  return hn::RebindMask(DU(), hn::Gt(hn::BitCast(DI(), bits), hn::Set(DI(), static_cast<int32_t>(least - 1))));
}

struct Bf16Nearest {
  VU code(VF value) const {
    const DU du;
    const VU bits = hn::BitCast(du, value);
    const VU is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const VU rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(is_odd, hn::Set(du, 0x7FFFu))));
    // Rounding would carry a NaN's payload into its sign.
    const VU nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    return hn::IfThenElse(is_at_least(magnitude_bits(value), 0x7F800001u), nan, rounded);
  }
};

struct F16Nearest {
  VU code(VF value) const {
    const DU du;
    const VU magnitude = magnitude_bits(value);
    const VU is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const VU rounding = hn::Add(is_odd, hn::Set(du, 0xFFFu - ((127u - 15u) << 23)));
    const VU normal = hn::ShiftRight<13>(hn::Add(magnitude, rounding));
    // Below 2^-14: the last bit of a sum with 0.5 counts multiples of 2^-24, and the addition rounds.
    const VU sum = hn::BitCast(du, hn::Add(hn::BitCast(D(), magnitude), hn::Set(D(), 0.5F)));
    const VU counted = hn::Sub(sum, hn::Set(du, 0x3F000000u));
    const VU below = hn::IfThenElse(is_at_least(magnitude, 0x38800000u), normal, counted);
    const VU above = hn::IfThenElse(is_at_least(magnitude, 0x7F800001u), hn::Set(du, 0x7E00u), hn::Set(du, 0x7C00u));
    const VU code = hn::IfThenElse(is_at_least(magnitude, 0x47800000u), above, below);
    return hn::Or(code, hn::And(hn::ShiftRight<16>(hn::BitCast(du, value)), hn::Set(du, 0x8000u)));
  }
};

/// f16 with the infinities and NaN, whose exponent is f32's largest.
struct F16Any {
  VF value_of(VU code) const {
    const DU du;
    const VU rest = hn::And(code, hn::Set(du, 0x7FFFu));
    const VU step = hn::Set(du, (127u - 15u) << 23);
    const VU finite = hn::Add(hn::ShiftLeft<13>(rest), step);
    const VU normal = hn::IfThenElse(is_at_least(rest, 0x7C00u), hn::Add(finite, step), finite);
    const VU counted = hn::BitCast(du, hn::Mul(hn::ConvertTo(D(), hn::BitCast(DI(), rest)), hn::Set(D(), 0x1p-24F)));
    const VU magnitude = hn::IfThenElse(is_at_least(rest, 0x400u), normal, counted);
    return hn::BitCast(D(), hn::Or(magnitude, hn::ShiftLeft<16>(hn::And(code, hn::Set(du, 0x8000u)))));
  }
};

template <class Format>
void nearest_all(const Format& format, const float* HWY_RESTRICT values, size_t count, uint16_t* HWY_RESTRICT codes) {
  const size_t lanes = hn::Lanes(D());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) store_codes(format.code(hn::LoadU(D(), values + i)), codes + i);
  if (i == count) return;
  HWY_ALIGN float last_values[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN uint16_t last_codes[HWY_MAX_BYTES / sizeof(float)] = {};
  for (size_t lane = 0; i + lane < count; ++lane) last_values[lane] = values[i + lane];
  store_codes(format.code(hn::Load(D(), last_values)), last_codes);
  for (size_t lane = 0; i + lane < count; ++lane) codes[i + lane] = last_codes[lane];
}

void bf16_nearest(const float* values, size_t count, uint16_t* codes) {
  nearest_all(Bf16Nearest(), values, count, codes);
}
void f16_nearest(const float* values, size_t count, uint16_t* codes) {
  nearest_all(F16Nearest(), values, count, codes);
}
void f16_any_values(const uint16_t* codes, size_t count, float* values) { values_all(F16Any(), codes, count, values); }

void bf16_round(const float* values, const uint32_t* words, size_t count, uint16_t* codes, float* decoded) {
  round_all(Bf16(), values, words, count, codes, decoded);
}
void bf16_values(const uint16_t* codes, size_t count, float* values) { values_all(Bf16(), codes, count, values); }

void f16_round(const float* values, const uint32_t* words, int exponent, size_t count, uint16_t* codes,
               float* decoded) {
  round_all(F16(exponent), values, words, count, codes, decoded);
}
void f16_values(const uint16_t* codes, int exponent, size_t count, float* values) {
  values_all(F16(exponent), codes, count, values);
}

/// None has all bits of the exponent, `exponent_bits`.
bool all_below(const uint16_t* codes, size_t count, uint16_t exponent_bits) {
  const hn::ScalableTag<uint16_t> d;
  const auto exponent = hn::Set(d, exponent_bits);
  const size_t lanes = hn::Lanes(d);
  auto found = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto is_one = hn::Eq(hn::And(hn::LoadU(d, codes + i), exponent), exponent);
    found = hn::Or(found, hn::VecFromMask(d, is_one));
  }
  bool none = hn::AllTrue(d, hn::Eq(found, hn::Zero(d)));
  for (; i < count; ++i) none = none && (codes[i] & exponent_bits) != exponent_bits;
  return none;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(bf16_round);
HWY_EXPORT(bf16_values);
HWY_EXPORT(f16_round);
HWY_EXPORT(f16_values);
HWY_EXPORT(all_below);
HWY_EXPORT(bf16_nearest);
HWY_EXPORT(f16_nearest);
HWY_EXPORT(f16_any_values);

void bf16_round(const float* values, const uint32_t* words, size_t count, uint16_t* codes, float* decoded) {
  HWY_DYNAMIC_DISPATCH(bf16_round)(values, words, count, codes, decoded);
}

void bf16_values(const uint16_t* codes, size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(bf16_values)(codes, count, values);
}

void f16_round(const float* values, const uint32_t* words, int exponent, size_t count, uint16_t* codes,
               float* decoded) {
  HWY_DYNAMIC_DISPATCH(f16_round)(values, words, exponent, count, codes, decoded);
}

void f16_values(const uint16_t* codes, int exponent, size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(f16_values)(codes, exponent, count, values);
}

void bf16_nearest(const float* values, size_t count, uint16_t* codes) {
  HWY_DYNAMIC_DISPATCH(bf16_nearest)(values, count, codes);
}

void f16_nearest(const float* values, size_t count, uint16_t* codes) {
  HWY_DYNAMIC_DISPATCH(f16_nearest)(values, count, codes);
}

void f16_any_values(const uint16_t* codes, size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(f16_any_values)(codes, count, values);
}

bool bf16_all_finite(const uint16_t* codes, size_t count) {
  return HWY_DYNAMIC_DISPATCH(all_below)(codes, count, 0x7F80);
}

bool f16_all_finite(const uint16_t* codes, size_t count) {
  return HWY_DYNAMIC_DISPATCH(all_below)(codes, count, 0x7C00);
}

}  // namespace millrace
#endif  // HWY_ONCE
