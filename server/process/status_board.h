#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::server {

/// Passes questions of the HTTP threads to the loop, and its answers back. An answer is made at the time of the
/// question: nothing is prepared in advance.
///
/// Threads  ask(): any. wanted(), publish(): the loop's.
class StatusBoard {
 public:
  /// wake  wakes the loop, so that it answers.
  explicit StatusBoard(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// Returns the loop's next answer; empty on time-out.
  std::optional<std::string> ask(std::chrono::milliseconds timeout);

  bool wanted() const;
  void publish(std::string answer);

 private:
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  std::function<void()> wake_;
  uint64_t asked_ = 0;   ///< number of the newest question
  uint64_t served_ = 0;  ///< questions up to this one are answered by answer_
  std::string answer_;
};

}  // namespace millrace::server
