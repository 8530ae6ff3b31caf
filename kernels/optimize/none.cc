#include "kernels/base/check.h"
#include "kernels/optimize/registry.h"

namespace millrace {
namespace {

bool step_of_none(const OptimizerStep& step) {
  MILLRACE_CHECK(false, step.step);
  return false;
}

}  // namespace

OptimizerEntry none_optimizer() {
  return {{Optimizer::kNone, "none", "none", "", "no weights at the shards", 0}, {}, step_of_none};
}

}  // namespace millrace
