#pragma once

#include <string>

#include "server/status/status_report.h"

namespace millrace::server {

/// The report as one JSON object: what /status answers. Field names are the report's.
std::string status_json(const StatusReport& report);

}  // namespace millrace::server
