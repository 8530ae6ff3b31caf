#pragma once

#include <string>

#include "server/status/status_report.h"

namespace millrace::server {

/// Returns the report as one JSON object, the answer of /status. Field names are the report's.
std::string status_json(const StatusReport& report);

}  // namespace millrace::server
