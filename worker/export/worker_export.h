#pragma once

#include <string>
#include <utility>
#include <vector>

#include "millrace/millrace.h"
#include "monitoring/catalog.h"
#include "monitoring/metrics.h"

namespace millrace::worker {

/// Holds the sums over tensors that the metrics show.
struct TensorSums {
  uint64_t entries_sent = 0;
  uint64_t entries_received = 0;
  uint64_t false_positives = 0;
  uint64_t entries_discarded = 0;
  double dropped_magnitude = 0;
  double residual_norm = 0;

  explicit TensorSums(const Stats& stats);
};

/// Returns the terms of an audited job's mass, with their names; of another job nothing.
std::vector<std::pair<const char*, double>> audit_terms(const AuditStats& audit);

/// Exports the sums of a session as the metrics of a worker: counts the growth since the last update. All metrics known
/// beforehand begin at 0.
///
/// Threads  update() one at a time; step_done() any.
class WorkerExport {
 public:
  /// metrics  outlives this.
  WorkerExport(monitoring::Metrics& metrics, std::string job);

  void update(const Stats& stats);

  /// Counts a step that took this time, from its push to its update.
  void step_done(double seconds) { step_seconds_.observe(seconds); }

 private:
  std::string job_;
  monitoring::WorkerMetrics exported_;
  monitoring::Histogram& step_seconds_;
  Stats shown_;  ///< the values that the counters have already
};

}  // namespace millrace::worker
