#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"

namespace millrace::bench {

/// Holds the report of one worker process of the serve benchmark. Plain data in shared memory.
struct ServeWorkerReport {
  uint64_t bytes_up = 0;  ///< payload and envelope bytes of the measured rounds
  uint64_t bytes_down = 0;
  /// Worker 0's: datagrams that shard 0 received in the measured rounds, of all workers.
  uint64_t bytes_into_shard = 0;
  uint64_t checked_count = 0;  ///< entries of the checked round's update
  double relative_error = 0;   ///< of the checked round against the oracle (0 when lossless)
  int32_t check = 0;           ///< 0 not checked here, 1 agrees with the oracle, -1 does not
  char failure[480] = {};      ///< the error, if any
};

/// Holds the shared data of the benchmark's processes: a barrier, a start and an end time for every (worker, round),
/// and reports of all workers. Anonymous shared memory, made before the processes are forked.
class ServeShared {
 public:
  static Result<std::unique_ptr<ServeShared>> create(uint32_t workers, uint32_t rounds);
  ~ServeShared();
  ServeShared(const ServeShared&) = delete;
  ServeShared& operator=(const ServeShared&) = delete;

  /// Waits until every worker is here.
  void meet();

  TimeNs& start_ns(uint32_t worker, uint32_t round) {
    return times_[2 * (static_cast<size_t>(round) * workers_ + worker)];
  }
  TimeNs& end_ns(uint32_t worker, uint32_t round) {
    return times_[2 * (static_cast<size_t>(round) * workers_ + worker) + 1];
  }
  ServeWorkerReport& report(uint32_t worker) { return reports_[worker]; }

  /// Returns the time from the first start to the last end of a round, over all workers.
  double round_ms(uint32_t round);

 private:
  ServeShared() = default;
  void* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint32_t workers_ = 0;
  pthread_barrier_t* barrier_ = nullptr;
  ServeWorkerReport* reports_ = nullptr;
  TimeNs* times_ = nullptr;
};

}  // namespace millrace::bench
