#include "server/process/status_board.h"

#include <utility>

namespace millrace::server {

std::optional<std::string> StatusBoard::ask(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const uint64_t question = ++asked_;
  wake_();
  if (!answered_.wait_for(lock, timeout, [&] { return served_ >= question; })) return std::nullopt;
  return answer_;
}

bool StatusBoard::wanted() const {
  const std::lock_guard lock(mutex_);
  return served_ < asked_;
}

void StatusBoard::publish(std::string answer) {
  {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    served_ = asked_;
  }
  answered_.notify_all();
}

}  // namespace millrace::server
