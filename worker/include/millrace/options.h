#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "millrace/compression.h"

/// The options of a job and of a worker. Every field has a default, so that designated initialisers name only what
/// differs. worker/OPTIONS.md lists all of them. A command has flags for some of them, and its --help lists these.
namespace millrace {
inline namespace v0 {

/// Says how a step's update applies to a weight. Numbers of this and the following enums are on the wire.
enum class Combine : uint8_t {
  kSum = 1,           ///< the sum of the contributions
  kMean = 2,          ///< divided by the number of contributors
  kWeightedMean = 3,  ///< divided by the sum of the contributions' weights
};

/// Says what happens to the difference between the selected values and their decoded code.
enum class CodecError : uint8_t {
  kRetain = 1,  ///< stays in the worker's residual; for lossless codecs and contractions only
  kDrop = 2,    ///< dropped and counted (SparCML's and RedSync's rule)
};

/// Says how a NaN or an infinity in a pushed gradient is treated.
enum class NonFinite : uint8_t {
  kRefuse = 1,        ///< push fails and takes nothing
  kDropAndCount = 2,  ///< the entry is dropped and counted
};

/// Says which worker's weights a job begins with.
enum class InitialWeights : uint8_t {
  kOwn = 1,    ///< every worker's; the callers guarantee that they are equal
  kFirst = 2,  ///< the lowest-numbered worker's: the others take them when the job starts
};

/// Says where the shards get their first weights.
enum class StoreBegin : uint8_t {
  kZeros = 1,   ///< all weights are 0
  kWorker = 2,  ///< place_weights() of the lowest-numbered worker; the shards decide no step before it
  kSaved = 3,   ///< the shards' saves of the last job of this name: weights and optimizer state
};

/// Holds a member without a default: a record that has one is written with its value, or does not compile.
///
/// Errors  std::out_of_range: an integer that does not fit T; a constant does not compile.
template <typename T>
class Required {
 public:
  template <typename Value>
    requires(std::convertible_to<Value, T> && !std::same_as<std::remove_cvref_t<Value>, Required>)
  // NOLINTNEXTLINE(google-explicit-constructor): Sgd{.rate = 0.1}
  constexpr Required(Value&& value) : value_(std::forward<Value>(value)) {
    if constexpr (is_number<T> && is_number<Value>) {
      if (!std::in_range<T>(value)) throw std::out_of_range("the value is out of the range of its type");
    }
  }
  // NOLINTNEXTLINE(google-explicit-constructor): double rate = sgd.rate
  constexpr operator const T&() const { return value_; }
  constexpr const T& get() const { return value_; }
  bool operator==(const Required&) const = default;
  friend constexpr bool operator==(const Required& left, const T& right) { return left.value_ == right; }

 private:
  template <typename Number>
  static constexpr bool is_number =
      std::integral<std::remove_cvref_t<Number>> && !std::same_as<std::remove_cvref_t<Number>, bool>;

  T value_;
};

// How steps advance. In modes that leave workers out, push all tensors equally often: a worker that has finished only
// some tensors delays their quorums.

/// Requires every live worker in every step.
struct Synchronous {
  uint32_t staleness = 0;  ///< steps that may be pushed ahead of the last update
  bool operator==(const Synchronous&) const = default;
};

/// Says when the shards decide a step that lacks contributions: by a quorum, by a deadline, or by both.
class StepDecision {
 public:
  /// Decides a step as soon as it has this number of contributions.
  static constexpr StepDecision quorum(uint32_t contributions) { return StepDecision(contributions, {}); }
  /// Decides a step at the latest this time after its first contribution; earlier once every worker has contributed.
  static constexpr StepDecision deadline(std::chrono::milliseconds time) { return StepDecision(0, time); }
  /// Decides a step that has its quorum once this time since its first contribution is over, or once every worker has
  /// contributed.
  constexpr StepDecision and_deadline(std::chrono::milliseconds time) const { return StepDecision(quorum_, time); }

  constexpr uint32_t contributions() const { return quorum_; }            ///< 0: there is no quorum
  constexpr std::chrono::milliseconds time() const { return deadline_; }  ///< 0: there is no deadline
  bool operator==(const StepDecision&) const = default;

 private:
  constexpr StepDecision(uint32_t quorum, std::chrono::milliseconds deadline) : quorum_(quorum), deadline_(deadline) {}

  uint32_t quorum_;
  std::chrono::milliseconds deadline_;
};

/// Lets a step omit a slow worker, at most `staleness` steps in a row.
struct BoundedStaleness {
  StepDecision decision;
  uint32_t staleness = 1;  ///< also: steps that may be pushed ahead of the last update
  bool operator==(const BoundedStaleness&) const = default;
};

/// Lets a step take the contributions that arrive in time: mode partial.
struct Partial {
  StepDecision decision;
  uint32_t staleness = 0;  ///< steps that may be pushed ahead of the last update
  bool operator==(const Partial&) const = default;
};

/// Draws workers for each step, which lacks the others' contributions: mode partial, without staleness.
struct Participants {
  Required<uint32_t> drawn;                   ///< workers of a step, 1 .. workers
  std::optional<StepDecision> decision = {};  ///< empty: a step needs all drawn workers
  bool operator==(const Participants&) const = default;
};

/// Makes each contribution a step, and no step is blocked on a worker (no reselect). An update is one worker's, so a
/// mean divides by 1: divide the learning rate by the number of workers.
struct Asynchronous {
  uint32_t staleness = 0;  ///< steps that may be pushed ahead of the last update
  bool operator==(const Asynchronous&) const = default;
};

using Consistency = std::variant<Synchronous, BoundedStaleness, Partial, Participants, Asynchronous>;

/// Describes the binary grid that values are rounded to before they are sent. A value is an integer times 2^e; e is a
/// function of earlier updates, one for each block of indices. The rounding error stays in the residual. Path switch
/// and reproducible jobs use it.
struct Grid {
  uint32_t block_indices = 16'384;  ///< path switch: of a window; a multiple of 64
  int32_t exponent_initial = -20;   ///< e of every block before there is an update
  bool operator==(const Grid&) const = default;
};

/// Says how the indices of a datagram become bytes. Numbers of this and the next enum are on the wire.
enum class SwitchIndex : uint8_t {
  kRaw = 1,     ///< 32 bits each
  kGap = 2,     ///< the distances between neighbours
  kBitmap = 3,  ///< a bit for each index of the window
  kBloom = 4,   ///< a Bloom filter
};
/// Says how the values of a datagram become bytes: integers of the grid, or their quantized code.
enum class SwitchValue : uint8_t {
  kFixed16 = 1,  ///< integers of 16 bits
  kFixed32 = 2,  ///< integers of 32 bits
  kQsgd8 = 3,    ///< 8 bits [QSGD17]
  kQsgd4 = 4,    ///< 4 bits [QSGD17]
};

/// Says how the entries of a datagram become bytes.
struct SwitchCodec {
  SwitchIndex index = SwitchIndex::kGap;
  SwitchValue value = SwitchValue::kFixed16;
  bool operator==(const SwitchCodec&) const = default;
};

/// Lets the shards add up the contributions.
struct ServerPath {
  bool operator==(const ServerPath&) const = default;
};

/// Lets a switch add up datagrams. A shard replaces it while it does not answer. At most 64 workers, synchronous
/// without staleness. `job`, `slots`, `lanes` and the key must be equal to the switch's configuration.
struct SwitchPath {
  Required<std::string> address;                  ///< "host:port" of its datagrams
  uint32_t job = 0;                               ///< the job's number at the switch
  uint32_t slots = 16;                            ///< windows under way at a time
  uint32_t lanes = 1;                             ///< cores of the switch that share the windows
  uint32_t packet_bytes = 1472;                   ///< of UDP payload: 1472 in an MTU of 1500, 8972 in one of 9000
  std::optional<SwitchCodec> codec = {};          ///< empty: gap+fixed16, in a reproducible job gap+fixed32
  std::chrono::milliseconds return_after{5'000};  ///< the job returns to a switch that has answered for this time
  bool operator==(const SwitchPath&) const = default;
};

using Path = std::variant<ServerPath, SwitchPath>;

/// Holds the rules by which the shards change the weights that they hold. Entries that an update lacks do not change.
namespace optimizer {
/// Subtracts rate times the update.
struct Sgd {
  Required<double> rate;  ///< over 0
  bool operator==(const Sgd&) const = default;
};
/// Subtracts rate times the velocity, which is momentum times itself plus the update.
struct Momentum {
  Required<double> rate;  ///< over 0
  double momentum = 0.9;  ///< in [0, 1): share of the velocity that a step keeps
  bool operator==(const Momentum&) const = default;
};
/// Divides the update by the root of the sum of its squares so far.
struct Adagrad {
  Required<double> rate;   ///< over 0
  double epsilon = 1e-10;  ///< over 0: added to the root
  bool operator==(const Adagrad&) const = default;
};
/// Divides the update's moving mean by the root of the moving mean of its squares.
struct Adam {
  Required<double> rate;  ///< over 0
  double beta1 = 0.9;     ///< in [0, 1): share of the mean that a step keeps
  double beta2 = 0.999;   ///< in [0, 1): share of the squares' mean that a step keeps
  double epsilon = 1e-8;  ///< over 0: added to the root
  bool operator==(const Adam&) const = default;
};
/// Names a rule without a type above, by its number on the wire (protocol/wire/job_spec.md).
struct Numbered {
  Required<uint8_t> number;
  Required<double> rate;
  double momentum = 0;
  double decay = 0;
  double epsilon = 0;
  bool operator==(const Numbered&) const = default;
};
}  // namespace optimizer

/// Describes the parameter store: the shards hold the weights as well, and change them with every update.
struct Store {
  std::variant<optimizer::Sgd, optimizer::Momentum, optimizer::Adagrad, optimizer::Adam, optimizer::Numbered> rule;
  StoreBegin begin = StoreBegin::kZeros;
  bool operator==(const Store&) const = default;
};

// Groups of plain options. A new option is a member here and a line of protocol/job/job_spec_fields.h.

/// Holds the options of contributions.
struct Contributions {
  /// L2 norm over all tensors of a step's combined gradient, as clip_grad_norm_() of torch limits it in a dense job.
  /// Each of N workers clips its own gradient: to clip * sqrt(N) if combine is a mean, to clip / sqrt(N) if it is kSum.
  /// So independent gradients reach clip, and equal ones clip * sqrt(N). 0: off. The caller pushes all tensors of a
  /// step before it awaits one of them, and all tensors equally often.
  double clip = 0;
  NonFinite non_finite = NonFinite::kRefuse;
  CodecError codec_error = CodecError::kRetain;
  /// Keeps no residual: the expected value of each contribution is the gradient. Needs a selection for unbiased jobs,
  /// no reselect, and codec_error kDrop. A contribution that misses its step is discarded and counted.
  bool unbiased = false;
  /// Codes the indices of contributions relative to the updates that workers and shards have both seen. Costs about
  /// 80 ns an index and 1.13 bytes a parameter on either side. Useful for links below about 20 Mbit/s. Needs staleness
  /// 0, and another mode than asynchronous.
  bool history = false;
  bool operator==(const Contributions&) const = default;
};

/// Says how updates meet the weights.
struct Updates {
  Combine combine = Combine::kSum;
  InitialWeights initial_weights = InitialWeights::kOwn;
  bool operator==(const Updates&) const = default;
};

/// Holds properties that a job can have at a price.
struct Guarantees {
  /// Produces the same bits for any order of arrival, any number of shards and any path. Values are rounded to a grid.
  /// Needs codecs without loss, and mode synchronous.
  bool reproducible = false;
  /// Checks at run time that no value is lost or counted twice (worker/README.md, "Audit").
  bool audit = false;
  /// Applies an update once this number of workers retains it, this worker included: fewer deaths cannot make it void.
  /// At most workers_min. 0 and 1: at once. Costs half a round trip a step.
  uint32_t apply_after_acks = 0;
  bool operator==(const Guarantees&) const = default;
};

/// Holds the times after which silence counts.
struct Liveness {
  std::chrono::milliseconds dead_after{10'000};     ///< the shards evict a worker that sends nothing for this time
  std::chrono::milliseconds heartbeat{1'000};       ///< between two signs of life of a worker
  std::chrono::milliseconds exchange_timeout{200};  ///< of a shard's histogram: then the last threshold is used
  bool operator==(const Liveness&) const = default;
};

/// Says how tensors are divided.
struct Layout {
  uint32_t parts_per_shard = 0;  ///< 0: chosen from the expected entries
  uint64_t fuse_below = 16'384;  ///< neighbouring tensors below this dimension travel together
  bool operator==(const Layout&) const = default;
};

/// Describes a job. Equal at all workers: the first worker's creates the job, and the shards compare the others'.
struct JobConfig {
  std::string name = {};
  uint32_t workers = 1;      ///< the job starts when this number of workers has joined
  uint32_t workers_min = 1;  ///< the job ends with an error when fewer are alive
  Consistency consistency = Synchronous{};
  Selection select = Selection::top_k(0.01);
  Reselect reselect = Reselect::none();
  Codec codec_up = {};    ///< of contributions
  Codec codec_down = {};  ///< of updates
  Momentum momentum = Momentum::none();
  Contributions contributions = {};
  Updates updates = {};
  Guarantees guarantees = {};
  Liveness liveness = {};
  Layout layout = {};
  uint64_t seed = 1;  ///< of every random choice in the job
  Path path = ServerPath{};
  std::optional<Grid> grid = {};  ///< empty: 16384 and -20; of reproducible jobs 4096 and -20 on every path
  std::optional<Store> store = {};
  /// Names the other settings that must be equal at all workers: learning rates, scales of weights, batch size, data.
  /// Words KEY=VALUE separated by one space, in one order, at most 4,096 bytes. The shard refuses a worker with another
  /// recipe and names the pair that differs. Empty: the shards compare the options above only.
  std::string recipe = {};
  bool operator==(const JobConfig&) const = default;
};

/// Says how important a line of the log is.
enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

/// Takes a log line. Called from the session's thread and from connect(); must not call back into the session, must not
/// throw.
using LogCallback = std::function<void(LogLevel level, std::string_view line)>;

/// Describes this worker: its place in the job, and options of this process alone.
struct WorkerConfig {
  uint32_t worker = 0;                   ///< this worker's identity, 0 .. workers-1
  std::vector<std::string> shards = {};  ///< "host:port" or "tcp://host:port"; its place is the shard's number
  std::string rack = {};                 ///< path switch: "host:port" of the switch of this worker's rack; empty: none
  std::string key_file = {};             ///< this worker's secret key: encrypts and authenticates; empty: none
  std::string server_key_file = {};      ///< ... and the public key of the cluster's shards, both or none
  std::string switch_key_file = {};      ///< path switch: the job's key, 64 hexadecimal digits, as the switch has it
  /// Limit for reaching every shard. It is longer by dead_after while every missing shard refuses this worker. Only
  /// after that time do the shards treat an earlier run of the job, or an earlier process of this worker, as dead.
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds start_timeout{60'000};  ///< for all workers to join, once the shards are reached
  /// The session ends after this time without bytes from a shard. More than 2 s, and more than 4 heartbeats.
  std::chrono::milliseconds shard_silence{30'000};
  std::chrono::milliseconds resend_after{2'000};  ///< an unanswered contribution is sent again; doubles to 30 s.
  /// Longest pause between two attempts to reach a lost shard; a quarter of dead_after where that is less. Also the
  /// longest pause before this worker sends a contribution again that a shard refused for now.
  std::chrono::milliseconds reconnect_after_max{5'000};
  double link_rate = 0;           ///< bits per second to the shards, for automatic codecs. 0: measured
  uint32_t updates_kept_max = 8;  ///< updates of a tensor that no caller has awaited, beyond the staleness
  /// Changes malloc's settings for the whole process. malloc keeps blocks below 256 MiB, and up to 256 MiB of freed
  /// memory, instead of returning them to the system in every round. Halves the CPU time of large updates.
  bool keep_freed_memory = false;
  /// This process takes over from an earlier process of this worker, as soon as the earlier one is silent. Off: the
  /// shards refuse a second process of one worker.
  bool returns = false;
  /// A saved state to begin with: residual, log position, weights. Empty: none. With `returns` it may be missing.
  std::string load_path = {};
  /// The file for the state when the session ends with an error. Empty: none. connect() checks that it can write there.
  std::string save_path = {};
  /// Address of this worker's HTTP port, as "127.0.0.1:9201": /metrics, /healthz, /status and a page at /. Port 0: any
  /// free one (Session::http_port()). Empty: none. A client can read, and change nothing. connect() refuses an address
  /// that other machines may reach, unless http_tls and http_token_file protect it, or http_insecure is set.
  std::string http = {};
  /// Files of that port's certificate chain and key (PEM), as "CERT,KEY": it speaks HTTPS. Empty: HTTP. The programs'
  /// rules hold (deploy/SECURITY.md). connect() reads them, and nothing reads them again.
  std::string http_tls = {};
  /// File with a token in its first line, which clients send as "Authorization: Bearer TOKEN". Empty: none.
  std::string http_token_file = {};
  /// That port may lack TLS or a token on any address: every process that reaches it may read.
  bool http_insecure = false;
  LogCallback log = {};  ///< empty: silent
  /// connect(), pulls and place_weights() call it at intervals while they wait, in their caller's thread. Several
  /// threads may call it at once, until the session ends. True ends the wait: connect() throws the error timeout, and
  /// the others act as if their time had passed.
  std::function<bool()> give_up = {};
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

/// Names an array of weights, [dimension], that the session adds every update to:
/// weights[i] += scale * sum[i] / denominator.
///
/// The array is the caller's and must outlive the session. The library may read it at any time. Only the session writes
/// to it, and a schedule makes all other changes to the weights.
class Weights {
 public:
  /// array  [dimension] of the tensor.
  /// scale  finite and not 0: -learning_rate.
  Weights(std::span<float> array, float scale, ApplyWhen apply = ApplyWhen::kOnAwait)
      : array_(array), scale_(scale), apply_(apply) {}
  /// array     [dimension] of the tensor.
  /// schedule  gives the scale of every step; it may return 0 in some steps.
  Weights(std::span<float> array, Schedule schedule, ApplyWhen apply = ApplyWhen::kOnAwait)
      : array_(array), schedule_(std::move(schedule)), apply_(apply) {}

  std::span<float> array() const { return array_; }
  float scale() const { return scale_; }
  const Schedule& schedule() const { return schedule_; }  ///< empty: scale() is every step's
  ApplyWhen apply() const { return apply_; }              ///< kOnArrival: in mode synchronous only

 private:
  std::span<float> array_;
  float scale_ = 0;
  Schedule schedule_;
  ApplyWhen apply_;
};

/// Describes one flat array of f32 parameters. All but `weights` must be equal at all workers.
struct TensorOptions {
  std::string name = {};
  uint64_t dimension = 0;                ///< 1 .. 2^32
  int32_t priority = 0;                  ///< larger is sent first where several wait
  std::optional<Selection> select = {};  ///< empty: the job's; the same for the next three
  std::optional<Reselect> reselect = {};
  std::optional<Codec> codec_up = {};
  std::optional<Codec> codec_down = {};
  /// Marks the network's output layer. The job selects from it as from other tensors and does not quantize it.
  /// connect() removes one_sign() and lossy codecs from its settings. [RedSync19, 2.1.1]: "we do not quantify the
  /// output layer".
  bool output_layer = false;
  /// The array, attached from connect() on. With weights for every tensor this worker can give its weights to others
  /// and take theirs. So it can join a running job, and it rejoins after an eviction. Without weights, or with weights
  /// attached later, it cannot.
  ///
  /// Mode asynchronous: a worker that is behind gets several steps as one sum. This requires that all tensors of all
  /// workers have weights and a scale here. With a schedule every step arrives separately.
  std::optional<Weights> weights = {};
};

}  // namespace v0
}  // namespace millrace
