#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/device.h"
#include "millrace/entries.h"
#include "millrace/errors.h"
#include "millrace/options.h"
#include "millrace/stats.h"

/// A worker's membership in one running job.
namespace millrace {
inline namespace v0 {

/// Holds a run of one tensor's update: the entries that one part of the tensor received.
///
/// sparse   entry j belongs to index begin + indices[j]; strictly increasing.
/// dense    entry j belongs to index begin + j; indices is empty.
///
/// Mode asynchronous: it may be the sum of several steps (worker/README.md, "Choose a mode"). Each step has one
/// contribution, and all have the same denominator, 1. So a mean divides the sum by 1.
struct UpdatePiece {
  uint64_t begin = 0;
  uint64_t dimension = 0;  ///< the piece covers [begin, begin + dimension) of the tensor
  bool dense = false;
  std::span<const uint32_t> indices;
  std::span<const float> values;  ///< the sum over the contributors
  double denominator = 1;         ///< of a step: 1, the number of contributors, or the sum of their weights (`combine`)
  uint32_t contributors = 0;      ///< contributions in the sum, of all its steps
};

/// Holds one step's update of one tensor. Owns the memory of its pieces; copies share it.
struct TensorUpdate {
  size_t tensor = 0;
  uint64_t step = 0;
  bool applied = false;  ///< attached weights have it already.
  /// Since the last await, another worker's weights replaced the weights, perhaps those of another step. A caller that
  /// keeps its own state beside the weights must know this. The weights may already include the pieces that arrive
  /// until the next push is answered.
  bool replaced = false;
  std::vector<UpdatePiece> pieces;  ///< by begin; empty where weights are attached with kOnArrival
  std::shared_ptr<const void> owner;
};

/// The time limit of every call that waits, where the caller gives none.
inline constexpr std::chrono::milliseconds kDefaultTimeout{600'000};

/// Says which steps a pull waits for, and how long.
struct PullOptions {
  /// The pulled weights include the updates of the job's steps below this one. They always include all updates that
  /// this worker has received, so a pull is never older than await().
  uint64_t at_least_step = 0;
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

/// Holds the numbers of steps in the pulled weights: of the part with the fewest steps and of the part with the most.
struct PulledSteps {
  uint64_t least = 0;
  uint64_t most = 0;
};

/// Is this worker's membership in one running job.
///
/// Threads  one session thread does all coding and network; every method may be called from any thread. Different
///          tensors may be pushed at the same time; one tensor is pushed by one thread at a time.
/// Errors   once the session has ended with an error, every call that needs the job throws that error. stats(),
///          status() and save() still answer, and complete updates can still be awaited.
/// Waits    the calls named push, await, pull, place_weights and finish, those of parts included, have a time limit and
///          two forms. After the limit, NAME throws the error timeout and names the process that the job is blocked on.
///          try_NAME returns empty or false, and status().waiting_for names that process. Every other failure is an
///          exception in either form. A limit of 0 or less does not wait; milliseconds::max() has no limit. A call that
///          timed out has taken nothing from the caller and may be repeated. A pull may have written part of `out`. The
///          shards may have some of place_weights()' weights, so the caller repeats it with the same weights. After a
///          call of finish() nothing can be pushed, even if the call timed out.
class MILLRACE_API Session {
 public:
  /// Joins the job, or creates it, and blocks until all workers have joined. If the job runs already, or the weights
  /// are another worker's: blocks until this worker is synced and the weights are in the arrays.
  ///
  /// Errors  invalid_argument: impossible options, with the reason. unavailable: the shard that could not be reached,
  ///         and the time spent on attempts. version_mismatch, job_mismatch (the field that differs, of the job or of a
  ///         saved state), identity_in_use, not_a_member, shard_map_mismatch: reported by a shard. timeout: the workers
  ///         that have not joined. io, malformed: of load_path. invalid_argument, io: of `http`: no address, in use, or
  ///         not of this machine.
  static std::unique_ptr<Session> connect(const JobConfig& job, const WorkerConfig& me,
                                          const std::vector<TensorOptions>& tensors);

  /// Refuses what connect() would refuse by itself, without asking a shard: for programs that read much data before
  /// they connect.
  ///
  /// Errors  invalid_argument, unsupported, limit_exceeded: options that cannot be, with the reason.
  static void check(const JobConfig& job, const WorkerConfig& me, const std::vector<TensorOptions>& tensors);

  /// Leaves at once: Goodbye(shutdown), nothing saved, nothing awaited.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Returns the number of the tensor of that name, for the other calls: its place in the list of connect().
  ///
  /// Errors   invalid_argument: no tensor has the name.
  size_t tensor(std::string_view name) const;

  /// Adds a gradient to the tensor's residual and sends the selected part of it: the step's contribution.
  ///
  /// gradient  [dimension]; read before push returns, not retained.
  /// weight    the worker's share in a weighted mean, finite and positive (the library multiplies the gradient by it);
  ///           1 otherwise.
  /// timeout   of the wait for the step; the time to take the gradient is additional.
  /// Returns   the step's number: 0, 1, ... per tensor. Tensors fused into one bucket are sent when the last of them is
  ///           pushed.
  /// Waits     in three cases only, and never for the network otherwise. The staleness does not allow the step yet
  ///           (update step - 1 - staleness is missing). The step before is still being coded. save() copies the
  ///           residual.
  /// Cost      one pass that checks for finite values and one pass that adds, on the caller's thread.
  /// Errors    invalid_argument: wrong size; pushed twice before its fused neighbours; another weight, or one where the
  ///           job has none. non_finite, timeout: nothing of the gradient is taken. limit_exceeded: updates_kept_max.
  uint64_t push(size_t tensor, std::span<const float> gradient, double weight = 1,
                std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push(size_t tensor, std::span<const float> gradient, double weight = 1,
                                                 std::chrono::milliseconds timeout = {});

  /// Does the same for a gradient in a CUDA device's memory. From the first such push on, the residual is there, and
  /// only the selected entries cross the bus, or with selection none the codes. An uncompressed step, save() and
  /// take_residual() copy the whole residual; save() and take_velocity() the velocity. stats() copies it where the
  /// device has no memory for the norm. Pushes from the host's memory remain possible.
  ///
  /// gradient  of the device of the first push. push first waits for the work of its stream so far; `timeout` does not
  ///           limit that. The session sends heartbeats meanwhile.
  /// Memory    of the device: 4 bytes an index for the residual, 8 more with momentum, or 4 more with clipping alone.
  ///           Scratch for the selection, about 20 bytes a selected entry; for codes 4 bytes an index of a part.
  ///           Pools keep 8 bytes an index, 16 with momentum, and 64 MiB at most. A step without memory for its scratch
  ///           is the host's. Residual and velocity cross the bus then, and the next push moves them back.
  /// Cost      three reads and a write of the device's memory. With momentum one more write, and in the step three
  ///           reads and two writes. With clipping one more read.
  /// Errors    also unsupported: this build has no CUDA. The tensor is fused with others. The selection is none of
  ///           topk, trimmed, radix, threshold, threshold_reuse, binary_search, sampled, gaussian, bucket_topk,
  ///           nor none with a dense code (limits: worker/DEVICES.md). Alternating signs, unbiased, audit, Bloom
  ///           filters. unavailable: no driver, no such device, or none that this build can use. limit_exceeded: no
  ///           memory there. invalid_argument: not of that device. After another error of the device the session ends
  ///           with it, and the residual is lost.
  uint64_t push(size_t tensor, const DeviceSpan& gradient, double weight = 1,
                std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push(size_t tensor, const DeviceSpan& gradient, double weight = 1,
                                                 std::chrono::milliseconds timeout = {});

  /// Does the same for a gradient of a few entries: unsorted, duplicates are added up. Strictly increasing indices are
  /// fastest. A tensor that is only pushed sparse never costs memory by its dimension.
  uint64_t push_sparse(size_t tensor, std::span<const uint32_t> indices, std::span<const float> values,
                       double weight = 1, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push_sparse(size_t tensor, std::span<const uint32_t> indices,
                                                        std::span<const float> values, double weight = 1,
                                                        std::chrono::milliseconds timeout = {});

  /// Does the same for rows of a table, each of `width` entries: row r has those from r * width on. Strictly increasing
  /// rows are fastest.
  ///
  /// values   [rows.size() * width], row by row; rows that are listed twice are added up.
  uint64_t push_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows, std::span<const float> values,
                     double weight = 1, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                                                      std::span<const float> values, double weight = 1,
                                                      std::chrono::milliseconds timeout = {});

  /// Returns true when await(tensor, step) would not wait. Takes nothing, unlike try_await().
  bool ready(size_t tensor, uint64_t step);

  /// Blocks until the step's update arrives and hands it out, once. The session retains an update until it is awaited.
  /// It does not retain an update that it added to attached weights on arrival: that one may be awaited any number of
  /// times, or never.
  ///
  /// Threads  one tensor's updates are awaited by one thread at a time.
  /// Errors  timeout: names the workers that the shards are blocked on, where the shards reported them.
  ///         invalid_argument: a step that was not pushed, or was handed out before.
  TensorUpdate await(size_t tensor, uint64_t step, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<TensorUpdate> try_await(size_t tensor, uint64_t step,
                                                      std::chrono::milliseconds timeout = {});

  /// Attaches weights: from the next update on, weights[i] += scale * sum[i] / denominator.
  ///
  /// For callers that need neither joiners nor rejoins. The others give their weights to connect().
  ///
  /// weights  [dimension]; the caller's, must outlive the session or the next attach.
  /// scale    finite and not 0: no update would move the weights.
  /// Errors   invalid_argument: a step of the tensor is in flight (attach before a push, or after await of the last
  ///          one). kOnArrival in another mode than synchronous. connect() has attached weights: they stay, and a
  ///          Schedule changes their scale.
  void attach_weights(size_t tensor, std::span<float> weights, float scale, ApplyWhen when);
  /// Does the same for weights in a CUDA device's memory, with kOnAwait. An update's entries cross the bus and are
  /// added on the device. The array has the bits of one in the host's memory. The calls that add updates wait for the
  /// work so far of the array's stream, and for the additions. save() waits for that work and copies the array. So does
  /// a session with save_path that ends with an error. A stream that is being captured into a CUDA graph is
  /// invalid_argument.
  ///
  /// Memory   of the device: 8 bytes a weight, 2 MiB at most. Without it limit_exceeded, and nothing is attached.
  /// weights  the caller's, must outlive the session or the next attach.
  /// Errors   also those of a device, as of push().
  void attach_weights(size_t tensor, const DeviceArray& weights, float scale);
  /// Changes the scale of weights that attach_weights() has attached, from the next update that is applied on.
  ///
  /// Errors   invalid_argument: the limits of `scale` in attach_weights(); no weights are attached.
  void set_scale(size_t tensor, float scale);

  /// Returns the number of the job's steps in the attached weights: the least over the tensor's parts. A worker that
  /// joined or rejoined continues training from there. In mode synchronous, without either, it is the number of
  /// answered pushes. Without weights: the number of steps that arrived.
  uint64_t steps_applied(size_t tensor);
  SessionStatus status() const;

  /// Hands out the tensor's residual, including the entries that updates omitted, and sets it to zero. For callers that
  /// feed errors back themselves. Without this call, later steps send the residual. With momentum, the library treats
  /// values that are fed back as a gradient, and they gain momentum once more.
  ///
  /// Errors  invalid_argument: a step of the tensor, or of one that travels with it, is pushed and not answered yet.
  SparseEntries take_residual(size_t tensor);
  /// Hands out the tensor's velocity, of option momentum, and sets it to zero. Without momentum there are no entries.
  ///
  /// Errors  those of take_residual().
  SparseEntries take_velocity(size_t tensor);
  /// Adds entries to the tensor's residual and velocity, as take_residual() and take_velocity() handed them out. They
  /// gain no momentum. With momentum a push is no substitute.
  ///
  /// residual, velocity  in any order; values of equal indices are added up.
  /// Errors   those of take_residual(). non_finite. invalid_argument: an index behind the tensor; a velocity in a job
  ///          without momentum.
  void restore(size_t tensor, const SparseEntries& residual, const SparseEntries& velocity = {});
  /// Returns the numbers that later steps of the tensor depend on beside residual and velocity. They are of its steps,
  /// of its selection, and of a reproducible job's grid. Tensors that travel together have the same ones.
  ///
  /// Errors   those of take_residual().
  std::vector<uint64_t> retained(size_t tensor);
  /// Continues with the numbers of an earlier job. Residual and velocity are restored by restore(). If all workers of a
  /// reproducible job restore both, it has the bits of a job without the interruption, for dense gradients. Exceptions:
  /// with `reselect` the first update has the whole sum; over path switch exponents start from their first values.
  ///
  /// Returns  false, and changes nothing, where that job had other settings: workers, seed, path, grid, select or
  ///          dimension.
  /// Errors   those of take_residual(). invalid_argument: other numbers; nothing changes then.
  bool restore_retained(size_t tensor, std::span<const uint64_t> numbers);

  /// Writes the weights that the shards hold, of a job with a store. pull writes the whole tensor, pull_range [begin,
  /// begin + out.size()), pull_indices those of a list of indices. pull_rows writes rows of a table (push_rows), and
  /// sends one index for each. Before the first step they are the store's first weights. While steps are decided, parts
  /// may include different numbers of steps; each part includes whole steps.
  ///
  /// out      [dimension], any length, [indices], [rows.size() * width]; the caller's, written until the call returns.
  /// indices  strictly increasing, as rows are.
  /// Waits    for the shards' answers, so that a limit of 0 is always too short. A pull that timed out may have written
  ///          some of `out`; a repeated pull begins from the start.
  /// Errors   invalid_argument: the job has no store, a wrong size, an index behind the tensor. timeout: also where the
  ///          step is never decided, or the store has no first weights yet.
  /// Threads  any number of pulls at a time.
  PulledSteps pull(size_t tensor, std::span<float> out, const PullOptions& options = {});
  PulledSteps pull_range(size_t tensor, uint64_t begin, std::span<float> out, const PullOptions& options = {});
  PulledSteps pull_indices(size_t tensor, std::span<const uint32_t> indices, std::span<float> out,
                           const PullOptions& options = {});
  PulledSteps pull_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows, std::span<float> out,
                        const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull(size_t tensor, std::span<float> out,
                                                    const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull_range(size_t tensor, uint64_t begin, std::span<float> out,
                                                          const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull_indices(size_t tensor, std::span<const uint32_t> indices,
                                                            std::span<float> out, const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                                                         std::span<float> out, const PullOptions& options = {});

  /// Gives the store its first weights (StoreBegin::kWorker), of all tensors at once. The weights of the
  /// lowest-numbered worker count; the others' calls block until these have arrived. All workers should give the same
  /// weights, so that the lowest-numbered worker may leave. Limit: a shard that restarts before the first step, without
  /// a save of the weights, waits until the caller gives them again.
  ///
  /// weights  by tensor, [dimension] each, finite; read until the call returns.
  /// Errors   invalid_argument: the store begins with something else. timeout.
  void place_weights(std::span<const std::span<const float>> weights,
                     std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] bool try_place_weights(std::span<const std::span<const float>> weights,
                                       std::chrono::milliseconds timeout);

  Stats stats();

  /// Returns the port that WorkerConfig::http listens on; 0: none.
  uint16_t http_port() const;

  /// Answers /trace of WorkerConfig::http, for a program that has an HTTP port of its own. It records the spans of this
  /// session's work while it is asked, for `millrace trace`.
  ///
  /// query    "seconds=2&after=CURSOR": records for that time, at most 60; returns the spans behind the cursor.
  ///          "phases": records nothing; returns select_seconds, encode_seconds and apply_seconds of all steps so far.
  /// Returns  one JSON object (monitoring/trace/trace_answer.h).
  /// Errors   invalid_argument: no such query.
  /// Threads  any.
  std::string trace(std::string_view query);

  /// Writes a consistent copy of this worker's state, with a checksum; load_path begins with it. Per tensor it has the
  /// residual plus the contributions in flight, and the attached weights. It also has the log positions, the identity
  /// and the specification. Weights without an attached array are the caller's to save. Atomic: a temporary file,
  /// fsync, rename. On any failure the old file stays. The new file then goes where there is room for it: beside
  /// `path`, into the process's folder, or into $TMPDIR (/var/tmp if unset) or /tmp.
  ///
  /// Errors  io: with the path, the system's reason, and the file that has the new state.
  void save(const std::string& path);

  /// Waits until every push is answered and acknowledged, then leaves the job as finished. Fused tensors must be pushed
  /// equally often. The session cannot be used afterwards (updates can still be awaited), nor pushed to once this was
  /// called. The shards may hear of it a moment later. Until then they refuse a session that takes this worker's number
  /// without `returns`.
  ///
  /// Errors   invalid_argument: some of the tensors that travel together were pushed, and others not. timeout.
  void finish(std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] bool try_finish(std::chrono::milliseconds timeout = {});

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace v0
}  // namespace millrace
