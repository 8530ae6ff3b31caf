#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/peer.h"
#include "worker/python/src/arrays.h"
#include "worker/python/src/option_sets.h"

/// Peers for Python. Every call that waits releases the interpreter's lock, and returns None or false when its time has
/// passed; times are seconds. In a forked child every call throws JobError, and destructors do nothing.
namespace millrace::python {

/// Holds an object that belongs to the process that made it: a forked child can neither use nor destroy it.
template <typename T>
class OwnedByProcess {
 public:
  OwnedByProcess() = default;
  explicit OwnedByProcess(std::shared_ptr<T> object)
      : object_(std::make_unique<std::shared_ptr<T>>(std::move(object))) {}
  OwnedByProcess(const OwnedByProcess&) = delete;
  OwnedByProcess& operator=(const OwnedByProcess&) = delete;
  ~OwnedByProcess() { drop(); }

  /// Returns the object. what  its word in errors. Errors  JobError invalid_argument: dropped; another process.
  std::shared_ptr<T> held(const char* what) const;
  /// Forgets it, without the interpreter's lock. Does nothing twice, and nothing in a child.
  void drop();

 private:
  pid_t process_ = getpid();
  std::unique_ptr<std::shared_ptr<T>> object_;
};

/// Is millrace::peers::PendingGather.
class PythonPendingGather {
 public:
  explicit PythonPendingGather(peers::PendingGather pending)
      : pending_(std::make_shared<peers::PendingGather>(std::move(pending))) {}

  bool ready();
  /// Returns a list of bytes, by rank.
  pybind11::object wait(double timeout_s);

 private:
  OwnedByProcess<peers::PendingGather> pending_;
};

/// Is millrace::peers::Group over TCP, or over threads of this process.
class PythonGroup {
 public:
  explicit PythonGroup(std::shared_ptr<peers::Group> group) : group_(std::move(group)) {}
  /// addresses  texts, [ranks]; or empty: `exchange`, a callable, takes this rank's address and returns them.
  static std::unique_ptr<PythonGroup> over_tcp(uint32_t rank, const std::vector<std::string>& addresses,
                                               const std::string& listen, const pybind11::object& exchange,
                                               const std::string& name, const std::vector<double>& seconds);
  static std::vector<std::unique_ptr<PythonGroup>> in_process(uint32_t size);

  std::shared_ptr<peers::Group> held() const { return group_.held("the group"); }
  uint32_t rank() const { return held()->rank(); }
  uint32_t size() const { return held()->size(); }
  bool barrier(double timeout_s);
  std::unique_ptr<PythonPendingGather> start_gather(const std::string& own);
  /// Returns (code, sentence, rank or None), or None.
  pybind11::object failure() const;
  pybind11::tuple traffic() const;
  void close() { group_.drop(); }

 private:
  OwnedByProcess<peers::Group> group_;
};

/// Is millrace::peers::Pending: a sum under way, or its result.
class PythonPending {
 public:
  PythonPending(peers::Pending pending, uint64_t dimension)
      : pending_(std::make_shared<peers::Pending>(std::move(pending))), dimension_(dimension) {}

  bool ready();
  /// Returns (sum, returned, contributed, added); entries are (indices or None, values).
  pybind11::object wait(double timeout_s);
  /// Writes scale * sum into `out`; returns the number of entries.
  std::optional<uint64_t> wait_into(pybind11::handle out, double timeout_s, double scale);

 private:
  std::optional<peers::Reduced> try_wait(double timeout_s);

  OwnedByProcess<peers::Pending> pending_;
  uint64_t dimension_;
};

/// Is millrace::peers::Allreduce.
class PythonAllreduce {
 public:
  PythonAllreduce(const PythonGroup& group, uint64_t dimension, const std::string& algorithm,
                  const std::optional<std::string>& codec, uint64_t seed);

  std::unique_ptr<PythonPending> start(pybind11::handle dense);
  std::unique_ptr<PythonPending> start_sparse(pybind11::handle indices, pybind11::handle values);
  std::string chosen();

 private:
  OwnedByProcess<peers::Allreduce> allreduce_;
  uint64_t dimension_;
};

/// Sums one tensor's gradients step after step, with error feedback: the exchange of millrace-peer.
///
/// Threads  any; push() of one step comes before its wait_into(), and that before the next push().
class PythonGradientSum {
 public:
  /// job  select, codec_up, momentum, unbiased, reproducible, grid, reselect, seed, combine. Others are the caller's to
  ///      refuse.
  PythonGradientSum(const PythonGroup& group, uint64_t dimension, const JobOptions& job, const std::string& algorithm);

  /// Returns the step's number.
  uint64_t push(pybind11::handle gradient);
  /// Writes the step's mean or sum; returns the entries of the sum, or none.
  std::optional<uint64_t> wait_into(uint64_t step, pybind11::handle out, double timeout_s, double scale);
  /// Returns (indices, values), and forgets them.
  pybind11::tuple take_residual();
  pybind11::tuple take_velocity();
  /// Adds pairs (indices, values) to residual and velocity.
  void restore(const pybind11::tuple& residual, const pybind11::tuple& velocity);
  /// Returns (entries sent in all, entries of all sums, norm of the residual).
  pybind11::tuple counts() const;
  void close() { state_.drop(); }

 private:
  struct State;
  template <typename Call>
  auto while_idle(Call call);

  OwnedByProcess<State> state_;
  uint64_t dimension_;
};

/// Adds the classes of peers and algorithms() to the module.
void bind_peers(pybind11::module_& module);

}  // namespace millrace::python
