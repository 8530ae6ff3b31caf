#pragma once

#include <cstdint>

#include "kernels/base/result.h"
#include "worker/peer/algorithms/planner.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

namespace millrace::peer {

/// What the planner is asked about a group: the speeds of its ranks, and what each of them contributes.
struct GroupSpeeds {
  MachineSpeeds speeds = {};
  double entries = 0;  ///< of a rank's contribution
};

/// Returns the speeds of the group: of each the slowest rank's, and the mean of the ranks' entries. Measures the
/// network among the ranks (a ping with a neighbour; 128 KiB from every rank to the next one at once), and how fast
/// each rank adds (measure_kernel_speeds()).
///
/// own        what the rank has measured itself: selection, coding, entries. Its latency, rate and adding speeds are
///            the result's where the clock stands still (simulated time), and where there is one rank.
/// first_tag  tags from here to first_tag + 3 * 2^20 are its own.
/// Cost       some ms.
/// Errors     malformed: what a rank says of itself cannot be.
Task<Result<GroupSpeeds>> measure_group(Channel& channel, GroupSpeeds own, uint32_t first_tag);

}  // namespace millrace::peer
