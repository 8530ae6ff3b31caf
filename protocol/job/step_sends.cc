#include "protocol/job/step_sends.h"

#include <algorithm>
#include <optional>

#include "kernels/select/by_size.h"
#include "kernels/select/warm_up.h"

namespace millrace::protocol {
namespace {

/// Returns whether the selection's amount is the whole tensor. False for selections that may leave entries even then:
/// those by a fit or by an earlier step's threshold.
bool amount_is_all(const SelectionSpec& spec, uint64_t dimension) {
  switch (spec.selection) {
    case Selection::kTopK:
    case Selection::kTrimmed:
    case Selection::kBinarySearch:
    case Selection::kSampled:
    case Selection::kRadix:
    case Selection::kRandom: return k_of(spec, dimension) == dimension;
    case Selection::kBucketTopK: return bucket_k_of(spec, dimension) >= std::min<uint64_t>(spec.bucket_size, dimension);
    default: return false;
  }
}

}  // namespace

StepSends step_sends(const SelectionSpec& spec, uint64_t dimension, uint64_t step) {
  if (spec.selection == Selection::kNone) return StepSends::kEverything;
  SelectionSpec now = resolved_by_size(spec, dimension);
  if (now.selection == Selection::kNone) return StepSends::kUncompressed;
  if (const std::optional<double> density = warm_up_density(now, dimension, step)) {
    if (now.warm_up == WarmUp::kDense) return StepSends::kUncompressed;
    now.density = *density;
    now.k = 0;
  }
  return !now.alternate_signs && amount_is_all(now, dimension) ? StepSends::kEverything : StepSends::kSome;
}

}  // namespace millrace::protocol
