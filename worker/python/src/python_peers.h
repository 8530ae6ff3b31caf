#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/peer.h"
#include "monitoring/trace/span_recorder.h"
#include "worker/python/src/arrays.h"
#include "worker/python/src/interpreter.h"
#include "worker/python/src/option_sets.h"
#include "worker/training/exchange/exchange.h"

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
  std::shared_ptr<T> held(const char* what) const {
    if (getpid() != process_) {
      raise({ErrorCode::kInvalidArgument, std::string(what) + " belongs to process " + std::to_string(process_) +
                                              ", which forked this one: make one in this process"});
    }
    if (!object_ || !*object_) raise({ErrorCode::kInvalidArgument, std::string(what) + " is closed"});
    return *object_;
  }

  /// Forgets it, without the interpreter's lock. Does nothing twice, and nothing in a child.
  void drop() {
    if (getpid() != process_) {
      // Its threads and connections are the parent's.
      static_cast<void>(object_.release());
      return;
    }
    if (!object_) return;
    std::shared_ptr<T> last = std::move(*object_);
    object_.reset();
    without_lock([&last] { last.reset(); });
  }

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

/// Holds the timeline of a group's sums, which the group, its sums and its ports share.
struct GroupTimeline {
  monitoring::SpanRecorder spans;
  std::atomic<uint32_t> sums = 0;  ///< that were made; each span has the number of its sum
};

/// Is millrace::peers::Group over TCP, or over threads of this process.
class PythonGroup {
 public:
  explicit PythonGroup(std::shared_ptr<peers::Group> group) : group_(std::move(group)) {}
  /// options   with addresses; or none: `exchange`, a callable, takes this rank's address and returns them.
  /// seconds   [3]: limits of the meeting, of a rank's silence, and of a start.
  static std::unique_ptr<PythonGroup> over_tcp(peers::TcpOptions options, const pybind11::object& exchange,
                                               const std::vector<double>& seconds);
  static std::vector<std::unique_ptr<PythonGroup>> in_process(uint32_t size);

  std::shared_ptr<peers::Group> held() const { return group_.held("the group"); }
  const std::shared_ptr<GroupTimeline>& timeline() const { return timeline_; }
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
  std::shared_ptr<GroupTimeline> timeline_ = std::make_shared<GroupTimeline>();
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

/// Holds the figures of a sum: of its rank, since it began.
struct SumFigures {
  uint64_t dimension = 0;
  uint64_t steps = 0;  ///< that have ended
  training::ExchangeCounts counts;
};

/// Sums one tensor's gradients step after step, with error feedback: the exchange of millrace-peer.
///
/// Threads  any; push() or start() of one step comes before its wait_into(), and that before the next push() or fill().
class PythonGradientSum {
 public:
  /// job  select, codec_up, codec_down, codec_error, non_finite, momentum, clip, unbiased, reproducible, grid,
  ///      reselect, seed, combine. Others are the caller's to refuse.
  PythonGradientSum(const PythonGroup& group, uint64_t dimension, const JobOptions& job, const std::string& algorithm);

  /// Starts the sum of a gradient. Returns the step's number. Copies it only where the exchange does, and where values
  /// that are not finite are dropped.
  uint64_t push(pybind11::handle gradient);
  /// Copies the gradient of the next step, in the place of one that was not started.
  void fill(pybind11::handle gradient);
  /// Returns the squared L2 norm of the filled gradient. Cost: a pass over it.
  double squared_norm() const;
  /// Starts the sum of the filled gradient times `factor`. Returns the step's number.
  uint64_t start(float factor);
  /// Writes the step's mean or sum; returns the entries of the sum, or none.
  std::optional<uint64_t> wait_into(uint64_t step, pybind11::handle out, double timeout_s, double scale);
  /// Returns (indices, values), and forgets them.
  pybind11::tuple take_residual();
  pybind11::tuple take_velocity();
  /// Adds pairs (indices, values) to residual and velocity.
  void restore(const pybind11::tuple& residual, const pybind11::tuple& velocity);
  /// Returns the numbers that the sum retains between steps, beside residual and velocity.
  std::vector<uint64_t> retained() const;
  /// Continues with them. Returns false where they are of other settings.
  bool restore_retained(const std::vector<uint64_t>& numbers);
  /// Returns (entries sent in all, entries of all sums, norm of the residual, NaN and infinities dropped).
  pybind11::tuple counts() const;
  /// Returns a function that reads the figures on any thread, without Python. Never blocks: empty where the sum is
  /// closed, or while a call holds it.
  std::function<std::optional<SumFigures>()> figures() const;
  void close() { state_.drop(); }

 private:
  struct State;
  template <typename Call>
  auto while_idle(Call call) const;

  OwnedByProcess<State> state_;
  uint64_t dimension_;
};

/// Serves /metrics, /healthz and /status of a rank's sums over HTTP.
///
/// Threads  any. The port answers on threads of its own, without Python.
class PythonPeerPort {
 public:
  /// sums  [PythonGradientSum] of the group. Closed ones keep their last figures.
  /// name  of the group, label `job` of the metrics.
  /// me    http, http_tls, http_token_file and http_insecure.
  PythonPeerPort(const PythonGroup& group, const pybind11::list& sums, const std::string& name,
                 const WorkerOptions& me);

  uint16_t port() const;
  /// Counts a step of all sums, with its seconds of computing and of waiting.
  void count_step(double compute_s, double wait_s);
  void close() { state_.drop(); }

 private:
  struct State;
  OwnedByProcess<State> state_;
};

/// Adds the classes of peers and algorithms() to the module.
void bind_peers(pybind11::module_& module);

}  // namespace millrace::python
