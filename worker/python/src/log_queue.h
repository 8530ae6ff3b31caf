#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/options.h"

namespace millrace::python {

struct LoggedLine {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

/// Holds log lines between Millrace's threads, which write them, and a thread of Python, which takes them. No Python
/// object is touched on Millrace's threads.
///
/// Threads  any.
class LogQueue {
 public:
  static constexpr size_t kLinesMax = 10'000;

  /// Adds a line; drops and counts it where kLinesMax wait already.
  void add(LogLevel level, std::string_view line);
  /// Waits until there are lines, the time has passed, or close() was called. Takes all lines. After dropped lines one
  /// more line has their number.
  std::vector<LoggedLine> take(std::chrono::milliseconds timeout);
  /// Ends the wait of take(), now and from now on.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LoggedLine> lines_;
  uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace millrace::python
