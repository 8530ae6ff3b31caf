#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "worker/bench/recover/recover_marks.h"

namespace millrace::bench {

/// Holds one push of one process.
struct RecoverRound {
  uint64_t step = 0;  ///< of the job
  TimeNs start_ns = 0;
  TimeNs end_ns = 0;  ///< its update is in the weights
};

/// Holds the state and the commands of one process of the recovery benchmark. Plain data in shared memory; a round is
/// written before the count that covers it.
struct RecoverProcess {
  std::atomic<uint32_t> pushes{0};
  std::atomic<uint32_t> answered{0};
  std::atomic<TimeNs> has_weights_ns{0};    ///< connect() has returned: it is in the job, with the job's weights
  std::atomic<TimeNs> first_counted_ns{0};  ///< its own weights say that every part has counted its first push
  std::atomic<bool> leave{false};           ///< told: go now, with nothing in flight and no word about it
  RecoverVerdict verdict;                   ///< of a process that stays to the end, on its own weights
  char failure[480] = {};                   ///< the error, if any
};

/// Holds the shared memory of the recovery benchmark's processes, made before they are forked.
class RecoverShared {
 public:
  static Result<std::unique_ptr<RecoverShared>> create(uint32_t serials, uint32_t pushes_max);
  ~RecoverShared();
  RecoverShared(const RecoverShared&) = delete;
  RecoverShared& operator=(const RecoverShared&) = delete;

  RecoverProcess& process(uint32_t serial) { return processes_[serial]; }
  RecoverRound& round(uint32_t serial, uint32_t push) {
    return rounds_[static_cast<size_t>(serial) * pushes_max_ + push];
  }
  /// Rounds that have ended.
  std::span<const RecoverRound> rounds(uint32_t serial) {
    return {&round(serial, 0), processes_[serial].answered.load()};
  }
  /// Returns the last step: all processes leave as finished once the job has made it.
  std::atomic<uint64_t>& end_step() { return *end_step_; }

 private:
  RecoverShared() = default;
  void* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint32_t pushes_max_ = 0;
  std::atomic<uint64_t>* end_step_ = nullptr;
  RecoverProcess* processes_ = nullptr;
  RecoverRound* rounds_ = nullptr;
};

}  // namespace millrace::bench
