#pragma once

#include "kernels/optimize/registry.h"

/// The rules of this build, in the order in which lists show them. NAME is kernels/optimize/NAME.cc, which defines
/// NAME_optimizer(). CMakeLists.txt compiles the files of this list.
#define MILLRACE_OPTIMIZERS(OPTIMIZER) \
  OPTIMIZER(none)                      \
  OPTIMIZER(sgd)                       \
  OPTIMIZER(momentum)                  \
  OPTIMIZER(adagrad)                   \
  OPTIMIZER(adam)

namespace millrace {

#define MILLRACE_DECLARE_OPTIMIZER(word) OptimizerEntry word##_optimizer();
MILLRACE_OPTIMIZERS(MILLRACE_DECLARE_OPTIMIZER)
#undef MILLRACE_DECLARE_OPTIMIZER

}  // namespace millrace
