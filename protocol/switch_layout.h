#pragma once

#include <cstdint>
#include <vector>

#include "protocol/layout.h"

namespace millrace::protocol {

/// A job of path switch shows its decider one array: all buckets one behind the other, each beginning with a new window. So a
/// window is of one bucket, and what its bits are does not depend on how many tensors went before.
///
/// A pure function of the specification: shards (how many there are changes nothing here), workers and the switch's owner
/// compute it alone.
struct SwitchLayout {
  std::vector<uint64_t> bucket_begin;  ///< [buckets] the first index of each: a multiple of window_indices
  uint64_t dimension = 0;              ///< behind the last index of the last bucket
  uint32_t window_indices = 0;         ///< grid.block_indices
  uint32_t windows = 0;                ///< the last one may be shorter
  uint32_t slots = 0;                  ///< what the specification asks for, and no more than there are windows
  uint64_t reselect_k = 0;  ///< entries of a step's update over all buckets, by one threshold; 0: the whole sum
};

/// Indices of the whole array: 32 bits each, and so is their number.
inline constexpr uint64_t kSwitchDimensionMax = UINT32_MAX;

/// layout   plan_layout() of the specification, for any number of shards.
/// REQUIRES: grid.block_indices >= 1. That dimension <= kSwitchDimensionMax is validate()'s to say: `windows` and `slots` are
/// right where it holds.
SwitchLayout plan_switch_layout(const JobSpec& spec, const JobLayout& layout);

/// Whose window it is. REQUIRES: window < layout.windows.
uint32_t bucket_of_window(const SwitchLayout& layout, uint32_t window);

}  // namespace millrace::protocol
