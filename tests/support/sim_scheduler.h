#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"

namespace millrace::testing {

/// Virtual time and everything that happens in it, in one order that a seed decides. The only source of time and chance
/// of a simulation: equal seeds give equal runs.
class SimScheduler {
 public:
  explicit SimScheduler(uint64_t seed) : random_(RandomKey::from(seed)) {}

  TimeNs now() const { return now_; }
  RandomSequence& dice() { return random_; }

  /// Runs `run` at `when` (not before now). Events of one time run in the order in which they were asked for.
  void at(TimeNs when, std::function<void()> run);
  void after(TimeNs delay, std::function<void()> run) { at(now_ + delay, std::move(run)); }

  /// Runs the next event. False: none is left.
  bool step();
  bool idle() const { return events_.empty(); }
  TimeNs next_time() const { return events_.empty() ? now_ : events_.top().when; }
  uint64_t events_run() const { return events_run_; }

  /// Mixes what happened into the run's fingerprint.
  void note(uint64_t what);
  uint64_t trace_hash() const { return trace_hash_; }

  /// Uniform in [low, high].
  TimeNs draw(TimeNs low, TimeNs high) {
    return low + static_cast<TimeNs>(random_.next_below(static_cast<uint64_t>(high - low) + 1));
  }
  bool chance(double probability) { return probability > 0 && random_.next_unit() < probability; }

 private:
  struct Event {
    TimeNs when;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  RandomSequence random_;
  std::priority_queue<Event> events_;
  TimeNs now_ = 0;
  uint64_t order_ = 0;
  uint64_t events_run_ = 0;
  uint64_t trace_hash_ = 0x9E3779B97F4A7C15u;
};

}  // namespace millrace::testing
