#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/clock.h"

namespace millrace::worker {

/// The phases of a step whose time a session sums. The time of callers' waits is in Stats.
enum class StepPhase : uint8_t { kSelect, kEncode, kApply };

/// Sums the time that the threads of a session spend on each phase.
///
/// Threads  all members: any.
class PhaseTimes {
 public:
  void add(StepPhase phase, TimeNs took) { sum(phase).fetch_add(took, std::memory_order_relaxed); }

  /// Returns the sums as one JSON object: select_seconds, encode_seconds, apply_seconds.
  std::string json() const {
    return R"({"select_seconds": )" + seconds(StepPhase::kSelect) + R"(, "encode_seconds": )" +
           seconds(StepPhase::kEncode) + R"(, "apply_seconds": )" + seconds(StepPhase::kApply) + "}";
  }

 private:
  std::atomic<TimeNs>& sum(StepPhase phase) { return sums_[static_cast<size_t>(phase)]; }
  std::string seconds(StepPhase phase) const {
    return std::to_string(sums_[static_cast<size_t>(phase)].load(std::memory_order_relaxed)) + "e-9";
  }

  std::array<std::atomic<TimeNs>, 3> sums_ = {};
};

}  // namespace millrace::worker
