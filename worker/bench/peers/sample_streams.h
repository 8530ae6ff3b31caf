#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/stream/shared_stream.h"

namespace millrace::peer {

/// Says where the entries of the ranks lie.
enum class Distribution : uint8_t {
  kUniform = 1,
  kClustered = 2,  ///< in runs of up to 64 indices, drawn by each rank
  kSame = 3,       ///< all ranks have the same indices
  kDisjoint = 4,   ///< each rank in a range of its own: n / ranks entries at most
  kOneRegion = 5,  ///< all within a sixteenth of the dimension, or twice the size of a rank's contribution
  kTwoEnds = 6,    ///< even ranks in the first quarter, odd ones in the last
  kHotRegion = 7,  ///< uniform, but the large values are in the first sixteenth: so are the largest of the sum
};

struct DistributionName {
  Distribution distribution;
  std::string_view name;
};
std::span<const DistributionName> distributions();
std::optional<Distribution> find_distribution(std::string_view name);
std::string_view name_of(Distribution distribution);

struct SampleOptions {
  Distribution distribution = Distribution::kUniform;
  uint32_t ranks = 1;
  uint64_t dimension = 1;
  uint64_t count = 1;  ///< entries of a rank; fewer where the distribution has no room
  uint64_t seed = 1;
};

/// Returns the contribution of `rank` in `step`, sparse. Values are of a grid, from 2^-6 to 2^6 in magnitude. So f32
/// sums of up to 2^11 ranks are exact in any order. Those of more ranks are exact but for cases that chance does not
/// bring about (signs are drawn).
///
/// Order    equal arguments give equal bits.
SharedStream sample_contribution(const SampleOptions& options, uint32_t rank, uint64_t step);

}  // namespace millrace::peer
