#pragma once

#include <cstdint>
#include <vector>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// Returns the jobs of lane `lane` of `lanes` (lane_of_datagram.h). A job with several lanes has those that belong to
/// this one.
std::vector<SwitchJob> jobs_of_lane(const std::vector<SwitchJob>& jobs, uint32_t lane, uint32_t lanes);

/// Holds the changes of a new list of jobs for lane `lane` of `lanes`. A job with a changed field is removed and added,
/// in all of its lanes.
struct JobChanges {
  std::vector<uint32_t> removed;
  std::vector<SwitchJob> added;
};
JobChanges job_changes(const std::vector<SwitchJob>& before, const std::vector<SwitchJob>& after, uint32_t lane,
                       uint32_t lanes);

}  // namespace millrace::switch_agg
