#include "switch_agg/process/jobs_of_lane.h"

#include <algorithm>
#include <tuple>

#include "switch_agg/aggregator/split_by_lanes.h"
#include "switch_agg/packet_io/lane_of_datagram.h"

namespace millrace::switch_agg {
namespace {

bool same(const SwitchJob& a, const SwitchJob& b) {
  const auto fields = [](const SwitchJob& job) {
    return std::tie(job.job, job.lanes, job.name, job.key, job.role, job.workers, job.window_indices, job.slots,
                    job.result_codecs.index, job.result_codecs.value, job.packet_bytes, job.reselect_k, job.lease_ns,
                    job.rack, job.rack_number, job.racks);
  };
  return fields(a) == fields(b) && a.shard == b.shard;
}

}  // namespace

std::vector<SwitchJob> jobs_of_lane(const std::vector<SwitchJob>& jobs, uint32_t lane, uint32_t lanes) {
  std::vector<SwitchJob> its;
  for (const SwitchJob& job : jobs) {
    for (const SwitchJob& one : split_by_lanes(job)) {
      if (lane_of_job(one.job, lanes) == lane) its.push_back(one);
    }
  }
  return its;
}

JobChanges job_changes(const std::vector<SwitchJob>& before, const std::vector<SwitchJob>& after, uint32_t lane,
                       uint32_t lanes) {
  const auto without = [&](std::vector<SwitchJob> jobs, const std::vector<SwitchJob>& those) {
    std::erase_if(jobs, [&](const SwitchJob& job) {
      return std::ranges::any_of(those, [&](const SwitchJob& other) { return same(job, other); });
    });
    return jobs_of_lane(jobs, lane, lanes);
  };
  JobChanges changes{.removed = {}, .added = without(after, before)};
  for (const SwitchJob& job : without(before, after)) changes.removed.push_back(job.job);
  return changes;
}

}  // namespace millrace::switch_agg
