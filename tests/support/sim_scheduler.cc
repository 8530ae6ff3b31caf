#include "tests/support/sim_scheduler.h"

#include <algorithm>
#include <utility>

#include "kernels/base/hash.h"

namespace millrace::testing {

void SimScheduler::at(TimeNs when, std::function<void()> run) {
  events_.push({std::max(when, now_), order_++, std::move(run)});
}

bool SimScheduler::step() {
  if (events_.empty()) return false;
  // priority_queue only lends a const top; the closure is moved out before the pop forgets it.
  auto run = std::move(const_cast<Event&>(events_.top()).run);
  now_ = events_.top().when;
  events_.pop();
  ++events_run_;
  run();
  return true;
}

void SimScheduler::note(uint64_t what) {
  const uint64_t words[3] = {trace_hash_, what, static_cast<uint64_t>(now_)};
  trace_hash_ = hash64(ByteSpan(reinterpret_cast<const uint8_t*>(words), sizeof(words)));
}

}  // namespace millrace::testing
