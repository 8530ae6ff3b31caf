#include "kernels/grid/reselect_kernels.h"

#include <bit>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/grid/reselect_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

uint32_t magnitude_bits(int32_t value) {
  return value < 0 ? 0 - static_cast<uint32_t>(value) : static_cast<uint32_t>(value);
}

/// Abs() leaves the lowest number as it is: 2^31, read as unsigned.
uint32_t keep(uint32_t least, uint16_t* indices, int32_t* values, size_t count) {
  const hn::ScalableTag<int32_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> dh;
  const size_t lanes = hn::Lanes(d);
  // Signed comparison, the one that every instruction set has, of values moved by 2^31 orders them as unsigned.
  const auto sign = hn::Set(d, INT32_MIN);
  const auto bound = hn::Xor(hn::BitCast(d, hn::Set(du, least)), sign);
  size_t kept = 0;
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto block = hn::LoadU(d, values + at);
    const auto stays = hn::Not(hn::Lt(hn::Xor(hn::Abs(block), sign), bound));
    const size_t here = hn::CountTrue(d, stays);
    if (here == 0) continue;  // of a cut to few, most blocks
    // Whole vectors are written: at most up to the entries just read.
    const auto places = hn::Compress(hn::PromoteTo(d, hn::LoadU(dh, indices + at)), stays);
    hn::StoreU(hn::TruncateTo(dh, hn::BitCast(du, places)), dh, indices + kept);
    hn::StoreU(hn::Compress(block, stays), d, values + kept);
    kept += here;
  }
  for (; at < count; ++at) {
    indices[kept] = indices[at];
    values[kept] = values[at];
    kept += magnitude_bits(values[at]) >= least ? 1 : 0;
  }
  return static_cast<uint32_t>(kept);
}

void find_bins(const int32_t* values, size_t count, int moved, uint32_t* out) {
  constexpr int kDropped = 52 - static_cast<int>(kSumBinFractionBits);
  const hn::ScalableTag<double> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<int32_t, decltype(d)> di;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude = hn::Set(du, ~(uint64_t{1} << 63));
  const auto by = hn::Set(du, static_cast<uint64_t>(int64_t{moved}));
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto wide = hn::PromoteTo(d, hn::LoadU(di, values + at));
    const auto bits = hn::And(hn::BitCast(du, wide), magnitude);
    const auto bin = hn::Add(hn::ShiftRight<kDropped>(bits), by);
    hn::StoreU(hn::TruncateTo(d32, hn::IfThenZeroElse(hn::Eq(bits, hn::Zero(du)), bin)), d32, out + at);
  }
  for (; at < count; ++at) {
    const auto bits = std::bit_cast<uint64_t>(static_cast<double>(values[at])) & ~(uint64_t{1} << 63);
    out[at] = bits == 0 ? 0 : static_cast<uint32_t>(static_cast<int>(bits >> kDropped) + moved);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(keep);
HWY_EXPORT(find_bins);

uint32_t keep_at_least(uint32_t least, std::span<uint16_t> indices, std::span<int32_t> values) {
  MILLRACE_CHECK(indices.size() == values.size(), indices.size(), values.size());
  return HWY_DYNAMIC_DISPATCH(keep)(least, indices.data(), values.data(), indices.size());
}

void bins_of(std::span<const int32_t> values, int moved, std::span<uint32_t> bins) {
  MILLRACE_CHECK(values.size() == bins.size(), values.size(), bins.size());
  HWY_DYNAMIC_DISPATCH(find_bins)(values.data(), values.size(), moved, bins.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
