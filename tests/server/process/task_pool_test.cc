#include "server/process/task_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <set>
#include <thread>

namespace millrace::server {
namespace {

struct CountingTask : Task {
  CountingTask(std::atomic<int>& counter_, uint64_t cost_ns_) : counter(counter_), cost(cost_ns_) {}
  Kind kind() const override { return Kind::kDecode; }
  uint64_t job() const override { return 1; }
  void run() override { ++counter; }
  uint64_t cost_ns() const override { return cost; }
  std::atomic<int>& counter;
  uint64_t cost;
};

std::vector<std::shared_ptr<Task>> tasks_of(std::atomic<int>& counter, int count, uint64_t cost_ns) {
  std::vector<std::shared_ptr<Task>> tasks;
  for (int at = 0; at < count; ++at) tasks.push_back(std::make_shared<CountingTask>(counter, cost_ns));
  return tasks;
}

/// Drives the pool as the loop does, until all are back.
std::set<Task*> drain(TaskPool& pool, size_t count, std::mutex& mutex, std::condition_variable& woken) {
  std::set<Task*> back;
  std::vector<std::shared_ptr<Task>> done;
  while (back.size() < count) {
    if (const std::shared_ptr<Task> task = pool.run_one()) back.insert(task.get());
    pool.take_done(done);
    for (const std::shared_ptr<Task>& task : done) back.insert(task.get());
    if (!done.empty() || pool.has_waiting() || back.size() == count) continue;
    std::unique_lock lock(mutex);
    woken.wait_for(lock, std::chrono::milliseconds(1));
  }
  return back;
}

TEST(TaskPool, EveryTaskRunsOnceAndIsReturnedOnce) {
  for (const uint32_t threads : {1u, 2u, 4u}) {
    std::mutex mutex;
    std::condition_variable woken;
    std::atomic<int> ran = 0;
    TaskPool pool(threads, [&] { woken.notify_one(); });
    for (int burst = 0; burst < 20; ++burst) {
      std::vector<std::shared_ptr<Task>> tasks = tasks_of(ran, 50, 100'000);
      const std::vector<std::shared_ptr<Task>> kept = tasks;
      pool.submit(tasks);
      EXPECT_TRUE(tasks.empty());
      EXPECT_EQ(drain(pool, kept.size(), mutex, woken).size(), kept.size());
    }
    EXPECT_EQ(ran.load(), 1'000) << threads;
  }
}

TEST(TaskPool, ASmallBacklogWakesNoThread) {
  std::atomic<int> ran = 0;
  std::atomic<int> wakes = 0;
  TaskPool pool(4, [&] { ++wakes; });
  std::vector<std::shared_ptr<Task>> tasks = tasks_of(ran, 5, 10'000);
  pool.submit(tasks);
  while (pool.run_one()) {
  }
  EXPECT_EQ(ran.load(), 5);
  EXPECT_EQ(wakes.load(), 0);
  EXPECT_TRUE(pool.idle());
}

/// Waits for the others of its kind: they must run at the same time.
struct MeetingTask : CountingTask {
  using CountingTask::CountingTask;
  void run() override {
    CountingTask::run();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (counter.load() < 3 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    met = counter.load() == 3;
  }
  bool met = false;
};

TEST(TaskPool, BacklogIsWorkedOffByAsManyThreadsAsItIsWorth) {
  std::mutex mutex;
  std::condition_variable woken;
  TaskPool pool(3, [&] { woken.notify_one(); });
  for (int burst = 0; burst < 3; ++burst) {  // threads that have slept are called again
    std::atomic<int> running = 0;
    std::vector<std::shared_ptr<Task>> tasks;
    for (int at = 0; at < 3; ++at) tasks.push_back(std::make_shared<MeetingTask>(running, 1'000'000));
    const std::vector<std::shared_ptr<Task>> kept = tasks;
    pool.submit(tasks);
    EXPECT_EQ(drain(pool, kept.size(), mutex, woken).size(), kept.size());
    for (const std::shared_ptr<Task>& task : kept) EXPECT_TRUE(static_cast<MeetingTask&>(*task).met);
  }
}

struct PlacedTask : CountingTask {
  using CountingTask::CountingTask;
  void run() override {
    CountingTask::run();
    ran_on = std::this_thread::get_id();
  }
  std::thread::id ran_on;
};

TEST(TaskPool, TheLoopLeavesALongTaskToAHelper) {
  for (const uint32_t threads : {1u, 2u}) {
    std::mutex mutex;
    std::condition_variable woken;
    std::atomic<int> ran = 0;
    TaskPool pool(threads, [&] { woken.notify_one(); });
    for (int burst = 0; burst < 3; ++burst) {
      const auto task = std::make_shared<PlacedTask>(ran, TaskPool::kLongNs + 1);
      std::vector<std::shared_ptr<Task>> tasks{task};
      pool.submit(tasks);
      EXPECT_TRUE(threads == 1 || !pool.has_waiting());
      EXPECT_EQ(drain(pool, 1, mutex, woken).size(), 1u);
      EXPECT_EQ(task->ran_on == std::this_thread::get_id(), threads == 1) << threads;
    }
    EXPECT_EQ(ran.load(), 3);
  }
}

struct HungryTask : CountingTask {
  using CountingTask::CountingTask;
  void run() override {
    CountingTask::run();
    throw std::bad_alloc();
  }
};

TEST(TaskPool, ATaskWithoutMemoryIsReturnedAndNoExceptionEscapes) {
  for (const uint32_t threads : {1u, 3u}) {
    std::mutex mutex;
    std::condition_variable woken;
    std::atomic<int> ran = 0;
    TaskPool pool(threads, [&] { woken.notify_one(); });
    std::vector<std::shared_ptr<Task>> tasks;
    for (int at = 0; at < 40; ++at) tasks.push_back(std::make_shared<HungryTask>(ran, 100'000));
    const std::vector<std::shared_ptr<Task>> kept = tasks;
    pool.submit(tasks);
    EXPECT_EQ(drain(pool, kept.size(), mutex, woken).size(), kept.size());
    EXPECT_EQ(ran.load(), 40);
  }
}

/// In a process of its own, which may have no second thread.
TEST(TaskPoolDeathTest, WorksAndEndsWhereTheMachineHasNoThreadToGive) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto work = [] {
    constexpr uid_t kNobody = 65'534;  // root's threads are not counted
    const rlimit none{0, 0};
    if ((::getuid() == 0 && ::setuid(kNobody) != 0) || ::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(2);
    ::alarm(60);
    std::atomic<int> ran = 0;
    {
      std::mutex mutex;
      std::condition_variable woken;
      TaskPool pool(4, [&] { woken.notify_one(); });
      std::vector<std::shared_ptr<Task>> tasks = tasks_of(ran, 50, 100'000);
      tasks.push_back(std::make_shared<CountingTask>(ran, TaskPool::kLongNs + 1));
      const std::vector<std::shared_ptr<Task>> kept = tasks;
      pool.submit(tasks);
      drain(pool, kept.size(), mutex, woken);
    }
    ::_exit(ran.load() == 51 ? 0 : 1);
  };
  EXPECT_EXIT(work(), ::testing::ExitedWithCode(0), "");
}

TEST(TaskPool, EndsWithTasksStillWaiting) {
  std::atomic<int> ran = 0;
  std::vector<std::shared_ptr<Task>> tasks = tasks_of(ran, 1'000, 1'000'000);
  TaskPool pool(3, [] {});
  pool.submit(tasks);
}

}  // namespace
}  // namespace millrace::server
