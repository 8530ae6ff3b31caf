#pragma once

#include <cstdint>
#include <optional>

#include "protocol/messages/messages.h"

namespace millrace::worker {

enum class Fate : uint8_t {
  kCounted = 1,
  kNotCounted = 2,
  kUnknown = 3,  ///< further back than the summary reaches
};

/// Returns the outcome of a worker's contribution to `step` under incarnation `life`, from its entry of the summary.
/// REQUIRES: the step is decided.
Fate fate_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t life, uint64_t step, uint32_t staleness);

/// Returns the same in mode asynchronous, of the contribution with that number. The entry counts for all of its
/// updates.
Fate fate_of_sequence(const std::optional<protocol::SummaryEntry>& counted, uint64_t life, uint64_t sequence);

/// Says whether a contribution of the worker, under any incarnation, was counted at step n or later (R9b). A residual
/// saved at n is too old then.
bool counted_since(const std::optional<protocol::SummaryEntry>& counted, uint64_t n);

}  // namespace millrace::worker
