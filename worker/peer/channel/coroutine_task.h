#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace millrace::peer {

/// Holds a coroutine that gives one value to the one coroutine that awaits it. It starts when it is awaited.
///
/// Owner    the Task; destroying it destroys the suspended coroutine, and the task that this awaits. So a collective is
///          given up by destroying its outermost task.
/// Threads  none of its own: it runs on the thread that resumes it.
/// Notes    g++ 12: arguments of the awaited call are named variables or plain values, no braced temporaries.
template <typename T>
class [[nodiscard]] Task {
 public:
  class promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct Final {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle ended) const noexcept {
      return ended.promise().continuation_ ? ended.promise().continuation_ : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  class promise_type {
   public:
    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Final final_suspend() const noexcept { return {}; }
    template <typename U>
    void return_value(U&& value) {
      value_.emplace(std::forward<U>(value));
    }
    void unhandled_exception() { problem_ = std::current_exception(); }

   private:
    friend class Task;
    friend struct Final;
    std::coroutine_handle<> continuation_;
    std::optional<T> value_;
    std::exception_ptr problem_;
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { reset(); }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().continuation_ = awaiting;
    return handle_;
  }
  T await_resume() { return take(); }

  /// Starts an outermost task: runs it until it waits for the first time, or ends.
  void start() { handle_.resume(); }
  bool done() const { return handle_.done(); }
  /// REQUIRES: done(). Returns the coroutine's value, or throws its exception.
  T take() {
    if (handle_.promise().problem_) std::rethrow_exception(handle_.promise().problem_);
    return std::move(*handle_.promise().value_);
  }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  void reset() {
    if (handle_) std::exchange(handle_, {}).destroy();
  }

  Handle handle_;
};

}  // namespace millrace::peer
