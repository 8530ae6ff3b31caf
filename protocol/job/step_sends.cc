#include "protocol/job/step_sends.h"

#include <optional>

#include "kernels/select/select.h"
#include "kernels/select/warm_up.h"

namespace millrace::protocol {

StepSends step_sends(const SelectionSpec& spec, uint64_t dimension, uint64_t step) {
  if (spec.selection == SelectionId::kNone) return StepSends::kEverything;
  SelectionSpec now = resolved_by_size(spec, dimension);
  if (now.selection == SelectionId::kNone) return StepSends::kUncompressed;
  if (const std::optional<double> density = warm_up_density(now, dimension, step)) {
    if (now.warm_up == WarmUp::kDense) return StepSends::kUncompressed;
    now.density = *density;
    now.k = 0;
  }
  return !now.alternate_signs && takes_all(now, dimension) ? StepSends::kEverything : StepSends::kSome;
}

}  // namespace millrace::protocol
