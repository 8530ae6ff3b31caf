#include "kernels/cuda/draw_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_DRAW_KERNELS(KERNEL) \
  KERNEL(SumTails)                    \
  KERNEL(Collect<DrawTest>)           \
  KERNEL(DrawnValues)

namespace millrace::cuda {

MILLRACE_KERNELS(load_draw_kernels, MILLRACE_DRAW_KERNELS)

}  // namespace millrace::cuda
