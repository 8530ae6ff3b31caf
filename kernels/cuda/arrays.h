#pragma once

#include <algorithm>

#include "kernels/cuda/array_kernels.h"
#include "kernels/cuda/quantize.h"

/// The operations of an accumulator on arrays that lie where a queue's kernels run.
namespace millrace::cuda {

/// Adds values to sums: sums[i] += weight * values[i], the product rounded first.
///
/// bins    [kBins] u64 that the digits of the sums' magnitudes are counted in (bits 30 to 20); null: not wanted.
/// Cost    two reads and a write, whether bins are wanted or not. Waits for the queue.
/// Errors  NaN or infinity among the sums: non_finite; the sums are changed all the same.
template <class Queue>
Status add(Queue& queue, const float* values, float* sums, uint64_t n, float weight, uint64_t* bins) {
  auto flag = queue.template allocate<uint32_t>(1);
  queue.clear(flag.data(), sizeof(uint32_t));
  const uint32_t is_aligned = is_aligned16(values) != 0 && is_aligned16(sums) != 0 ? 1 : 0;
  constexpr uint64_t kOfBlock = uint64_t{AddArrays::kThreads} * AddArrays::kEach;
  const uint64_t blocks = std::min<uint64_t>((n + kOfBlock - 1) / kOfBlock, queue.filling_blocks(AddArrays::kThreads));
  queue.launch(AddArrays{values, sums, n, weight, is_aligned, bins, flag.data()}, blocks);
  uint32_t non_finite = 0;
  queue.download(std::span(&non_finite, 1), flag.data());
  if (auto done = queue.finish(); !done) return done;
  if (non_finite != 0) return fail(ErrorCode::kNonFinite, "NaN or infinity among the sums");
  return {};
}

/// Enqueues values[i] = array[positions[i]]; array[positions[i]] = 0.
template <class Queue>
void take(Queue& queue, float* array, const uint32_t* positions, uint64_t count, float* values) {
  queue.launch(TakeEntries{array, positions, count, 1, values},
               (count + TakeEntries::kThreads - 1) / TakeEntries::kThreads);
}

/// Enqueues array[positions[i]] += values[i]: gives entries back, or applies an update. Positions differ.
template <class Queue>
void scatter_add(Queue& queue, float* array, const uint32_t* positions, const float* values, uint64_t count) {
  queue.launch(ScatterAdd{positions, values, count, 1.0F, array},
               (count + ScatterAdd::kThreads - 1) / ScatterAdd::kThreads);
}

}  // namespace millrace::cuda
