#include "kernels/cuda/draw_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(SumTails);
MILLRACE_KERNEL(Collect<DrawTest>);
MILLRACE_KERNEL(DrawnValues);

}  // namespace millrace::cuda
