#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/base/clock.h"
#include "protocol/datagram/header.h"

namespace millrace::testing {

/// Counts how often workers send one turn while nothing goes wrong, and how many incarnations deciders begin then. The
/// clock alone would show only that a run ended. DESIGN.md, "Rounds", derives the limits.
class SwitchRounds {
 public:
  /// Announces a fault that lasts, or that a process may still have to detect, until `when`: counts start again.
  void disturbed_until(TimeNs when) { quiet_from_ = when > quiet_from_ ? when : quiet_from_; }
  bool is_quiet(TimeNs now) const { return now >= quiet_from_; }

  /// Every packet that a worker sends. to  the node it goes to.
  void sent_by_worker(uint32_t from, uint32_t to, const protocol::DatagramHeader& header, TimeNs now);
  /// Every packet that a decider sends.
  void sent_by_decider(uint32_t from, const protocol::DatagramHeader& header, TimeNs now);

  /// The most of any worker, of one turn to one aggregator in one epoch and incarnation.
  uint32_t sends_most() const { return sends_most_; }
  uint32_t lives_begun() const { return lives_begun_; }

  /// No worker sends a turn more often.
  /// timeout_max  of the workers.
  static uint32_t sends_max(TimeNs timeout_max);
  /// No worker that waits is silent for longer.
  static TimeNs silence_max(TimeNs timeout_max);

 private:
  struct Turn {
    uint32_t epoch = 0;
    uint64_t incarnation = 0;
    uint64_t turn = 0;
    TimeNs quiet_from = 0;
    uint32_t sends = 0;
  };
  struct Life {
    uint64_t incarnation = 0;
    TimeNs quiet_from = 0;
  };

  std::map<std::tuple<uint32_t, uint32_t, uint32_t, uint16_t>, Turn> turns_;  ///< by from, to, job, slot
  std::map<std::tuple<uint32_t, uint32_t>, Life> lives_;                      ///< by from, job
  TimeNs quiet_from_ = 0;
  uint32_t sends_most_ = 0;
  uint32_t lives_begun_ = 0;
};

}  // namespace millrace::testing
