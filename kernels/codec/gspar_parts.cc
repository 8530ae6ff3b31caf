#include "kernels/codec/gspar_parts.h"

#include <algorithm>

namespace millrace {

template <typename T>
Result<GsparScale<T>> find_gspar_scale(std::span<const T> values) {
  using Bits = ValueBits<T>;
  Bits largest = 0;
  Bits smallest = kInfinityBits<T>;
  Bits majority = 0;  // Boyer and Moore: the only magnitude that more than half can have
  uint64_t votes = 0;
  for (const T value : values) {
    const Bits bits = magnitude_bits(value);
    largest = std::max(largest, bits);
    smallest = std::min(smallest, bits);
    majority = votes == 0 ? bits : majority;
    votes += votes == 0 || bits == majority ? uint64_t{1} : ~uint64_t{0};
  }
  if (largest >= kInfinityBits<T>) return fail(ErrorCode::kNonFinite, "NaN or infinity among the values");
  GsparScale<T> least{smallest, 0};
  GsparScale<T> most{majority, 0};
  for (const T value : values) {
    const Bits bits = magnitude_bits(value);
    least.entries += bits == smallest ? 1 : 0;
    most.entries += bits == majority ? 1 : 0;
  }
  return least.entries >= most.entries ? least : most;
}

template <typename T>
void append_exact(std::span<const T> values, const GsparScale<T>& scale, ByteBuffer& out) {
  const size_t at = out.size();
  const uint64_t exact = values.size() - scale.entries;
  out.resize(at + (exact + 1) * sizeof(T));  // every value is written, and stays where it is exact
  uint8_t* to = out.data() + at;
  for (const T value : values) {
    std::memcpy(to, &value, sizeof(T));
    to += magnitude_bits(value) == scale.bits ? 0 : sizeof(T);
  }
  out.resize(at + exact * sizeof(T));
}

template Result<GsparScale<float>> find_gspar_scale(std::span<const float>);
template Result<GsparScale<double>> find_gspar_scale(std::span<const double>);
template void append_exact(std::span<const float>, const GsparScale<float>&, ByteBuffer&);
template void append_exact(std::span<const double>, const GsparScale<double>&, ByteBuffer&);

}  // namespace millrace
