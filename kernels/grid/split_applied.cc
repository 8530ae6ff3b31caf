#include "kernels/grid/split_applied.h"

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/grid/split_applied.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The entries from `at` on, one at a time.
void split_rest(const uint32_t* indices, const float* values, const int32_t* integers, double step, size_t at,
                size_t count, const SplitBuffers& room, SplitCounts& out) {
  for (; at < count; ++at) {
    const double gone = integers[at] * step;
    const double left = static_cast<double>(values[at]) - gone;
    const auto stays = static_cast<float>(left);
    if (!room.taken_indices.empty()) {
      room.taken_indices[out.taken] = indices[at];
      room.taken_values[out.taken] = static_cast<float>(gone);
    }
    room.back_indices[out.back] = indices[at];
    room.back_values[out.back] = stays;
    out.taken += gone != 0 ? 1 : 0;
    out.back += stays != 0 ? 1 : 0;
    out.whole += stays != 0 && gone == 0 ? 1 : 0;
    out.applied.count(gone);
    out.adds_up = out.adds_up && left == static_cast<double>(stays);
  }
}

SplitCounts split(const uint32_t* indices, const float* values, const int32_t* integers, double step, size_t count,
                  const SplitBuffers& room) {
  const hn::CappedTag<double, kSplitSlack> d;
  const hn::Rebind<float, decltype(d)> df;
  const hn::Rebind<uint32_t, decltype(d)> du;
  const hn::Rebind<int32_t, decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const bool wants_taken = !room.taken_indices.empty();
  const auto size = hn::Set(d, step);
  auto sum = hn::Zero(d);
  auto magnitude = hn::Zero(d);
  auto missing = hn::Zero(d);
  SplitCounts out;
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto integer = hn::LoadU(di, integers + at);
    const auto gone = hn::Mul(hn::PromoteTo(d, integer), size);
    const auto left = hn::Sub(hn::PromoteTo(d, hn::LoadU(df, values + at)), gone);
    const auto stays = hn::DemoteTo(df, left);
    const auto index = hn::LoadU(du, indices + at);
    const auto is_gone = hn::RebindMask(df, hn::Ne(integer, hn::Zero(di)));
    const auto comes_back = hn::Ne(stays, hn::Zero(df));
    if (wants_taken) {
      hn::StoreU(hn::Compress(index, hn::RebindMask(du, is_gone)), du, room.taken_indices.data() + out.taken);
      hn::StoreU(hn::Compress(hn::DemoteTo(df, gone), is_gone), df, room.taken_values.data() + out.taken);
    }
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, comes_back)), du, room.back_indices.data() + out.back);
    hn::StoreU(hn::Compress(stays, comes_back), df, room.back_values.data() + out.back);
    out.taken += hn::CountTrue(df, is_gone);
    out.back += hn::CountTrue(df, comes_back);
    out.whole += hn::CountTrue(df, hn::AndNot(is_gone, comes_back));
    sum = hn::Add(sum, gone);
    magnitude = hn::Add(magnitude, hn::Abs(gone));
    missing = hn::Add(missing, hn::Abs(hn::Sub(left, hn::PromoteTo(d, stays))));
  }
  out.applied.sum = hn::GetLane(hn::SumOfLanes(d, sum));
  out.applied.magnitude = hn::GetLane(hn::SumOfLanes(d, magnitude));
  out.adds_up = hn::AllTrue(d, hn::Eq(missing, hn::Zero(d)));
  split_rest(indices, values, integers, step, at, count, room, out);
  return out;
}

void take_set(const uint32_t* indices, uint32_t begin, const int32_t* integers, const uint32_t* bits, size_t count,
              int32_t* taken) {
  const hn::ScalableTag<int32_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto base = hn::Set(du, begin);
  const auto low = hn::Set(du, 31);
  const auto one = hn::Set(du, 1);
  size_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto index = hn::Sub(hn::LoadU(du, indices + at), base);
    const auto word = hn::GatherIndex(du, bits, hn::BitCast(d, hn::ShiftRight<5>(index)));
    const auto bit = hn::And(hn::Shr(word, hn::And(index, low)), one);
    // 0 or all ones.
    const auto all = hn::BitCast(d, hn::Sub(hn::Zero(du), bit));
    hn::StoreU(hn::And(hn::LoadU(d, integers + at), all), d, taken + at);
  }
  for (; at < count; ++at) {
    const uint32_t index = indices[at] - begin;
    const uint32_t bit = bits[index / 32] >> (index % 32) & 1;
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

SplitCounts split_applied(std::span<const uint32_t> indices, std::span<const float> values,
                          std::span<const int32_t> integers, double step, const SplitBuffers& room) {
  const size_t count = indices.size();
  MILLRACE_CHECK(values.size() == count && integers.size() == count, count, values.size(), integers.size());
  const size_t wanted = count + kSplitSlack;
  const bool has_room = room.taken_indices.size() >= wanted || room.taken_indices.empty();
  MILLRACE_CHECK(has_room && room.taken_values.size() == room.taken_indices.size(), count);
  MILLRACE_CHECK(room.back_indices.size() >= wanted && room.back_values.size() >= wanted, count);
  return HWY_DYNAMIC_DISPATCH(split)(indices.data(), values.data(), integers.data(), step, count, room);
}

void take_where_set(std::span<const uint32_t> indices, uint32_t begin, std::span<const int32_t> integers,
                    std::span<const uint32_t> bits, std::span<int32_t> taken) {
  MILLRACE_CHECK(integers.size() == indices.size() && taken.size() == indices.size(), indices.size(), integers.size(),
                 taken.size());
  HWY_DYNAMIC_DISPATCH(take_set)(indices.data(), begin, integers.data(), bits.data(), indices.size(), taken.data());
}

}  // namespace millrace
#endif  // HWY_ONCE
