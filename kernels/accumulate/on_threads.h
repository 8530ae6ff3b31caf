#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <cstddef>

namespace millrace {

/// Bounds the threads of a pass: memory is saturated by a few, and a training's own threads need the other cores.
inline constexpr size_t kPassThreadsMax = 4;

/// Calls work(chunk) for each chunk in [0, chunk_count), on several threads if there are at least four.
///
/// REQUIRES  work() does not throw.
/// Errors    none: where oneTBB has no memory or no thread, or the caller's task is cancelled, the calling thread does
///           all that is left.
template <typename Work>
void on_threads(size_t chunk_count, const Work& work) {
  constexpr size_t kChunksInParallel = 4;
  std::atomic<size_t> next = 0;
  const auto run = [&](size_t) {
    for (size_t chunk = next++; chunk < chunk_count; chunk = next++) work(chunk);
  };
  if (chunk_count < kChunksInParallel) return run(0);
  try {
    // Isolated: a caller that waits must not start another task of its program. That one may need a lock of the caller.
    tbb::this_task_arena::isolate(
        [&] { tbb::parallel_for(size_t{0}, kPassThreadsMax, run, tbb::simple_partitioner()); });
  } catch (...) {
    run(0);  // oneTBB had no memory, or no thread
  }
  run(0);  // where the caller's task was cancelled, chunks are left
}

}  // namespace millrace
