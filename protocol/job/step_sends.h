#pragma once

#include <cstdint>

#include "kernels/select/select.h"

namespace millrace::protocol {

/// The part of an accumulator that a step sends, as far as the specification determines it without the values.
enum class StepSends : uint8_t {
  kSome = 1,          ///< the rest waits for later steps
  kEverything = 2,    ///< every entry that is not 0: no entry waits
  kUncompressed = 3,  ///< everything, and no codec changes a value: dense first steps, tensors that by_size sends whole
};

/// Returns the part that the step sends of a tensor of `dimension`.
///
/// The result depends on the arguments alone, not on how many entries an accumulator holds. So workers and shards agree
/// on it without a message.
/// Source   [RedSync19, 2.1] ("we do not compress residuals"); [RedSync19, appendix C] ("we use original SGD optimizer
///          synchronized by allreduce in first few epochs").
StepSends step_sends(const SelectionSpec& spec, uint64_t dimension, uint64_t step);

/// The share of the sum of all workers that the update carries.
enum class UpdateCarries : uint8_t {
  kWholeSum = 1,
  kReselected = 2,  ///< the re-selection returns the other entries to the workers
};

/// Returns whether an entry of the step may reach the weights late: it waits here, or a re-selection returns it. Masks
/// then end the velocity of the applied entries (RedSync, momentum correction).
inline bool keeps_remainder(StepSends sends, UpdateCarries update) {
  return sends == StepSends::kSome || (sends == StepSends::kEverything && update == UpdateCarries::kReselected);
}

/// Returns whether some step sends the tensor uncompressed. If any step does, step 0 does.
inline bool sends_uncompressed(const SelectionSpec& spec, uint64_t dimension) {
  return step_sends(spec, dimension, 0) == StepSends::kUncompressed;
}

}  // namespace millrace::protocol
