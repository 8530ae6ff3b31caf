#include "kernels/magnitude/magnitude_sample.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace millrace {
namespace {

constexpr size_t kEntriesPerSample = 256;
constexpr size_t kSampleMin = 256;
constexpr size_t kSampleMax = 65536;

}  // namespace

Buffer<MagnitudeKey> sample_keys(std::span<const float> values) {
  const size_t n = values.size();
  MILLRACE_CHECK(n >= kSampleFrom && n <= size_t{1} << 32, n);
  const size_t samples = std::clamp(n / kEntriesPerSample, kSampleMin, kSampleMax);
  Buffer<MagnitudeKey> keys(samples);
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
    keys[i] = magnitude_key(values[(begin + within) >> kFraction]);
    begin += width;
  }
  return keys;
}

double safe_sample_rank(uint64_t k, size_t n, size_t samples) {
  const double rank = static_cast<double>(k) * static_cast<double>(samples) / static_cast<double>(n);
  return rank + 4 * std::sqrt(rank) + 4;
}

}  // namespace millrace
