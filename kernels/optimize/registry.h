#pragma once

#include <cmath>
#include <optional>
#include <span>

#include "kernels/optimize/optimize.h"

namespace millrace {

/// Describes a parameter of a rule, in the order of its text.
struct OptimizerParameter {
  enum class Range : uint8_t {
    kAboveZero,  ///< finite and above 0
    kShare,      ///< in [0, 1)
  };
  std::string_view name;
  double OptimizerSpec::* field;
  Range range;
  std::optional<double> fallback;  ///< where it is left out; empty: it must be there
};

/// Says which entries a step changes.
enum class TouchedEntries : uint8_t {
  kCarried = 1,  ///< those that the sum carries and that are not 0 in it (optimize())
  kAll = 2,      ///< all of the dimension: a gradient of 0 where the sum has nothing (optimize_dense())
};

/// Holds the inputs of a step, rounded and checked.
struct OptimizerStep {
  const OptimizerSpec& spec;
  const OptimizerArrays& arrays;
  const StreamView& sum;
  double denominator = 1;
  uint64_t step = 0;
  TouchedEntries touched = TouchedEntries::kCarried;

  float rate() const { return static_cast<float>(spec.rate); }
  /// Returns the factor that makes g of the sum.
  float per_sum() const { return static_cast<float>(1 / denominator); }
};

/// Describes a rule. Its file defines `OptimizerEntry NAME_optimizer()`, and optimizer_list.h has the word.
struct OptimizerEntry {
  OptimizerInfo info;
  std::span<const OptimizerParameter> parameters;
  /// False: something overflowed.
  bool (*step)(const OptimizerStep& step);
};

inline std::string_view name_of(const OptimizerEntry& entry) { return entry.info.name; }
inline Optimizer number_of(const OptimizerEntry& entry) { return entry.info.optimizer; }

/// Entries between the one that changes and the one whose arrays are fetched: 16 rows of 16.
inline constexpr size_t kTouchedAhead = 256;

/// Fetches the entry of each array. Those of a large table are in no cache: their loads overlap.
inline void prefetch_touched(const OptimizerStep& step, size_t index) {
  __builtin_prefetch(&step.arrays.weights[index], 1);
  for (const std::span<float> state : step.arrays.states) {
    if (!state.empty()) __builtin_prefetch(&state[index], 1);
  }
}

/// Calls change(index, value) for the entries that the step touches, in the order of the indices. Returns whether every
/// call wrote a finite value.
template <typename Change>
bool for_each_touched(const OptimizerStep& step, Change change) {
  const StreamView& sum = step.sum;
  const bool all = step.touched == TouchedEntries::kAll;
  bool finite = true;
  if (sum.dense) {
    for (size_t at = 0; at < sum.values.size(); ++at) {
      if (all || sum.values[at] != 0) finite &= change(at, sum.values[at]);
    }
    return finite;
  }
  if (!all) {
    for (size_t at = 0; at < sum.values.size(); ++at) {
      if (at + kTouchedAhead < sum.values.size()) prefetch_touched(step, sum.indices[at + kTouchedAhead]);
      if (sum.values[at] != 0) finite &= change(sum.indices[at], sum.values[at]);
    }
    return finite;
  }
  size_t index = 0;
  for (size_t at = 0; at < sum.values.size(); ++at) {
    for (; index < sum.indices[at]; ++index) finite &= change(index, 0.0F);
    finite &= change(sum.indices[at], sum.values[at]);
    index = size_t{sum.indices[at]} + 1;
  }
  for (; index < sum.dimension; ++index) finite &= change(index, 0.0F);
  return finite;
}

}  // namespace millrace
