#include "monitoring/http/request_threads.h"

#include <utility>

namespace millrace::monitoring {

RequestThreads::RequestThreads(size_t threads, size_t waiting_max) : waiting_max_(waiting_max) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

bool RequestThreads::enqueue(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= waiting_max_) return false;
  waiting_.push_back(std::move(job));
  job_or_end_.notify_one();
  return true;
}

void RequestThreads::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  job_or_end_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void RequestThreads::run() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      job_or_end_.wait(lock, [&] { return !waiting_.empty() || ending_; });
      if (waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    try {
      job();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
      // Nothing that one request does ends the process; its connection is lost.
    }
  }
}

}  // namespace millrace::monitoring
