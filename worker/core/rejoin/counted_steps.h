#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace millrace::worker {

/// In which steps of one part's log this process was counted, and with how many entries: the last 4,096 of them that
/// had any. What of it becomes void, when the job goes on from a state that lacks those steps, is in no residual any
/// more.
class CountedSteps {
 public:
  static constexpr size_t kRememberedMax = 4'096;

  /// REQUIRES  steps do not descend.
  void add(uint64_t step, uint64_t entries);
  /// Forgets the steps from `first` on. How many entries they had.
  uint64_t drop_from(uint64_t first);

 private:
  struct Counted {
    uint64_t step = 0;
    uint64_t entries = 0;
  };
  std::deque<Counted> steps_;
};

}  // namespace millrace::worker
