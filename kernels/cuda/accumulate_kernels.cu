#include "kernels/cuda/accumulate_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_ACCUMULATE_KERNELS(KERNEL) \
  KERNEL(FillValue)                         \
  KERNEL(AddFinite)                         \
  KERNEL(EnterByVelocity)                   \
  KERNEL(CountNonZero)                      \
  KERNEL(KeepError)

namespace millrace::cuda {

MILLRACE_KERNELS(load_accumulate_kernels, MILLRACE_ACCUMULATE_KERNELS)

}  // namespace millrace::cuda
