#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/result.h"
#include "server/base/audit_event.h"

namespace millrace::server {

/// A right to a job that a named token of the HTTP port may have.
enum class ReaderRight : uint8_t { kObserve = 1, kEnd = 2 };

/// Holds the rights of named tokens, and the way of their acts to the audit log.
///
/// Threads  any.
struct ReaderRights {
  /// Errors  unauthenticated: which right the token of that name lacks.
  std::function<Status(const std::string& token, const std::string& job, ReaderRight right)> judge = {};
  /// Records the event within a second. Returns false: too many events wait, and this one is lost.
  std::function<bool(AuditEvent event)> record = {};
};

}  // namespace millrace::server
