// Measures costs of the timeline, in ns: of one span while no reader asks, and of one while a reader does. Also of one
// sum of a phase's time, which is always on: two reads of the clock and PhaseTimes::add().
#include <algorithm>
#include <cstdint>
#include <iostream>

#include "kernels/base/clock.h"
#include "monitoring/trace/span_recorder.h"
#include "worker/session/phase_times.h"

namespace {

using millrace::kNsPerS;
using millrace::monotonic_now_ns;
using millrace::monitoring::SpanRecorder;
using millrace::monitoring::SpanTimer;
using millrace::worker::PhaseTimes;
using millrace::worker::StepPhase;

template <typename Work>
double ns_of(uint64_t count, const Work& work) {
  constexpr int kRepeats = 7;
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = monotonic_now_ns();
    for (uint64_t step = 0; step < count; ++step) work(step);
    best = std::min(best, static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(count));
  }
  return best;
}

}  // namespace

int main() {
  SpanRecorder recorder;
  PhaseTimes phases;
  const auto span = [&](uint64_t step) {
    SpanTimer timer(recorder);
    timer.end({.step = step});
  };
  const double off_ns = ns_of(10'000'000, span);
  const double phase_ns = ns_of(1'000'000, [&](uint64_t) {
    const auto begin = monotonic_now_ns();
    phases.add(StepPhase::kApply, monotonic_now_ns() - begin);
  });
  recorder.keep_on(monotonic_now_ns(), monotonic_now_ns() + 600 * kNsPerS);
  const double on_ns = ns_of(1'000'000, span);
  std::cout << "{\"off_ns\": " << off_ns << ", \"on_ns\": " << on_ns << ", \"phase_ns\": " << phase_ns << "}\n";
}
