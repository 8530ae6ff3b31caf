#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/base/clock.h"
#include "worker/peer/group/peer_group.h"

namespace millrace::training {

/// Makes ranks end at the same step that get the command to stop at different moments. They ask each other every few
/// steps, as many as take about a quarter of a second on the slowest rank. So the question does not make a step longer.
class StopAgreement {
 public:
  explicit StopAgreement(peer::PeerGroup& group) : group_(group), asked_at_(monotonic_now_ns()) {}

  /// Asks all ranks; all call it once a step. True on all ranks, where `stop` is on any of them. Errors  the group's.
  Result<bool> ask(const std::atomic<bool>& stop);

 private:
  peer::PeerGroup& group_;
  TimeNs asked_at_;
  uint32_t every_ = 1;  ///< steps; a function of what all ranks know
  uint32_t steps_ = 0;  ///< since they asked
};

}  // namespace millrace::training
