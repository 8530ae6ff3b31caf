#include "kernels/cuda/array_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(AddArrays);
MILLRACE_KERNEL(TakeEntries);
MILLRACE_KERNEL(ScatterAdd);
MILLRACE_KERNEL(ScatterDifference);
MILLRACE_KERNEL(BloomInsert);
MILLRACE_KERNEL(Collect<BloomTest>);

}  // namespace millrace::cuda
