#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Arrays below this are not sampled: looking at every entry costs no more.
inline constexpr size_t kSampleFrom = 4096;

/// Calls each(i, position) for `samples` of n positions, one of each of equally long ranges, in order. The place within
/// the range varies, so that no period of the data meets all of them. The same ones every time.
///
/// REQUIRES 1 <= samples <= n <= 2^32.
template <typename Each>
void for_each_sample(size_t n, size_t samples, const Each& each) {
  // Ranges of n / samples entries in 32.16 fixed point (n <= 2^32): three divisions an entry took longer than the
  // loads.
  constexpr uint32_t kFraction = 16;
  const uint64_t width = (static_cast<uint64_t>(n) << kFraction) / samples;
  uint64_t jitter = 0x9E3779B97F4A7C15u;
  uint64_t begin = 0;
  for (size_t i = 0; i < samples; ++i) {
    jitter = jitter * 6364136223846793005u + 1442695040888963407u;
    const uint64_t within =
        ((jitter >> 40) * (width >> 8)) >> 16;  // 24 random bits times the width, in its fixed point
    each(i, (begin + within) >> kFraction);
    begin += width;
  }
}

/// Samples the keys of some entries of `values`, those of for_each_sample(). So a selection takes the same path every
/// time.
///
/// REQUIRES values.size() >= kSampleFrom.
/// Returns  256 to 65536 keys: at 2^24 entries a twentieth of the cost of a memory pass.
Buffer<MagnitudeKey> sample_keys(std::span<const float> values);

/// Returns the rank among `samples` keys, drawn from n entries, of a key that at least k of the n entries reach. It
/// holds but once in 30,000 arrays of independent entries (four standard deviations).
double safe_sample_rank(uint64_t k, size_t n, size_t samples);

}  // namespace millrace
