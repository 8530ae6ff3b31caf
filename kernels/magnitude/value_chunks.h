#pragma once

#include <tbb/parallel_for.h>

#include <cstddef>

namespace millrace {

/// Values of one chunk of a pass: the unit of work of a thread, and of sums whose order is always the same.
inline constexpr size_t kValueChunk = size_t{1} << 18;

/// Calls work(chunk) for each chunk in [0, chunk_count), on several threads if there are at least four.
template <typename Work>
void for_chunks(size_t chunk_count, const Work& work) {
  constexpr size_t kChunksInParallel = 4;
  if (chunk_count < kChunksInParallel) {
    for (size_t chunk = 0; chunk < chunk_count; ++chunk) work(chunk);
  } else {
    tbb::parallel_for(size_t{0}, chunk_count, work);
  }
}

}  // namespace millrace
