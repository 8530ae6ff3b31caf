#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::training {

/// Runs the threads that compute within a rank; they last as long as this, and sleep between two calls.
///
/// Threads  one call at a time.
class ComputeThreads {
 public:
  /// count  of them, the caller's among them; 0 is taken for 1.
  explicit ComputeThreads(uint32_t count);
  ComputeThreads(const ComputeThreads&) = delete;
  ComputeThreads& operator=(const ComputeThreads&) = delete;
  ~ComputeThreads();

  uint32_t count() const { return count_; }

  /// Calls part(0) to part(count() - 1), one on each thread, part(0) on the caller's, and returns when all have ended.
  /// part     must not throw.
  void run(const std::function<void(uint32_t part)>& part);

 private:
  void serve(uint32_t at);

  const uint32_t count_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  const std::function<void(uint32_t)>* part_ = nullptr;  ///< of the call under way
  uint64_t calls_ = 0;
  uint32_t running_ = 0;
  bool closing_ = false;
  std::vector<std::jthread> threads_;
};

/// Holds part `at` of `parts` of the range [0, count): equal parts but for one.
struct PartOfRange {
  size_t begin = 0;
  size_t end = 0;
};
inline PartOfRange part_of_range(size_t count, uint32_t at, uint32_t parts) {
  return {count * at / parts, count * (at + 1) / parts};
}

}  // namespace millrace::training
