#include "tests/bench/cuda/bench_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(ReadPass);
MILLRACE_KERNEL(AddPass);
MILLRACE_KERNEL(FillNormal);
MILLRACE_KERNEL(FillUniform);

}  // namespace millrace::cuda
