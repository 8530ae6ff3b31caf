#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

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

/// Says how long a wait may go without a look at signals.
enum class WaitSlices {
  kEven,     ///< 100 ms
  kGrowing,  ///< as long as the wait has taken so far, at least 100 ms: a repeated call begins from the start
};

/// Repeats `attempt(milliseconds)`, which waits that long at most, until its result is true or the time has passed.
/// Between two attempts it runs signal handlers. Returns the last result.
///
/// timeout_s   0 or less: one attempt that does not wait. Infinity: no limit.
template <typename Attempt>
auto wait_in_slices(double timeout_s, WaitSlices slices, Attempt&& attempt) {
  constexpr double kSlice = 0.1;
  if (!(timeout_s > 0)) timeout_s = 0;  // NaN too
  const auto begin = std::chrono::steady_clock::now();
  double elapsed = 0;
  for (;;) {
    const double longest = slices == WaitSlices::kEven ? kSlice : std::max(kSlice, elapsed);
    const double slice = std::clamp(timeout_s - elapsed, 0.0, longest);
    auto result = attempt(std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(slice)));
    check_signals();
    if (result) return result;
    elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (elapsed >= timeout_s) return result;
  }
}

}  // namespace millrace::python
