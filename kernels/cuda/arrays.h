#pragma once

#include <algorithm>

#include "kernels/cuda/accumulate_kernels.h"
#include "kernels/cuda/array_kernels.h"
#include "kernels/cuda/quantize.h"
#include "kernels/stream/stream.h"

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

/// Enqueues values[i] = array[positions[i]].
template <class Queue>
void gather(Queue& queue, float* array, const uint32_t* positions, uint64_t count, float* values) {
  queue.launch(TakeEntries{array, positions, count, 0, values},
               (count + TakeEntries::kThreads - 1) / TakeEntries::kThreads);
}

/// Enqueues array[positions[i]] += factor * values[i], the product rounded first: gives entries back, or applies an
/// update. Positions differ.
template <class Queue>
void scatter_add(Queue& queue, float* array, const uint32_t* positions, const float* values, uint64_t count,
                 float factor = 1) {
  queue.launch(ScatterAdd{positions, values, count, factor, array},
               (count + ScatterAdd::kThreads - 1) / ScatterAdd::kThreads);
}

/// Enqueues the addition of arrays. `is_aligned` is set here.
template <class Queue>
void enqueue_add_finite(Queue& queue, AddFinite add) {
  add.is_aligned = is_aligned16(add.values) & is_aligned16(add.sums);
  constexpr uint64_t kOfBlock = uint64_t{AddFinite::kThreads} * AddFinite::kEach;
  queue.launch(add,
               std::min<uint64_t>((add.count + kOfBlock - 1) / kOfBlock, queue.filling_blocks(AddFinite::kThreads)));
}

/// Values of a dense stream of the host that enqueue_add_stream() has in the queue's memory at a time.
inline constexpr uint64_t kDensePiece = uint64_t{1} << 22;

/// Adds factor * stream to an array, the product rounded first, as add_scaled() of kernels/reduce: an update to
/// weights, say. Values are not looked at.
///
/// array    [stream.dimension], in the queue's memory.
/// stream   of the host, well-formed. A dense stream adds all its values.
/// Cost     8 bytes an entry over the bus, or 4 a value of a dense stream. The stream may go when this returns.
template <class Queue>
void enqueue_add_stream(Queue& queue, float* array, const StreamView& stream, float factor) {
  const uint64_t count = stream.count();
  auto values = queue.template allocate<float>(stream.dense ? std::min(count, kDensePiece) : count);
  if (!stream.dense) {
    auto indices = queue.template allocate<uint32_t>(count);
    queue.upload(indices.data(), stream.indices);
    queue.upload(values.data(), stream.values);
    return scatter_add(queue, array, indices.data(), values.data(), count, factor);
  }
  for (uint64_t at = 0; at < count; at += kDensePiece) {
    const auto some = stream.values.subspan(at, std::min(kDensePiece, count - at));
    queue.upload(values.data(), some);
    enqueue_add_finite(queue, {.values = values.data(), .sums = array + at, .count = some.size(), .weight = factor});
  }
}

}  // namespace millrace::cuda
