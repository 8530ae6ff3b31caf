#pragma once

#include <vector>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// A job of several lanes as the jobs that aggregators have: lane i has number `job` + i, its part of the slots, and
/// its share of the entries that an update keeps. Its windows are those w of the workers' with w % lanes = i, and are
/// numbered w / lanes.
///
/// So nothing of the protocol knows of lanes: each has sessions, epochs and a life of its own, and a worker's step is
/// over when it is in all of them (worker/switch/client_state.h).
///
/// REQUIRES: slots are a multiple of lanes; reselect_k is 0 or at least lanes.
std::vector<SwitchJob> split_by_lanes(const SwitchJob& job);

}  // namespace millrace::switch_agg
