#include "server/process/task_pool.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "server/spans/round_spans.h"

namespace millrace::server {

struct TaskPool::Helpers {
  explicit Helpers(uint32_t count)
      : parallelism(tbb::global_control::max_allowed_parallelism, count + 1), arena(static_cast<int>(count), 0) {}
  tbb::global_control parallelism;  ///< oneTBB's own default is one thread a core, regardless of the arena
  tbb::task_arena arena;
};

/// A helper's way in, counted off when it goes: when the helper is done, or when it never came.
struct TaskPool::Call {
  explicit Call(std::shared_ptr<Door> to) : door_(std::move(to)) {}
  ~Call() {
    const std::lock_guard lock(door_->mutex);
    count_off();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void come_in() {
    std::unique_lock lock(door_->mutex);
    if (door_->pool) door_->pool->help(lock);
    count_off();  // before the lock is released: the next submitter finds no helper that has left
  }

 private:
  void count_off() {
    if (!std::exchange(counted_off_, true) && door_->pool) --door_->pool->helping_;
  }

  std::shared_ptr<Door> door_;
  bool counted_off_ = false;
};

TaskPool::TaskPool(uint32_t threads, std::function<void()> wake, monitoring::SpanRecorder* spans)
    : helpers_max_(threads > 1 ? threads - 1 : 0), wake_(std::move(wake)), spans_(spans) {
  door_->pool = this;
  if (helpers_max_ > 0) helpers_ = std::make_unique<Helpers>(helpers_max_);
}

TaskPool::~TaskPool() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  waiting_.clear();
  changed_.notify_all();
  changed_.wait(lock, [this] { return inside_ == 0; });
  door_->pool = nullptr;
}

namespace {

constexpr std::chrono::milliseconds kNoMemoryPause(10);
/// Time after which the loop expects no helper: the machine has no thread to give.
constexpr TimeNs kHelperComesNs = kNsPerS;

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
    uint32_t long_tasks = 0;
    for (std::shared_ptr<Task>& task : tasks) {
      const uint64_t cost_ns = task->cost_ns();
      waiting_.push_back(std::move(task));
      waiting_ns_ += cost_ns;
      long_tasks += cost_ns > kLongNs ? 1 : 0;
      ++out.count;
    }
    // The loop takes one share of the backlog itself, but no long task.
    const auto is_backlog = [&] { return helping_ + 1 < waiting_.size() && waiting_ns_ > kHelperNs * (helping_ + 1); };
    while (helping_ < helpers_max_ && (called < long_tasks || is_backlog())) {
      ++helping_;
      ++called;
    }
    if (called > 0) called_at_ = monotonic_now_ns();
  }
  call_helpers(called);
}

void TaskPool::call_helpers(uint32_t count) {
  try {
    while (count > 0) {
      auto call = std::make_shared<Call>(door_);
      --count;
      helpers_->arena.enqueue([call = std::move(call)] { call->come_in(); });
    }
  } catch (const std::exception&) {  // no memory; or oneTBB had no thread for it: the loop computes what waits
    const std::lock_guard lock(mutex_);
    helping_ -= count;
  }
}

size_t TaskPool::next_of_loop() const {
  if (helping_ == inside_ || monotonic_now_ns() - called_at_ > kHelperComesNs) return 0;
  // Each helper that is on its way takes the first task.
  const size_t left = std::min<size_t>(helping_ - inside_, waiting_.size());
  size_t at = 0;
  while (at < left && waiting_[at]->cost_ns() > kLongNs) ++at;
  return at;
}

std::shared_ptr<Task> TaskPool::pop(size_t at) {
  if (at >= waiting_.size()) return nullptr;
  const auto place = waiting_.begin() + static_cast<std::ptrdiff_t>(at);
  std::shared_ptr<Task> task = std::move(*place);
  waiting_.erase(place);
  waiting_ns_ -= task->cost_ns();
  return task;
}

namespace {

/// Runs a task; no exception leaves the thread. A task that did not finish holds the error that it was made with.
void run_guarded(Task& task) {
  try {
    task.run();
  } catch (const std::bad_alloc&) {     // NOLINT(bugprone-empty-catch): see above
  } catch (const std::length_error&) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace

void TaskPool::run(Task& task) const {
  if (spans_ == nullptr || !spans_->on()) return run_guarded(task);
  const TaskSpans spans(*spans_, task);
  run_guarded(task);
}

std::shared_ptr<Task> TaskPool::run_one() {
  std::shared_ptr<Task> task;
  {
    const std::lock_guard lock(mutex_);
    task = pop(next_of_loop());
  }
  if (task) run(*task);
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

void TaskPool::help(std::unique_lock<std::mutex>& lock) {
  ++inside_;
  while (std::shared_ptr<Task> task = closing_ ? nullptr : pop(0)) {
    lock.unlock();
    run(*task);
    lock.lock();
    // A result without memory to hand it back waits for memory: no caller would ask for it again.
    while (!closing_ && !hand_back(task)) changed_.wait_for(lock, kNoMemoryPause);
  }
  // Notified under the lock: the destructor may free everything but the door as soon as it is released.
  if (--inside_ == 0) changed_.notify_all();
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
  return next_of_loop() < waiting_.size();
}

}  // namespace millrace::server
