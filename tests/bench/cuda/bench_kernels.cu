#include "tests/bench/cuda/bench_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_BENCH_KERNELS(KERNEL) \
  KERNEL(ReadPass)                     \
  KERNEL(AddPass)                      \
  KERNEL(FillNormal)                   \
  KERNEL(FillUniform)

namespace millrace::cuda {

MILLRACE_BENCH_KERNELS(MILLRACE_INSTANCE)

}  // namespace millrace::cuda
