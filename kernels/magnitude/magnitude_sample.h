#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Arrays below this are not sampled: looking at every entry costs no more.
inline constexpr size_t kSampleFrom = 4096;

/// Samples the keys of some entries of `values`, one of each of equally long ranges. The place within the range varies,
/// so that no period of the data meets all of them. The same ones every time, so that a selection takes the same path
/// every time.
///
/// REQUIRES values.size() >= kSampleFrom.
/// Returns  256 to 65536 keys: at 2^24 entries a twentieth of the cost of a memory pass.
Buffer<MagnitudeKey> sample_keys(std::span<const float> values);

/// Returns the rank among `samples` keys, drawn from n entries, of a key that at least k of the n entries reach. It
/// holds but once in 30,000 arrays of independent entries (four standard deviations).
double safe_sample_rank(uint64_t k, size_t n, size_t samples);

}  // namespace millrace
