#pragma once

#include <cstdint>
#include <vector>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// The jobs that lane `lane` of `lanes` has (lane_of_datagram.h), and those of its jobs' lanes that are here.
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
