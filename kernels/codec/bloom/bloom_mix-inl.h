// bloom_mix() of vectors, and what makes a number below a bound of it. A body for Highway's files: compiled once per
// instruction set, hence the toggle in place of #pragma once.
#if defined(MILLRACE_BLOOM_MIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_BLOOM_MIX_INL_H_
#undef MILLRACE_BLOOM_MIX_INL_H_
#else
#define MILLRACE_BLOOM_MIX_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

/// Returns bloom_mix() of every lane of `h`, a vector of `d`.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V bloom_mix_lanes(D d, V h) {
  namespace hn = hwy::HWY_NAMESPACE;
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(d, 0x85ebca6bu));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<13>(h)), hn::Set(d, 0xc2b2ae35u));
  return hn::Xor(h, hn::ShiftRight<16>(h));
}

/// floor(a * b / 2^32) lane by lane.
#if HWY_TARGET == HWY_SCALAR
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V multiply_high(D d, V a, V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::Set(d, static_cast<uint32_t>(uint64_t{hn::GetLane(a)} * hn::GetLane(b) >> 32));
}
#else
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V multiply_high(D d, V a, V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Repartition<uint64_t, D> d64;
  const auto even = hn::ShiftRight<32>(hn::MulEven(a, b));
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  const auto high_half = hn::Set(d64, 0xffffffff00000000u);
  return hn::BitCast(d, hn::Or(even, hn::And(odd, high_half)));
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#endif  // MILLRACE_BLOOM_MIX_INL_H_
