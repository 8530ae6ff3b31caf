#pragma once

#include <utility>

#include "kernels/base/random.h"
#include "kernels/cuda/tail_sums.h"
#include "kernels/cuda/top_k.h"
#include "kernels/draw/draw.h"
#include "kernels/threshold/gspar_magnitude.h"

/// Selections that draw, for unbiased jobs.
namespace millrace::cuda {

/// Drawn entries, in the queue's memory: positions, increasing, and the values to send for them.
template <class Queue>
struct Drawn {
  Positions<Queue> selected;
  MemoryOf<Queue, float> values;
};

inline DrawTest draw_test(const float* values, uint64_t n, float magnitude, RandomKey key) {
  DrawTest test{values, n, is_aligned16(values), magnitude, 0, 2, 0, RoundKeys::of(key.low, key.high)};
  // Outside, the inverse is no normal number, and f64 decides all.
  if (magnitude > 0x1p-125F && magnitude < 0x1p125F) {
    test.inverse = 1 / magnitude;
    test.may_be_from = 1 + 0x1p-20F;
    test.is_from = 1 - 0x1p-20F;
  }
  return test;
}

/// Draws as draw_by_size() of kernels/draw: the same positions and values.
///
/// values    [n] f32, finite.
/// expected  about how many are drawn: more cost a second pass.
/// Cost      one pass with 4 random bytes a value. Waits for the queue.
template <class Queue>
Result<Drawn<Queue>> draw_by_size(Queue& queue, const float* values, uint64_t n, float magnitude, RandomKey key,
                                  uint64_t expected) {
  const DrawTest test = draw_test(values, n, magnitude, key);
  auto selected = select_all(queue, n, 0, expected, n, [&](const SelectState*) { return test; });
  if (!selected) return std::unexpected(selected.error());
  const uint64_t count = selected->count;
  Drawn<Queue> drawn{std::move(*selected), queue.template allocate<float>(count)};
  queue.launch(DrawnValues{values, drawn.selected.positions.data(), count, magnitude, drawn.values.data()},
               (count + DrawnValues::kThreads - 1) / DrawnValues::kThreads);
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  return drawn;
}

/// Draws about k entries as selection `gspar` does: the same positions and values.
///
/// values      [n] f32 in the queue's memory.
/// iterations  at least 1.
/// Cost        a read pass, one an iteration, and that of draw_by_size().
/// Errors      NaN or infinity: non_finite. k or iterations 0: invalid_argument.
/// Source      [GSpar18, 2.2, algorithm 3].
template <class Queue>
Result<Drawn<Queue>> gspar(Queue& queue, const float* values, uint64_t n, uint64_t k, uint32_t iterations,
                           RandomKey key) {
  if (k == 0 || iterations == 0) return fail(ErrorCode::kInvalidArgument, "gspar: k or the iterations are 0");
  if (n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  const auto all = tail_sums(queue, values, n, kInfinityKey);
  if (!all) return std::unexpected(all.error());
  if (all->above > 0) return non_finite_values();
  if (all->magnitude == 0) {
    return Drawn<Queue>{{queue.template allocate<uint32_t>(0), 0}, queue.template allocate<float>(0)};
  }
  GsparMagnitude magnitude(all->magnitude, k, iterations);
  while (magnitude.goes_on()) {
    const auto tail = tail_sums(queue, values, n, magnitude.key());
    if (!tail) return std::unexpected(tail.error());
    magnitude.take(*tail);
  }
  return draw_by_size(queue, values, n, magnitude.value(), key, std::min(k, n));
}

}  // namespace millrace::cuda
