#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// Millrace's worker library: sum sparse gradients over the workers of a job through sharded servers.
///
///   millrace::JobOptions job{.name = "demo", .worker = 0, .workers = 4, .shards = {"tcp://10.0.0.1:7400"}};
///   auto session = millrace::Session::connect(
///       job, {{.name = "w", .dimension = weights.size(), .weights = weights, .scale = -1}});
///   for (...) { const uint64_t step = session->push(0, gradient); session->await(0, step); }
///   session->finish();
///
/// Needs C++20. No type of another library, no signal handler, nothing printed.
namespace millrace {

#define MILLRACE_API __attribute__((visibility("default")))

/// Classes of errors that a caller can act on. The numbers never change.
enum class JobErrorCode : uint16_t {
  kInvalidArgument = 1,    ///< an impossible request (wrong size, unknown name, two pushes of one step)
  kMalformed = 2,          ///< bytes of a peer or a file that are not in their format
  kUnsupported = 3,        ///< known, but not in this version
  kLimitExceeded = 4,      ///< over a stated limit
  kNonFinite = 5,          ///< NaN or infinity in a gradient, and the job refuses them
  kVersionMismatch = 6,    ///< worker and shard speak protocol versions without overlap
  kJobMismatch = 7,        ///< the job is known under another specification (shape, codec, mode ...)
  kIdentityInUse = 8,      ///< another live process is this worker
  kNotAMember = 9,         ///< removed from the job, or the job has started without this worker
  kStale = 10,             ///< an older epoch, incarnation or step
  kConflict = 11,          ///< same identity with other bytes
  kShardMapMismatch = 12,  ///< the shards disagree with each other, or with the list of addresses
  kShardLost = 13,         ///< a shard restarted without its state
  kUnavailable = 14,       ///< a shard cannot be reached, or has left
  kTimeout = 15,           ///< a stated time has passed
  kIo = 16,                ///< file or socket error
  kUnauthenticated = 17,   ///< reserved
  kInternal = 18,
};

/// Returns the code's name, as "shard_lost". Names never change: logs and scripts may use them.
MILLRACE_API std::string_view job_error_name(JobErrorCode code);

/// Says where the cause of an error is: kMalformed, for example, is a damaged file of this worker, or a server's
/// message.
enum class JobErrorOrigin : uint8_t {
  kWorker = 1,  ///< this worker's options, files, callbacks and memory, and the arguments of its calls
  kJob = 2,     ///< the servers, and the job's other workers; a time limit that has passed
};

/// Is the one exception of this library: a code, the origin of its cause, and a sentence with the remedy.
class MILLRACE_API JobError : public std::runtime_error {
 public:
  JobError(JobErrorCode code, const std::string& sentence, JobErrorOrigin origin = JobErrorOrigin::kJob);
  ~JobError() override;
  JobErrorCode code() const { return code_; }
  JobErrorOrigin origin() const { return origin_; }

 private:
  JobErrorCode code_;
  JobErrorOrigin origin_;
};

enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

/// Takes a log line. Called from the session's thread and from connect(); must not call back into the session, must not
/// throw.
using LogCallback = std::function<void(LogLevel level, std::string_view line)>;

/// Describes a job, as this worker sees it. Every field has a default, so that designated initialisers name only what
/// differs. The first group must be equal at all workers (the first one's creates the job).
struct JobOptions {
  std::string name = {};
  uint32_t worker = 0;                   ///< this worker's identity, 0 .. workers-1 (may differ, of course)
  uint32_t workers = 1;                  ///< the job starts when this number of workers has joined
  uint32_t workers_min = 1;              ///< the job ends with an error when fewer are alive
  std::vector<std::string> shards = {};  ///< "tcp://host:port"; the place in the list is the shard's number

  // Whole methods of papers (DGC, Ok-Topk, 3LC, SketchML ...) are combinations of select, reselect, codec_up,
  // codec_error, momentum, clip and unbiased: `millrace train --help` lists them with their texts (kernels/methods).
  //
  // select: "none", "topk:DENSITY|COUNT", "threshold:MAGNITUDE", "threshold_reuse:DENSITY|COUNT[:PERIOD]",
  // "bucket_topk:DENSITY[:BUCKET]", "trimmed:", "binary_search:", "radix:" and "by_size:DENSITY|COUNT",
  // "sampled:DENSITY|COUNT[:PERIOD]", "gaussian:DENSITY|COUNT", "random:DENSITY|COUNT". Unbiased jobs take "none",
  // "random:DENSITY|COUNT", "gspar:DENSITY|COUNT[:ITERATIONS]", "gspar_closed:VARIANCE" or "uniform:DENSITY|COUNT". A
  // number up to 1 is a density, a whole number from 2 is a count. These suffixes may follow where they apply: ":signs"
  // (one sign a step), ":dense=STEPS" or ":warm_up=STEPS". With ":dense=STEPS" the first STEPS steps are uncompressed.
  // They send everything, no codec changes a value, and reselect does not shorten their updates. by_size chooses for
  // each tensor. It sends tensors of up to 4,096 entries uncompressed in every step.
  std::string select = "topk:0.01";
  /// "none" or "topk:DENSITY|COUNT": the shards keep these entries of each sum and send them as the update.
  std::string reselect = "none";
  uint32_t threshold_period = 1;     ///< reselect: steps between exact global thresholds
  std::string codec_up = "gap+raw";  ///< "auto", or INDEX+VALUE as `millrace train --help` lists them
  std::string codec_down = "gap+raw";
  std::string combine = "sum";  ///< "sum", "mean", "weighted_mean".
  /// "retain": a quantizer's error stays in the residual. "drop": the error is counted and dropped.
  std::string codec_error = "retain";
  // Keeps no residual: the expected value of each contribution is the gradient. Needs a select for unbiased jobs,
  // reselect "none" and codec_error "drop". A contribution that misses its step is discarded and counted.
  bool unbiased = false;
  // The library applies clipping and momentum to the gradient when it selects the step, and adds the result to the
  // residual. momentum: "none", "correction:FACTOR" [RedSync19, algorithm 4], "nesterov:FACTOR" (the usual look-ahead)
  // or "nesterov_printed:FACTOR" (as that algorithm prints it). An entry's momentum ends when an update has applied the
  // entry's sent value, unless ":unmasked" follows. A step that sends everything ends no momentum.
  std::string momentum = "none";
  // Limits the L2 norm of a step's gradients over all tensors to this value divided by the square root of the workers.
  // 0: off. The caller pushes all tensors of a step before it awaits one of them, and all tensors equally often.
  double clip = 0;
  /// NaN and infinity: "refuse" the push, or "drop" the entry and count it.
  std::string non_finite = "refuse";
  // Modes that leave workers out: push all tensors equally often. A worker that has finished only some tensors delays
  // their quorums until it finishes the others.
  /// "synchronous": every live worker takes part in every step. "bounded_staleness": a step may omit a slow worker, at
  /// most `staleness` steps in a row. "partial": a step takes the contributions that arrive in time. "asynchronous":
  /// each contribution is a step, and no step is blocked on a worker (no reselect). There an update is one worker's, so
  /// a mean divides by 1: divide the learning rate by the number of workers.
  std::string mode = "synchronous";
  uint32_t staleness = 0;  ///< steps that may be pushed ahead of the last update.
  /// Modes partial and bounded_staleness: the contributions that a step needs before the shards decide it.
  uint32_t quorum = 0;
  /// Modes partial and bounded_staleness: the time from a step's first contribution to the decision by its quorum.
  uint32_t deadline_ms = 0;
  /// Mode partial: the number of workers drawn for each step, which the step needs. 0: all.
  uint32_t participants = 0;
  // Applies an update to a worker's weights, and hands it to callers, once this number of workers retains it, this
  // worker included. Fewer deaths than that cannot make a result void. At most workers_min. 0 and 1: at once. Costs
  // half a round trip a step. If all workers that retain an update die, it is lost as without this option, but no
  // worker has used it.
  uint32_t apply_after_acks = 0;
  uint32_t dead_after_ms = 10'000;  ///< the shards evict a worker after this time without a message from it
  uint32_t heartbeat_ms = 1'000;
  uint32_t exchange_timeout_ms = 200;
  uint64_t seed = 1;             ///< of every random choice in the job
  uint32_t parts_per_shard = 0;  ///< 0: chosen from the expected entries.
  uint64_t fuse_below = 16'384;  ///< neighbouring tensors below this dimension travel together.
  /// Checks at run time that no value is lost or counted twice: worker/README.md, "Audit".
  bool audit = false;
  /// Codes the indices of contributions relative to the updates that workers and shards have both seen. Sends fewer
  /// bytes where the same entries change again. Costs about 80 ns an index and 1.13 bytes a parameter on either side.
  /// Useful for links below about 20 Mbit/s. Needs staleness 0 and no mode asynchronous.
  bool history = false;
  // Produces the same bits for any order of arrival, any number of shards and any path. The worker rounds values to a
  // binary grid before it sends them, and sums are exact. Needs codecs without loss and mode "synchronous".
  bool reproducible = false;
  // "server": the shards add up. "switch:HOST:PORT": a switch adds up datagrams, and a shard replaces it while it does
  // not answer. At most 64 workers, mode "synchronous". switch_job, switch_slots, switch_lanes and the key must be
  // equal to the switch's configuration.
  std::string path = "server";
  uint32_t switch_job = 0;              ///< the job's number at the switch
  uint32_t switch_slots = 16;           ///< windows under way at a time
  uint32_t switch_lanes = 1;            ///< cores of the switch that share the windows, each with a job number
  uint32_t switch_packet_bytes = 1472;  ///< of UDP payload: 1472 in an MTU of 1500, 8972 in one of 9000.
  /// "auto" (gap+fixed16, reproducible: gap+fixed32), or raw, gap, bitmap, bloom + fixed16, fixed32, qsgd8, qsgd4.
  std::string switch_codec = "auto";
  uint32_t switch_return_after_ms = 5'000;  ///< the job returns to a switch that has answered for this time.
  // Indices of a block (path switch: of a window), then the first exponent of 2. "auto" is 16384:-20, and 4096:-20 in
  // reproducible jobs. A reproducible job has one grid on every path, since the bits depend on the grid. A switch's
  // packets hold all sums of a block of 4096 indices.
  std::string grid = "auto";
  /// "own": every worker uses its own weights, and the callers guarantee that they are equal. "first": when the job
  /// starts, all workers take the weights of the lowest-numbered worker (TensorOptions::weights).
  std::string initial_weights = "own";
  /// Rule by which the shards keep weights as well and change them with every update: "sgd:RATE",
  /// "momentum:RATE[:MOMENTUM]", "adagrad:RATE[:EPSILON]" or "adam:RATE[:BETA1[:BETA2[:EPSILON]]]". Entries that an
  /// update lacks do not change.
  std::string store = "none";
  /// The store's first weights. "zeros". "worker": place_weights() of the lowest-numbered worker; the shards decide no
  /// step before it. "saved": the weights and optimizer state that the shards saved of the last job of this name.
  std::string store_begin = "zeros";

  // Names the other settings that must be equal at all workers. Those are learning rates and schedules, scales of
  // weights, batch size, number of steps, data and its division. Consists of words KEY=VALUE separated by one space, in
  // one order, at most 4,096 bytes. Example: "lr=0.1 batch=64 rows=5c81f0e2", with a hash for a long value. The shard
  // refuses a worker with another recipe and names the pair that differs. Empty: the shards compare the options above
  // only.
  std::string recipe = {};

  // From here on: this worker's own.
  /// Limit for reaching every shard. It is longer by dead_after_ms while every missing shard refuses this worker. Only
  /// after that time do the shards treat an earlier run of the job, or an earlier process of this worker, as dead.
  uint32_t connect_timeout_ms = 10'000;
  uint32_t start_timeout_ms = 60'000;  ///< for all workers to join, once the shards are reached
  uint32_t shard_silence_ms = 30'000;  ///< the session ends after this time without a message from a shard.
  /// Bits per second to the shards, for codec auto. 0: measured by contributions and their updates.
  double link_rate = 0;
  std::string switch_key_file = {};  ///< path switch: the job's key, 64 hexadecimal digits, as the switch has it
  uint32_t resend_after_ms = 2'000;  ///< an unanswered contribution is sent again; doubles to 30 s.
  /// Updates that a tensor may have that no caller has awaited (beyond the staleness).
  uint32_t updates_kept_max = 8;
  /// Changes malloc's settings for the whole process. malloc keeps blocks below 256 MiB, and up to 256 MiB of freed
  /// memory, instead of returning them to the system in every round. Halves the CPU time of large updates. Off: the
  /// library does not change the process's allocator.
  bool keep_freed_memory = false;
  /// connect() calls it at intervals while it waits. True ends connect() with the error timeout.
  std::function<bool()> give_up = {};
  /// This process takes over from an earlier process of this worker, as soon as the earlier one is silent. Off: the
  /// shards refuse a second process of one worker.
  bool returns = false;
  /// A saved state to begin with: residual, log position, weights. Empty: none. With `returns` it may be missing.
  std::string load_path = {};
  /// The file for the state when the session ends with an error. Empty: the session saves nothing. connect() checks
  /// that it can write there.
  std::string save_path = {};
  LogCallback log = {};  ///< empty: silent.
  /// Address of this worker's HTTP port, for example "127.0.0.1:9201". It serves metrics (Prometheus' text format) at
  /// /metrics, health at /healthz, numbers at /status and a page at /. Three threads of the session serve it from
  /// connect() until the session's end. Port 0: any free one (Session::http_port()). Empty: no port. Every client that
  /// reaches the address can read, and change nothing.
  std::string http = {};
};

/// Says when an attached array receives an update.
enum class ApplyWhen : uint8_t {
  /// The session's thread applies each part on arrival. The caller does not touch the array between push and await.
  kOnArrival = 1,
  /// The thread that calls await() applies the steps in order, before await() returns.
  kOnAwait = 2,
};

/// Returns the scale of a step's update, and may change the weights in another way. The library calls it once for every
/// step and part, before it adds the update to weights [begin, begin + run.size()) of the tensor. `run` is the attached
/// array or a copy of it. The function may change it, and the library does not check the result. The result depends on
/// the arguments alone and is equal at all workers: a worker that joins later repeats the same steps. Threads: any
/// thread, at any time; it must not throw or call the session. A scale that is NaN or infinite ends the session with
/// the error non_finite, and the update is not added.
using Schedule = std::function<float(uint64_t step, uint64_t begin, std::span<float> run)>;

/// Describes one flat array of f32 parameters. The first group must be equal at all workers.
struct TensorOptions {
  std::string name = {};
  uint64_t dimension = 0;   ///< 1 .. 2^32
  int32_t priority = 0;     ///< larger is sent first where several wait
  std::string select = {};  ///< empty: the job's; the same for the next three
  std::string reselect = {};
  std::string codec_up = {};
  std::string codec_down = {};
  /// Marks the network's output layer. The job selects from it as from other tensors and does not quantize it.
  /// connect() removes ":signs" and lossy codecs from its settings. [RedSync19, 2.1.1]: "we do not quantify the output
  /// layer".
  bool output_layer = false;

  // Weights attached from connect() on: weights[i] += scale * sum[i] / denominator for every step of the job. With
  // weights for every tensor this worker can give its weights to others and take theirs. So it can join a running job,
  // and it rejoins after an eviction. Without weights, or with weights attached later, it cannot. The library may read
  // the array at any time. Only the session writes to it, and `schedule` makes all other changes to the weights.
  //
  // Mode asynchronous: a worker that is behind gets several steps as one sum. This requires that all tensors of all
  // workers have weights and a `scale` here. A `schedule` may treat each step differently, so with one every step
  // arrives separately.
  std::span<float> weights = {};          ///< [dimension]; the caller's, must outlive the session
  float scale = 0;                        ///< required with `weights`, as -learning_rate; 0 is refused
  Schedule schedule = {};                 ///< replaces `scale`; may return 0 in some steps
  ApplyWhen apply = ApplyWhen::kOnAwait;  ///< kOnArrival: in mode synchronous only
};

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

/// Holds entries of a tensor; indices strictly increasing.
struct SparseEntries {
  std::vector<uint32_t> indices;
  std::vector<float> values;
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

struct TensorStats {
  std::string name;
  uint64_t steps_pushed = 0;
  uint64_t steps_applied = 0;
  uint64_t entries_sent = 0;       ///< after selection and codec, all steps
  uint64_t entries_sent_last = 0;  ///< in the last step: the k that was achieved
  uint64_t entries_received = 0;
  uint64_t entries_returned = 0;  ///< sent, omitted by the update, and added to the residual again
  uint64_t false_positives = 0;   ///< entries that a lossy index codec added
  uint64_t non_finite_dropped = 0;
  uint64_t entries_discarded = 0;  ///< unbiased: of contributions that missed their step
  double discarded = 0;            ///< the sum of their values
  double residual_norm = 0;        ///< L2 norm of the present residual
  double dropped_error = 0;        ///< sum of errors dropped: of quantization (codec_error drop), of draws (unbiased)
  double dropped_magnitude = 0;    ///< the sum of their magnitudes.
  /// codec_up auto: the chosen codecs and the reason. Empty: the job names its codecs.
  std::string codec_choice = {};
};

/// Sums of a job with `audit`, over all tensors, including this worker's earlier processes in the job. entered =
/// residual + in_flight + carried + lost.
struct AuditStats {
  bool audits = false;   ///< the job asks for it; else all of these are 0
  double entered = 0;    ///< pushed values after weights, clipping and momentum, and values of a loaded state
  double residual = 0;   ///< in the residual now
  double in_flight = 0;  ///< contributed, and not answered
  double carried = 0;    ///< by updates, according to the job's log.
  /// Dropped codec errors, unreturnable values, values off the log, and values that dead processes had in their
  /// residual.
  double lost = 0;
  double rounded_off = 0;  ///< of `lost`: rounding errors of f32 additions
  double imbalance = 0;    ///< sum of the absolute audit mismatch over the parts; not 0 means a bug
  uint64_t checks = 0;     ///< number of checked parts
};

/// Counters of a job's datagrams on path switch.
struct SwitchStats {
  bool used = false;              ///< the job's path is a switch; else all of these are 0
  bool at_switch = false;         ///< the switch decides the steps at present, not a shard in its place
  uint64_t turns = 0;             ///< completed results of windows
  uint64_t resends = 0;           ///< retransmitted packets
  uint64_t timeouts = 0;          ///< turns whose result did not arrive in time
  uint64_t fallbacks = 0;         ///< changes of the job from the switch to a shard
  uint64_t came_back = 0;         ///< changes of the job from a shard to the switch
  uint64_t congestion_marks = 0;  ///< packets marked with network congestion (ECN).
  /// On this machine: packets that the system refused, or that were longer than a packet may be.
  uint64_t packets_lost = 0;
  /// Further counters by name: the reasons of dropped packets, and actions (worker/switch/DESIGN.md, "Counters").
  std::map<std::string, uint64_t> events = {};
};

/// Sums since connect(). Tensors of one bucket share its counts, which the first of them reports.
struct Stats {
  uint64_t bytes_up = 0;  ///< containers, envelopes and datagrams, retransmissions included
  uint64_t bytes_down = 0;
  /// Of these, containers: contributions as coded, retransmissions included; path switch: 0.
  uint64_t payload_bytes_up = 0;
  uint64_t payload_bytes_down = 0;
  uint64_t raw_bytes_up = 0;  ///< the entries sent, as plain (u32, f32) pairs
  uint64_t raw_bytes_down = 0;
  int64_t history_bytes_saved = 0;  ///< of the bytes sent, by option `history`
  uint64_t history_shortened = 0;   ///< contributions that were sent shorter by it
  uint64_t history_refused = 0;     ///< of these, ones that a shard could not read: sent again in full
  uint64_t dense_bytes = 0;         ///< the bytes that dense exchange would have moved, one way
  uint64_t rounds = 0;              ///< steps of buckets applied
  uint64_t resends = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;             ///< contributions that a shard had already
  uint64_t updates_dropped_stale = 0;  ///< of an older epoch, or seen before
  uint64_t updates_dropped_malformed = 0;
  uint64_t messages_dropped_unexpected = 0;  ///< messages of shards with an impossible kind, shard or part
  uint64_t not_counted = 0;                  ///< contributions that were returned whole (unbiased: discarded)
  uint64_t returns = 0;                      ///< times that this session was evicted or left behind, and rejoined
  uint64_t returns_asked_for = 0;  ///< of these, rejoins that the worker asked for, since a needed update was no longer
                                   ///< retained
  // Lost values: sums of |value|.
  /// Of a saved residual that is older than a counted contribution of this worker.
  double lost_save_too_old = 0;
  double lost_off_log = 0;  ///< values of a state that the job's log does not contain
  double lost_cut = 0;      ///< values of a state that a cut removed, since no live member had it.
  /// Counted in a step whose update is not retained: the carried values are unknown.
  double unreturnable = 0;
  /// Entries of contributions that were counted in steps that the job's log no longer contains. All members that had
  /// their updates are gone, so these entries are lost as well. Only `audit` reports the sum of their values.
  uint64_t entries_void = 0;
  /// Time from the first byte of a step at the socket to its complete update, summed.
  double time_in_communication_s = 0;
  double time_blocked_s = 0;  ///< callers' time in push() and await(), also where it ran out
  AuditStats audit;
  SwitchStats by_switch;
  std::vector<TensorStats> tensors;
};

/// Holds a session's present state, for displays.
struct SessionStatus {
  /// The job runs, and this worker is not, or no longer, a synced member: pushes block.
  bool returning = false;
  uint64_t returns = 0;     ///< number of rejoins
  std::string waiting_for;  ///< one sentence: the shard or worker on which the job, or this worker, is blocked.
  /// Of a job with `audit`: the latest mismatch. Not 0 means a bug.
  double audit_imbalance = 0;
  /// Counts the workers that left the job without finishing and have not rejoined. Training continues without their
  /// rows. After the last update and before finish(), 0 means that all workers contributed to the job's result.
  uint32_t workers_missing = 0;
};

/// Is this worker's membership in one running job.
///
/// Threads  one session thread does all coding and network; every method may be called from any thread. Different
///          tensors may be pushed at the same time; one tensor is pushed by one thread at a time.
/// Errors   once the session has ended with an error, every call that needs the job throws that error. stats(),
///          status() and save() still answer, and complete updates can still be awaited.
/// Waits    push, push_sparse, await, pull, pull_range, pull_indices, place_weights and finish have a time limit and
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
  static std::unique_ptr<Session> connect(const JobOptions& job, const std::vector<TensorOptions>& tensors);

  /// Refuses what connect() would refuse by itself, without asking a shard: for programs that read much data before
  /// they connect.
  ///
  /// Errors  invalid_argument, unsupported, limit_exceeded: options that cannot be, with the reason.
  static void check(const JobOptions& job, const std::vector<TensorOptions>& tensors);

  /// Leaves at once: Goodbye(shutdown), nothing saved, nothing awaited.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

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

  /// Does the same for a gradient of a few entries: unsorted, duplicates are added up. Strictly increasing indices are
  /// fastest. A tensor that is only pushed sparse never costs memory by its dimension.
  uint64_t push_sparse(size_t tensor, std::span<const uint32_t> indices, std::span<const float> values,
                       double weight = 1, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push_sparse(size_t tensor, std::span<const uint32_t> indices,
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

  /// Writes the weights that the shards hold, of a job with a store. pull writes the whole tensor, pull_range [begin,
  /// begin + out.size()), pull_indices those of a list of indices. Before the first step they are the store's first
  /// weights. While steps are decided, parts may include different numbers of steps; each part includes whole steps.
  ///
  /// out      [dimension], any length, [indices]; the caller's, written until the call returns.
  /// indices  strictly increasing.
  /// Waits    for the shards' answers, so that a limit of 0 is always too short. A pull that timed out may have written
  ///          some of `out`; a repeated pull begins from the start.
  /// Errors   invalid_argument: the job has no store, a wrong size, an index behind the tensor. timeout: also where the
  ///          step is never decided, or the store has no first weights yet.
  /// Threads  any number of pulls at a time.
  PulledSteps pull(size_t tensor, std::span<float> out, const PullOptions& options = {});
  PulledSteps pull_range(size_t tensor, uint64_t begin, std::span<float> out, const PullOptions& options = {});
  PulledSteps pull_indices(size_t tensor, std::span<const uint32_t> indices, std::span<float> out,
                           const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull(size_t tensor, std::span<float> out,
                                                    const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull_range(size_t tensor, uint64_t begin, std::span<float> out,
                                                          const PullOptions& options = {});
  [[nodiscard]] std::optional<PulledSteps> try_pull_indices(size_t tensor, std::span<const uint32_t> indices,
                                                            std::span<float> out, const PullOptions& options = {});

  /// Gives the store its first weights (store_begin "worker"), of all tensors at once. The weights of the
  /// lowest-numbered worker count; the others' calls block until these have arrived. All workers should give the same
  /// weights, so that the lowest-numbered worker may leave.
  ///
  /// weights  by tensor, [dimension] each, finite; read until the call returns.
  /// Errors   invalid_argument: the store begins with something else. timeout.
  void place_weights(std::span<const std::span<const float>> weights,
                     std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] bool try_place_weights(std::span<const std::span<const float>> weights,
                                       std::chrono::milliseconds timeout);

  /// Returns the bucket of a tensor: 0 .. bucket_count()-1. Tensors that are fused have the same one. For displays.
  size_t bucket_of(size_t tensor) const;
  size_t bucket_count() const;

  Stats stats();

  /// Returns the port that JobOptions::http listens on; 0: none.
  uint16_t http_port() const;

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
  /// called.
  ///
  /// Errors   invalid_argument: some of the tensors that travel together were pushed, and others not. timeout.
  void finish(std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] bool try_finish(std::chrono::milliseconds timeout = {});

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the library's version: "MAJOR.MINOR.PATCH".
MILLRACE_API std::string_view version();

}  // namespace millrace
