#pragma once

#include <cstdint>

#include "kernels/base/result.h"
#include "worker/peer/algorithms/planner.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

namespace millrace::peer {

/// Holds the planner's inputs about a group: the speeds of its ranks, and the contribution of each.
struct GroupSpeeds {
  MachineSpeeds speeds = {};
  double entries = 0;  ///< of a rank's contribution
};

/// Returns the speeds of the group: each is that of the slowest rank. The number of entries is the mean of the ranks'.
/// Measures the network among the ranks (a ping with a neighbour; 128 KiB from every rank to the next one at once). It
/// also measures how fast each rank adds (measure_kernel_speeds()).
///
/// own        the rank's own measurements: selection, coding, entries. Its latency, rate and adding speeds are the
///            result's where the clock stops (simulated time), and where there is one rank.
/// first_tag  tags from here to first_tag + 3 * 2^20 are its own.
/// Cost       some ms.
/// Errors     malformed: a rank reported an impossible value.
Task<Result<GroupSpeeds>> measure_group(Channel& channel, GroupSpeeds own, uint32_t first_tag);

}  // namespace millrace::peer
