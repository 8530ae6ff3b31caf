#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/audit_sums.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/reduce/audit_sums.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Number of values whose lanes are added up before they join the total: a sum of this length loses little.
constexpr size_t kBlock = 4096;

using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;  // as many as there are doubles in a vector

template <typename V>
HWY_INLINE double Sum(V a, V b) {
  const Doubles d;
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
}

HWY_INLINE hn::Vec<Doubles> Load(const float* HWY_RESTRICT at) {
  return hn::PromoteTo(Doubles(), hn::LoadU(Floats(), at));
}

Mass BlockMass(const float* HWY_RESTRICT values, size_t count) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), size0 = hn::Zero(d), size1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = Load(values + i);
    const auto b = Load(values + i + lanes);
    sum0 = hn::Add(sum0, a);
    sum1 = hn::Add(sum1, b);
    size0 = hn::Add(size0, hn::Abs(a));
    size1 = hn::Add(size1, hn::Abs(b));
  }
  Mass mass{Sum(sum0, sum1), Sum(size0, size1)};
  for (; i < count; ++i) mass.count(static_cast<double>(values[i]));
  return mass;
}

Mass MassOf(const float* values, size_t count) {
  LongSum sum;
  double magnitude = 0;
  for (size_t at = 0; at < count; at += kBlock) {
    const Mass block = BlockMass(values + at, std::min(kBlock, count - at));
    sum.add(block.sum);
    magnitude += block.magnitude;
  }
  return {sum.value(), magnitude};
}

#if HWY_TARGET == HWY_SCALAR
Mass BlockMassWhere(const uint32_t* HWY_RESTRICT indices, const float* HWY_RESTRICT values, size_t count, uint32_t base,
                    const uint32_t* HWY_RESTRICT marks) {
  const Doubles d;
  const hn::Rebind<uint32_t, Doubles> u;
  const hn::Rebind<int32_t, Doubles> s;
  const size_t lanes = hn::Lanes(d);
  const auto from = hn::Set(u, base);
  auto sum = hn::Zero(d), size = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto local = hn::Sub(hn::LoadU(u, indices + i), from);
    const auto words = hn::GatherIndex(u, marks, hn::BitCast(s, hn::ShiftRight<5>(local)));
    const auto bits = hn::And(hn::Shr(words, hn::And(local, hn::Set(u, 31))), hn::Set(u, 1));
    const auto marked = hn::Mul(Load(values + i), hn::PromoteTo(d, hn::BitCast(s, bits)));
    sum = hn::Add(sum, marked);
    size = hn::Add(size, hn::Abs(marked));
  }
  const auto none = hn::Zero(d);
  Mass mass{Sum(sum, none), Sum(size, none)};
  for (; i < count; ++i) {
    const uint32_t local = indices[i] - base;
    if (marks[local / 32] >> (local % 32) & 1) mass.count(static_cast<double>(values[i]));
  }
  return mass;
}

#else
// As many indices at a time as there are 32-bit lanes: half the gathers' time.
Mass BlockMassWhere(const uint32_t* HWY_RESTRICT indices, const float* HWY_RESTRICT values, size_t count, uint32_t base,
                    const uint32_t* HWY_RESTRICT marks) {
  const Doubles d;
  const hn::Repartition<float, Doubles> f;
  const hn::Half<decltype(f)> half;
  const hn::RebindToUnsigned<decltype(f)> u;
  const hn::RebindToSigned<decltype(f)> s;
  const size_t lanes = hn::Lanes(f);
  const auto from = hn::Set(u, base);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), size0 = hn::Zero(d), size1 = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto local = hn::Sub(hn::LoadU(u, indices + i), from);
    const auto words = hn::GatherIndex(u, marks, hn::BitCast(s, hn::ShiftRight<5>(local)));
    const auto bits = hn::Shl(hn::Set(u, 1), hn::And(local, hn::Set(u, 31)));
    const auto marked = hn::RebindMask(f, hn::TestBit(words, bits));
    const auto taken = hn::IfThenElseZero(marked, hn::LoadU(f, values + i));
    const auto lower = hn::PromoteTo(d, hn::LowerHalf(half, taken));
    const auto upper = hn::PromoteTo(d, hn::UpperHalf(half, taken));
    sum0 = hn::Add(sum0, lower);
    sum1 = hn::Add(sum1, upper);
    size0 = hn::Add(size0, hn::Abs(lower));
    size1 = hn::Add(size1, hn::Abs(upper));
  }
  Mass mass{Sum(sum0, sum1), Sum(size0, size1)};
  for (; i < count; ++i) {
    const uint32_t local = indices[i] - base;
    if (marks[local / 32] >> (local % 32) & 1) mass.count(static_cast<double>(values[i]));
  }
  return mass;
}
#endif

Mass MassWhere(const uint32_t* indices, const float* values, size_t count, uint32_t base, const uint32_t* marks) {
  LongSum sum;
  double magnitude = 0;
  // Fewer values a block than mass_of() takes: there are half as many lanes.
  for (size_t at = 0; at < count; at += kBlock / 2) {
    const Mass block = BlockMassWhere(indices + at, values + at, std::min(kBlock / 2, count - at), base, marks);
    sum.add(block.sum);
    magnitude += block.magnitude;
  }
  return {sum.value(), magnitude};
}

Accumulated AccumulateBlock(float* HWY_RESTRICT target, const float* HWY_RESTRICT values, size_t count, float scale) {
  const Doubles d;
  const Floats f;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(f, scale);
  auto taken = hn::Zero(d), taken_size = hn::Zero(d), off = hn::Zero(d), off_size = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto product = hn::Mul(factor, hn::LoadU(f, values + i));
    const auto before = hn::LoadU(f, target + i);
    const auto after = hn::Add(before, product);
    const auto part = hn::Sub(after, before);
    const auto error = hn::Add(hn::Sub(before, hn::Sub(after, part)), hn::Sub(product, part));
    hn::StoreU(after, f, target + i);
    const auto wide = hn::PromoteTo(d, product);
    const auto wide_error = hn::PromoteTo(d, error);
    taken = hn::Add(taken, wide);
    taken_size = hn::Add(taken_size, hn::Abs(wide));
    off = hn::Add(off, wide_error);
    off_size = hn::Add(off_size, hn::Abs(wide_error));
  }
  const auto none = hn::Zero(d);
  Accumulated all{{Sum(taken, none), Sum(taken_size, none)}, {Sum(off, none), Sum(off_size, none)}};
  for (; i < count; ++i) {
    const float product = scale * values[i];
    const Rounded<float> added = rounded_sum(target[i], product);
    target[i] = added.sum;
    all.taken.count(static_cast<double>(product));
    all.rounded.count(static_cast<double>(added.off));
  }
  return all;
}

Accumulated AccumulateDense(float* target, const float* values, size_t count, float scale) {
  Accumulated all;
  LongSum taken;
  // Fewer values a block than mass_of() takes: there may be half as many lanes.
  for (size_t at = 0; at < count; at += kBlock / 2) {
    const Accumulated block = AccumulateBlock(target + at, values + at, std::min(kBlock / 2, count - at), scale);
    all += block;
    taken.add(block.taken.sum);
  }
  all.taken.sum = taken.value();
  return all;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/base/check.h"

namespace millrace {

HWY_EXPORT(MassOf);
HWY_EXPORT(MassWhere);
HWY_EXPORT(AccumulateDense);

namespace {

constexpr size_t kMassPrefetchAhead = 128;
constexpr int kMassSecondLevel = 2;
// Ratio of the streams' entries from which the shorter one's are searched for in the longer one.
constexpr size_t kMassSearchRatio = 16;

double rounding_of(float a, float b) { return static_cast<double>(rounded_sum(a, b).off); }

Mass rounded_off_dense(std::span<const float> a, const StreamView& b) {
  Mass off;
  for (size_t i = 0; i < b.values.size(); ++i) off.count(rounding_of(a[b.dense ? i : b.indices[i]], b.values[i]));
  return off;
}

Mass rounded_off_searched(const StreamView& many, const StreamView& few) {
  Mass off;
  auto from = many.indices.begin();
  for (size_t i = 0; i < few.indices.size(); ++i) {
    from = std::lower_bound(from, many.indices.end(), few.indices[i]);
    if (from == many.indices.end()) break;
    if (*from != few.indices[i]) continue;
    off.count(rounding_of(many.values[static_cast<size_t>(from - many.indices.begin())], few.values[i]));
  }
  return off;
}

}  // namespace

Mass mass_of(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(MassOf)(values.data(), values.size()); }

Mass mass_where(IndexSpan indices, std::span<const float> values, uint32_t base, std::span<const uint32_t> marks) {
  MILLRACE_CHECK(indices.size() == values.size(), indices.size(), values.size());
  return HWY_DYNAMIC_DISPATCH(MassWhere)(indices.data(), values.data(), values.size(), base, marks.data());
}

Accumulated accumulate(std::span<float> target, const StreamView& stream, float scale) {
  MILLRACE_CHECK(target.size() == stream.dimension, target.size(), stream.dimension);
  if (stream.dense) {
    return HWY_DYNAMIC_DISPATCH(AccumulateDense)(target.data(), stream.values.data(), target.size(), scale);
  }
  MILLRACE_CHECK(scale == 1, scale);
  Accumulated all{mass_of(stream.values), {}};
  const size_t entries = stream.count();
  const uint32_t* const index = stream.indices.data();
  for (size_t i = 0; i < entries; ++i) {
    if (i + kMassPrefetchAhead < entries)
      __builtin_prefetch(&target[index[i + kMassPrefetchAhead]], 0, kMassSecondLevel);
    const Rounded<float> added = rounded_sum(target[index[i]], stream.values[i]);
    target[index[i]] = added.sum;
    all.rounded.count(static_cast<double>(added.off));
  }
  return all;
}

Mass rounded_off(const StreamView& a, const StreamView& b) {
  MILLRACE_CHECK(a.dimension == b.dimension, a.dimension, b.dimension);
  if (a.dense) return rounded_off_dense(a.values, b);
  if (b.dense) return rounded_off_dense(b.values, a);
  if (a.count() / kMassSearchRatio > b.count()) return rounded_off_searched(a, b);
  if (b.count() / kMassSearchRatio > a.count()) return rounded_off_searched(b, a);
  Mass off;
  size_t i = 0, j = 0;
  while (i < a.count() && j < b.count()) {
    const uint32_t left = a.indices[i], right = b.indices[j];
    // No branch on the data: entries that do not meet round nothing off.
    const float other = left == right ? b.values[j] : 0.0f;
    off.count(rounding_of(a.values[i], other));
    i += left <= right;
    j += right <= left;
  }
  return off;
}

}  // namespace millrace
#endif
