#include "kernels/base/instruction_set.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

namespace millrace {

std::string instruction_set() {
  // The best target is the lowest bit [Highway, "targets.h"].
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

}  // namespace millrace
