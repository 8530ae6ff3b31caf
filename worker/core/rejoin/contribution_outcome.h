#pragma once

#include <cstdint>
#include <optional>

#include "protocol/messages/messages.h"

namespace millrace::worker {

enum class ContributionOutcome : uint8_t {
  kCounted = 1,
  kNotCounted = 2,
  kUnknown = 3,  ///< further back than the summary reaches
};

/// Returns the outcome of a worker's contribution to `step` under incarnation `incarnation`, from its entry of the
/// summary.
/// REQUIRES: the step is decided.
ContributionOutcome contribution_outcome_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t incarnation,
                                            uint64_t step, uint32_t staleness);

/// Returns the same in mode asynchronous, of the contribution with that number. The entry counts for all of its
/// updates.
ContributionOutcome sequence_outcome_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t incarnation,
                                        uint64_t sequence);

/// Says whether a contribution of the worker, under any incarnation, was counted at step n or later (R9b). A residual
/// saved at n is too old then.
bool counted_since(const std::optional<protocol::SummaryEntry>& counted, uint64_t n);

}  // namespace millrace::worker
