// Measures the cost of one span of the timeline, in ns: while no reader asks, and while one does.
#include <algorithm>
#include <cstdint>
#include <iostream>

#include "kernels/base/clock.h"
#include "monitoring/trace/span_recorder.h"

namespace {

using millrace::kNsPerS;
using millrace::monotonic_now_ns;
using millrace::monitoring::SpanRecorder;
using millrace::monitoring::SpanTimer;

double ns_of_a_span(SpanRecorder& recorder, uint64_t spans) {
  constexpr int kRepeats = 7;
  double best = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = monotonic_now_ns();
    for (uint64_t step = 0; step < spans; ++step) {
      SpanTimer timer(recorder);
      timer.end({.step = step});
    }
    best = std::min(best, static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(spans));
  }
  return best;
}

}  // namespace

int main() {
  SpanRecorder recorder;
  const double off_ns = ns_of_a_span(recorder, 10'000'000);
  recorder.keep_on(monotonic_now_ns(), monotonic_now_ns() + 600 * kNsPerS);
  const double on_ns = ns_of_a_span(recorder, 1'000'000);
  std::cout << "{\"off_ns\": " << off_ns << ", \"on_ns\": " << on_ns << "}\n";
}
