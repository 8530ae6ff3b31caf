#pragma once

#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/top_k.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/magnitude/value_chunks.h"

namespace millrace::cuda {

static_assert(SumTails::kChunk == kValueChunk, "a chunk of the host's sums");

/// Memory of a queue and of the host for the sums of an array's chunks. Without memory there the queue has its
/// shortage.
template <class Queue>
class TailRoom {
 public:
  /// count  values of the longest array.
  TailRoom(Queue& queue, uint64_t count)
      : on_host_((count + kValueChunk - 1) / kValueChunk),
        chunks_(queue.template allocate<ChunkSums>(on_host_.size())) {}
  ChunkSums* chunks() const { return chunks_.data(); }
  std::span<ChunkSums> on_host() { return on_host_; }

 private:
  std::vector<ChunkSums> on_host_;
  MemoryOf<Queue, ChunkSums> chunks_;
};

/// Does as the next function, without a need for memory. room: of this queue, for n values.
template <class Queue>
Result<TailSums> tail_sums(Queue& queue, const float* values, uint64_t n, MagnitudeKey cut, TailRoom<Queue>& room) {
  const uint64_t chunks = (n + kValueChunk - 1) / kValueChunk;
  queue.launch(SumTails{values, n, cut, room.chunks()}, chunks);
  const std::span<ChunkSums> parts = room.on_host().first(chunks);
  queue.download(parts, static_cast<const ChunkSums*>(room.chunks()));
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  TailSums sums;
  for (const ChunkSums& part : parts) add_chunk(sums, part);
  return sums;
}

/// Sums values of magnitude below a threshold, as tail_sums() of kernels/magnitude: the same bits.
///
/// Cost    one read pass, and 32 bytes a chunk over the bus; at least the time in which a thread adds 2^14 values three
///         times. Waits for the queue.
template <class Queue>
Result<TailSums> tail_sums(Queue& queue, const float* values, uint64_t n, MagnitudeKey cut) {
  TailRoom<Queue> room(queue, n);
  return tail_sums(queue, values, n, cut, room);
}

}  // namespace millrace::cuda
