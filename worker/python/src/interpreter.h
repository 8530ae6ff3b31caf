#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "millrace/errors.h"

/// The interpreter's lock and signals around calls of the library that wait.
namespace millrace::python {

/// Calls `body` without the interpreter's lock and returns its result. Plain calls instead of pybind11's guard: at its
/// end the interpreter ends threads that ask for its lock. A destructor must not be left that way.
template <typename Body>
auto without_lock(Body&& body) {
  using Returned = decltype(body());
  using Kept = std::conditional_t<std::is_void_v<Returned>, bool, Returned>;
  std::optional<Kept> kept;
  std::exception_ptr thrown;
  PyThreadState* state = PyEval_SaveThread();
  try {
    if constexpr (std::is_void_v<Returned>) {
      body();
    } else {
      kept.emplace(body());
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  PyEval_RestoreThread(state);
  if (thrown) std::rethrow_exception(thrown);
  if constexpr (!std::is_void_v<Returned>) return Returned(std::move(*kept));
}

/// Runs the handlers of signals that have arrived, and throws the exception of one: KeyboardInterrupt.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

/// Runs the handlers of signals that have arrived, in a thread without the interpreter's lock. Returns whether one has
/// raised; its exception is then pending in this thread. Handlers run in the main thread only. Other threads must not
/// ask for the lock: at its end the interpreter would unwind them.
inline bool signal_has_raised() {
  if (gettid() != getpid()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return raised;
}

/// Calls `body`, which may call signal_has_raised(). Throws a handler's exception, whether the body has a result or a
/// JobError.
template <typename Body>
auto or_interrupted(Body&& body) {
  const auto check = [] {
    if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  };
  try {
    auto result = body();
    check();
    return result;
  } catch (const JobError&) {
    check();
    throw;
  }
}

/// Returns a time limit as the library takes it. 0 or less, and NaN: does not wait. Infinity: no limit.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  constexpr double kLongest = 1e12;  // of which milliseconds fit
  if (!(seconds > 0)) return std::chrono::milliseconds(0);
  if (seconds >= kLongest) return std::chrono::milliseconds::max();
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

/// Repeats `attempt(milliseconds)`, which waits that long at most, until its result is true or the time has passed.
/// Between two attempts of 100 ms it runs signal handlers. Returns the last result.
///
/// timeout_s   as for milliseconds_of().
template <typename Attempt>
auto wait_in_slices(double timeout_s, Attempt&& attempt) {
  constexpr double kSlice = 0.1;
  if (!(timeout_s > 0)) timeout_s = 0;  // NaN too
  const auto begin = std::chrono::steady_clock::now();
  double elapsed = 0;
  for (;;) {
    auto result = attempt(milliseconds_of(std::clamp(timeout_s - elapsed, 0.0, kSlice)));
    check_signals();
    if (result) return result;
    elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (elapsed >= timeout_s) return result;
  }
}

}  // namespace millrace::python
