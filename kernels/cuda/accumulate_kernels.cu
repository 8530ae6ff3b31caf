#include "kernels/cuda/accumulate_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(FillValue);
MILLRACE_KERNEL(AddFinite);
MILLRACE_KERNEL(EnterByVelocity);

}  // namespace millrace::cuda
