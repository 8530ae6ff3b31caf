#include "kernels/cuda/polynomial_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_POLYNOMIAL_KERNELS(KERNEL) \
  KERNEL(FindFarPoints)                     \
  KERNEL(SumMoments)                        \
  KERNEL(EvaluatePieces)

namespace millrace::cuda {

MILLRACE_KERNELS(load_polynomial_kernels, MILLRACE_POLYNOMIAL_KERNELS)

}  // namespace millrace::cuda
