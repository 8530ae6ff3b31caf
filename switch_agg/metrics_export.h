#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "monitoring/catalog.h"
#include "monitoring/metrics.h"
#include "switch_agg/switch_status.h"

namespace millrace::switch_agg {

/// Every metric of the switch; the table of IO.md is checked against it.
std::span<const monitoring::MetricInfo> switch_metric_catalog();

/// The status as metrics: what grew since the last update is counted.
///
/// Threads  one at a time.
class MetricsExport {
 public:
  explicit MetricsExport(monitoring::Metrics& metrics) : metrics_(metrics) {}
  void update(const SwitchStatus& status);

 private:
  void update_lane(const std::string& lane, const LaneReport& now, const LaneReport& before);
  /// new_events  since the last update.
  void update_job(const SwitchStatus::JobStatus& job, const AggregatorCounters& new_events);

  monitoring::Metrics& metrics_;
  std::vector<LaneReport> before_;
  /// Jobs that have series, by label text, and what is counted in them: by lane, each of which begins anew by itself.
  std::map<std::string, std::map<uint32_t, AggregatorCounters>> jobs_;
};

}  // namespace millrace::switch_agg
