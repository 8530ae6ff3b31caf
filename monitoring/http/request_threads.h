#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::monitoring {

/// Runs jobs in order on a fixed number of threads, with a bound on the jobs that wait.
class RequestThreads {
 public:
  RequestThreads(size_t threads, size_t waiting_max);
  /// REQUIRES: shutdown() was called.
  ~RequestThreads() = default;

  /// Queues a job, without waiting. False: as many jobs wait as may.
  bool enqueue(std::function<void()> job);

  /// Drops the jobs that wait, lets those that run end, and joins the threads. Further calls do nothing.
  void shutdown();

 private:
  void run();

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable job_or_end_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::monitoring
