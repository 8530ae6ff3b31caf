#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/oktopk/oktopk_regions.h"

namespace millrace::peer {

/// Plans how the entries of the regions reach all ranks. All entries, in the order of the regions, are one sequence;
/// `members` take a share of it each and gather these by recursive doubling. A function of the regions' counts alone:
/// the same on all ranks.
struct GatherPlan {
  std::vector<uint64_t> starts;      ///< [P + 1] region j holds [starts[j], starts[j + 1]) of the sequence
  std::vector<uint32_t> members;     ///< regions whose ranks gather, ascending
  std::vector<uint64_t> boundaries;  ///< [members + 1] member i's share is [cuts[i], cuts[i + 1])
  std::optional<uint32_t> excused;   ///< the region whose rank hands over all that it holds, and does not gather

  uint64_t total() const { return starts.back(); }
};

/// Plans a gathering of K entries in all, where a share is K / P:
///
/// no move                 no entry has to move. The largest region holds at most balance_ratio shares, and no rank
///                         would send more than 2 K less 3 shares while gathering.
/// like shares of all      otherwise: a rank that holds m sends m less a share, and gathers for K less a share.
/// like shares of all but  one region holds more than K less a share. Its rank sends these once, and gets those that it
///   one                   lacks. In the gathering it would have to send as many again, of entries that it has already.
///
/// So no rank sends more than 2 K - 3 K / P entries, nor receives more than K, for any distribution over regions; P >
/// 2. The rounding of shares adds at most an entry for each other rank. Of two ranks each sends the entries that it
/// holds.
///
/// counts         [P] by region; they add up to less than 2^63.
/// balance_ratio  infinite: nothing ever moves, and no bound holds (the paper's direct allgatherv, for comparison).
GatherPlan plan_gather(std::span<const uint64_t> counts, double balance_ratio);

/// Tags that it takes from first_tag on.
inline constexpr uint32_t kGatherTags = 64;

/// Gathers the whole sequence, on all ranks: sparse, of the settings' dimension.
///
/// own     this rank's region: as many entries as the plan says, of the settings' dimension; kept alive by the caller,
///         like the others.
/// Errors  malformed: a peer sent another number of entries than it said, or others than its region's. The codec's.
/// Source  [OkTopk22, 3.1.2]
Task<Result<Stream>> gather_by_plan(Channel& channel, const AllreduceSettings& settings, const GatherPlan& plan,
                                    const Regions& regions, StreamView own, uint32_t first_tag);

}  // namespace millrace::peer
