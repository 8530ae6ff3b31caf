#pragma once

#include <algorithm>

#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/cuda/array_kernels.h"
#include "kernels/cuda/top_k.h"

namespace millrace::cuda {

inline BloomProbes probes_of(const BloomHashes& hashes) {
  BloomProbes probes{hashes.bits, hashes.probes, {}};
  std::copy(hashes.offsets.begin(), hashes.offsets.end(), probes.offsets);
  return probes;
}

/// Enqueues the insertion of indices into a filter. words [hashes.bits / 32] zeros, or a filter of the same hashes.
template <class Queue>
void bloom_insert(Queue& queue, const BloomHashes& hashes, const uint32_t* indices, uint64_t count, uint32_t* words) {
  queue.launch(BloomInsert{probes_of(hashes), indices, count, words},
               (count + BloomInsert::kThreads - 1) / BloomInsert::kThreads);
}

/// Returns the indices of [0, dimension) that a filter knows, increasing: policy P0.
///
/// words     [hashes.bits / 32] in the queue's memory.
/// expected  about how many there are: more cost a second pass.
/// Cost      about two probes an index. Waits for the queue.
/// Source    [DeepReduce21, 4].
template <class Queue>
Result<Positions<Queue>> bloom_query(Queue& queue, const BloomHashes& hashes, const uint32_t* words, uint64_t dimension,
                                     uint64_t expected) {
  const BloomTest test{probes_of(hashes), words, dimension};
  return select_all(queue, dimension, 0, expected, dimension, [&](const SelectState*) { return test; });
}

}  // namespace millrace::cuda
