#pragma once

#include <tbb/parallel_for.h>

#include <cstddef>

namespace millrace {

/// Values of one chunk of a pass: the unit of work of a thread, and of sums whose order is always the same.
inline constexpr size_t kValueChunk = size_t{1} << 18;

/// Calls work(chunk) for each chunk in [0, chunks), on several threads if there are at least four.
template <typename Work>
void for_chunks(size_t chunks, const Work& work) {
  constexpr size_t kParallelFrom = 4;
  if (chunks < kParallelFrom) {
    for (size_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
  } else {
    tbb::parallel_for(size_t{0}, chunks, work);
  }
}

}  // namespace millrace
