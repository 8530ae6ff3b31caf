#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// "greetings", "kept_results", "contributions", "decider"; empty: nothing.
std::string_view wait_name(SwitchWait what);

/// Returns one sentence on what a job waits for, and why, as far as an aggregator can know: which workers, since when,
/// and whether packets that name them were rejected. Empty: it waits for nothing, and rejects nothing.
///
/// now  of the aggregator's clock.
std::string waiting_sentence(const SwitchJobStatus& job, TimeNs now);

/// Takes in what another lane of the same job says: of two waits the older one, of both the same its workers too.
void add_waiting(const SwitchJobStatus& lane, SwitchJobStatus& job);

/// The numbers of a set of workers, ascending: "0, 2, 63".
std::string workers_text(uint64_t workers);

}  // namespace millrace::switch_agg
