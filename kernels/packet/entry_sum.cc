#include "kernels/packet/entry_sum.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packet/entry_sum.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls f(j) for each entry, by thirds: neighbours, of one contribution mostly, may need the same word, and would wait
/// for each other's.
template <typename F>
void for_each_by_thirds(size_t count, F f) {
  const size_t third = count / 3;
  for (size_t j = 0; j < third; ++j) {
    f(j);
    f(third + j);
    f(2 * third + j);
  }
  for (size_t j = 3 * third; j < count; ++j) f(j);
}

/// Plain numbers: vectors would have to gather and scatter. Built for each instruction set for its population count and
/// shifts.
uint32_t sum(const uint16_t* indices, const int32_t* values, size_t count, const EntrySumRoom& room) {
  uint64_t* const present = room.present.data();
  uint16_t* const ranks = room.ranks.data();
  uint16_t* const out_indices = room.indices.data();
  int32_t* const out_values = room.values.data();
  for_each_by_thirds(count, [=](size_t j) { present[indices[j] / 64] |= uint64_t{1} << (indices[j] % 64); });
  size_t found = 0;
  for (size_t word = 0; word < room.present.size(); ++word) {
    ranks[word] = static_cast<uint16_t>(found);  // 2^16 only behind the last index
    found += hwy::PopCount(present[word]);
  }
  std::memset(out_values, 0, found * sizeof(int32_t));
  for_each_by_thirds(count, [=](size_t j) {
    const size_t index = indices[j];
    // The bits up to this one: at least its own.
    const size_t rank = ranks[index / 64] + hwy::PopCount(present[index / 64] << (63 - index % 64));
    out_indices[rank - 1] = static_cast<uint16_t>(index);
    out_values[rank - 1] =
        static_cast<int32_t>(static_cast<uint32_t>(out_values[rank - 1]) + static_cast<uint32_t>(values[j]));
  });
  std::memset(present, 0, room.present.size_bytes());
  return static_cast<uint32_t>(found);
}

void add_each(int32_t* sums, const int32_t* values, size_t count) {
  const hn::CappedTag<int32_t, 16> d;
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, sums + j), hn::LoadU(d, values + j)), d, sums + j);
  for (; j < count; ++j)
    sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) + static_cast<uint32_t>(values[j]));
}

uint32_t magnitude(int32_t value) {
  return value < 0 ? 0 - static_cast<uint32_t>(value) : static_cast<uint32_t>(value);
}

/// Abs() leaves the lowest number as it is: 2^31, read as unsigned.
uint32_t or_all(const int32_t* values, size_t count) {
  const hn::CappedTag<int32_t, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  auto all = hn::Zero(d);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) all = hn::Or(all, hn::Abs(hn::LoadU(d, values + j)));
  alignas(64) uint32_t parts[16];
  hn::Store(hn::BitCast(du, all), du, parts);
  uint32_t result = 0;
  for (size_t i = 0; i < lanes; ++i) result |= parts[i];
  for (; j < count; ++j) result |= magnitude(values[j]);
  return result;
}

uint32_t largest(const int32_t* values, size_t count) {
  const hn::CappedTag<int32_t, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  auto most = hn::Zero(du);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) most = hn::Max(most, hn::BitCast(du, hn::Abs(hn::LoadU(d, values + j))));
  alignas(64) uint32_t parts[16];
  hn::Store(most, du, parts);
  uint32_t result = 0;
  for (size_t i = 0; i < lanes; ++i) result = std::max(result, parts[i]);
  for (; j < count; ++j) result = std::max(result, magnitude(values[j]));
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(sum);
HWY_EXPORT(add_each);
HWY_EXPORT(or_all);
HWY_EXPORT(largest);

uint32_t sum_entries(std::span<const uint16_t> indices, std::span<const int32_t> values, const EntrySumRoom& room) {
  const size_t words = room.present.size();
  MILLRACE_CHECK(indices.size() == values.size(), indices.size(), values.size());
  MILLRACE_CHECK(words <= 1024 && room.ranks.size() >= words, words, room.ranks.size());
  MILLRACE_CHECK(room.indices.size() >= 64 * words && room.values.size() >= 64 * words, room.indices.size(), words);
  return HWY_DYNAMIC_DISPATCH(sum)(indices.data(), values.data(), indices.size(), room);
}

void add_values(std::span<int32_t> sums, std::span<const int32_t> values) {
  MILLRACE_CHECK(sums.size() == values.size(), sums.size(), values.size());
  HWY_DYNAMIC_DISPATCH(add_each)(sums.data(), values.data(), sums.size());
}

uint32_t magnitudes_or(std::span<const int32_t> values) {
  return HWY_DYNAMIC_DISPATCH(or_all)(values.data(), values.size());
}

uint32_t largest_magnitude(std::span<const int32_t> values) {
  return HWY_DYNAMIC_DISPATCH(largest)(values.data(), values.size());
}

}  // namespace millrace
#endif  // HWY_ONCE
