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
  for_each_sample(n, samples, [&](size_t i, size_t at) { keys[i] = magnitude_key(values[at]); });
  return keys;
}

double safe_sample_rank(uint64_t k, size_t n, size_t samples) {
  const double rank = static_cast<double>(k) * static_cast<double>(samples) / static_cast<double>(n);
  return rank + 4 * std::sqrt(rank) + 4;
}

}  // namespace millrace
