#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/trace/span_recorder.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/aggregator/aggregator_counters.h"
#include "switch_agg/packet_io/packet_port.h"

namespace millrace::switch_agg {

/// Takes one burst off `port` through `aggregator` and sends the answers. Returns how many packets there were.
size_t serve_burst(PacketPort& port, Aggregator& aggregator, TimeNs now);

/// Holds a lane's counts, as of `at`.
struct LaneReport {
  struct Job {
    SwitchJobStatus status;
    AggregatorCounters counters;
  };
  TimeNs at = 0;
  PortCounters port;
  AggregatorCounters aggregator;
  std::vector<Job> jobs;
};

/// Runs one lcore's work: a port, an aggregator, and a loop over both. Lanes share nothing. The loop exchanges reports
/// and changes with other threads between bursts, a few times a second, under a lock that it only tries.
///
/// Threads  run(): the lane's. The constructor, and add_jobs() before run(): one. Everything else: any.
class Lane {
 public:
  Lane(std::unique_ptr<PacketPort> port, const AggregatorOptions& options, uint64_t incarnation_seed);

  /// Takes memory, and reserves slots. A job without free slots waits for some, and take_refusals() names it.
  /// Errors   that of the first job that cannot be served, with its name.
  Status add_jobs(const std::vector<SwitchJob>& jobs, TimeNs now);

  /// Records each burst with packets as a span `reduce` of unit `lane`. REQUIRES: before run(); `spans` outlives it.
  void record_into(monitoring::SpanRecorder& spans, uint32_t lane) {
    spans_ = &spans;
    number_ = lane;
  }

  /// Serves until request_stop().
  void run();
  void request_stop() { stop_.store(true); }

  /// Takes the memory of new jobs on the caller's thread: the loop would stand meanwhile.
  /// Errors   limit_exceeded: there is no memory; invalid_argument: as add_jobs(). Both name the job.
  /// Threads  one at a time, beside run().
  Result<std::vector<PreparedJob>> prepare(const std::vector<SwitchJob>& jobs);
  /// Lets the loop remove these jobs and then add those, soon. take_refusals() names a job that does not fit.
  /// added  by prepare() of this lane.
  void change_jobs(std::vector<uint32_t> removed, std::vector<PreparedJob> added);
  std::vector<std::string> take_refusals();
  /// Hands out the jobs that the loop removed. Their memory, up to a GB each, is freed on the caller's thread.
  std::vector<PreparedJob> take_retired();

  /// Returns the latest report: at most kReportEvery old while the loop runs.
  LaneReport report() const;

  static constexpr TimeNs kTickEvery = kNsPerMs;
  static constexpr TimeNs kReportEvery = 100 * kNsPerMs;

 private:
  void exchange(TimeNs now);
  size_t serve_burst(TimeNs now);

  std::unique_ptr<PacketPort> port_;
  Aggregator aggregator_;
  monitoring::SpanRecorder* spans_ = nullptr;
  uint32_t number_ = 0;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;  ///< of the members below
  LaneReport report_;
  std::vector<uint32_t> removed_;
  std::vector<PreparedJob> added_;
  std::vector<PreparedJob> retired_;  ///< removed from the aggregator
  std::vector<std::string> refusals_;
};

}  // namespace millrace::switch_agg
