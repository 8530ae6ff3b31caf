#pragma once

#include <map>
#include <string>
#include <vector>

#include "monitoring/catalog.h"
#include "monitoring/metrics.h"
#include "switch_agg/process/switch_status.h"

namespace millrace::switch_agg {

/// Exports the status as metrics: counts the growth since the last update. Series known beforehand begin at 0. Those
/// are all of each lcore (its events where all lcores' fit below Metrics::kSeriesMax), and all of each job but its
/// events.
///
/// Threads  one at a time.
class MetricsExport {
 public:
  explicit MetricsExport(monitoring::Metrics& metrics);
  void update(const SwitchStatus& status);

 private:
  void update_lane(const std::string& lane, const LaneReport& now, const LaneReport& before);
  /// new_events  since the last update.
  void update_job(const SwitchStatus::JobStatus& job, const AggregatorCounters& new_events);

  monitoring::Metrics& metrics_;
  monitoring::SwitchMetrics switch_;
  bool begins_events_ = true;  ///< of lcores, at 0
  std::vector<LaneReport> before_;
  /// Jobs that have series, by label text, with the counts exported so far. By lane, since each lane restarts
  /// separately.
  std::map<std::string, std::map<uint32_t, AggregatorCounters>> jobs_;
};

}  // namespace millrace::switch_agg
