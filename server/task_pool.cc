#include "server/task_pool.h"

#include <chrono>
#include <new>
#include <stdexcept>
#include <system_error>

namespace millrace::server {

TaskPool::TaskPool(uint32_t threads, std::function<void()> wake)
    : helpers_max_(threads > 1 ? threads - 1 : 0), wake_(std::move(wake)) {}

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    waiting_.clear();
  }
  call_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

namespace {

constexpr std::chrono::milliseconds kNoMemoryPause(10);

/// Takes the first `count` tasks out, also where memory ended before the last one was handed on.
struct TakenOut {
  std::vector<std::shared_ptr<Task>>& tasks;
  size_t count = 0;
  ~TakenOut() { tasks.erase(tasks.begin(), tasks.begin() + static_cast<std::ptrdiff_t>(count)); }
};

}  // namespace

void TaskPool::submit(std::vector<std::shared_ptr<Task>>& tasks) {
  uint32_t called = 0;
  {
    const std::lock_guard lock(mutex_);
    TakenOut out{tasks};
    for (std::shared_ptr<Task>& task : tasks) {
      const uint64_t cost_ns = task->cost_ns();
      waiting_.push_back(std::move(task));
      waiting_ns_ += cost_ns;
      ++out.count;
    }
    // The loop takes one share of the backlog itself.
    while (helping_ < helpers_max_ && helping_ + 1 < waiting_.size() && waiting_ns_ > kHelperNs * (helping_ + 1)) {
      if (helping_ == helpers_.size() && !start_helper()) break;
      ++helping_;
      ++called;
    }
    called_ += called;
  }
  for (; called > 0; --called) call_.notify_one();
}

/// False: the machine has no thread to give, and those that there are compute alone.
bool TaskPool::start_helper() {
  try {
    helpers_.emplace_back([this] { help(); });
    return true;
  } catch (const std::system_error&) {
    helpers_max_ = static_cast<uint32_t>(helpers_.size());
    return false;
  } catch (const std::bad_alloc&) {  // there may be memory again
    return false;
  }
}

std::shared_ptr<Task> TaskPool::pop() {
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Task> task = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_ns_ -= task->cost_ns();
  return task;
}

namespace {

/// Nothing may leave the thread. A task that did not come to an end holds the error that it was made with.
void run_guarded(Task& task) {
  try {
    task.run();
  } catch (const std::bad_alloc&) {     // NOLINT(bugprone-empty-catch): see above
  } catch (const std::length_error&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

std::shared_ptr<Task> TaskPool::run_one() {
  std::shared_ptr<Task> task;
  {
    const std::lock_guard lock(mutex_);
    task = pop();
  }
  if (task) run_guarded(*task);
  return task;
}

bool TaskPool::hand_back(const std::shared_ptr<Task>& task) {
  try {
    done_.push_back(task);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (done_.size() == 1) wake_();
  return true;
}

void TaskPool::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    call_.wait(lock, [this] { return called_ > 0 || closing_; });
    if (closing_) return;
    --called_;
    while (std::shared_ptr<Task> task = closing_ ? nullptr : pop()) {
      lock.unlock();
      run_guarded(*task);
      lock.lock();
      // A result that there is no memory to hand back waits for some: nobody would ask for it.
      while (!closing_ && !hand_back(task)) call_.wait_for(lock, kNoMemoryPause);
    }
    --helping_;
  }
}

void TaskPool::take_done(std::vector<std::shared_ptr<Task>>& done) {
  const std::lock_guard lock(mutex_);
  done.swap(done_);
  done_.clear();
}

bool TaskPool::idle() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && helping_ == 0 && done_.empty();
}

bool TaskPool::has_waiting() const {
  const std::lock_guard lock(mutex_);
  return !waiting_.empty();
}

}  // namespace millrace::server
