#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "worker/python/src/float_output.h"
#include "worker/python/src/python_session.h"

namespace millrace::python {

/// Lists updates that one thread awaits while another one still pushes. Times are seconds.
///
/// Threads  one calls push(), add() and end(), and another one write(), both with the interpreter's lock. They release
///          it while the library works.
class WaitList {
 public:
  /// session  outlives the list.
  explicit WaitList(PythonSession& session) : session_(session) {}

  /// Pushes gradients in their order, and adds their updates, each to be written over its gradient. Between two of
  /// them it does not ask for the interpreter's lock. Returns how many are pushed; the time ended it before the
  /// others. Then, and after an error, the list has the updates of those that are pushed.
  ///
  /// gradients  tuples (tensor, gradient).
  size_t push(const pybind11::list& gradients, double timeout_s);
  /// Adds an update, as PythonSession::wait_into() takes it.
  void add(size_t tensor, uint64_t step, pybind11::handle out);
  /// Says that nothing more is pushed.
  void end();
  /// Writes the updates in their order. Returns whether the list has ended and all of them are written.
  bool write(double timeout_s);

 private:
  struct Wait {
    size_t tensor;
    FloatOutput out;
    std::optional<uint64_t> step = {};  ///< once it is pushed
  };
  using Time = std::chrono::steady_clock::time_point;

  /// Adds an update whose step follows by pushed(). The reference stays valid.
  Wait& append(size_t tensor, FloatOutput out);
  void pushed(Wait& wait, uint64_t step);
  /// Removes the last updates, those that are not pushed.
  void drop_unpushed();
  /// Returns the first update that is not written, once its step is pushed. Null: not until `limit`, or never.
  Wait* next(Time limit);
  bool has_next() const { return written_ < waits_.size() && waits_[written_].step.has_value(); }

  PythonSession& session_;
  std::mutex mutex_;  ///< of the members below. An update with a step is the writer's, without it.
  std::condition_variable changed_;
  std::deque<Wait> waits_;
  size_t written_ = 0;
  bool ended_ = false;
};

/// Adds the class WaitList to the module.
void bind_wait_list(pybind11::module_& module);

}  // namespace millrace::python
