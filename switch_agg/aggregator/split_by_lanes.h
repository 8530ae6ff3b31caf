#pragma once

#include <vector>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// Returns a job of several lanes as the jobs of its aggregators. Lane i has number `job` + i, its part of the slots,
/// and its share of the entries that an update keeps. Its windows are the workers' windows w with w % lanes = i,
/// numbered w / lanes.
///
/// So the protocol has no notion of lanes: each has sessions, epochs and an incarnation of its own. A worker's step is
/// over when it is over in all of them (worker/switch/client_state.h).
///
/// REQUIRES: slots are a multiple of lanes; reselect_k is 0 or at least lanes.
std::vector<SwitchJob> split_by_lanes(const SwitchJob& job);

}  // namespace millrace::switch_agg
