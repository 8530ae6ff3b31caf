#include "kernels/codec/entropy_bound.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace millrace {

double entropy_bits_per_index(uint64_t dimension, uint64_t count) {
  MILLRACE_CHECK(count >= 1 && count <= dimension, count, dimension);
  const auto n = static_cast<double>(dimension);
  const auto k = static_cast<double>(count);
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0) / k;
}

double rice_blocks_bits_per_index(IndexSpan indices) {
  MILLRACE_CHECK(!indices.empty());
  constexpr size_t kBlock = 128;
  constexpr uint32_t kParameters = 32;
  constexpr uint64_t kParameterBits = 5;
  uint64_t bits = 0;
  for (size_t begin = 0; begin < indices.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, indices.size());
    uint64_t best = UINT64_MAX;
    for (uint32_t shift = 0; shift < kParameters; ++shift) {
      uint64_t cost = 0;
      for (size_t j = begin; j < end; ++j) {
        const uint32_t gap = j == 0 ? indices[0] : indices[j] - indices[j - 1] - 1;
        cost += (gap >> shift) + 1 + shift;
      }
      best = std::min(best, cost);
    }
    bits += best + kParameterBits;
  }
  return static_cast<double>(bits) / static_cast<double>(indices.size());
}

}  // namespace millrace
