#pragma once

#include <cstdint>
#include <vector>

#include "protocol/job/layout.h"

namespace millrace::protocol {

/// The single array that a job of path switch shows its decider: all buckets one behind the other, each beginning with
/// a new window. So a window is of one bucket, and its bits do not depend on the number of earlier tensors.
///
/// A pure function of the specification: shards, workers and the switch's owner compute it alone. The number of shards
/// has no effect.
struct SwitchLayout {
  std::vector<uint64_t> bucket_begin;  ///< [buckets] the first index of each: a multiple of window_indices
  uint64_t dimension = 0;              ///< behind the last index of the last bucket
  uint32_t window_indices = 0;         ///< grid.block_indices
  uint32_t windows = 0;                ///< the last one may be shorter
  uint32_t lanes = 1;                  ///< window w is in lane w % lanes
  uint32_t slots = 0;                  ///< of all lanes: as requested, and no more than windows; a multiple of lanes
  uint64_t reselect_k = 0;  ///< entries of a step's update over all buckets, each lane a share; 0: the whole sum
};

/// Returns one lane's share of k entries of all lanes; the lane cuts its windows to it. REQUIRES: lane < lanes.
constexpr uint64_t lane_share(uint64_t k, uint32_t lane, uint32_t lanes) {
  return k / lanes + (lane < k % lanes ? 1 : 0);
}

/// Returns the slots of a job that requests `asked`: no more than windows, and as many in each lane. REQUIRES: lanes >=
/// 1.
constexpr uint32_t switch_slots(uint32_t asked, uint64_t windows, uint32_t lanes) {
  const auto slots = static_cast<uint32_t>(windows < asked ? windows : asked);
  return slots - slots % lanes;
}

/// Indices of the whole array: 32 bits each, and so is their number.
inline constexpr uint64_t kSwitchDimensionMax = UINT32_MAX;

/// Plans the windows and slots of a job.
///
/// layout   plan_layout() of the specification, for any number of shards.
/// REQUIRES: grid.block_indices >= 1, switch_path.lanes >= 1. `windows` and `slots` are right if dimension <=
/// kSwitchDimensionMax, which validate() checks.
SwitchLayout plan_switch_layout(const JobSpec& spec, const JobLayout& layout);

}  // namespace millrace::protocol
