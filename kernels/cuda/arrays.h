#pragma once

#include <algorithm>

#include "kernels/cuda/accumulate_kernels.h"
#include "kernels/cuda/array_kernels.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/top_k.h"
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

/// Memory of a queue that a stream of the host passes through. Without memory there the queue has its shortage.
template <class Queue>
class StreamRoom {
 public:
  /// Entries at a time: as many as the queue copies at a time.
  static constexpr uint64_t kPiece = uint64_t{1} << 18;

  /// entries   of the longest stream.
  StreamRoom(Queue& queue, uint64_t entries)
      : indices_(queue.template allocate<uint32_t>(std::min(entries, kPiece))),
        values_(queue.template allocate<float>(std::min(entries, kPiece))) {}

  uint32_t* indices() const { return indices_.data(); }
  float* values() const { return values_.data(); }
  static constexpr uint64_t bytes(uint64_t entries) {
    return std::min(entries, kPiece) * (sizeof(uint32_t) + sizeof(float));
  }

 private:
  MemoryOf<Queue, uint32_t> indices_;
  MemoryOf<Queue, float> values_;
};

/// Adds factor * stream to an array, the product rounded first, as add_scaled() of kernels/reduce: an update to
/// weights, say. Values are not looked at.
///
/// array    [stream.dimension], in the queue's memory.
/// stream   of the host, well-formed. A dense stream adds all its values.
/// room     of this queue, for stream.count() entries.
/// Cost     8 bytes an entry over the bus, or 4 a value of a dense stream. The stream may go when this returns.
template <class Queue>
void enqueue_add_stream(Queue& queue, float* array, const StreamView& stream, float factor,
                        const StreamRoom<Queue>& room) {
  const uint64_t count = stream.count();
  for (uint64_t at = 0; at < count; at += StreamRoom<Queue>::kPiece) {
    const uint64_t some = std::min(StreamRoom<Queue>::kPiece, count - at);
    queue.upload(room.values(), stream.values.subspan(at, some));
    if (stream.dense) {
      enqueue_add_finite(queue, {.values = room.values(), .sums = array + at, .count = some, .weight = factor});
    } else {
      queue.upload(room.indices(), stream.indices.subspan(at, some));
      scatter_add(queue, array, room.indices(), room.values(), some, factor);
    }
  }
}

}  // namespace millrace::cuda
