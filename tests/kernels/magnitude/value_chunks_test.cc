#include "kernels/magnitude/value_chunks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace millrace {
namespace {

constexpr size_t kThreads[] = {1, 2, 4};

/// Returns how often for_chunks() called the work of each chunk.
std::vector<int> calls_of_chunks(size_t chunk_count, PassThreads threads = {}) {
  std::vector<std::atomic<int>> calls(chunk_count);
  for_chunks(chunk_count, [&](size_t chunk) { ++calls[chunk]; }, threads);
  return {calls.begin(), calls.end()};
}

TEST(ValueChunks, EachChunkIsWorkedOnOnceOnAnyNumberOfThreads) {
  for (const size_t threads : kThreads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    for (const size_t count : {0, 1, 2, 3, 4, 5, 9, 1000}) {
      for (const PassThreads pass : {PassThreads{}, kMemoryPass, PassThreads{.threads_max = 1, .chunks_min = 0}}) {
        EXPECT_EQ(calls_of_chunks(count, pass), std::vector<int>(count, 1)) << count << " on " << threads;
      }
    }
  }
}

TEST(ValueChunks, TheExceptionOfTheLowestChunkComesOutOnceNoThreadIsAtWork) {
  for (const size_t threads : kThreads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    for (const size_t count : {3, 100}) {
      for (size_t thrower = 0; thrower < count; thrower += 1 + thrower / 2) {
        std::atomic<int> at_work = 0;
        std::vector<std::atomic<int>> calls(count);
        std::string thrown;
        try {
          for_chunks(count, [&](size_t chunk) {
            ++at_work;
            ++calls[chunk];
            --at_work;
            if (chunk >= thrower) throw std::runtime_error(std::to_string(chunk));
          });
        } catch (const std::runtime_error& error) {
          thrown = error.what();
          EXPECT_EQ(at_work.load(), 0);
        }
        EXPECT_EQ(thrown, std::to_string(thrower)) << count << " on " << threads;
        for (size_t chunk = 0; chunk <= thrower; ++chunk) EXPECT_EQ(calls[chunk].load(), 1) << chunk;
      }
    }
  }
}

TEST(ValueChunks, ACallerWhoseTaskIsCancelledDoesEveryChunk) {
  tbb::task_group_context context;
  tbb::task_group group(context);
  std::vector<int> calls;
  group.run_and_wait([&] {
    context.cancel_group_execution();
    calls = calls_of_chunks(100);
  });
  EXPECT_EQ(calls, std::vector<int>(100, 1));
}

TEST(ValueChunks, AWaitingCallerStartsNoOtherTaskOfItsProgram) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 4);
  static thread_local int callers = 0;  // of for_chunks(), on this thread
  std::atomic<int> nested = 0;
  // With more threads than processors, a thread that waits often finds another one's tasks.
  tbb::task_arena(4).execute([&] {
    tbb::parallel_for(size_t{0}, size_t{20'000}, [&](size_t) {
      if (callers > 0) ++nested;
      ++callers;
      for_chunks(8, [](size_t) {
        for (std::atomic<int> turns = 0; turns < 2'000;) ++turns;
      });
      --callers;
    });
  });
  EXPECT_EQ(nested.load(), 0);
}

/// Returns the size of the process's address space.
size_t address_space_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

/// Runs chunks in a process that has no room for another thread's stack. Returns its exit code.
int code_without_threads() {
  constexpr size_t kRoom = size_t{2} << 20;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 4);
  const rlim_t most = address_space_bytes() + kRoom;
  const rlimit room{most, most};
  if (::setrlimit(RLIMIT_AS, &room) != 0) return 2;
  try {
    std::thread([] {}).join();
    return 3;
  } catch (const std::system_error&) {
    return calls_of_chunks(100) == std::vector<int>(100, 1) ? 0 : 4;
  }
}

TEST(ValueChunksDeathTest, WithoutAThreadTheCallerDoesEveryChunk) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(code_without_threads()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace millrace
