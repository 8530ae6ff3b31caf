// Every instruction set gives the same bits: there is one comparison a value, and its doubling is exact.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/value/three_lc_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/codec/value/three_lc_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void append_digit(float value, float scale, uint8_t& byte, float& decoded) {
  const float magnitude = std::abs(value);
  const bool kept = magnitude + magnitude >= scale;
  decoded = kept ? std::copysign(scale, value) : 0.0F;
  const int digit = !kept ? 1 : value < 0 ? 0 : 2;
  byte = static_cast<uint8_t>(3 * byte + digit);
}

// bytes[i] = 3 bytes[i] + the digit of values[i].
void append_digits(const float* values, float scale, size_t count, uint8_t* bytes, float* decoded) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(di)> db;
  const auto scales = hn::Set(d, scale);
  const auto one = hn::Set(di, 1);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    const auto magnitude = hn::Abs(value);
    const auto kept = hn::Ge(hn::Add(magnitude, magnitude), scales);
    hn::StoreU(hn::IfThenElseZero(kept, hn::CopySign(scales, value)), d, decoded + i);
    // -1 for negative values, else 0; | 1: -1 and 1.
    const auto sign = hn::Or(hn::BroadcastSignBit(hn::BitCast(di, value)), one);
    const auto digit = hn::Add(hn::And(hn::BitCast(di, hn::VecFromMask(d, kept)), sign), one);
    const auto byte = hn::LoadU(db, bytes + i);
    hn::StoreU(hn::Add(hn::Add(byte, hn::Add(byte, byte)), hn::DemoteTo(db, digit)), db, bytes + i);
  }
  for (; i < count; ++i) append_digit(values[i], scale, bytes[i], decoded[i]);
}

// Digit p of byte j is that of value p * (number of bytes) + j. These are five contiguous pieces of the values, so that
// vectors of bytes are made of vectors of values.
void pack(std::span<const float> values, float scale, uint8_t* bytes, float* decoded) {
  constexpr size_t kChunk = 1024;  // bytes that stay in the first-level cache while the five pieces pass
  const size_t length = quartic_bytes(values.size());
  for (size_t begin = 0; begin < length; begin += kChunk) {
    const size_t end = std::min(begin + kChunk, length);
    std::fill(bytes + begin, bytes + end, uint8_t{0});
    for (size_t piece = 0; piece < kQuarticDigits; ++piece) {
      const size_t first = std::min(piece * length + begin, values.size());
      const size_t count = std::min(end - begin, values.size() - first);
      append_digits(values.data() + first, scale, count, bytes + begin, decoded + first);
      for (size_t j = begin + count; j < end; ++j) bytes[j] = static_cast<uint8_t>(3 * bytes[j] + 1);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(pack);

void quartic_pack(std::span<const float> values, float scale, uint8_t* bytes, float* decoded) {
  HWY_DYNAMIC_DISPATCH(pack)(values, scale, bytes, decoded);
}

}  // namespace millrace
#endif  // HWY_ONCE
