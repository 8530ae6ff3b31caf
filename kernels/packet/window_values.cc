#include "kernels/packet/window_values.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packet/window_values.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DValue = hn::CappedTag<int32_t, 16>;

int16_t short_at(const uint8_t* bytes, size_t j) {
  int16_t value;
  std::memcpy(&value, bytes + 2 * j, sizeof(value));
  return value;
}

int32_t level4(const uint8_t* bytes, size_t j) {
  const uint32_t half = bytes[j / 2] >> (j % 2 * 4) & 15u;
  return static_cast<int32_t>(half ^ 8u) - 8;
}

constexpr int32_t kShortMost = 32'767;

void narrow_tail(const int32_t* values, size_t begin, size_t end, uint8_t* bytes, int32_t* kept) {
  for (size_t j = begin; j < end; ++j) {
    const auto clamped = static_cast<int16_t>(std::clamp(values[j], -kShortMost, kShortMost));
    std::memcpy(bytes + 2 * j, &clamped, sizeof(clamped));
    kept[j] = clamped;
  }
}

#if HWY_TARGET == HWY_SCALAR

void widen(const uint8_t* bytes, size_t count, int32_t* out) {
  for (size_t j = 0; j < count; ++j) out[j] = short_at(bytes, j);
}

void scale8(const uint8_t* bytes, size_t count, int32_t unit, int32_t* out) {
  for (size_t j = 0; j < count; ++j) out[j] = static_cast<int8_t>(bytes[j]) * unit;
}

void scale4(const uint8_t* bytes, size_t count, int32_t unit, int32_t* out) {
  for (size_t j = 0; j < count; ++j) out[j] = level4(bytes, j) * unit;
}

bool increasing(const uint16_t* indices, size_t count) {
  bool all = true;
  for (size_t j = 1; j < count; ++j) all = all && indices[j - 1] < indices[j];
  return all;
}

void narrow(const int32_t* values, size_t count, uint8_t* bytes, int32_t* kept) {
  narrow_tail(values, 0, count, bytes, kept);
}

#else

void narrow(const int32_t* values, size_t count, uint8_t* bytes, int32_t* kept) {
  const DValue d;
  const hn::Rebind<int16_t, DValue> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto most = hn::Set(d, kShortMost);
  const auto least = hn::Set(d, -kShortMost);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto clamped = hn::Min(hn::Max(hn::LoadU(d, values + j), least), most);
    hn::StoreU(clamped, d, kept + j);
    hn::StoreU(hn::BitCast(d8, hn::DemoteTo(d16, clamped)), d8, bytes + 2 * j);
  }
  narrow_tail(values, j, count, bytes, kept);
}

void widen(const uint8_t* bytes, size_t count, int32_t* out) {
  const DValue d;
  const hn::Rebind<int16_t, DValue> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(d8, bytes + 2 * j))), d, out + j);
  }
  for (; j < count; ++j) out[j] = short_at(bytes, j);
}

void scale8(const uint8_t* bytes, size_t count, int32_t unit, int32_t* out) {
  const DValue d;
  const hn::Rebind<int8_t, DValue> d8;
  const hn::Rebind<uint8_t, DValue> du8;
  const size_t lanes = hn::Lanes(d);
  const auto units = hn::Set(d, unit);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    const auto levels = hn::PromoteTo(d, hn::BitCast(d8, hn::LoadU(du8, bytes + j)));
    hn::StoreU(hn::Mul(levels, units), d, out + j);
  }
  for (; j < count; ++j) out[j] = static_cast<int8_t>(bytes[j]) * unit;
}

void scale4(const uint8_t* bytes, size_t count, int32_t unit, int32_t* out) {
  const DValue d;
  const hn::Rebind<uint8_t, DValue> d8;
  const size_t lanes = hn::Lanes(d);
  const auto units = hn::Set(d, unit);
  size_t j = 0;
  for (; j + 2 * lanes <= count; j += 2 * lanes) {
    const auto pairs = hn::PromoteTo(d, hn::LoadU(d8, bytes + j / 2));
    const auto low = hn::ShiftRight<28>(hn::ShiftLeft<28>(pairs));
    const auto high = hn::ShiftRight<28>(hn::ShiftLeft<24>(pairs));
    hn::StoreInterleaved2(hn::Mul(low, units), hn::Mul(high, units), d, out + j);
  }
  for (; j < count; ++j) out[j] = level4(bytes, j) * unit;
}

bool increasing(const uint16_t* indices, size_t count) {
  const hn::CappedTag<uint16_t, 32> d;
  const size_t lanes = hn::Lanes(d);
  bool all = true;
  size_t j = 1;
  for (; j + lanes <= count; j += lanes) {
    all &= hn::AllTrue(d, hn::Lt(hn::LoadU(d, indices + j - 1), hn::LoadU(d, indices + j)));
  }
  for (; j < count; ++j) all &= indices[j - 1] < indices[j];
  return all;
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(narrow);
HWY_EXPORT(widen);
HWY_EXPORT(scale8);
HWY_EXPORT(scale4);
HWY_EXPORT(increasing);

void narrow_shorts(std::span<const int32_t> values, std::span<uint8_t> out, std::span<int32_t> kept) {
  MILLRACE_CHECK(out.size() == 2 * values.size() && kept.size() >= values.size(), out.size(), values.size());
  HWY_DYNAMIC_DISPATCH(narrow)(values.data(), values.size(), out.data(), kept.data());
}

void widen_shorts(ByteSpan bytes, std::span<int32_t> out) {
  MILLRACE_CHECK(bytes.size() == 2 * out.size(), bytes.size(), out.size());
  HWY_DYNAMIC_DISPATCH(widen)(bytes.data(), out.size(), out.data());
}

void scale_levels8(ByteSpan bytes, int32_t unit, std::span<int32_t> out) {
  MILLRACE_CHECK(bytes.size() == out.size(), bytes.size(), out.size());
  HWY_DYNAMIC_DISPATCH(scale8)(bytes.data(), out.size(), unit, out.data());
}

void scale_levels4(ByteSpan bytes, int32_t unit, std::span<int32_t> out) {
  MILLRACE_CHECK(bytes.size() == (out.size() + 1) / 2, bytes.size(), out.size());
  HWY_DYNAMIC_DISPATCH(scale4)(bytes.data(), out.size(), unit, out.data());
}

bool is_strictly_increasing(std::span<const uint16_t> indices) {
  return HWY_DYNAMIC_DISPATCH(increasing)(indices.data(), indices.size());
}

}  // namespace millrace
#endif  // HWY_ONCE
