#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/millrace.h"
#include "worker/python/src/arrays.h"
#include "worker/python/src/fill_update.h"
#include "worker/python/src/float_output.h"
#include "worker/python/src/interpreter.h"
#include "worker/python/src/log_queue.h"
#include "worker/python/src/option_sets.h"

namespace millrace::python {

/// Is millrace::Session for Python. A call that waits returns None, or false, when its time has passed; the Python part
/// raises the error. Times are seconds.
///
/// Threads  any thread of Python, with the interpreter's lock, which every call releases while the library works.
/// Forks    in a child of the process that connected, every call throws JobError and the destructor does nothing: the
///          threads and connections are the parent's.
class PythonSession {
 public:
  /// tensors  of each tensor: (name, dimension, priority, select, reselect, codec_up, codec_down, output_layer,
  ///          weights, scale, schedule, apply). Texts, numbers and arrays; None where there is none.
  PythonSession(const JobOptions& job, const WorkerOptions& me, const pybind11::list& tensors, LogQueue& log);
  ~PythonSession();
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  static void check(const JobOptions& job, const WorkerOptions& me, const pybind11::list& tensors);

  size_t tensor(const std::string& name) const;
  std::optional<uint64_t> push(size_t tensor, pybind11::handle gradient, double weight, double timeout_s);
  std::optional<uint64_t> push_sparse(size_t tensor, pybind11::handle indices, pybind11::handle values, double weight,
                                      double timeout_s);
  std::optional<uint64_t> push_rows(size_t tensor, uint32_t width, pybind11::handle rows, pybind11::handle values,
                                    double weight, double timeout_s);
  bool ready(size_t tensor, uint64_t step);
  pybind11::object wait(size_t tensor, uint64_t step, double timeout_s);
  pybind11::object wait_into(size_t tensor, uint64_t step, pybind11::handle out, double timeout_s, double scale);

  void attach_weights(size_t tensor, pybind11::handle weights, float scale, const std::string& apply);
  void set_scale(size_t tensor, float scale);
  uint64_t steps_applied(size_t tensor);
  pybind11::tuple take_residual(size_t tensor);
  pybind11::tuple take_velocity(size_t tensor);
  /// residual, velocity  (indices, values).
  void restore(size_t tensor, const pybind11::tuple& residual, const pybind11::tuple& velocity);
  std::vector<uint64_t> retained(size_t tensor);
  bool restore_retained(size_t tensor, const std::vector<uint64_t>& numbers);

  /// begin  None: the whole tensor.
  pybind11::object pull(size_t tensor, std::optional<uint64_t> begin, pybind11::handle out, uint64_t at_least_step,
                        double timeout_s);
  pybind11::object pull_indices(size_t tensor, pybind11::handle indices, pybind11::handle out, uint64_t at_least_step,
                                double timeout_s);
  pybind11::object pull_rows(size_t tensor, uint32_t width, pybind11::handle rows, pybind11::handle out,
                             uint64_t at_least_step, double timeout_s);
  bool place_weights(const pybind11::list& weights, double timeout_s);

  pybind11::tuple status() const;
  pybind11::tuple stats() const;
  uint16_t http_port() const;
  void save(const std::string& path);
  bool finish(double timeout_s);
  /// Leaves the job at once, once running calls of other threads have returned. Does nothing in a forked child.
  void close();
  /// Returns the number of calls with arrays or time limits that other threads are in. 0 in a forked child.
  int calls() const;

 private:
  friend class WaitList;

  /// Returns the session. A caller keeps it during its call, so that close() of another thread does not end it.
  std::shared_ptr<Session> alive() const;
  template <typename Body>
  auto call(Body&& body) const;
  /// Calls `attempt(session, milliseconds)` once: a repeated call would begin from the start. Signals and close() end
  /// it.
  template <typename Attempt>
  auto wait_at_once(double timeout_s, Attempt&& attempt) const;
  /// Refuses an array of another size than the tensor's. what: its word in the error.
  void check_size(size_t tensor, size_t count, std::string_view what) const;

  /// Counts a call while it lives: the interpreter may end once no call is left.
  class Counted {
   public:
    explicit Counted(int& calls) : calls_(calls) { ++calls_; }
    ~Counted() { --calls_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int& calls_;
  };

  pid_t process_;
  int calls_ = 0;  ///< under the interpreter's lock
  std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<uint64_t> dimensions_;
  std::vector<BorrowedArray> weights_;                 ///< before session_, which uses them
  std::unique_ptr<std::shared_ptr<Session>> session_;  ///< apart: a forked child abandons it. Empty: closed
};

template <typename Body>
auto PythonSession::call(Body&& body) const {
  std::shared_ptr<Session> session = alive();
  return without_lock([&] {
    // The last owner may be this one: the session's end joins its thread, which may ask for the interpreter's lock.
    const std::shared_ptr<Session> held = std::move(session);
    return body(*held);
  });
}

/// Waits for an update and writes it times `scale`. Called without the interpreter's lock.
std::optional<TensorUpdate> await_into(Session& session, size_t tensor, uint64_t step, std::chrono::milliseconds limit,
                                       double scale, FloatOutput& out, FilledUpdate& filled);

/// Adds the class Session to the module.
void bind_session(pybind11::module_& module);

}  // namespace millrace::python
