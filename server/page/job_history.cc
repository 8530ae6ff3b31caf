#include "server/page/job_history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace millrace::server {

void JobHistory::add(const StatusReport& report, TimeNs now) {
  if (now < next_) return;
  next_ = now + kEvery;
  const std::lock_guard lock(mutex_);
  shard_ = report.shard;
  std::map<uint64_t, JobSamples> kept;
  for (const JobStatus& job : report.jobs) {
    if (kept.size() == kJobsMax) break;
    if (job.parts == 0) continue;  // it decides no steps here
    Sample sample{now, {job.steps_decided, 0, 0, job.memory_bytes}};
    for (const MemberStatus& member : job.members) {
      sample.values[1] = std::max(sample.values[1], member.steps_behind);
      sample.values[2] += member.contribution_bytes;
    }
    JobSamples& own = kept[job.job] = std::move(jobs_[job.job]);
    own.name = job.name;
    std::deque<Sample>& samples = own.samples;
    samples.push_back(sample);
    if (samples.size() > kSamplesMax) samples.pop_front();
  }
  jobs_ = std::move(kept);
}

std::string JobHistory::json(TimeNs now, const ShowsJob& shows) const {
  std::map<uint64_t, JobSamples> jobs;
  std::optional<uint32_t> shard;
  {
    const std::lock_guard lock(mutex_);  // short: the loop waits for it
    jobs = jobs_;
    shard = shard_;
  }
  nlohmann::ordered_json history = {
      {"shard", nullptr},
      {"columns", {"age_ms", "steps_decided", "steps_behind", "contribution_bytes", "memory_bytes"}},
      {"jobs", nlohmann::ordered_json::array()}};
  if (shard) history["shard"] = *shard;
  for (const auto& [job, own] : jobs) {
    if (shows && !shows(own.name)) continue;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Sample& sample : own.samples) {
      nlohmann::ordered_json row = {(now - sample.at) / kNsPerMs};
      for (const uint64_t value : sample.values) row.push_back(value);
      rows.push_back(std::move(row));
    }
    history["jobs"].push_back({{"job", job}, {"samples", std::move(rows)}});
  }
  return history.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace millrace::server
