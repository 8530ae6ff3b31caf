#include "worker/python/src/log_queue.h"

#include <iterator>

namespace millrace::python {

void LogQueue::add(LogLevel level, std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (lines_.size() >= kLinesMax) {
    ++dropped_;
    return;
  }
  lines_.push_back({level, std::string(line)});
  changed_.notify_one();
}

std::vector<LoggedLine> LogQueue::take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return closed_ || !lines_.empty(); });
  std::vector<LoggedLine> taken(std::make_move_iterator(lines_.begin()), std::make_move_iterator(lines_.end()));
  lines_.clear();
  if (dropped_ != 0) {
    taken.push_back(
        {LogLevel::kWarning, std::to_string(dropped_) + " lines of the log were dropped: the queue was full"});
    dropped_ = 0;
  }
  return taken;
}

void LogQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace millrace::python
