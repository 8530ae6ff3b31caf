#pragma once

#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/magnitude/value_chunks.h"

namespace millrace::cuda {

static_assert(SumTails::kChunk == kValueChunk, "a chunk of the host's sums");

/// Sums values of magnitude below a threshold, as tail_sums() of kernels/magnitude: the same bits.
///
/// Cost    one read pass, and 32 bytes a chunk over the bus; at least the time in which a thread adds 2^14 values three
///         times. Waits for the queue.
template <class Queue>
Result<TailSums> tail_sums(Queue& queue, const float* values, uint64_t n, MagnitudeKey cut) {
  const uint64_t chunks = (n + kValueChunk - 1) / kValueChunk;
  auto memory = queue.template allocate<ChunkSums>(chunks);
  queue.launch(SumTails{values, n, cut, memory.data()}, chunks);
  std::vector<ChunkSums> parts(chunks);
  queue.download(std::span(parts), static_cast<const ChunkSums*>(memory.data()));
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  TailSums sums;
  for (const ChunkSums& part : parts) add_chunk(sums, part);
  return sums;
}

}  // namespace millrace::cuda
