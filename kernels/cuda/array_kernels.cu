#include "kernels/cuda/array_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_ARRAY_KERNELS(KERNEL) \
  KERNEL(AddArrays)                    \
  KERNEL(TakeEntries)                  \
  KERNEL(ScatterAdd)                   \
  KERNEL(ScatterDifference)            \
  KERNEL(BloomInsert)                  \
  KERNEL(Collect<BloomTest>)

namespace millrace::cuda {

MILLRACE_KERNELS(load_array_kernels, MILLRACE_ARRAY_KERNELS)

}  // namespace millrace::cuda
