#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

namespace millrace::peer {

/// Divides the index range into a region for each rank, which sums it: the same on all ranks.
struct Regions {
  std::vector<uint64_t>
      boundaries;  ///< [P + 1] ascending, 0 to the dimension; region j is [cuts[j], cuts[j + 1]), may be empty
  std::vector<uint32_t> owner;   ///< [P] the rank in charge of a region
  std::vector<uint32_t> region;  ///< [P] the region of a rank

  uint64_t begin_of(uint32_t rank) const { return boundaries[region[rank]]; }
  uint64_t end_of(uint32_t rank) const { return boundaries[region[rank] + 1]; }
};

/// Tags that either takes from first_tag on.
inline constexpr uint32_t kRegionTags = 8192;

/// Returns the regions with these boundaries [P + 1] and owners [P], as an earlier run made them; both are empty where
/// it made none.
///
/// Errors   invalid_argument: boundaries that do not divide the dimension; owners that are not the ranks below P.
Result<Regions> restored_regions(std::span<const uint64_t> boundaries, std::span<const uint64_t> owners,
                                 uint64_t dimension);

/// Returns index ranges of one length. Rank r has range r.
Regions equal_regions(uint64_t dimension, uint32_t ranks);

/// Averages the ranks' own boundaries, each of which divides its own entries into P like shares. Rank r has region r.
/// Good where the ranks' entries lie alike; ranks without entries have no say.
///
/// selected   ascending; kept alive by the caller.
/// Bytes      sum_numbers() of P numbers.
/// Errors     malformed: as sum_numbers().
/// Source     [OkTopk22, 3.1.1]
Task<Result<Regions>> averaged_regions(Channel& channel, IndexSpan selected, uint64_t dimension, uint32_t first_tag);

/// Divides all ranks' entries into P like shares, regardless of their position. The histograms of the indices are
/// summed over the ranks. They are refined by 16 where a boundary falls into a bin of more than a 16th of a share. A
/// share is then within a 16th of the average, or one index more than that. (Up to P entries have the same index, and
/// cannot be divided.) Each rank has the region that most of its own entries lie in, unless a rank with more in it has
/// taken it.
///
/// selected   as above.
/// Bytes      sum_numbers() of 8 P numbers and of at most 16 P in each further round, and gather_numbers() of 2. There
///            are 1 to 7 further rounds (one where indices are uniform).
/// Errors     malformed: as sum_numbers(); histograms that do not add up.
Task<Result<Regions>> pooled_regions(Channel& channel, IndexSpan selected, uint64_t dimension, uint32_t first_tag);

}  // namespace millrace::peer
