#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::server {

/// Where the HTTP threads ask and the loop answers: a question is about now, and nothing is prepared while nobody asks.
///
/// Threads  ask(): any. wanted(), publish(): the loop's.
class StatusBoard {
 public:
  /// wake  makes the loop come by.
  explicit StatusBoard(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// The loop's next answer; empty when it does not come in time.
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
