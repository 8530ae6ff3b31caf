#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::monitoring {

/// A fixed number of threads that run jobs in order, with a bound on the jobs that wait.
class RequestThreads {
 public:
  RequestThreads(size_t threads, size_t waiting_max);
  /// REQUIRES: shutdown() was called.
  ~RequestThreads() = default;

  /// Waits while the queue is full: whoever hands in connections stops accepting more, so that a flood of them takes no
  /// file descriptors from the rest of the process.
  void enqueue(std::function<void()> job);

  /// Runs what is queued, then joins the threads.
  void shutdown();

 private:
  void run();

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable job_or_end_, room_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::monitoring
