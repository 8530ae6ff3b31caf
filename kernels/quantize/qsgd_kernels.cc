// Every instruction set gives the same bits: the build does not contract a * b + c into one rounding
// (-ffp-contract=off).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/qsgd_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/quantize/qsgd_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One vector of values at a time; the constants of a bucket.
struct Levels {
  using D = hn::ScalableTag<float>;
  using DI = hn::RebindToSigned<D>;
  using DU = hn::RebindToUnsigned<D>;
  using DB = hn::Rebind<uint8_t, DI>;
  using VF = hn::Vec<D>;
  using VI = hn::Vec<DI>;

  explicit Levels(const QsgdBucket& bucket)
      : unit(hn::Set(D(), bucket.unit)),
        per_unit(hn::Set(D(), bucket.unit > 0 ? 1 / bucket.unit : 0.0f)),
        scale(hn::Set(D(), bucket.scale)),
        top(hn::Set(DI(), static_cast<int32_t>(bucket.levels()))),
        sign(hn::Set(DI(), static_cast<int32_t>(bucket.levels() + 1))) {}

  // The value of level >= 0, with the sign bit of `negative` (all else of it 0). Level 0 has no sign: -0 + 0 is 0.
  VF value_of(VI level, VI negative) const {
    const VF below_top = hn::Mul(hn::ConvertTo(D(), level), unit);
    const VF magnitude = hn::IfThenElse(hn::RebindMask(D(), hn::Eq(level, top)), scale, below_top);
    return hn::Add(hn::Or(magnitude, hn::BitCast(D(), negative)), hn::Zero(D()));
  }

  VI quantize(VF value, hn::Vec<DU> word, VF& decoded) const {
    const VF exact = hn::Mul(hn::Abs(value), per_unit);
    const VI floor = hn::ConvertTo(DI(), exact);
    const VF fraction = hn::Sub(exact, hn::ConvertTo(D(), floor));
    const VF uniform =
        hn::Mul(hn::ConvertTo(D(), hn::BitCast(DI(), hn::ShiftRight<8>(word))), hn::Set(D(), 0x1.0p-24f));
    const VI up = hn::And(hn::BitCast(DI(), hn::VecFromMask(D(), hn::Lt(uniform, fraction))), hn::Set(DI(), 1));
    const VI level = hn::Min(hn::Add(floor, up), top);
    const VI sign_bit = hn::And(hn::BitCast(DI(), value), hn::Set(DI(), static_cast<int32_t>(0x80000000u)));
    decoded = value_of(level, sign_bit);
    const auto signed_level = hn::And(hn::Lt(sign_bit, hn::Zero(DI())), hn::Gt(level, hn::Zero(DI())));
    return hn::Or(level, hn::IfThenElseZero(signed_level, sign));
  }

  VF dequantize(VI code) const {
    const VI level = hn::And(code, top);
    const auto is_negative = hn::Ne(hn::And(code, sign), hn::Zero(DI()));
    return value_of(level, hn::IfThenElseZero(is_negative, hn::Set(DI(), static_cast<int32_t>(0x80000000u))));
  }

  VF unit, per_unit, scale;
  VI top, sign;
};

void quantize(const QsgdBucket& bucket, const float* values, const uint32_t* words, size_t count, uint8_t* codes,
              float* decoded) {
  const Levels levels(bucket);
  const Levels::D d;
  const Levels::DU du;
  const Levels::DB db;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Levels::VF rounded;
    const auto code = levels.quantize(hn::LoadU(d, values + i), hn::LoadU(du, words + i), rounded);
    hn::StoreU(hn::DemoteTo(db, code), db, codes + i);
    hn::StoreU(rounded, d, decoded + i);
  }
  if (i == count) return;
  HWY_ALIGN float last_values[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN uint32_t last_words[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN uint8_t last_codes[HWY_MAX_BYTES] = {};
  for (size_t lane = 0; i + lane < count; ++lane) {
    last_values[lane] = values[i + lane];
    last_words[lane] = words[i + lane];
  }
  Levels::VF rounded;
  const auto code = levels.quantize(hn::Load(d, last_values), hn::Load(du, last_words), rounded);
  hn::StoreU(hn::DemoteTo(db, code), db, last_codes);
  hn::Store(rounded, d, last_values);
  for (size_t lane = 0; i + lane < count; ++lane) {
    codes[i + lane] = last_codes[lane];
    decoded[i + lane] = last_values[lane];
  }
}

void dequantize(const QsgdBucket& bucket, const uint8_t* HWY_RESTRICT codes, size_t count, float* HWY_RESTRICT values) {
  const Levels levels(bucket);
  const Levels::D d;
  const Levels::DI di;
  const Levels::DB db;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(levels.dequantize(hn::PromoteTo(di, hn::LoadU(db, codes + i))), d, values + i);
  }
  if (i == count) return;
  HWY_ALIGN uint8_t last_codes[HWY_MAX_BYTES] = {};
  HWY_ALIGN float last_values[HWY_MAX_BYTES / sizeof(float)];
  for (size_t lane = 0; i + lane < count; ++lane) last_codes[lane] = codes[i + lane];
  hn::Store(levels.dequantize(hn::PromoteTo(di, hn::LoadU(db, last_codes))), d, last_values);
  for (size_t lane = 0; i + lane < count; ++lane) values[i + lane] = last_values[lane];
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(quantize);
HWY_EXPORT(dequantize);

void qsgd_quantize(const QsgdBucket& bucket, const float* values, const uint32_t* words, size_t count, uint8_t* codes,
                   float* decoded) {
  HWY_DYNAMIC_DISPATCH(quantize)(bucket, values, words, count, codes, decoded);
}

void qsgd_dequantize(const QsgdBucket& bucket, const uint8_t* codes, size_t count, float* values) {
  HWY_DYNAMIC_DISPATCH(dequantize)(bucket, codes, count, values);
}

}  // namespace millrace
#endif  // HWY_ONCE
