#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/value/byte_planes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

#include "kernels/codec/value/byte_planes.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The bytes of as many f32 as a vector has bytes.
using Block = uint8_t[4 * HWY_MAX_BYTES];

/// Positions below the result are done.
size_t apart(const float* values, size_t count, uint8_t* HWY_RESTRICT planes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN Block block;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    std::memcpy(block, values + i, 4 * lanes);
    hn::Vec<decltype(d)> b0;
    hn::Vec<decltype(d)> b1;
    hn::Vec<decltype(d)> b2;
    hn::Vec<decltype(d)> b3;
    hn::LoadInterleaved4(d, block, b0, b1, b2, b3);
    hn::StoreU(b0, d, planes + i);
    hn::StoreU(b1, d, planes + count + i);
    hn::StoreU(b2, d, planes + 2 * count + i);
    hn::StoreU(b3, d, planes + 3 * count + i);
  }
  return i;
}

size_t together(const uint8_t* const* planes, size_t count, float* values) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN Block block;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreInterleaved4(hn::LoadU(d, planes[0] + i), hn::LoadU(d, planes[1] + i), hn::LoadU(d, planes[2] + i),
                          hn::LoadU(d, planes[3] + i), d, block);
    std::memcpy(values + i, block, 4 * lanes);
  }
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(apart);
HWY_EXPORT(together);

void to_planes(std::span<const float> values, uint8_t* planes) {
  const size_t count = values.size();
  const std::span<const std::byte> raw = std::as_bytes(values);
  const size_t done = HWY_DYNAMIC_DISPATCH(apart)(values.data(), count, planes);
  for (size_t i = done; i < count; ++i) {
    for (size_t byte = 0; byte < sizeof(float); ++byte) {
      planes[byte * count + i] = static_cast<uint8_t>(raw[i * sizeof(float) + byte]);
    }
  }
}

void from_planes(const uint8_t* const* planes, std::span<float> values) {
  const std::span<std::byte> raw = std::as_writable_bytes(values);
  const size_t done = HWY_DYNAMIC_DISPATCH(together)(planes, values.size(), values.data());
  for (size_t i = done; i < values.size(); ++i) {
    for (size_t byte = 0; byte < sizeof(float); ++byte)
      raw[i * sizeof(float) + byte] = static_cast<std::byte>(planes[byte][i]);
  }
}

}  // namespace millrace
#endif  // HWY_ONCE
