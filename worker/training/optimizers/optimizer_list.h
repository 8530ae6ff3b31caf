#pragma once

#include "worker/training/optimizers/optimizer.h"

/// The optimizers of this build, in the order in which lists show them. NAME is worker/training/optimizers/NAME.cc,
/// which defines NAME_optimizer(). CMakeLists.txt compiles the files of this list.
#define MILLRACE_TRAINING_OPTIMIZERS(OPTIMIZER) \
  OPTIMIZER(sgd)                                \
  OPTIMIZER(svrg)                               \
  OPTIMIZER(oktopk_sgd)                         \
  OPTIMIZER(topk_sgd)                           \
  OPTIMIZER(rgc)                                \
  OPTIMIZER(momentum)                           \
  OPTIMIZER(adam)                               \
  OPTIMIZER(coordinate_descent)

namespace millrace::training {

#define MILLRACE_DECLARE_OPTIMIZER(word) OptimizerInfo word##_optimizer();
MILLRACE_TRAINING_OPTIMIZERS(MILLRACE_DECLARE_OPTIMIZER)
#undef MILLRACE_DECLARE_OPTIMIZER

}  // namespace millrace::training
