#include "worker/core/rejoin/counted_steps.h"

namespace millrace::worker {

void CountedSteps::add(uint64_t step, uint64_t entries) {
  if (entries == 0) return;
  steps_.push_back({step, entries});
  if (steps_.size() > kRememberedMax) steps_.pop_front();
}

uint64_t CountedSteps::drop_from(uint64_t first) {
  uint64_t entries = 0;
  for (; !steps_.empty() && steps_.back().step >= first; steps_.pop_back()) entries += steps_.back().entries;
  return entries;
}

}  // namespace millrace::worker
