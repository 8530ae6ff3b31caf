#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Numbers the selections on the wire: never reused. Each states its own number in its file (selection_list.h lists the
/// files, protocol/wire/job_spec.md has the table); here are those that other code refers to.
enum class SelectionId : uint8_t {
  kNone = 0,            ///< everything stored is sent (naturally sparse gradients)
  kTopK = 1,            ///< exact top-k by magnitude
  kThreshold = 2,       ///< |x| >= a fixed threshold [Strom15]
  kThresholdReuse = 3,  ///< exact threshold once a period, reused in between [OkTopk22, 3.1.3]
  kBucketTopK = 4,      ///< k of every 512 consecutive indices [SparCML19, 8.3]
  kTrimmed = 5,         ///< exact top-k among the entries over a threshold from mean and maximum [RedSync19, 2.1]
  kBinarySearch = 6,    ///< a threshold by bisection, between k and 2k entries [RedSync19, 2.1]
  kSampled = 7,         ///< that threshold, reused for `period` steps [RedSync19, 2.1]
  kRadix = 8,           ///< exact top-k by radix select alone (the baseline of [RedSync19, 2.1])
  kBySize = 9,          ///< RedSync's choice by the tensor's size [RedSync19, 2.1, 3.3]
  kGaussian = 10,       ///< a threshold from a normal fit, scaled until at least 3k/4 ([GaussianK19], [OkTopk22, 5.4])
  kRandom = 11,         ///< k drawn without regard to size; scaled in unbiased jobs [DeepReduce21, 10.2]
  kGspar = 12,          ///< drawn with probabilities from the greedy algorithm [GSpar18, algorithm 3]; unbiased
  kGsparClosed = 13,    ///< drawn with probabilities from the closed form [GSpar18, algorithm 2]; unbiased
  kUniform = 14,        ///< each drawn with one probability, scaled (the baseline of [GSpar18, 4]); unbiased
};

/// Says which density a job's first steps have.
enum class WarmUp : uint8_t {
  kNone = 0,
  kDense = 1,        ///< everything is sent [RedSync19, appendix C]
  kExponential = 2,  ///< from a quarter down to the density in equal stages [DGC18, 3.3]
};

/// Holds a selection, and its parameters. Part of a job's specification, overridable per tensor.
struct SelectionSpec {
  SelectionId selection = SelectionId::kNone;
  double density = 0;          ///< of the dimension, in (0, 1]; used when k is 0
  uint64_t k = 0;              ///< entries a tensor and step; 0: from density, rounded up
  double threshold = 0;        ///< kThreshold only
  uint32_t period = 32;        ///< kThresholdReuse, kSampled: steps between evaluations
  uint32_t bucket_size = 512;  ///< kBucketTopK; k of a bucket is density * bucket_size rounded up, at least 1
  double variance = 0;         ///< kGsparClosed: the variance may be (1 + this) times the gradient's
  uint32_t iterations = 2;     ///< kGspar
  /// Selects positive entries in even steps, negative ones in odd steps, so that one mean can represent them
  /// [RedSync19, 2.1.1]. Uncompressed steps send both signs (protocol::step_sends()).
  bool alternate_signs = false;
  WarmUp warm_up = WarmUp::kNone;
  uint32_t warm_up_steps = 0;  ///< of warm_up; 0 where it is none

  bool operator==(const SelectionSpec&) const = default;
};

/// Returns k for a tensor of `dimension`: spec.k, or density * dimension rounded up; at most dimension, at least 1.
uint64_t k_of(const SelectionSpec& spec, uint64_t dimension);
/// Returns the entries that bucket_topk takes of each bucket: the specification's share of a bucket, rounded up.
uint64_t bucket_k_of(const SelectionSpec& spec, uint64_t dimension);

struct Candidates;

struct SelectContext {
  uint64_t step = 0;
  RandomKey random = {};  ///< for randomized selections; equal in all steps of a tensor, but for the step in it
  const Candidates* largest = nullptr;  ///< collected already: all entries of a finite accumulator from a magnitude on
};

/// Selects from one tensor, and keeps its state from step to step (a reused threshold). Not shared by threads.
class Selector {
 public:
  virtual ~Selector() = default;

  /// Selects entries of the accumulator.
  ///
  /// accumulator  dense or sparse view; of a sparse one only stored entries can be selected.
  /// positions    out: positions into accumulator.values, strictly increasing (of a dense view these are the indices).
  /// Order        ties: lower index first. Zeros are never selected.
  /// Errors       non_finite: the accumulator holds NaN or infinity; nothing is selected, state unchanged.
  virtual Status select(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions) = 0;

  /// Returns about how many of the largest entries SelectContext::largest should have; 0: select() does not use it.
  virtual uint64_t largest_wanted() const { return 0; }

  /// Draws entries and gives the values to send for them, so that E[sent] = accumulator; nothing is kept back.
  ///
  /// values  out: as many as positions.
  /// Errors  as select(); unsupported where the selection is not unbiased.
  virtual Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
                      Buffer<float>& values);

  /// Returns the state that the selector keeps from step to step; empty where it keeps none.
  virtual Retained retained() const { return {}; }
  /// Continues with the state of a selector of the same specification.
  ///
  /// Errors   invalid_argument: it is no such state. Nothing changes then.
  virtual Status restore_retained(std::span<const uint64_t> retained) { return RetainedReader(retained).end(); }
};

/// Says in which jobs a selection is sound.
enum class SelectionUse : uint8_t {
  kWithResidual,  ///< the entries that it omits stay in a residual: select()
  kUnbiased,      ///< unbiased jobs: draw()
  kBoth,
};

/// Says how a parameter sets the number of selected entries.
enum class SelectionAmount : uint8_t { kNone, kShare, kMagnitude, kVariance };

using SelectionNumber = std::variant<uint64_t, double>;

/// Describes a parameter in a selection's text.
struct SelectionParameter {
  std::string_view form;  ///< "DENSITY|COUNT"
  SelectionAmount amount = SelectionAmount::kNone;
  bool (*set)(std::string_view word, SelectionSpec& spec);  ///< false: not a value of it
  SelectionNumber (*value)(const SelectionSpec& spec);
};

struct SelectionInfo {
  SelectionId selection;
  std::string_view name;                                ///< "topk": the command line's and the job specification's word
  std::string_view paper;                               ///< "[SparCML19, 8.3]" (kernels/REFERENCES.md)
  std::string_view summary;                             ///< one line for --help
  std::span<const SelectionParameter> parameters = {};  ///< in the order of the text; all but the first may be left out
  SelectionUse use = SelectionUse::kWithResidual;
  bool may_alternate_signs = false;  ///< takes `alternate_signs`
  bool reuses_threshold = false;     ///< for SelectionSpec::period steps
  std::string_view alias = {};       ///< "exact": the benchmarks' word, where it is another; taken as well

  /// Returns the first parameter's amount; kNone where there is no parameter.
  SelectionAmount amount() const { return parameters.empty() ? SelectionAmount::kNone : parameters.front().amount; }
};

/// Returns every selection this build knows.
std::span<const SelectionInfo> selections();
Result<SelectionId> selection_by_name(std::string_view name);
std::string_view selection_name(SelectionId selection);

/// Returns "none", "dense" or "exponential".
std::string_view warm_up_name(WarmUp value);

/// Returns the selection, or nullptr: not of this build.
const SelectionInfo* find_selection(SelectionId selection);

/// Parses NAME[:AMOUNT[:EXTRA]][:signs][:dense=STEPS|:warm_up=STEPS], with DENSITY or COUNT, a magnitude or a variance
/// as the amount: "none", "topk:0.01", "topk:1000", "threshold_reuse:0.01:32", "trimmed:0.001:signs:warm_up=500".
Result<SelectionSpec> selection_from_text(std::string_view text);

/// Returns the forms that selection_from_text() takes, for help and errors: "none, topk:DENSITY|COUNT, ...".
std::string selection_names();

/// Parses a density in (0, 1], a count of at least 2, or "count=N" of at least 1; does not change the other.
///
/// Errors   invalid_argument.
Status set_amount(std::string_view word, double& density, uint64_t& k);

/// Assigns a count of at least 1. Returns false, and changes nothing, where `word` is none.
bool set_count(std::string_view word, uint32_t& count);

/// Refuses parameters that cannot be: density outside (0, 1], threshold not positive or over the largest f32 ...
Status validate(const SelectionSpec& spec);

/// Returns the selection that a tensor of `dimension` gets: `spec`, or the one that a selection by size uses there.
SelectionSpec resolved_by_size(const SelectionSpec& spec, uint64_t dimension);

/// Returns whether the tensor's size decides which selection it gets.
bool chooses_by_size(SelectionId selection);

/// Returns whether the selection's amount is the whole tensor. False for selections that may omit entries even then:
/// those by a fit or by an earlier step's threshold.
bool takes_all(const SelectionSpec& spec, uint64_t dimension);

/// Errors   as validate().
Result<std::unique_ptr<Selector>> make_selector(const SelectionSpec& spec, uint64_t dimension);

}  // namespace millrace
