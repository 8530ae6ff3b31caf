#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/table/membership_table.h"
#include "protocol/table/open_table.h"
#include "worker/program/outcome.h"

/// The cluster as its membership table shows it, and an operator's changes of it. No shard is asked.
namespace millrace::cluster_status {

/// Holds the processes and jobs of a table.
struct ClusterTable {
  protocol::ClusterView cluster;
  std::vector<protocol::JobRecord> jobs;  ///< that are open, by number
};

/// Opens a table that exists. Errors  io: no such file; those of open_table().
Result<std::unique_ptr<protocol::MembershipTable>> open_existing_table(protocol::TableFlags flags);

/// Reads the table. Errors  its own.
Result<ClusterTable> read_cluster_table(protocol::MembershipTable& table);

/// Returns "ready", "draining", "gone" (it has no process) or "never started".
std::string_view shard_state(const protocol::ClusterView::Shard& shard);

/// Returns the table for a person: shards, spares, jobs.
std::string cluster_text(const ClusterTable& table);

/// Returns the same for programs: {"shards": [...], "spares": [...], "jobs": [...]}.
nlohmann::json cluster_json(const ClusterTable& table);

/// Returns the outcome of `millrace cluster status`: a shard that is gone or never started is unreachable (4).
program::Outcome outcome_of(const ClusterTable& table);

struct DrainOptions {
  uint32_t shard = 0;
  TimeNs timeout = 30 * kNsPerS;
  std::function<TimeNs()> now = monotonic_now_ns;
  std::function<void()> wait;                                   ///< between two reads of the table
  std::function<bool()> is_interrupted = [] { return false; };  ///< ends the wait as the time-out does
};

/// A shard that was moved.
struct Drained {
  protocol::ShardEntry from;
  protocol::ShardEntry to;
};

/// Asks the shard's process to leave its number, and waits until a spare has it and holds its lease. A request that is
/// not granted in time is withdrawn. The failure says whether the process keeps its number: a spare may have taken it
/// before the process held its lease again.
///
/// Failures  usage: no such shard. refused: no spare waits; the process keeps its number, and why; another process has
///           started meanwhile. unreachable: the shard has no process; no spare took the number in time; the table does
///           not answer. interrupted.
std::expected<Drained, program::Failure> drain_shard(protocol::MembershipTable& table, const DrainOptions& options);

/// Ends an open job: each shard aborts its members with `reason`, and answers a Hello that comes later with it (R11d).
/// The name is free at once.
///
/// reason  UTF-8; longer than protocol::kSentenceBytesMax it is cut.
/// Failures  usage: no open job of that name. unreachable: the table does not answer; the job may have ended. refused:
///           its membership changes all the time.
program::Outcome end_job(protocol::MembershipTable& table, std::string_view job, std::string_view reason);

/// Says what remove_cluster() may throw away.
enum class OpenJobs : uint8_t { kRefuse, kForget };

/// Forgets the cluster. Failures  refused: processes hold leases; jobs are open.
program::Outcome remove_cluster(protocol::MembershipTable& table, OpenJobs open_jobs);

}  // namespace millrace::cluster_status
