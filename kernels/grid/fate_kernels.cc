#include "kernels/grid/fate_kernels.h"

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/grid/fate_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The entries from `at` on, one at a time.
void split_rest(const uint32_t* indices, const float* values, const double* applied, const float* returned, size_t at,
                size_t count, const FateRoom& room, FateCounts& out) {
  for (; at < count; ++at) {
    const double gone = applied[at];
    const float stays = returned[at];
    room.taken_indices[out.taken] = indices[at];
    room.taken_values[out.taken] = static_cast<float>(gone);
    room.back_indices[out.back] = indices[at];
    room.back_values[out.back] = stays;
    out.taken += gone != 0 ? 1 : 0;
    out.back += stays != 0 ? 1 : 0;
    out.whole += stays != 0 && gone == 0 ? 1 : 0;
    out.applied.count(gone);
    out.adds_up = out.adds_up && static_cast<double>(values[at]) - gone - static_cast<double>(stays) == 0;
  }
}

FateCounts split(const uint32_t* indices, const float* values, const double* applied, const float* returned,
                 size_t count, const FateRoom& room) {
  const hn::CappedTag<double, kFateSlack> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<uint32_t, decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d, 1.0);
  const auto none = hn::Zero(df);
  auto sum = hn::Zero(d);
  auto magnitude = hn::Zero(d);
  auto missing = hn::Zero(d);
  FateCounts out;
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto gone = hn::LoadU(d, applied + at);
    const auto stays = hn::LoadU(df, returned + at);
    const auto index = hn::LoadU(du, indices + at);
    // A mask of f32 lanes from one of f64 lanes: by numbers, which all instruction sets have.
    const auto is_gone = hn::Ne(hn::DemoteTo(df, hn::IfThenElseZero(hn::Ne(gone, hn::Zero(d)), one)), none);
    const auto comes_back = hn::Ne(stays, none);
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, is_gone)), du, room.taken_indices.data() + out.taken);
    hn::StoreU(hn::Compress(hn::DemoteTo(df, gone), is_gone), df, room.taken_values.data() + out.taken);
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, comes_back)), du, room.back_indices.data() + out.back);
    hn::StoreU(hn::Compress(stays, comes_back), df, room.back_values.data() + out.back);
    out.taken += hn::CountTrue(df, is_gone);
    out.back += hn::CountTrue(df, comes_back);
    out.whole += hn::CountTrue(df, hn::AndNot(is_gone, comes_back));
    sum = hn::Add(sum, gone);
    magnitude = hn::Add(magnitude, hn::Abs(gone));
    const auto left = hn::Sub(hn::Sub(hn::PromoteTo(d, hn::LoadU(df, values + at)), gone), hn::PromoteTo(d, stays));
    missing = hn::Add(missing, hn::Abs(left));
  }
  out.applied.sum = hn::GetLane(hn::SumOfLanes(d, sum));
  out.applied.magnitude = hn::GetLane(hn::SumOfLanes(d, magnitude));
  out.adds_up = hn::AllTrue(d, hn::Eq(missing, hn::Zero(d)));
  split_rest(indices, values, applied, returned, at, count, room, out);
  return out;
}

void take_set(const uint16_t* indices, const int32_t* integers, const uint32_t* bits, size_t count, int32_t* taken) {
  const hn::ScalableTag<int32_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> dh;
  const size_t lanes = hn::Lanes(d);
  const auto low = hn::Set(du, 31);
  const auto one = hn::Set(du, 1);
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto index = hn::PromoteTo(du, hn::LoadU(dh, indices + at));
    const auto word = hn::GatherIndex(du, bits, hn::BitCast(d, hn::ShiftRight<5>(index)));
    const auto bit = hn::And(hn::Shr(word, hn::And(index, low)), one);
    // 0 or all ones.
    const auto all = hn::BitCast(d, hn::Sub(hn::Zero(du), bit));
    hn::StoreU(hn::And(hn::LoadU(d, integers + at), all), d, taken + at);
  }
  for (; at < count; ++at) {
    const uint32_t bit = bits[indices[at] / 32] >> (indices[at] % 32) & 1;
    taken[at] = integers[at] & -static_cast<int32_t>(bit);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(split);
HWY_EXPORT(take_set);

FateCounts split_fates(std::span<const uint32_t> indices, std::span<const float> values,
                       std::span<const double> applied, std::span<const float> returned, const FateRoom& room) {
  const size_t count = indices.size();
  MILLRACE_CHECK(values.size() == count && applied.size() == count && returned.size() == count, count, values.size(),
                 applied.size(), returned.size());
  const size_t wanted = count + kFateSlack;
  MILLRACE_CHECK(room.taken_indices.size() >= wanted && room.taken_values.size() >= wanted, count);
  MILLRACE_CHECK(room.back_indices.size() >= wanted && room.back_values.size() >= wanted, count);
  return HWY_DYNAMIC_DISPATCH(split)(indices.data(), values.data(), applied.data(), returned.data(), count, room);
}

void take_where_set(std::span<const uint16_t> indices, std::span<const int32_t> integers,
                    std::span<const uint32_t> bits, std::span<int32_t> taken) {
  MILLRACE_CHECK(integers.size() == indices.size() && taken.size() == indices.size(), indices.size(), integers.size(),
                 taken.size());
  HWY_DYNAMIC_DISPATCH(take_set)(indices.data(), integers.data(), bits.data(), indices.size(), taken.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
