#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/threshold_scan.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/reduce/threshold_scan.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Compressed in a register and stored whole: the compressing store is slow on some machines.
size_t Scan(const float* HWY_RESTRICT values, size_t count, float edge, uint32_t base,
            uint32_t* HWY_RESTRICT positions) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto least = hn::Set(d, edge);
  const auto step = hn::Set(du, static_cast<uint32_t>(lanes));
  auto at = hn::Iota(du, base);
  size_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto in = hn::RebindMask(du, hn::Ge(hn::Abs(hn::LoadU(d, values + i)), least));
    hn::StoreU(hn::Compress(at, in), du, positions + found);
    found += hn::CountTrue(du, in);
    at = hn::Add(at, step);
  }
  for (; i < count; ++i) {
    positions[found] = base + static_cast<uint32_t>(i);
    found += std::fabs(values[i]) >= edge ? 1 : 0;
  }
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(Scan);

size_t scan_at_least(const float* values, size_t count, float edge, uint32_t base, uint32_t* positions) {
  return HWY_DYNAMIC_DISPATCH(Scan)(values, count, edge, base, positions);
}

}  // namespace millrace
#endif
