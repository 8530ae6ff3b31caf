#pragma once

#include <map>
#include <string>
#include <vector>

#include "monitoring/catalog.h"
#include "monitoring/metrics.h"
#include "switch_agg/process/switch_status.h"

namespace millrace::switch_agg {

/// Exports the status as metrics: what grew since the last update is counted. What is known beforehand begins at 0: of
/// each lcore everything (its events where all lcores' fit below Metrics::kSeriesMax), of each job all but its events.
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
  /// Jobs that have series, by label text, and what is counted in them: by lane, each of which begins anew by itself.
  std::map<std::string, std::map<uint32_t, AggregatorCounters>> jobs_;
};

}  // namespace millrace::switch_agg
