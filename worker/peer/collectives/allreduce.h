#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/stream/shared_stream.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"
#include "worker/peer/channel/reduce_op.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {

/// Numbers the allreduces: ranks agree on them. Each states its own number in its file (worker/peer/algorithms,
/// allreduce_list.h lists the files); here are those that other code refers to.
enum class AlgorithmId : uint8_t {
  kDenseRing = 1,               ///< [PatarasukYuan09]: reduce-scatter and allgather around a ring
  kDenseRecursiveDoubling = 2,  ///< [Thakur05]
  kDenseRabenseifner = 3,       ///< [Rabenseifner04], [Thakur05]: recursive halving, recursive doubling
  kSsarRecursiveDoubling = 4,   ///< [SparCML19, 5.3.1]
  kSsarSplitAllgather = 5,      ///< [SparCML19, 5.3.2]
  kDsarSplitAllgather = 6,      ///< [SparCML19, 5.3.3]; QSGD in its dense phase: [SparCML19, 6]
  kSparseRing = 7,              ///< [SparCML19, 8.1]: the ring on sparse slices
  kTopkA = 8,                   ///< [OkTopk22, 2]: allgather of the local top-k
  kGtopk = 9,                   ///< [GTopk19], [OkTopk22, 2]: a tree that re-selects
  kGaussianK = 10,              ///< [GaussianK19], [OkTopk22, 2, 3.1.3]: allgather over a Gaussian threshold
  kOktopk = 11,                 ///< [OkTopk22, 3.1]
  kRedsyncAllgather = 12,       ///< [RedSync19, 2.2]: packed allgather, decompression by addition
  kAuto = 13,                   ///< whichever of those with exact sums is the fastest here
};

/// Says which result all ranks have in the end.
enum class ResultKind : uint8_t {
  kExactSum = 1,    ///< the sum of the ranks' contributions
  kGlobalTopk = 2,  ///< about the k largest entries of that sum; the other entries are returned
};

struct AlgorithmInfo {
  AlgorithmId id;
  std::string_view name;    ///< "ssar_recursive_doubling"
  std::string_view source;  ///< "[SparCML19, 5.3.1]" (kernels/REFERENCES.md)
  ResultKind result;
  bool dense_only = false;      ///< contributes a dense vector, regardless of the input's form
  bool selects = false;         ///< takes a dense contribution, and selects by itself the entries that it sends
  bool needs_sum = false;       ///< refuses other operations
  bool bounded_volume = false;  ///< bytes a rank do not grow with the number of ranks
  bool chooses = false;         ///< runs others, after trying some of them out
};

/// Holds the parameters of an allreduce. All ranks: the same.
struct AllreduceSettings {
  uint64_t dimension = 0;
  ReduceOp op = sum_op();
  WireForm wire;
  uint64_t k = 0;  ///< of kGlobalTopk, and of algorithms that select: entries.
  /// dsar_split_allgather, ssar_split_allgather: quantizes the sums that a slice's owner sends to all ranks (qsgd4).
  /// The result then has the codec's error bound, and the owner of a slice retains the quantization error. None:
  /// lossless.
  std::optional<CodecSpec> dense_quantizer;
  uint32_t boundaries_period = 64;  ///< oktopk: tau
  uint32_t thresholds_period = 32;  ///< oktopk: tau'
  /// oktopk: kEqual: index ranges of one length, wherever the entries lie (the paper's naive reduce, to compare with).
  enum class Boundaries : uint8_t { kAveraged = 1, kPooled = 2, kEqual = 3 } boundaries = Boundaries::kAveraged;
  uint32_t messages_in_flight = 8;  ///< oktopk: messages of one bucket of its split.
  /// oktopk: rebalances the regions when the largest exceeds this multiple of the average. At least 1; infinite: never,
  /// for comparison.
  double balance_ratio = 4;
};

/// Holds a rank's input to an allreduce.
struct Contribution {
  /// Of the settings' dimension, finite; dense or sparse.
  SharedStream own;
  /// Holds the values that the rank retains beside `own`: its residual without the selected entries; finite, dense or
  /// sparse. Provides values for the entries that the contribution's index codec adds to `own` ([DeepReduce21, 4],
  /// policies P0 to P2). Of dimension 0: these entries are 0. Algorithms that select fill from `own` and ignore it.
  SharedStream rest;

  Contribution(SharedStream own_, SharedStream rest_) : own(std::move(own_)), rest(std::move(rest_)) {}
  Contribution(SharedStream own_) : own(std::move(own_)) {}  // NOLINT(google-explicit-constructor): one without a rest
};

/// Says which values an allreduce returns to a rank.
enum class Returns : uint8_t {
  kCodecErrors = 1,  ///< changes that a codec or quantizer made: a caller may drop them
  kSums = 2,         ///< sums that the algorithm dropped, with other ranks' parts: a caller that drops them loses them
};

/// Holds a rank's part of the result of an allreduce. Over all ranks, with exact values and for sums:
///
///     own + added = sum + own entries that were not handed over + returned
///
/// An exact sum hands over every rank's whole contribution; a global top-k hands over the entries listed in
/// `contributed`.
struct Reduced {
  /// The same bits on all ranks.
  SharedStream sum;
  /// Holds the values that this rank retains for later, beside the entries that were not handed over; sparse. These are
  /// a codec's changes to its own values or to the sums of its slice, or sums that it dropped (`returns`).
  Stream returned;
  /// kGlobalTopk: the indices of this rank's entries that were handed over (Ok-Topk's `indexes`), ascending. The caller
  /// still has the others.
  IndexBuffer contributed;
  /// Holds the entries of this rank's `rest` that the contribution's index codec sent beside `own`: the caller
  /// subtracts them from its residual. Sparse, never zeros; of dimension 0 or empty where there are none.
  Stream added = {};
  Returns returns = Returns::kCodecErrors;  ///< of all values in `returned`; ranks may differ
};

/// Runs the allreduce of one tensor, step after step; keeps the algorithm's state between steps (thresholds,
/// boundaries).
///
/// Threads  one run() at a time.
class Allreduce {
 public:
  virtual ~Allreduce() = default;
  virtual const AlgorithmInfo& info() const = 0;
  /// Returns the step of the retained state at which the next run() continues. Ranks at different steps, e.g. after a
  /// restart of one rank, would block on each other permanently. 0: the algorithm retains no state between runs.
  virtual uint64_t next_step() const { return 0; }
  /// Returns a digest of the retained state that all ranks have alike. Ranks compare it before a run, as next_step().
  virtual uint64_t common_digest() const { return 0; }
  /// Returns the retained state of this rank, for a saved state; empty where there is none.
  virtual Retained retained() const { return {}; }
  /// Continues with the state of an earlier run with the same settings and number of ranks. All ranks restore theirs of
  /// one step.
  ///
  /// Errors   invalid_argument: it is no such state. Nothing changes then.
  virtual Status restore_retained(std::span<const uint64_t> retained) { return RetainedReader(retained).end(); }
  /// Returns whether the algorithm is chosen; false: it is still trying candidates out.
  virtual bool is_settled() const { return true; }
  /// Returns a text for people: the chosen algorithm, and the time of each candidate. Empty: there is nothing to
  /// choose.
  virtual std::string choice() const { return {}; }

  /// given    kept alive by the task. Where the algorithm selects, it takes the k largest of `own`, or the entries over
  ///          its threshold.
  /// Order    the result does not depend on when messages arrive.
  /// Errors   invalid_argument: another dimension. malformed: invalid bytes from a peer. non_finite: the sum
  ///          overflowed, or NaN or infinity in `own` or `rest`.
  virtual Task<Result<Reduced>> run(Channel& channel, Contribution given) = 0;
};

std::span<const AlgorithmInfo> algorithms();
const AlgorithmInfo* find_algorithm(std::string_view name);
const AlgorithmInfo& algorithm_info(AlgorithmId id);

/// Errors   invalid_argument: dimension 0 or too large; k = 0 or > dimension where k is needed; periods of 0. Also an
///          operation that the algorithm does not take, or a lossy codec for sums.
Result<std::unique_ptr<Allreduce>> make_allreduce(AlgorithmId id, const AllreduceSettings& settings);

/// Returns the text on which ranks must agree: "ssar_recursive_doubling f32 n=1048576 sum raw ...".
std::string description_of(AlgorithmId id, const AllreduceSettings& settings);
/// Returns the text of its next run.
std::string description_of(const Allreduce& allreduce, const AllreduceSettings& settings);

}  // namespace millrace::peer
