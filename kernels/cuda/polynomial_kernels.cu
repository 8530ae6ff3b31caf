#include "kernels/cuda/polynomial_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(FindFarPoints);
MILLRACE_KERNEL(SumMoments);
MILLRACE_KERNEL(EvaluatePieces);

}  // namespace millrace::cuda
