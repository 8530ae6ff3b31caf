#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "monitoring/status/shard_status.h"

namespace millrace::monitoring {

/// Returns the report as one JSON object, the answer of /status.
std::string status_json(const StatusReport& report);

/// Maximum length of a list that is read; members and jobs have a shard's limits.
inline constexpr size_t kStatusListMax = 4'096;

/// Reads a shard's status, which another process wrote. A field that is missing or of another type reads as 0, empty or
/// false; texts are made printable. Empty: this is another status (a worker's, say).
std::optional<StatusReport> read_status(const nlohmann::json& status);
/// Returns the jobs of a switch's status; of any other, none.
std::vector<SwitchJobStatus> read_switch_jobs(const nlohmann::json& status);

}  // namespace millrace::monitoring
