#pragma once

#include <cstdint>
#include <string>

namespace millrace {

/// The levels of a line of a log. The public LogLevel (millrace.h) has the same numbers.
enum class Severity : uint8_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

/// A line that a pure core asks its process to log.
struct LogLine {
  Severity severity = Severity::kInfo;
  std::string text;
};

}  // namespace millrace
