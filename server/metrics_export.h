#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "monitoring/catalog.h"
#include "server/actions.h"
#include "server/status.h"

namespace millrace::server {

/// The core's events and status as the shard's metrics. Handles of jobs are kept: a round of a part costs a few dozen
/// events.
///
/// Threads  one at a time (the loop's); what is counted may be read at any time by anyone.
class MetricsExport {
 public:
  explicit MetricsExport(monitoring::Metrics& metrics);
  ~MetricsExport();

  void record(const MetricEvent& event);
  void update_gauges(const StatusReport& status);
  void count_network(uint64_t in_bytes, uint64_t out_bytes);

 private:
  struct JobSeries;
  bool record_of_job(const MetricEvent& event);
  JobSeries& series_of(const std::string& job);

  monitoring::ShardMetrics shard_;
  std::unordered_map<std::string, std::unique_ptr<JobSeries>> jobs_;
};

}  // namespace millrace::server
