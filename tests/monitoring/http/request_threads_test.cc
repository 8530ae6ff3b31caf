#include "monitoring/http/request_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace millrace::monitoring {
namespace {

/// Threads of which each runs a job until `end` is set.
struct HeldRequestThreads {
  explicit HeldRequestThreads(size_t count, size_t waiting_max = 100) : threads(count, waiting_max) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(threads.enqueue([this, count] {
        if (++running == count) all_run.set_value();
        held.wait();
        ++ended;
      }));
    }
    all_run.get_future().wait();
  }
  std::atomic<size_t> running = 0;
  std::promise<void> all_run;
  std::promise<void> end;
  std::shared_future<void> held = end.get_future().share();
  std::atomic<size_t> ended = 0;
  RequestThreads threads;
};

TEST(RequestThreads, AShutdownDropsTheJobsThatWaitAndLetsThoseThatRunEnd) {
  for (const size_t count : {1, 2, 4}) {
    HeldRequestThreads held(count);
    std::atomic<int> waited = 0;
    // A job's own objects go with it: their destruction tells that it was dropped.
    const auto job = std::make_shared<int>(0);
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(held.threads.enqueue([&waited, job] { ++waited; }));
    std::thread stopper([&] { held.threads.shutdown(); });
    while (job.use_count() > 1) std::this_thread::yield();
    EXPECT_EQ(held.ended, 0u) << "those that run are not over yet";
    held.end.set_value();
    stopper.join();
    EXPECT_EQ(held.ended, count);
    EXPECT_EQ(waited, 0);
    held.threads.shutdown();
  }
}

TEST(RequestThreads, RunsJobsInOrderAndRefusesOneTooMany) {
  HeldRequestThreads held(1, 3);
  std::promise<void> last;
  std::vector<int> order;
  EXPECT_TRUE(held.threads.enqueue([&] { order.push_back(0); }));
  EXPECT_TRUE(held.threads.enqueue([&] { order.push_back(1); }));
  EXPECT_TRUE(held.threads.enqueue([&] { last.set_value(); }));
  EXPECT_FALSE(held.threads.enqueue([] {}));
  held.end.set_value();
  last.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
  held.threads.shutdown();
}

}  // namespace
}  // namespace millrace::monitoring
