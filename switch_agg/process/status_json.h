#pragma once

#include <string>

#include "switch_agg/process/switch_status.h"

namespace millrace::switch_agg {

/// Returns the status as one JSON object, the answer of /status. Omits counters that are 0 from "dropped" and "events".
std::string status_json(const SwitchStatus& status);

}  // namespace millrace::switch_agg
