#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

namespace millrace {

/// Values of one chunk of a pass: the unit of work of a thread, and of sums whose order is always the same.
inline constexpr size_t kValueChunk = size_t{1} << 18;

/// Bounds the threads of a pass.
struct PassThreads {
  size_t threads_max = std::numeric_limits<size_t>::max();
  size_t chunks_min = 4;  ///< with fewer, the calling thread does all
};

/// Bounds a pass that memory limits: a few threads saturate it, and a training's own threads need the other cores.
inline constexpr PassThreads kMemoryPass{.threads_max = 4};

/// Calls work(chunk) for each chunk in [0, chunk_count), on several threads if there are enough.
///
/// Errors   the exception of the lowest chunk whose work throws; chunks above that one may be left out. None of
///          oneTBB's: where it has no memory or no thread, or the caller's task is cancelled, the calling thread does
///          all that is left.
/// Threads  no thread is in work() after the return.
template <typename Work>
void for_chunks(size_t chunk_count, const Work& work, PassThreads threads = {}) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = chunk_count;
  std::exception_ptr failure;
  const auto run = [&](size_t) {
    for (size_t chunk = next++; chunk < chunk_count; chunk = next++) {
      try {
        work(chunk);
      } catch (...) {
        next = chunk_count;
        const std::lock_guard lock(mutex);
        if (std::exchange(failed, std::min(failed, chunk)) > chunk) failure = std::current_exception();
      }
    }
  };
  if (chunk_count >= threads.chunks_min) {
    try {
      // Isolated: a caller that waits must not start another task of its program. That one may need a lock of the
      // caller.
      tbb::this_task_arena::isolate([&] {
        const auto arena = static_cast<size_t>(std::max(1, tbb::this_task_arena::max_concurrency()));
        const size_t count = std::min({chunk_count, threads.threads_max, arena});
        tbb::parallel_for(size_t{0}, count, run, tbb::simple_partitioner());
      });
    } catch (...) {
      run(0);  // oneTBB had no memory, or no thread
    }
  }
  run(0);  // all; or, where the caller's task was cancelled, the chunks that are left
  if (failure) std::rethrow_exception(failure);
}

/// Calls work(begin, end) for each chunk of `count` values, as for_chunks() does.
template <typename Work>
void for_value_chunks(size_t count, const Work& work, PassThreads threads = {}) {
  const auto of_chunk = [&](size_t chunk) {
    const size_t begin = chunk * kValueChunk;
    work(begin, std::min(begin + kValueChunk, count));
  };
  for_chunks((count + kValueChunk - 1) / kValueChunk, of_chunk, threads);
}

}  // namespace millrace
