#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/optimize/optimize.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "protocol/datagram/window_code.h"

namespace millrace::protocol {

/// How a job's steps advance. Numbers are on the wire.
enum class Mode : uint8_t {
  kSynchronous = 1,       ///< every live worker takes part in every step
  kBoundedStaleness = 2,  ///< who is slow is left out of steps, of `staleness` in a row at most
  kAsynchronous = 3,      ///< each contribution is a step of its own: nobody is waited for
  kPartial = 4,           ///< steps of those who come in time: a quorum, a deadline, a sample of the members
};

/// What a step's update means to a weight. The wire always carries the sum; the denominator travels beside it and workers
/// divide when they apply.
enum class Combine : uint8_t {
  kSum = 1,
  kMean = 2,          ///< divided by the number of contributors of the part
  kWeightedMean = 3,  ///< divided by the sum of the contributions' weights; workers push weight * gradient
};

/// What the sum is cut down to before it goes back.
enum class Reselect : uint8_t {
  kNone = 1,  ///< the whole sum (SparCML, RedSync, GSpar, DeepReduce)
  kTopK = 2,  ///< the globally largest k by one threshold over all shards (Ok-Topk)
};

/// Who adds up a job's contributions. Numbers are on the wire.
enum class Path : uint8_t {
  kServer = 1,  ///< the shards, by messages
  kSwitch = 2,  ///< a switch, by datagrams; a shard, by the same datagrams, while the switch does not answer
};

/// The binary grid that values are rounded to before they are sent: a value is an integer times 2^e, e a function of earlier
/// updates, one for each block of indices. What rounding leaves stays in the residual. Of path switch, and of reproducible.
struct GridSpec {
  uint32_t block_indices = 16'384;  ///< path switch: of a window; a multiple of 64, at most kWindowIndicesMax
  int32_t exponent_initial = -20;   ///< e of every block before there is an update
  bool operator==(const GridSpec&) const = default;
};

/// Path switch: where the switch is, and what it was told of the job.
struct SwitchSpec {
  std::string address;  ///< "host:port" of its datagrams
  uint32_t job = 0;     ///< the job's number there, and in the file of its key
  uint32_t slots =
      16;  ///< windows under way at a time, <= kSlotsMax, a multiple of lanes; a job of fewer windows has fewer: switch_slots()
  uint32_t lanes =
      1;  ///< cores of the switch that share the windows, <= kLanesMax: job numbers `job` to `job` + lanes - 1
  uint32_t packet_bytes_max = 1472;  ///< UDP payload of the path's MTU
  WindowIndexCodec index = WindowIndexCodec::kGap;
  WindowValueCodec value = WindowValueCodec::kFixed16;
  uint32_t return_after_ms = 5'000;  ///< the switch answers for so long at all workers: the job goes back to it
  bool operator==(const SwitchSpec&) const = default;
};

/// What happens to the difference between what was selected and what its code decodes to.
enum class CodecError : uint8_t {
  kRetain = 1,  ///< stays in the worker's residual; for lossless codecs and contractions only
  kDrop = 2,    ///< dropped and counted in the ledger (SparCML's and RedSync's rule)
};

/// What a NaN or an infinity in a pushed gradient does.
enum class NonFinite : uint8_t {
  kRefuse = 1,        ///< push fails, nothing of it is taken
  kDropAndCount = 2,  ///< the entry is dropped and counted
};

/// What a worker adds to a gradient before it enters the residual (worker/DESIGN.md, "What enters").
enum class Momentum : uint8_t {
  kNone = 1,
  kCorrection = 2,       ///< velocity = factor * velocity + gradient, and the velocity enters [RedSync19, algorithm 4]
  kNesterov = 3,         ///< gradient + factor * velocity enters
  kNesterovPrinted = 4,  ///< gradient + velocity enters: [RedSync19, algorithm 4] as it is printed
};

struct MomentumSpec {
  Momentum momentum = Momentum::kNone;
  double factor = 0;   ///< in (0, 1)
  bool masked = true;  ///< the velocity of an entry ends when an update has applied what was sent of it
  bool operator==(const MomentumSpec&) const = default;
};

/// Which weights a job begins with. They are the workers'; what differs is whose.
enum class InitialWeights : uint8_t {
  kOwn = 1,    ///< every worker's, equal by the promise of who started them
  kFirst = 2,  ///< the lowest-numbered worker's: the others join it as they would a job that runs
};

/// Where the weights that the shards hold come from.
enum class StoreBegin : uint8_t {
  kZeros = 1,
  kWorker = 2,  ///< the member with the lowest number places them; until then nothing is decided
  kSaved = 3,   ///< the shards' saves of the last job of this name; weights and optimizer state
};

/// The parameter store: whether the shards hold the weights, and by which rule a step's update goes into them.
struct StoreSpec {
  OptimizerSpec optimizer;  ///< kNone: there is no store
  StoreBegin begin = StoreBegin::kZeros;
  bool operator==(const StoreSpec&) const = default;
};

struct ReselectSpec {
  Reselect reselect = Reselect::kNone;
  double density = 0;  ///< k down = density * dimension, rounded up; used when k is 0
  uint64_t k = 0;
  uint32_t threshold_period =
      1;  ///< 1: histograms of this step decide (exact with one shard); p > 1: between exact steps a
          ///< part is cut by the last agreed threshold as soon as its own sum is ready
  bool operator==(const ReselectSpec&) const = default;
};

/// One flat array of parameters.
struct TensorSpec {
  std::string name;
  uint64_t dimension = 0;  ///< 1 .. kDimensionMax
  ValueType value_type = ValueType::kF32;
  int32_t priority = 0;                                ///< larger first, where several wait to be sent
  std::optional<SelectionSpec> select = std::nullopt;  ///< overrides the job's
  std::optional<ReselectSpec> reselect = std::nullopt;
  std::optional<CodecSpec> codec_up = std::nullopt;
  std::optional<CodecSpec> codec_down = std::nullopt;

  bool operator==(const TensorSpec&) const = default;
};

/// Everything that must be equal at all workers of a job. The first worker's creates the job; the others' must be equal.
struct JobSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  uint32_t workers = 0;      ///< the job starts when so many have joined; identities are 0 .. workers-1
  uint32_t workers_min = 1;  ///< the job ends with an error when fewer live
  Mode mode = Mode::kSynchronous;
  uint32_t staleness = 0;     ///< steps a worker may push ahead of what it applied (g <= n + staleness)
  uint32_t quorum = 0;        ///< a step is not decided before so many have contributed
  uint32_t deadline_ms = 0;   ///< with its quorum, a step waits for the others so long after its first contribution
  uint32_t participants = 0;  ///< kPartial: members drawn for each step (participants.h); 0: all
  /// Workers apply an update once so many members have it, themselves included (R18): then so many
  /// deaths are needed to make it void. 0 and 1: as soon as they have it.
  uint32_t apply_after_acks = 0;
  Combine combine = Combine::kSum;
  SelectionSpec select;
  ReselectSpec reselect;
  CodecSpec codec_up;
  CodecSpec codec_down;
  CodecError codec_error = CodecError::kRetain;
  NonFinite non_finite = NonFinite::kRefuse;
  bool unbiased = false;  ///< workers keep nothing back: what is sent is the gradient in expectation
  MomentumSpec momentum;
  double clip = 0;  ///< L2 norm that a step's gradients are scaled down to, over the square root of the workers; 0: off
  uint32_t dead_after_ms = 10'000;  ///< a worker silent for so long is removed
  uint32_t heartbeat_ms = 1'000;
  uint32_t exchange_timeout_ms = 200;  ///< a shard whose histogram is missing for so long: the last threshold is used
  uint64_t seed = 1;                   ///< of every random choice in the job
  uint32_t parts_per_shard = 0;        ///< 0: chosen from the expected entries
  uint64_t fuse_below = 16'384;        ///< consecutive tensors without overrides below this dimension share a bucket
  bool audit = false;
  /// Contributions travel with their indices coded against the updates that worker and shard have both seen (history_payload.h).
  bool history = false;
  bool reproducible = false;  ///< the same bits for any order of arrival, number of shards, and path
  Path path = Path::kServer;
  SwitchSpec switch_path;  ///< path switch
  GridSpec grid;           ///< path switch, reproducible
  InitialWeights initial_weights = InitialWeights::kOwn;
  StoreSpec store;
  /// Names what else must be equal at all workers so that their weights stay equal: rates, rows, all that a worker does
  /// by itself. Words KEY=VALUE with one space in between; protocol and shards only compare them. Empty: nothing is
  /// compared.
  std::string recipe;

  bool has_store() const { return store.optimizer.optimizer != Optimizer::kNone; }
  bool operator==(const JobSpec&) const = default;
};

inline constexpr uint32_t kWorkersMax = 4096;
inline constexpr uint32_t kTensorsMax = 65'536;
inline constexpr uint32_t kStalenessMax = 63;  ///< SummaryEntry::counted_mask has a bit for each of staleness + 1 steps
inline constexpr uint32_t kPartsPerShardMax = 64;
inline constexpr uint32_t kPartsMax = 65'536;  ///< parts_per_shard times buckets
inline constexpr uint32_t kExchangeTimeoutMsMax = 60'000;
inline constexpr uint32_t kNameBytesMax = 255;
inline constexpr uint32_t kRecipeBytesMax = 4'096;
inline constexpr uint32_t kSwitchPacketBytesMin = 1200;  ///< of UDP payload
inline constexpr int32_t kGridExponentMin = -120;
inline constexpr int32_t kGridExponentMax = 90;

/// Refuses what cannot be and what is unsound, each with its reason and what to do instead: job/REFUSED.md lists every
/// combination. Workers call it on what the user gave, shards on what came in a Hello.
///
/// Errors   invalid_argument; unsupported: reserved for a later version; limit_exceeded.
Status validate(const JobSpec& spec);

/// Canonical bytes: equal specifications give equal bytes.
/// REQUIRES: names of at most 65,535 bytes (what validate() has passed is well below).
ByteBuffer encode_job_spec(const JobSpec& spec);

/// Reads hostile bytes: form, limits, known enumerators, one canonical form for each specification. Whether the
/// specification makes sense is validate()'s to say, so that a shard can refuse it with the reason.
///
/// Errors   malformed; limit_exceeded; unsupported: a version or an enumerator that this build does not know.
Result<JobSpec> decode_job_spec(ByteSpan bytes);

/// XXH3-64 of the canonical bytes.
uint64_t job_spec_hash(const JobSpec& spec);

/// The words for the enumerators in sentences, logs and the command line: "synchronous", "weighted_mean", "topk", "retain" ...
std::string_view mode_name(Mode value);
std::string_view path_name(Path value);
std::string_view combine_name(Combine value);
std::string_view reselect_name(Reselect value);
std::string_view codec_error_name(CodecError value);
std::string_view non_finite_name(NonFinite value);
std::string_view momentum_name(Momentum value);
std::string_view initial_weights_name(InitialWeights value);
std::string_view store_begin_name(StoreBegin value);

/// One sentence naming the first field in which two specifications differ, in the words of the command line: "select: none
/// here, topk there", "codec_up: qsgd_bits 4 here, 8 there", "tensor 'w': dimension 10 here, 12 there", "recipe: lr=1
/// here, lr=0.01 there", "recipe: l2=0 here, no l2 there". The recipe comes after all others.
std::string first_difference(const JobSpec& ours, const JobSpec& theirs);

/// Whether workers hold updates back until several members have them.
inline bool holds_updates(const JobSpec& spec) { return spec.apply_after_acks > 1; }

/// What a step's sum is divided by: 1, its contributors, or the sum of their weights.
double denominator_of(Combine combine, size_t contributors, double weight_sum);

}  // namespace millrace::protocol
