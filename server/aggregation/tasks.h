#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/codec/automatic/codec_choice.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/history/index_history.h"
#include "kernels/grid/reselect_sums.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream.h"
#include "server/aggregation/bucket_threshold.h"
#include "server/aggregation/update_audit.h"
#include "server/base/actions.h"

/// The heavy numeric work of a shard. Every task is a pure function: its inputs are shared and immutable, and it owns
/// its output until it hands it back. A task carries the round that it belongs to (job, part, step, token). The core
/// checks that round when the task returns.
namespace millrace::server {

/// Returns the bytes of a payload's entries once decoded, by its header alone.
///
/// Errors   malformed: not a container, or one of another dimension.
Result<uint64_t> decoded_bytes_of(ByteSpan payload, uint64_t dimension);

/// The memory of a contribution, known before it takes any.
struct ContributionMemory {
  uint64_t asked_bytes = 0;    ///< must be free when it arrives: payload, index codec's scratch and decoded entries
  uint64_t charged_bytes = 0;  ///< until it is decoded: the most that it takes before or after, not both together
};

/// Returns the memory of a contribution. Reads the header and the first bytes of the index code. A payload that is read
/// in place takes nothing more.
///
/// codec_up  the tensor's. A contribution may have other codecs, but no other index codec that changes the indices. A
///           filter of 100 bytes would have the shard ask for every index of the part, and bloom_p2 takes 60 times its
///           bytes.
/// Errors    as decoded_bytes_of(). invalid_argument: such an index codec.
Result<ContributionMemory> contribution_memory(const SharedBytes& payload, uint64_t dimension,
                                               const CodecSpec& codec_up);

/// The expected time of decoding a payload, on one core.
struct DecodeCost {
  uint64_t ns = 0;
  uint64_t entries = 0;  ///< by the header
};

/// Returns the time by the header, which may be hostile. The length says little: 80 bytes of run_length and sign_mean
/// have 2^28 entries.
DecodeCost decode_cost_of(const SharedBytes& payload);

/// Returns whether the bytes are not the announced ones: they changed on the way, and sending them again can help.
bool arrived_damaged(ByteSpan payload, uint64_t announced_hash);

/// Reason that a task gives when it did not finish for lack of memory.
inline constexpr const char* kNotRun =
    "this shard has not the memory to work on it; give its machine more, or fewer jobs";

/// One part's step of one job; `token` tells one attempt at a decision from the next.
struct RoundKey {
  uint64_t job = 0;
  uint32_t part = 0;
  uint64_t step = 0;
  uint64_t token = 0;

  TaskRound task_round() const { return {.step = step, .part = part}; }
};

/// Turns a contribution's payload into a stream. Checks its hash, its container, its dimension and its values. A
/// payload that is raw on the wire stays where it is.
///
/// Errors   malformed: the payload's hash is not the one announced, the container does not decode, another dimension.
///          non_finite: a NaN or an infinity. stale: coded against another history.
class DecodeTask : public Task {
 public:
  struct Input {
    RoundKey key;
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    uint64_t hash = 0;
    SharedBytes payload;
    uint64_t dimension = 0;
    std::shared_ptr<const IndexHistory> history = nullptr;  ///< what its indices may be coded against; null: nothing
    uint64_t payload_bytes_max = 0;                         ///< ... of the restored plain payload
  };
  explicit DecodeTask(Input input);

  Kind kind() const override { return Kind::kDecode; }
  uint64_t job() const override { return input_.key.job; }
  void run() override;
  uint64_t cost_ns() const override { return cost_ns_; }
  TaskRound round() const override {
    return {.step = input_.key.step, .part = input_.key.part, .worker = input_.worker};
  }

  const Input& input() const { return input_; }
  const Result<SharedStream>& result() const { return result_; }
  /// Returns whether its indices were coded against the history: if it cannot be read, the plain bytes may be.
  bool was_shortened() const { return was_shortened_; }

 private:
  /// Turns the payload into the plain container that it represents.
  Status restore();

  Input input_;
  uint64_t cost_ns_;
  Result<SharedStream> result_ = fail(ErrorCode::kLimitExceeded, kNotRun);
  bool was_shortened_ = false;
};

/// The costs that the choice of a codec takes into account besides the data.
struct CodecCosts {
  SpeedSource speeds = fallback_speeds;
  double link_bits_per_s = 0;  ///< from this shard to its workers; 0: not known
};

/// Codec auto of a part: the choice so far, and the inputs of the next one.
struct AutomaticCodec {
  CodecChooser chooser;
  CodecCosts costs;
  uint32_t receivers = 1;
};

/// Of reproducible jobs: the cut of a step, window by window. REQUIRES: parts begin at windows.
struct StepSelection {
  SumThreshold threshold;
  uint32_t window_indices = 0;
};

/// How a sum becomes an update.
struct EncodePlan {
  std::optional<PartThreshold> threshold;
  std::optional<StepSelection> by_step = std::nullopt;
  std::optional<uint64_t> largest;  ///< number of the largest, ties by lower index; neither: the whole sum
  CodecSpec codec;
  std::optional<AutomaticCodec> automatic = std::nullopt;  ///< where `codec` is
  RandomKey random;
  uint64_t index_base = 0;
  std::vector<SharedStream> audited;    ///< contributions whose carried part is computed; empty: not asked
  Extent extent = Extent::kEverything;  ///< the part of them that the update represents
  bool for_history = false;             ///< also list the changed indices
};

struct EncodedUpdate {
  SharedBytes container;
  uint64_t entries = 0;
  std::optional<CodecChooser> chooser = std::nullopt;  ///< of an automatic codec, as this update leaves it
  double codec_error = 0;                              ///< sum over the carried entries of |sum - decoded|
  double imbalance = 0;         ///< audited: sum of |sum - carried|, where that is more than rounding
  IndexBuffer changed;          ///< for_history: the indices of what workers decode that is not 0
  std::vector<double> carried;  ///< by audited contribution: sum of its entries that the update carries
};

/// Cuts and codes a sum. Source: those of the cut and of the codecs.
///
/// watch  learns of both stages; nullptr: of none.
Result<EncodedUpdate> encode_update(const SharedStream& sum, const EncodePlan& plan, StageWatch* watch = nullptr);

/// Sums a part over its contributors, in the order given (worker order, regardless of the order of arrival). Counts its
/// magnitudes if asked. Encodes the update at once where the decision waits for no other shard.
class ReduceTask : public Task {
 public:
  enum class Magnitudes : uint8_t { kNone, kCounted };
  struct Input {
    RoundKey key;
    std::vector<SharedStream> contributions;
    Magnitudes magnitudes = Magnitudes::kNone;
    std::optional<EncodePlan> plan;
    std::optional<FusedThreshold> quick;  ///< with a plan: cut while it is summed
  };
  /// Of a quick cut: its large sums, and the update if its size was right when it was cut.
  struct Output {
    SharedStream sum;
    SharedHistogram histogram;  ///< of a whole sum, if asked
    std::optional<EncodedUpdate> update;
    uint64_t reached = 0;  ///< quick cut: entries of its threshold and more
  };
  explicit ReduceTask(Input input) : input_(std::move(input)) {}

  Kind kind() const override { return Kind::kReduce; }
  uint64_t job() const override { return input_.key.job; }
  void run() override;
  uint64_t cost_ns() const override;
  TaskRound round() const override { return input_.key.task_round(); }

  const Input& input() const { return input_; }
  const Result<Output>& result() const { return result_; }

 private:
  Input input_;
  Result<Output> result_ = fail(ErrorCode::kLimitExceeded, kNotRun);
};

/// Splits a shard's quota of the boundary bin over its parts: the largest first, ties by lower index of the bucket.
class QuotaTask : public Task {
 public:
  struct Part {
    RoundKey key;
    uint64_t begin = 0;  ///< first index of the part in the bucket; parts are in this order
    SharedStream sum;
  };
  struct Input {
    uint64_t job = 0;
    uint32_t bucket = 0;
    uint32_t bin = 1;
    uint64_t quota = 0;
    std::vector<Part> parts;
  };
  explicit QuotaTask(Input input) : input_(std::move(input)), take_(input_.parts.size(), 0) {}

  Kind kind() const override { return Kind::kQuota; }
  uint64_t job() const override { return input_.job; }
  void run() override;
  uint64_t cost_ns() const override;
  TaskRound round() const override {
    return input_.parts.empty() ? TaskRound() : input_.parts.front().key.task_round();
  }

  const Input& input() const { return input_; }
  const std::vector<uint64_t>& take() const { return take_; }  ///< by part

 private:
  Input input_;
  std::vector<uint64_t> take_;
};

class EncodeTask : public Task {
 public:
  struct Input {
    RoundKey key;
    SharedStream sum;
    EncodePlan plan;
  };
  explicit EncodeTask(Input input) : input_(std::move(input)) {}

  Kind kind() const override { return Kind::kEncode; }
  uint64_t job() const override { return input_.key.job; }
  void run() override { result_ = encode_update(input_.sum, input_.plan, stage_watch()); }
  uint64_t cost_ns() const override;
  TaskRound round() const override { return input_.key.task_round(); }

  const Input& input() const { return input_; }
  const Result<EncodedUpdate>& result() const { return result_; }

 private:
  Input input_;
  Result<EncodedUpdate> result_ = fail(ErrorCode::kLimitExceeded, kNotRun);
};

/// Mode asynchronous: merges several steps of a part into one update.
///
/// result()  the sum of the values that their updates carry, coded without loss; nullopt: it is not smaller than the
///           separate updates, or is infinite.
class MergeTask : public Task {
 public:
  struct Input {
    RoundKey key;  ///< step: the first one
    std::vector<SharedBytes> payloads;
    uint64_t dimension = 0;
    IndexCodecId index = IndexCodecId::kGap;  ///< taken where it is lossless
    uint64_t index_base = 0;
    uint64_t bytes_apart = 0;   ///< of all messages, if each step has its own
    uint64_t bytes_beside = 0;  ///< of one message for all, but for its payload
  };
  explicit MergeTask(Input input);

  Kind kind() const override { return Kind::kMerge; }
  uint64_t job() const override { return input_.key.job; }
  void run() override;
  uint64_t cost_ns() const override { return cost_ns_; }
  TaskRound round() const override { return input_.key.task_round(); }

  const Input& input() const { return input_; }
  const std::optional<SharedBytes>& result() const { return result_; }

 private:
  Input input_;
  uint64_t cost_ns_ = 0;
  std::optional<SharedBytes> result_;
};

}  // namespace millrace::server
