#pragma once

#include <chrono>

#include "monitoring/status/shard_status.h"
#include "protocol/keys/allowed_keys.h"

namespace millrace::server {

/// Returns what /status and the metrics say of the allowed keys.
inline KeysStatus keys_status_of(const protocol::AllowedKeys& allowed) {
  KeysStatus status{.allowed = allowed.count(), .skipped_files = allowed.problems().size()};
  if (const protocol::KeyEnd end = allowed.first_end())
    status.first_end_s = std::chrono::sys_seconds(*end).time_since_epoch().count();
  return status;
}

}  // namespace millrace::server
