#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Numbers the rules by which a sum of gradients changes weights. Numbers are on the wire: never reused. Each rule
/// states its own in its file (optimizer_list.h lists the files, protocol/wire/job_spec.md has the table); here are
/// those that other code refers to.
enum class Optimizer : uint8_t {
  kNone = 0,      ///< there are no weights to change
  kSgd = 1,       ///< w -= rate g
  kMomentum = 2,  ///< v = momentum v + g; w -= rate v
  kAdagrad = 3,   ///< a += g^2; w -= rate g / (sqrt(a) + epsilon)
  kAdam = 4,      ///< [Adam15, algorithm 1], with bias correction
};

/// Holds a rule, and its parameters; those that it does not have are 0, so that one rule has one form. Part of a job's
/// specification. Arithmetic is f32: every parameter is rounded to it first.
struct OptimizerSpec {
  Optimizer optimizer = Optimizer::kNone;
  double rate = 0;      ///< above 0
  double momentum = 0;  ///< kMomentum: share of the velocity that stays; kAdam: of the first moment (beta 1); in [0, 1)
  double decay = 0;     ///< kAdam: share of the second moment that stays (beta 2); in [0, 1)
  double epsilon = 0;   ///< kAdagrad, kAdam: added to the root; above 0

  bool operator==(const OptimizerSpec&) const = default;
};

inline constexpr size_t kOptimizerStatesMax = 2;

/// Holds the arrays that a rule changes: weights, and its arrays of state (OptimizerInfo::states), all of one length.
/// Before the first step weights are anything and all state is 0.
struct OptimizerArrays {
  std::span<float> weights;
  std::array<std::span<float>, kOptimizerStatesMax> states;
};

struct OptimizerInfo {
  Optimizer optimizer;
  std::string_view name;     ///< "adam": the command line's and the job specification's word
  std::string_view form;     ///< "adam:RATE[:BETA1[:BETA2[:EPSILON]]]"
  std::string_view paper;    ///< the source of the rule: "[Polyak64]" (kernels/REFERENCES.md)
  std::string_view summary;  ///< one line for --help
  size_t states;             ///< arrays beside the weights
};

/// Returns every rule this build knows, none included.
std::span<const OptimizerInfo> optimizers();
/// Returns the rule, or nullptr: not of this build.
const OptimizerInfo* find_optimizer(Optimizer optimizer);
std::string_view optimizer_name(Optimizer optimizer);
/// Returns the number of arrays of state. REQUIRES: a known one.
size_t optimizer_states(Optimizer optimizer);

/// Parses "none", "sgd:0.1", "momentum:0.1:0.9", "adagrad:0.1:1e-10", "adam:0.001:0.9:0.999:1e-08"; parameters after
/// the rate may be left out. The two are each other's reverse. Errors  invalid_argument.
Result<OptimizerSpec> optimizer_from_text(std::string_view text);
std::string optimizer_text(const OptimizerSpec& spec);

/// Refuses parameters that cannot be, also those that are nothing, or infinite, in f32; and such as the rule does not
/// have.
Status validate(const OptimizerSpec& spec);

/// Applies one step: `sum` divided by `denominator` is the gradient g, and changes weights and state.
///
/// Sparse   An entry that the sum does not carry, or that is 0 in it, stays as it is: its weight and its state. So the
///          form of the stream (sparse, dense) is the same to the bit. For sgd and adagrad this is the textbook's rule.
///          Momentum and adam are lazy: in a step that does not touch a weight, no velocity moves it, and no moment
///          decays (torch.optim.SparseAdam's rule). Adam's bias correction counts all steps, not those of the entry.
/// arrays   [sum.dimension] each; `sum` well-formed and finite.
/// step     steps that these arrays have been through before this one; only adam uses it.
/// Bits     a function of the arguments alone, on every machine: f32, no fused operations, powers by multiplication.
///          For sgd those of add_scaled() with the factor f32(-f32(rate) / denominator).
/// Cost     one pass over the entries, no allocation.
/// Errors   non_finite: a weight or a state overflowed; the arrays are then worth nothing.
/// Threads  reentrant.
/// REQUIRES: validate(spec), another rule than none, denominator above 0.
Status optimize(const OptimizerSpec& spec, const OptimizerArrays& arrays, const StreamView& sum, double denominator,
                uint64_t step);

}  // namespace millrace
