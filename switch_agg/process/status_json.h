#pragma once

#include <string>

#include "switch_agg/process/switch_status.h"

namespace millrace::switch_agg {

/// The status as one JSON object: what /status answers. Counters that are 0 are left out of "dropped" and "events".
std::string status_json(const SwitchStatus& status);

}  // namespace millrace::switch_agg
