#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// Returns "greetings", "kept_results", "contributions", "decider"; empty: nothing.
std::string_view wait_name(SwitchWait what);

/// Returns one sentence on the event that a job is blocked on, as far as an aggregator can know. Names the workers, the
/// time, rejected packets that name them, and a worker of another packet length. Empty: there is nothing of these.
///
/// now  of the aggregator's clock.
std::string waiting_sentence(const SwitchJobStatus& job, TimeNs now);

/// Merges the status of another lane of the same job: of two waits the older one, of equal waits the workers of both.
void add_waiting(const SwitchJobStatus& lane, SwitchJobStatus& job);

/// Returns the numbers of a set of workers, ascending: "0, 2, 63".
std::string workers_text(uint64_t workers);

}  // namespace millrace::switch_agg
