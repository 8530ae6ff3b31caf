#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace millrace::worker {

/// Remembers the steps of one part's log that counted this process, and the numbers of entries: the last 4,096 with
/// any. A cut can remove some of these steps from the log. Their entries become void: no residual has them any more.
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
