#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"
#include "server/page/reader_view.h"

namespace millrace::server {

/// Keeps numbers of every open job over the last ten minutes, for the charts of the page.
///
/// Limits   kJobsMax jobs, kSamplesMax samples each: 2 MiB.
/// Threads  add(): one. json(): any.
class JobHistory {
 public:
  static constexpr TimeNs kEvery = 5 * kNsPerS;
  static constexpr size_t kSamplesMax = 121;
  static constexpr size_t kJobsMax = 256;

  /// Adds a sample of every job in the report, if the last one is kEvery old. Forgets jobs that the report omits, and
  /// skips those of which this shard has no part.
  void add(const StatusReport& report, TimeNs now);

  /// Returns {"shard": 0, "columns": [name, ...], "jobs": [{"job": 7, "samples": [[number, ...], ...]}, ...]}. A sample
  /// has a number for each column; the oldest is first. The first column is the age in milliseconds. The shard is null
  /// before the first sample: the process is a spare.
  ///
  /// shows  empty: all jobs.
  std::string json(TimeNs now, const ShowsJob& shows = {}) const;

 private:
  struct Sample {
    TimeNs at = 0;
    std::array<uint64_t, 4> values = {};
  };
  struct JobSamples {
    std::string name;
    std::deque<Sample> samples;
  };

  TimeNs next_ = 0;           ///< add()'s alone
  mutable std::mutex mutex_;  ///< guards the next two
  std::optional<uint32_t> shard_;
  std::map<uint64_t, JobSamples> jobs_;
};

}  // namespace millrace::server
