#include "kernels/codec/value/gspar_parts.h"

#include <algorithm>

namespace millrace {

Result<GsparScale> find_gspar_scale(std::span<const float> values) {
  uint32_t largest = 0;
  uint32_t smallest = kInfinityKey;
  uint32_t majority = 0;  // Boyer and Moore: the only magnitude that more than half can have
  uint64_t votes = 0;
  for (const float value : values) {
    const uint32_t bits = magnitude_key(value);
    largest = std::max(largest, bits);
    smallest = std::min(smallest, bits);
    majority = votes == 0 ? bits : majority;
    votes += votes == 0 || bits == majority ? uint64_t{1} : ~uint64_t{0};
  }
  if (largest >= kInfinityKey) return fail(ErrorCode::kNonFinite, "NaN or infinity among the values");
  GsparScale least{smallest, 0};
  GsparScale most{majority, 0};
  for (const float value : values) {
    const uint32_t bits = magnitude_key(value);
    least.entries += bits == smallest ? 1 : 0;
    most.entries += bits == majority ? 1 : 0;
  }
  return least.entries >= most.entries ? least : most;
}

void append_exact(std::span<const float> values, const GsparScale& scale, ByteBuffer& out) {
  const size_t at = out.size();
  const uint64_t exact = values.size() - scale.entries;
  out.resize(at + (exact + 1) * sizeof(float));  // every value is written, and stays where it is exact
  uint8_t* to = out.data() + at;
  for (const float value : values) {
    std::memcpy(to, &value, sizeof(float));
    to += magnitude_key(value) == scale.bits ? 0 : sizeof(float);
  }
  out.resize(at + exact * sizeof(float));
}

}  // namespace millrace
