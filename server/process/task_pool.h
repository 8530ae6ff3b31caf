#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/trace/span_recorder.h"
#include "server/base/actions.h"

namespace millrace::server {

/// Runs tasks on oneTBB threads and on the loop's own. A shard shares its machine with workers, so a thread is only
/// woken for work that is worth it. The loop runs tasks itself, and helpers join while a backlog of more than kHelperNs
/// waits. A long task has a helper called for it, so that the loop can read messages meanwhile.
///
/// Threads  submit(), run_one(), take_done() and the destructor: the loop's; helpers are oneTBB's.
class TaskPool {
 public:
  /// Backlog that makes another thread worth waking: the wake-up costs tens of microseconds, here and there.
  static constexpr uint64_t kHelperNs = 100'000;
  /// Cost above which a task is long: the loop leaves it to a helper that is on its way. Without one it runs it.
  static constexpr uint64_t kLongNs = 20'000'000;

  /// threads  that compute, the loop's included; 1: no helpers.
  /// wake     called by a helper when it has finished something and take_done() was empty before.
  /// spans    records the tasks' runs; outlives the pool. nullptr: none.
  TaskPool(uint32_t threads, std::function<void()> wake, monitoring::SpanRecorder* spans = nullptr);
  /// Waits for the tasks that helpers are running; waiting tasks are dropped. It does not wait for a helper that was
  /// called and never came (the machine has no thread to give).
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Takes the tasks out of `tasks`. Tasks that it cannot take because of std::bad_alloc stay there.
  void submit(std::vector<std::shared_ptr<Task>>& tasks);
  /// Runs one waiting task on the calling thread and returns it; nullptr when none waits for the loop.
  std::shared_ptr<Task> run_one();
  /// Takes the tasks that helpers have finished since the last call.
  void take_done(std::vector<std::shared_ptr<Task>>& done);
  /// Returns whether no task waits or runs.
  bool idle() const;
  /// Returns whether run_one() would run a task.
  bool has_waiting() const;

 private:
  struct Helpers;
  /// The helpers' way in; it outlives the pool for helpers that arrive too late.
  struct Door {
    std::mutex mutex;
    TaskPool* pool = nullptr;  ///< empty: closed
  };
  struct Call;
  /// Returns the place in waiting_ of the task that the loop runs next; past the end: there is none.
  size_t next_of_loop() const;
  std::shared_ptr<Task> pop(size_t at);
  void call_helpers(uint32_t count);
  bool hand_back(const std::shared_ptr<Task>& task);  ///< under the lock; false: no memory
  void help(std::unique_lock<std::mutex>& lock);
  void run(Task& task) const;

  std::shared_ptr<Door> door_ = std::make_shared<Door>();
  std::mutex& mutex_ = door_->mutex;
  std::deque<std::shared_ptr<Task>> waiting_;
  uint64_t waiting_ns_ = 0;
  std::vector<std::shared_ptr<Task>> done_;
  uint32_t helping_ = 0;  ///< called, and not yet done (or dropped)
  uint32_t inside_ = 0;   ///< of them: inside
  TimeNs called_at_ = 0;  ///< the last ones
  uint32_t helpers_max_;
  bool closing_ = false;
  std::function<void()> wake_;
  monitoring::SpanRecorder* spans_;
  std::condition_variable changed_;  ///< inside_, or closing_
  std::unique_ptr<Helpers> helpers_;
};

}  // namespace millrace::server
