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

/// Lists updates that one thread awaits while another one still pushes, part by part. Times are seconds.
///
/// Threads  one calls push() and add(), and another one write(). Any thread may call end(). All calls begin with the
///          interpreter's lock, and release it while the library works.
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
  /// Ends a part of the list: later updates are of the next one.
  void end();
  /// Writes the updates of a part in their order. Returns true once the part has ended and all of them are written; the
  /// next call writes the next part.
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
  /// Returns the part's first update that is not written, once its step is pushed. Null: the part is written, or not
  /// until `limit`.
  Wait* next(Time limit);
  bool has_next() const { return !is_written() && written_ < waits_.size() && waits_[written_].step.has_value(); }
  /// Returns whether the part has ended and is written.
  bool is_written() const { return !ends_.empty() && written_ == ends_.front(); }
  /// Lets the arrays of a written part go. REQUIRES: the interpreter's lock.
  void drop_part();

  PythonSession& session_;
  std::mutex mutex_;  ///< of the members below. An update with a step is the writer's, without it.
  std::condition_variable changed_;
  std::deque<Wait> waits_;   ///< of the part that is written now, and of those behind it
  size_t written_ = 0;       ///< of waits_
  std::deque<size_t> ends_;  ///< of these parts, each as a number of waits_
};

/// Adds the class WaitList to the module.
void bind_wait_list(pybind11::module_& module);

}  // namespace millrace::python
