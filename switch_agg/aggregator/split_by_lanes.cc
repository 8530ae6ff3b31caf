#include "switch_agg/aggregator/split_by_lanes.h"

#include "kernels/base/check.h"
#include "protocol/job/switch_layout.h"

namespace millrace::switch_agg {

std::vector<SwitchJob> split_by_lanes(const SwitchJob& job) {
  MILLRACE_CHECK(job.lanes >= 1 && job.slots % job.lanes == 0, job.slots, job.lanes);
  std::vector<SwitchJob> all;
  for (uint32_t lane = 0; lane < job.lanes; ++lane) {
    SwitchJob& one = all.emplace_back(job);
    one.lanes = 1;
    one.job = job.job + lane;
    one.slots = job.slots / job.lanes;
    one.reselect_k = protocol::lane_share(job.reselect_k, lane, job.lanes);
  }
  return all;
}

}  // namespace millrace::switch_agg
