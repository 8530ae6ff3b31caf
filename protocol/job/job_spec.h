#pragma once

#include <chrono>
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
#include "millrace/options.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::protocol {

/// Says how a job's steps advance. Numbers are on the wire.
enum class Mode : uint8_t {
  kSynchronous = 1,       ///< every live worker takes part in every step
  kBoundedStaleness = 2,  ///< a slow worker is left out of at most `staleness` steps in a row
  kAsynchronous = 3,      ///< each contribution is a step of its own; no step blocks on a worker
  kPartial = 4,  ///< steps of the contributions that arrive in time: a quorum, a deadline, a sample of the members
};

// Enums and groups of plain options that the public interface and the wire share.
using millrace::CodecError;
using millrace::Combine;
using millrace::InitialWeights;
using millrace::NonFinite;
using millrace::StoreBegin;
using GridSpec = millrace::Grid;

/// Says how the sum is reduced before it goes back.
enum class Reselect : uint8_t {
  kNone = 1,  ///< the whole sum (SparCML, RedSync, GSpar, DeepReduce)
  kTopK = 2,  ///< the globally largest k by one threshold over all shards (Ok-Topk)
};

/// Says which process adds up a job's contributions. Numbers are on the wire.
enum class Path : uint8_t {
  kServer = 1,  ///< the shards, by messages
  kSwitch = 2,  ///< a switch, by datagrams; a shard, by the same datagrams, while the switch does not answer
};

/// Says how the entries of a switch's datagrams become bytes.
struct SwitchCodecs {
  WindowIndexCodec index = WindowIndexCodec::kGap;
  WindowValueCodec value = WindowValueCodec::kFixed16;
  bool operator==(const SwitchCodecs&) const = default;
};

/// Path switch: the address of the switch, and the job's parameters there.
struct SwitchSpec : SwitchCodecs {
  std::string address;  ///< "host:port" of its datagrams
  uint32_t job = 0;     ///< the job's number there, and in the file of its key
  /// Windows under way at a time, <= kSlotsMax, a multiple of lanes. A job of fewer windows has fewer: switch_slots().
  uint32_t slots = 16;
  /// Cores of the switch that share the windows, <= kLanesMax: job numbers `job` to `job` + lanes - 1.
  uint32_t lanes = 1;
  uint32_t packet_bytes_max = 1472;  ///< UDP payload of the path's MTU
  /// Time for which the switch must answer all workers: then the job returns to it.
  std::chrono::milliseconds return_after{5'000};
  bool operator==(const SwitchSpec&) const = default;
};

/// Says how a worker changes a gradient before it enters the residual (worker/core/residual/DESIGN.md, "What enters").
enum class Momentum : uint8_t {
  kNone = 1,
  kCorrection = 2,       ///< velocity = factor * velocity + gradient, and the velocity enters [RedSync19, algorithm 4]
  kNesterov = 3,         ///< gradient + factor * velocity enters
  kNesterovPrinted = 4,  ///< gradient + velocity enters: [RedSync19, algorithm 4] as it is printed
};

struct MomentumSpec {
  Momentum momentum = Momentum::kNone;
  double factor = 0;   ///< in (0, 1)
  bool masked = true;  ///< an update that applies an entry's sent value resets the entry's velocity
  bool operator==(const MomentumSpec&) const = default;
};

/// The parameter store: whether the shards hold the weights, and by which rule they apply a step's update.
struct StoreSpec {
  OptimizerSpec optimizer;  ///< kNone: there is no store
  StoreBegin begin = StoreBegin::kZeros;
  bool operator==(const StoreSpec&) const = default;
};

struct ReselectSpec {
  Reselect reselect = Reselect::kNone;
  double density = 0;  ///< k down = density * dimension, rounded up; used when k is 0
  uint64_t k = 0;
  /// 1: histograms of this step decide (exact with one shard). p > 1: between exact steps, the last agreed threshold
  /// cuts a part as soon as its own sum is ready.
  uint32_t threshold_period = 1;
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

/// The fields that must be equal at all workers of a job, flat: able to hold any values of a hostile peer. The first
/// worker's specification creates the job; the others' must equal it. The bases are groups of plain options that
/// millrace::JobConfig has as well (worker/include/millrace/options.h).
struct JobSpec : Contributions, Updates, Guarantees, Liveness, Layout {
  std::string name;
  std::vector<TensorSpec> tensors;
  uint32_t workers = 0;      ///< the job starts when this many have joined; identities are 0 .. workers-1
  uint32_t workers_min = 1;  ///< the job ends with an error when fewer live
  Mode mode = Mode::kSynchronous;
  uint32_t staleness = 0;                 ///< steps a worker may push ahead of its applied steps (g <= n + staleness)
  uint32_t quorum = 0;                    ///< least number of contributions with which a step is decided
  std::chrono::milliseconds deadline{0};  ///< from its first contribution, a step with its quorum waits for the others
  uint32_t participants = 0;              ///< kPartial: members drawn for each step (participants.h); 0: all.
  SelectionSpec select;
  ReselectSpec reselect;
  CodecSpec codec_up;
  CodecSpec codec_down;
  MomentumSpec momentum;
  uint64_t seed = 1;  ///< of every random choice in the job
  Path path = Path::kServer;
  SwitchSpec switch_path;  ///< path switch
  GridSpec grid;           ///< path switch, reproducible
  StoreSpec store;
  /// Names the other settings that must be equal at all workers so that their weights stay equal. They are rates, rows,
  /// and all settings of a worker's own work. Words KEY=VALUE with one space in between; protocol and shards only
  /// compare them. Empty: nothing is compared.
  std::string recipe;

  bool has_store() const { return store.optimizer.optimizer != Optimizer::kNone; }
  bool operator==(const JobSpec&) const = default;
};

inline constexpr uint32_t kWorkersMax = 4096;
inline constexpr uint32_t kTensorsMax = 65'536;
inline constexpr uint32_t kStalenessMax = 63;  ///< SummaryEntry::counted_mask has a bit for each of staleness + 1 steps
inline constexpr uint32_t kPartsPerShardMax = 64;
inline constexpr uint32_t kPartsMax = 65'536;  ///< parts_per_shard times buckets
inline constexpr std::chrono::milliseconds kDurationMax{UINT32_MAX};
inline constexpr uint32_t kExchangeTimeoutMsMax = 60'000;
inline constexpr uint32_t kThresholdPeriodMax = 1u << 20;
inline constexpr uint32_t kNameBytesMax = 255;
inline constexpr uint32_t kRecipeBytesMax = 4'096;
inline constexpr uint32_t kSwitchPacketBytesMin = 1200;  ///< of UDP payload
inline constexpr int32_t kGridExponentMin = -120;
inline constexpr int32_t kGridExponentMax = 90;

/// Refuses impossible and unsound combinations, each with its reason and a remedy: protocol/job/REFUSED.md lists every
/// combination. Workers call it on the user's specification, shards on the one in a Hello.
///
/// Errors   invalid_argument; unsupported: reserved for a later version; limit_exceeded.
Status validate(const JobSpec& spec);

/// Returns the canonical bytes: equal specifications give equal bytes.
/// REQUIRES: names of at most 65,535 bytes (the limit of validate() is well below).
ByteBuffer encode_job_spec(const JobSpec& spec);

/// Reads hostile bytes: form, limits, known enumerators, one canonical form for each specification. validate() checks
/// whether the specification is sound, so that a shard can refuse it with the reason.
///
/// Errors   malformed; limit_exceeded; unsupported: a version or an enumerator that this build does not know.
Result<JobSpec> decode_job_spec(ByteSpan bytes);

/// Returns XXH3-64 of the canonical bytes.
uint64_t job_spec_hash(const JobSpec& spec);

/// Returns one sentence naming the first field in which two specifications differ, in the words of the command line.
/// The recipe comes after all others.
///
/// Examples: "select: none here, topk there"; "codec_up: qsgd_bits 4 here, 8 there"; "tensor 'w': dimension 10 here, 12
/// there". For recipes: "recipe: lr=1 here, lr=0.01 there"; "recipe: l2=0 here, no l2 there".
std::string first_difference(const JobSpec& ours, const JobSpec& theirs);

/// Returns whether workers hold updates back until several members have them.
inline bool applies_after_acks(const JobSpec& spec) { return spec.apply_after_acks > 1; }

/// Returns a duration as the wire has it. REQUIRES: validate() holds.
inline uint32_t wire_ms(std::chrono::milliseconds duration) { return static_cast<uint32_t>(duration.count()); }

/// Returns the divisor of a step's sum: 1, the number of its contributors, or the sum of their weights.
double denominator_of(Combine combine, size_t contributors, double weight_sum);

}  // namespace millrace::protocol
