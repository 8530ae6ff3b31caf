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

/// What went wrong, in classes that a caller can act on. The numbers never change.
enum class JobErrorCode : uint16_t {
  kInvalidArgument = 1,    ///< asked for something that cannot be (wrong size, unknown word, two pushes of one step)
  kMalformed = 2,          ///< bytes of a peer or a file that are not what they claim to be
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
  kShardLost = 13,         ///< a shard came back without its state
  kUnavailable = 14,       ///< a shard cannot be reached, or has left
  kTimeout = 15,           ///< a stated time has passed
  kIo = 16,                ///< file or socket error
  kUnauthenticated = 17,   ///< reserved
  kInternal = 18,
};

/// "shard_lost", ...: stable words for logs and scripts.
MILLRACE_API std::string_view job_error_name(JobErrorCode code);

/// Says where the cause of an error is: kMalformed, for example, is a damaged file of this worker, or a server's
/// message.
enum class JobErrorOrigin : uint8_t {
  kWorker = 1,  ///< this worker's options, files, callbacks and memory, and the arguments of its calls
  kJob = 2,     ///< the servers, and the job's other workers; a time limit that has passed
};

/// The one exception of this library: a code, where its cause is, and a sentence that says what to do.
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

/// Called from the session's thread and from connect(); must not call back into the session, must not throw.
using LogCallback = std::function<void(LogLevel level, std::string_view line)>;

/// A job, as this worker sees it. Every field has a default, so that designated initialisers name only what differs.
/// The first group must be equal at all workers (the first one's creates the job).
struct JobOptions {
  std::string name = {};
  uint32_t worker = 0;                   ///< this worker's identity, 0 .. workers-1 (may differ, of course)
  uint32_t workers = 1;                  ///< the job starts when so many have joined
  uint32_t workers_min = 1;              ///< it ends with an error when fewer live
  std::vector<std::string> shards = {};  ///< "tcp://host:port"; the place in the list is the shard's number

  // Whole methods of papers (DGC, Ok-Topk, 3LC, SketchML ...) are combinations of select, reselect, codec_up,
  // codec_error, momentum, clip and unbiased: `millrace train --help` lists them with their texts (kernels/methods).
  //
  // select: "none", "topk:DENSITY|COUNT", "threshold:MAGNITUDE", "threshold_reuse:DENSITY|COUNT[:PERIOD]",
  // "bucket_topk:DENSITY[:BUCKET]", "trimmed:", "binary_search:", "radix:" and "by_size:DENSITY|COUNT",
  // "sampled:DENSITY|COUNT[:PERIOD]", "gaussian:DENSITY|COUNT", "random:DENSITY|COUNT"; in unbiased jobs "none",
  // "random:DENSITY|COUNT", "gspar:DENSITY|COUNT[:ITERATIONS]", "gspar_closed:VARIANCE", "uniform:DENSITY|COUNT". A
  // whole number from 2 is a count, up to 1 a density. Then, where they apply, ":signs" (one sign a step),
  // ":dense=STEPS" (the first STEPS steps are uncompressed: they send everything, no codec changes a value, reselect
  // does not cut their updates) or ":warm_up=STEPS". by_size chooses for each tensor; it sends tensors of up to 4,096
  // entries uncompressed in every step.
  std::string select = "topk:0.01";
  std::string reselect = "none";     ///< "none" or "topk:DENSITY|COUNT": what the sum is cut to before it comes back
  uint32_t threshold_period = 1;     ///< reselect: steps between exact global thresholds
  std::string codec_up = "gap+raw";  ///< "auto", or INDEX+VALUE as `millrace train --help` lists them
  std::string codec_down = "gap+raw";
  std::string combine = "sum";  ///< "sum", "mean", "weighted_mean"
  std::string codec_error =
      "retain";  ///< "retain": a quantizer's error stays in the residual; "drop": counted and dropped
  // Keep nothing back: what is sent is the gradient in expectation. Needs a select that says so, reselect "none" and
  // codec_error "drop"; what misses its step is discarded and counted.
  bool unbiased = false;
  // What enters the residual is the gradient after clipping and momentum, worked out when the step is selected.
  // momentum: "none", "correction:FACTOR" [RedSync19, algorithm 4], "nesterov:FACTOR" (the usual look-ahead) or
  // "nesterov_printed:FACTOR" (as that algorithm prints it); the momentum of an entry ends when an update has applied
  // what was sent of it, unless ":unmasked" follows. A step that sends everything ends no momentum.
  std::string momentum = "none";
  // The L2 norm over all tensors that a step's gradients are scaled down to, over the square root of the workers; 0:
  // off. Push all tensors of a step before one of it is awaited, and all equally often.
  double clip = 0;
  std::string non_finite = "refuse";  ///< NaN and infinity: "refuse" the push, or "drop" the entry and count it
  // In the modes that leave workers out, push all tensors equally often: who is through with one and not with another
  // keeps a quorum of the first waiting until it finishes.
  std::string mode =
      "synchronous";  ///< "synchronous": every live worker takes part in every step; "bounded_staleness": who is slow
                      ///< is left out of `staleness` steps in a row at most; "partial": steps of those in time;
                      ///< "asynchronous": each contribution is a step, nobody is waited for (no reselect). An update is
                      ///< then one worker's: a mean divides by 1, so take the rate over the workers
  uint32_t staleness = 0;    ///< steps that may be pushed ahead of the last update
  uint32_t quorum = 0;       ///< partial, bounded: a step is not decided before so many have contributed
  uint32_t deadline_ms = 0;  ///< partial, bounded: a step with its quorum waits so long, from its first contribution on
  uint32_t participants = 0;  ///< partial: workers drawn for each step, which it waits for; 0: all
  // A worker's weights, and whoever awaits, get an update once so many workers keep it, this one included: so no result
  // rests on one that fewer deaths could make void. At most workers_min; 0, 1: at once. Costs half a round trip a step;
  // what is lost when all who keep it die is what it was, but nobody has used it before.
  uint32_t apply_after_acks = 0;
  uint32_t dead_after_ms = 10'000;  ///< a worker silent for so long is removed by the shards
  uint32_t heartbeat_ms = 1'000;
  uint32_t exchange_timeout_ms = 200;
  uint64_t seed = 1;             ///< of every random choice in the job
  uint32_t parts_per_shard = 0;  ///< 0: chosen from the expected entries
  uint64_t fuse_below = 16'384;  ///< neighbouring tensors below this dimension travel together
  bool audit = false;            ///< check at run time that nothing is lost or counted twice; worker/README.md, "Audit"
  /// Code the indices of contributions against the updates that workers and shards have both seen: fewer bytes where
  /// the same entries move again, for some 80 ns an index and 1.13 bytes a parameter on either side. For links below
  /// some 20 Mbit/s. Needs staleness 0 and no mode asynchronous.
  bool history = false;
  // The same bits for any order of arrival, any number of shards and any path: values are rounded to a binary grid
  // before they are sent, and sums are exact. Needs codecs without loss and mode "synchronous".
  bool reproducible = false;
  // "server": the shards add up. "switch:HOST:PORT": a switch does, by datagrams, and a shard in its place while it
  // does not answer. At most 64 workers, mode "synchronous"; switch_job, switch_slots, switch_lanes and the key as the
  // switch was told.
  std::string path = "server";
  uint32_t switch_job = 0;              ///< the job's number at the switch
  uint32_t switch_slots = 16;           ///< windows under way at a time
  uint32_t switch_lanes = 1;            ///< cores of the switch that share the windows, each with a job number
  uint32_t switch_packet_bytes = 1472;  ///< of UDP payload: 1472 in an MTU of 1500, 8972 in one of 9000
  std::string switch_codec = "auto";    ///< gap+fixed16, in reproducible jobs gap+fixed32; or raw, gap, bitmap, bloom +
                                        ///< fixed16, fixed32, qsgd8, qsgd4
  uint32_t switch_return_after_ms = 5'000;  ///< a switch that answers for so long gets the job back
  // Indices of a block (path switch: of a window), first exponent of 2. "auto": 4096:-20 in reproducible jobs, whatever
  // sums: the bits depend on the grid, and a switch's packets hold all sums of so large a block; else 16384:-20.
  std::string grid = "auto";
  std::string initial_weights =
      "own";  ///< "own": every worker's, equal by the callers' promise; "first": the lowest-numbered worker's
              ///< are everybody's, the others take them over when the job starts (TensorOptions::weights)
  std::string store = "none";  ///< the shards hold the weights as well, and change them with every update by this rule:
                               ///< "sgd:RATE", "momentum:RATE[:MOMENTUM]", "adagrad:RATE[:EPSILON]",
                               ///< "adam:RATE[:BETA1[:BETA2[:EPSILON]]]"; entries that an update lacks stay as they are
  std::string store_begin =
      "zeros";  ///< the store's first weights: "zeros"; "worker": place_weights() of the lowest worker, before which
                ///< nothing is decided; "saved": the shards' saves of the last job of this name, optimizer and all

  // Names what else must be equal at all workers, so that they do the same to their weights and read the right rows:
  // learning rates and schedules, scales of weights, batch size, number of steps, data and how it is divided. Words
  // KEY=VALUE with one space in between, in one order, at most 4,096 bytes ("lr=0.1 batch=64 rows=5c81f0e2"; a hash of
  // what is long). A worker with another recipe is refused, with the word that differs. Empty: nothing is compared but
  // the options above.
  std::string recipe = {};

  // From here on: this worker's own.
  /// Limit for reaching every shard. It is longer by dead_after_ms while every missing shard refuses: an earlier
  /// run of the job, or an earlier process of this worker, counts as dead only after that time.
  uint32_t connect_timeout_ms = 10'000;
  uint32_t start_timeout_ms = 60'000;  ///< for all workers to join, once the shards are reached
  uint32_t shard_silence_ms = 30'000;  ///< a shard not heard for so long ends the session
  double link_rate = 0;  ///< bits per second to the shards, for codec auto; 0: measured by what is sent and comes back
  std::string switch_key_file = {};  ///< path switch: the job's key, 64 hexadecimal digits, as the switch has it
  uint32_t resend_after_ms = 2'000;  ///< an unanswered contribution is sent again; doubles to 30 s
  uint32_t updates_kept_max = 8;     ///< updates a tensor may have that nobody awaited (beyond the staleness)
  /// Changes malloc's settings for the whole process: blocks below 256 MiB, and up to 256 MiB of freed memory, stay
  /// with it instead of going back to the system every round. Halves the CPU of large updates. Off: the library leaves
  /// the process's allocator alone.
  bool keep_freed_memory = false;
  std::function<bool()> give_up = {};  ///< asked now and then while connect() waits; true ends it (timeout)
  bool returns = false;        ///< this process takes the place of an earlier one of this worker, as soon as that is
                               ///< silent; without, a second process of one worker is refused
  std::string load_path = {};  ///< a saved state to begin with: what was kept back, the place in the log, and the
                               ///< weights; empty: none. With `returns` the file may be missing
  std::string save_path =
      {};                ///< where state goes when the session ends with an error; empty: nowhere. connect() tries it
  LogCallback log = {};  ///< empty: silent
  /// "127.0.0.1:9201": this worker's metrics (Prometheus' text format) at /metrics, health at /healthz, numbers at
  /// /status, a page at /, by three threads of the session, from connect() until the session's end. Port 0: any free
  /// one (Session::http_port()). Empty: none. Whoever reaches the address can read, and change nothing.
  std::string http = {};
};

/// When an attached array receives an update.
enum class ApplyWhen : uint8_t {
  kOnArrival = 1,  ///< by the session's thread, part by part as they arrive: keep off the array between push and await
  kOnAwait = 2,    ///< by the thread that calls await(), before it returns; steps in order
};

/// The scale of a step's update, where it is not the same for all, and what else the step does to the weights: called
/// once for every step and part, before the update is added to weights [begin, begin + run.size()) of the tensor. It
/// may change `run`, which is the attached array or a copy of it. Must depend on its arguments alone and be equal at
/// all workers: a worker that joins later applies steps as the others have. Any thread, at any time; must not throw,
/// nor call into the session. A scale that is NaN or infinite ends the session with the error non_finite, and the
/// update is not added; what it writes to `run` is not checked.
using Schedule = std::function<float(uint64_t step, uint64_t begin, std::span<float> run)>;

/// One flat array of f32 parameters. The first group must be equal at all workers.
struct TensorOptions {
  std::string name = {};
  uint64_t dimension = 0;   ///< 1 .. 2^32
  int32_t priority = 0;     ///< larger is sent first where several wait
  std::string select = {};  ///< empty: the job's; the same for the next three
  std::string reselect = {};
  std::string codec_up = {};
  std::string codec_down = {};
  /// Marks the network's output layer. The job selects from it as from other tensors and does not quantize it:
  /// connect() removes ":signs" and lossy codecs from its settings ([RedSync19, 2.1.1]: "we do not quantify the output
  /// layer").
  bool output_layer = false;

  // Weights that are attached from connect() on: weights[i] += scale * sum[i] / denominator for every step of the job.
  // With weights for every tensor this worker can give them to others and take theirs: it may join a job that runs
  // already, and comes back when it was removed. Without, or attached later, it cannot. The array is read at any time:
  // only the session writes to it, and `schedule` is the place for all else that happens to weights.
  //
  // Mode asynchronous: steps come as one sum, where the worker is behind, only if all tensors of all workers have
  // weights and a `scale` here: a `schedule` may treat each step differently, so with one every step comes by itself.
  std::span<float> weights = {};  ///< [dimension]; the caller's, must outlive the session
  float scale = 0;                ///< needed with `weights`, as -learning_rate; 0 is refused: no update would move them
  Schedule schedule = {};         ///< in place of `scale`, and may be 0 in some steps
  ApplyWhen apply = ApplyWhen::kOnAwait;  ///< kOnArrival: in mode synchronous only
};

/// A run of one tensor's update: what one part of the tensor received.
///
/// sparse   entry j belongs to index begin + indices[j]; strictly increasing.
/// dense    entry j belongs to index begin + j; indices is empty.
///
/// Mode asynchronous: it may be the sum of several steps (worker/README.md, "Choose a mode"). Each is of one
/// contribution, and has the same denominator: a mean divides each step by its own one, 1, and so the sum of them.
struct UpdatePiece {
  uint64_t begin = 0;
  uint64_t dimension = 0;  ///< the piece covers [begin, begin + dimension) of the tensor
  bool dense = false;
  std::span<const uint32_t> indices;
  std::span<const float> values;  ///< the sum over the contributors
  double denominator = 1;         ///< of a step: 1, the number of contributors, or the sum of their weights (`combine`)
  uint32_t contributors = 0;      ///< contributions in the sum, of all its steps
};

/// One step's update of one tensor. Owns what its pieces point to; copies share.
struct TensorUpdate {
  size_t tensor = 0;
  uint64_t step = 0;
  bool applied = false;             ///< attached weights have it already
  bool replaced = false;            ///< since the last await the weights were replaced by another worker's, of another
                                    ///< step perhaps: for callers that keep state of their own beside them. What pieces
                                    ///< hold until the next push is answered may be in them already
  std::vector<UpdatePiece> pieces;  ///< by begin; empty where weights are attached with kOnArrival
  std::shared_ptr<const void> owner;
};

/// Entries of a tensor; indices strictly increasing.
struct SparseEntries {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

/// The time limit of every call that waits, where the caller gives none.
inline constexpr std::chrono::milliseconds kDefaultTimeout{600'000};

/// How a pull waits.
struct PullOptions {
  uint64_t at_least_step =
      0;  ///< weights with the updates of the job's steps below it. In any case with all that this worker
          ///< has received: what a pull shows does not go back behind await()
  std::chrono::milliseconds timeout = kDefaultTimeout;
};

/// Steps in the weights that were pulled: of the part that has the fewest, and of the one that has the most.
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
  uint64_t entries_returned = 0;  ///< sent, and not in the update: back in the residual
  uint64_t false_positives = 0;   ///< entries that a lossy index codec added
  uint64_t non_finite_dropped = 0;
  uint64_t entries_discarded = 0;  ///< unbiased: of contributions that missed their step
  double discarded = 0;            ///< the sum of their values
  double residual_norm = 0;        ///< L2 norm of what is kept back now
  double dropped_error = 0;        ///< sum of errors dropped: of quantization (codec_error drop), of draws (unbiased)
  double dropped_magnitude = 0;    ///< the sum of their magnitudes
  std::string codec_choice =
      {};  ///< codec_up auto: which codecs it has chosen, and why; empty: the job names its codecs
};

/// Of a job with `audit`: what went where, summed over all tensors; of this worker's earlier processes in the job as
/// well. entered = residual + in_flight + carried + lost.
struct AuditStats {
  bool audits = false;   ///< the job asks for it; else all of these are 0
  double entered = 0;    ///< what was pushed, after weights, clipping and momentum, and what a loaded state brought
  double residual = 0;   ///< kept back now
  double in_flight = 0;  ///< sent, and not answered
  double carried = 0;    ///< by updates, as the job's log says
  double lost =
      0;  ///< by name: codec errors dropped, what is unreturnable or off the log, and what dead processes held
  double rounded_off = 0;  ///< of `lost`: what additions in f32 rounded off
  double imbalance = 0;    ///< sum of |what does not balance| over the parts: 0, or there is a bug
  uint64_t checks = 0;     ///< of parts so far
};

/// Of a job of path switch: how its datagrams fare.
struct SwitchStats {
  bool used = false;              ///< the job's path is a switch; else all of these are 0
  bool at_switch = false;         ///< it decides the steps at present, not a shard in its place
  uint64_t turns = 0;             ///< results of windows that were settled
  uint64_t resends = 0;           ///< packets that were sent again
  uint64_t timeouts = 0;          ///< turns that no result came for in time
  uint64_t fallbacks = 0;         ///< how often the job went on by a shard
  uint64_t came_back = 0;         ///< ... and by the switch again
  uint64_t congestion_marks = 0;  ///< packets that say that the network is congested (ECN)
  uint64_t packets_lost =
      0;  ///< on this machine: the system did not take them, or they came longer than packets may be
  /// What else is counted, by name: why packets were dropped, and what was done (worker/switch/DESIGN.md, "Counters").
  std::map<std::string, uint64_t> events = {};
};

/// Sums since connect(). Tensors that share a bucket share its counts, given with the first of them.
struct Stats {
  uint64_t bytes_up = 0;  ///< containers, envelopes and datagrams, resends included
  uint64_t bytes_down = 0;
  uint64_t payload_bytes_up = 0;  ///< of these, containers: contributions as coded, resends included; path switch: 0
  uint64_t payload_bytes_down = 0;
  uint64_t raw_bytes_up = 0;  ///< the entries sent, as plain (u32, f32) pairs
  uint64_t raw_bytes_down = 0;
  int64_t history_bytes_saved = 0;  ///< of what went up, by option `history`
  uint64_t history_shortened = 0;   ///< contributions that were sent shorter by it
  uint64_t history_refused = 0;     ///< of these, ones that a shard could not read so: sent again as they are
  uint64_t dense_bytes = 0;         ///< what dense exchange would have moved, one way
  uint64_t rounds = 0;              ///< steps of buckets applied
  uint64_t resends = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;             ///< contributions that a shard had already
  uint64_t updates_dropped_stale = 0;  ///< of an older epoch, or seen before
  uint64_t updates_dropped_malformed = 0;
  uint64_t messages_dropped_unexpected = 0;  ///< of shards: of a kind, shard or part that cannot be here
  uint64_t not_counted = 0;                  ///< contributions that came back whole (unbiased: were discarded)
  uint64_t returns = 0;            ///< how often this session was removed from the job, or left behind, and came back
  uint64_t returns_asked_for = 0;  ///< of these, by itself: an update that it needs was forgotten
  // What was lost by name: sums of |value|.
  double lost_save_too_old = 0;  ///< kept back when it was saved, and something of this worker was counted since
  double lost_off_log = 0;       ///< of a state that the job's log does not contain
  double lost_cut = 0;           ///< of a state that the job went back behind, since nobody alive had it
  double unreturnable = 0;       ///< counted in a step whose update is forgotten: what it carried is not known
  /// Entries sent in contributions that were counted, in steps that the job's log does not contain any more (whoever
  /// else had their updates is gone): lost as well. What they sum to only `audit` says.
  uint64_t entries_void = 0;
  double time_in_communication_s = 0;  ///< first byte of a step handed to the socket .. its update complete, summed
  double time_blocked_s = 0;           ///< callers' time in push() and await(), also where it ran out
  AuditStats audit;
  SwitchStats by_switch;
  std::vector<TensorStats> tensors;
};

/// Where a session stands, for displays.
struct SessionStatus {
  bool returning = false;      ///< the job runs, and this worker is not, or no longer, one that takes part: pushes wait
  uint64_t returns = 0;        ///< how often it came back
  std::string waiting_for;     ///< one sentence: which shard or worker the job, or this worker, waits for
  double audit_imbalance = 0;  ///< of a job with `audit`, as found last: 0, or there is a bug
  /// Counts the job's workers that left it without finishing, and are not back: training goes on without their rows.
  /// After the last update and before finish() it says whether all workers contributed to the job's result.
  uint32_t workers_missing = 0;
};

/// This worker's membership in one running job.
///
/// Threads  one session thread does all coding and network; every method may be called from any thread. Different
///          tensors may be pushed at the same time; one tensor is pushed by one thread at a time.
/// Errors   once the session has ended with an error, every call that needs the job throws that error. stats(),
///          status() and save() still answer, and complete updates can still be awaited.
/// Waits    push, push_sparse, await, pull, pull_range, pull_indices, place_weights and finish have a time limit and
///          two forms. When the time has passed, NAME throws the error timeout, with who the job waits for; try_NAME
///          returns empty or false, and status().waiting_for says who. All else that goes wrong is an exception in
///          either form. A limit of 0 or less does not wait; milliseconds::max() waits for ever. A call that ran out of
///          time may be repeated. It has taken nothing from the caller. A pull may have written part of `out`; the
///          shards may have some of place_weights()' weights, so it is repeated with the same ones; after finish()
///          nothing can be pushed, whether or not it ran out of time.
class MILLRACE_API Session {
 public:
  /// Joins the job, or creates it, and waits until all workers have joined. Where the job runs already, or the weights
  /// are another worker's: waits until this one takes part and the weights are in the arrays.
  ///
  /// Errors  invalid_argument: options that cannot be, with the reason. unavailable: which shard could not be reached,
  ///         and how long it was tried. version_mismatch, job_mismatch (the field that differs, of the job or of a
  ///         saved state), identity_in_use, not_a_member, shard_map_mismatch: as a shard said. timeout: who has not
  ///         joined. io, malformed: of load_path. invalid_argument, io: of `http`: no address, in use, or not of this
  ///         machine.
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
  /// gradient  [dimension]; read before push returns, not kept.
  /// weight    the worker's share in a weighted mean, finite and positive (the gradient is multiplied by it); 1
  ///           otherwise.
  /// timeout   of the wait for the step's turn; taking the gradient comes on top.
  /// Returns   the step's number: 0, 1, ... per tensor. Tensors fused into one bucket are sent when the last of them is
  ///           pushed.
  /// Waits     only while the staleness does not allow the step yet (update step - 1 - staleness not here), the step
  ///           before is still being coded, or save() copies the residual; never for the network beyond that.
  /// Cost      one read pass (finite?) and one pass that adds, on the caller's thread.
  /// Errors    invalid_argument: wrong size; pushed twice before its fused neighbours; another weight, or one where the
  ///           job has none.
  ///           non_finite: nothing of it is taken. limit_exceeded: updates_kept_max. timeout: nothing of it is taken.
  uint64_t push(size_t tensor, std::span<const float> gradient, double weight = 1,
                std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push(size_t tensor, std::span<const float> gradient, double weight = 1,
                                                 std::chrono::milliseconds timeout = {});

  /// The same for a gradient of a few entries: unsorted, duplicates are added up. Strictly increasing indices are
  /// fastest. A tensor that is only pushed sparse never costs memory by its dimension.
  uint64_t push_sparse(size_t tensor, std::span<const uint32_t> indices, std::span<const float> values,
                       double weight = 1, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<uint64_t> try_push_sparse(size_t tensor, std::span<const uint32_t> indices,
                                                        std::span<const float> values, double weight = 1,
                                                        std::chrono::milliseconds timeout = {});

  /// True when await(tensor, step) would not wait. Takes nothing, unlike try_await().
  bool ready(size_t tensor, uint64_t step);

  /// Waits for the step's update and hands it out, once. An update is kept until awaited; one that went into attached
  /// weights on arrival is not kept, need not be awaited, and may be any number of times.
  ///
  /// Threads  one tensor's updates are awaited by one thread at a time.
  /// Errors  timeout: with who the shards wait for, where they said so. invalid_argument: a step that was not pushed,
  ///         or was handed out before.
  TensorUpdate await(size_t tensor, uint64_t step, std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] std::optional<TensorUpdate> try_await(size_t tensor, uint64_t step,
                                                      std::chrono::milliseconds timeout = {});

  /// From the next update on: weights[i] += scale * sum[i] / denominator.
  ///
  /// For callers that need neither joiners nor returns: those give their weights to connect().
  ///
  /// weights  [dimension]; the caller's, must outlive the session or the next attach.
  /// scale    finite and not 0: no update would move the weights.
  /// Errors   invalid_argument: a step of the tensor is in flight (attach before a push, or after await of the last
  ///          one); kOnArrival in another mode than synchronous; weights were given to connect() (they stay, and their
  ///          scale is a function of the step: Schedule).
  void attach_weights(size_t tensor, std::span<float> weights, float scale, ApplyWhen when);
  /// Changes the scale of weights that attach_weights() has attached, from the next update that is applied on.
  ///
  /// Errors   invalid_argument: as attach_weights() says of `scale`; no weights are attached.
  void set_scale(size_t tensor, float scale);

  /// Steps of the job in the attached weights: the least over the tensor's parts. A worker that joined or came back
  /// trains on from there; in mode synchronous, without either, it is the number of pushes answered. Without weights:
  /// steps that arrived.
  uint64_t steps_applied(size_t tensor);
  SessionStatus status() const;

  /// Hands out what this worker keeps back of a tensor (the residual, and what updates did not carry) and forgets it:
  /// from now on it is the caller's, for callers that feed errors back themselves. Without this it goes out with later
  /// steps by itself. With momentum, what is fed back is taken for a gradient and gains momentum once more.
  ///
  /// Errors  invalid_argument: a step of the tensor, or of one that travels with it, is pushed and not answered yet.
  SparseEntries take_residual(size_t tensor);

  /// The weights that the shards hold, of a job with a store: the whole tensor; [begin, begin + out.size()); or those
  /// of a list of indices. Before the first step: those that the store begins with. While steps are decided, parts may
  /// be after different numbers of them; each part is after a whole number.
  ///
  /// out      [dimension], any length, [indices]; the caller's, written until the call returns.
  /// indices  strictly increasing.
  /// Waits    for the shards' answers, so that a limit of 0 is always too short. A pull that ran out of time begins
  ///          anew when it is repeated, and may have written some of `out`.
  /// Errors   invalid_argument: the job has no store, a wrong size, an index behind the tensor. timeout: also where the
  ///          step never comes, or the store waits for its first weights.
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

  /// The weights that the store begins with (store_begin "worker"), of all tensors at once: those of the lowest worker
  /// count, the others' calls wait until they are there. All workers should give the same, so that whoever is the
  /// lowest may leave.
  ///
  /// weights  by tensor, [dimension] each, finite; read until the call returns.
  /// Errors   invalid_argument: the store begins with something else. timeout.
  void place_weights(std::span<const std::span<const float>> weights,
                     std::chrono::milliseconds timeout = kDefaultTimeout);
  [[nodiscard]] bool try_place_weights(std::span<const std::span<const float>> weights,
                                       std::chrono::milliseconds timeout);

  /// The indices of a tensor that fuse with others, as laid out: 0 .. bucket_count()-1 by tensor. For displays.
  size_t bucket_of(size_t tensor) const;
  size_t bucket_count() const;

  Stats stats();

  /// Returns the port that JobOptions::http listens on; 0: none.
  uint16_t http_port() const;

  /// Writes what this worker has, in one cut: per tensor residual + contributions in flight and the attached weights,
  /// the place in the log, identity, specification, with a checksum; load_path begins with it. Weights of which no
  /// array is attached are the caller's to save. Atomic: a temporary file, fsync, rename; on any failure the old file
  /// stays, and the new one where there is room for it: beside `path`, in the process's folder, in $TMPDIR (/var/tmp
  /// where that is not set) or in /tmp.
  ///
  /// Errors  io: with the path, the system's reason, and the file that has what was to be saved.
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
