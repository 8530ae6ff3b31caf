#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "kernels/base/clock.h"
#include "monitoring/catalog.h"
#include "monitoring/status/shard_status.h"
#include "server/base/actions.h"

namespace millrace::server {

/// Exports the core's events and status as the shard's metrics. Handles of jobs are kept: a round of a part costs a few
/// dozen events. A job's series are forgotten kEndedSeriesKept after its end, or when kEndedJobsMax jobs have ended
/// since. A job counts as ended if it has series and is not among the status's jobs. The event of an end can be lost
/// (memory), and nothing else reports it.
///
/// Threads  one at a time (the loop's); any thread may read the counts at any time.
class MetricsExport {
 public:
  static constexpr TimeNs kEndedSeriesKept = 600 * kNsPerS;
  static constexpr size_t kEndedJobsMax = 64;

  explicit MetricsExport(monitoring::Metrics& metrics);
  ~MetricsExport();

  void record(const MetricEvent& event);
  void update_gauges(const StatusReport& status, TimeNs now);
  void count_network(uint64_t in_bytes, uint64_t out_bytes);

 private:
  struct JobSeries;
  bool record_of_job(const MetricEvent& event);
  JobSeries& series_of(const std::string& job);
  void forget_ended(const StatusReport& status, TimeNs now);
  /// Adds the counts of shard 0's port of datagrams and its jobs' slot machines since the last update.
  void count_datagrams(const StatusReport& status);

  monitoring::Metrics& metrics_;
  monitoring::ShardMetrics shard_;
  // By label text, which jobs may share.
  std::unordered_map<std::string, std::unique_ptr<JobSeries>> jobs_;
  std::unordered_map<std::string, std::optional<TimeNs>>
      counted_;  ///< all that have series, and when they were found ended
  using Counts = std::unordered_map<std::string, uint64_t>;
  std::unordered_map<std::string, Counts> datagram_events_;  ///< by label text: those that are exported already
  Counts datagrams_dropped_;
};

}  // namespace millrace::server
