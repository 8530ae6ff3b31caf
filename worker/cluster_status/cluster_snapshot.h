#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monitoring/status/shard_status.h"

namespace millrace::cluster_status {

/// One picture of a cluster, put together of what its shards say.

/// Converts an age of a status to seconds.
inline double seconds_of(int64_t milliseconds) { return static_cast<double>(milliseconds) / 1e3; }

/// Describes a worker of a job as all shards together see it.
struct MemberSeen {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  std::vector<uint32_t> hello_sent_to;  ///< to these shards
  std::vector<uint32_t> without_hello;  ///< of those that were reached
  double silent_s = 0;                  ///< time since a shard or worker last heard it
  uint64_t steps_behind = 0;            ///< at the shard where it is furthest
  bool finishing = false;
};

/// Describes a job at one shard.
struct JobAt {
  uint32_t shard = 0;
  JobStatus said;
};

struct RefusalAt {
  uint32_t shard = 0;  ///< that said it
  RefusalStatus said;
};

enum class JobState : uint8_t { kRunning, kStarting, kStalled, kEnding };
std::string_view state_name(JobState state);  ///< "running", "waiting to start", ...

struct JobPicture {
  std::string name;
  std::vector<JobAt> at;             ///< by shard; of those that have it open
  std::vector<uint32_t> not_open;    ///< shards that were reached and do not know it
  std::vector<MemberSeen> members;   ///< by worker
  std::vector<uint32_t> never_here;  ///< expected before the start, said Hello to no shard
  std::vector<RefusalAt> refusals;   ///< of it, the latest first
  bool started = false;
  bool is_snapshot_job = false;  ///< SVRG's, of another open job: it decides no step between snapshots.
  /// Of path switch, if the job's switch was asked too: the workers that block it, and those whose packets it rejects,
  /// in its words.
  std::string switch_because;
  // The verdict.
  JobState state = JobState::kRunning;
  double since_s = 0;   ///< of waiting to start and of the stall.
  std::string verdict;  ///< one sentence, without the job's name
};

/// Returns shard 0's report of a job of path switch: only shard 0 receives the workers' reports about the switch.
/// nullptr: of another path, or shard 0 was not reached.
const SwitchPathStatus* path_of(const JobPicture& job);

/// Returns the workers that do not hear the switch.
std::vector<uint32_t> silent_to(const SwitchPathStatus& path);
/// Returns the workers that hear the switch again.
std::vector<uint32_t> answered_by(const SwitchPathStatus& path);
/// Returns the workers that block shard 0 where it decides, and why; empty: none.
std::string shard_waits(const SwitchPathStatus& path);
/// Returns the size of an audit's mismatch.
double mismatch_of(const AuditStatus& audit);

/// Describes a shard without a known status.
struct ShardMissing {
  std::string address;  ///< for workers; empty: not even that is known
  std::string why;
};

struct ClusterSnapshot {
  std::map<uint32_t, StatusReport> shards;  ///< that were reached
  std::map<uint32_t, std::string> asked;    ///< the HTTP address of each
  std::map<uint32_t, ShardMissing> missing;
  std::vector<JobPicture> jobs;       ///< by name
  std::vector<RefusalAt> refusals;    ///< of jobs that are not open, and of no job
  std::vector<std::string> troubles;  ///< of the cluster as a whole, a sentence each

  /// Returns "shard 1 (tcp://127.0.0.1:7601)", for example.
  std::string shard_text(uint32_t shard) const;
};

/// Holds a shard's request and answer.
struct ShardAnswer {
  std::string http;
  StatusReport said;
};

/// still_after_s  a job without progress for this time is stalled.
/// why_missing    by shard: why it could not be asked; for those that did not answer.
/// switch_jobs    the jobs that switches reported.
ClusterSnapshot picture_of(const std::vector<ShardAnswer>& answers, const std::map<uint32_t, std::string>& why_missing,
                           double still_after_s, const std::vector<SwitchJobStatus>& switch_jobs = {});

}  // namespace millrace::cluster_status
