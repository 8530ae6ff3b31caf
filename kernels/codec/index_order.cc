#include "kernels/codec/index_order.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/index_order.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether indices[1 .. count) are each greater than the one before; indices[0] is read as well.
bool increasing(const uint32_t* indices, size_t count) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  auto all = hn::Eq(hn::Zero(d), hn::Zero(d));
  size_t j = 1;
  for (; j + lanes <= count; j += lanes) {
    all = hn::And(all, hn::Gt(hn::LoadU(d, indices + j), hn::LoadU(d, indices + j - 1)));
  }
  bool rest = true;
  for (; j < count; ++j) rest &= indices[j] > indices[j - 1];
  return rest && hn::AllTrue(d, all);
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(increasing);

bool copy_increasing(ByteSpan bytes, std::span<uint32_t> out) {
  MILLRACE_CHECK(bytes.size() == out.size_bytes(), bytes.size(), out.size());
  constexpr size_t kCached = 2048;  // indices that are checked while they are still in the first-level cache
  for (size_t begin = 0; begin < out.size(); begin += kCached) {
    const size_t count = std::min(kCached, out.size() - begin);
    std::memcpy(out.data() + begin, bytes.data() + begin * sizeof(uint32_t), count * sizeof(uint32_t));
    const size_t overlap = begin == 0 ? 0 : 1;
    if (!HWY_DYNAMIC_DISPATCH(increasing)(out.data() + begin - overlap, count + overlap)) return false;
  }
  return true;
}

}  // namespace millrace
#endif  // HWY_ONCE
