#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/timeline/process_trace.h"

namespace millrace::timeline {

/// Holds the spans of one job, ready to be written.
struct Timeline {
  std::string job;                    ///< any bytes
  std::vector<uint64_t> job_numbers;  ///< at the shards; spans of others are left out
  Collection collection;
  /// The name of each process, in the collection's order: "shard 0", "worker 3".
  std::vector<std::string> labels;
};

/// Holds the counts of one process of a timeline.
struct ProcessSummary {
  std::string label;
  std::string address;
  uint64_t spans = 0;
  uint64_t lost = 0;  ///< at the process, and beyond the collector's limit
  TimeNs clock_error = 0;
  std::string trouble = {};
};

std::vector<ProcessSummary> summaries_of(const Timeline& timeline);

/// Returns the timeline as a JSON object of the Trace Event Format. Each span is a complete event (`ph` X) in
/// microseconds since the beginning. `otherData` has the job, the processes with the offsets of their clocks and the
/// bounds of their errors, and the spans that are missing.
std::string chrome_trace(const Timeline& timeline);

}  // namespace millrace::timeline
