#include "kernels/cuda/segment_kernels.h"

#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_SELECT_KERNELS(KERNEL) \
  KERNEL(BeginSelection)                \
  KERNEL(CountUp)                       \
  KERNEL(MaxKey)                        \
  KERNEL(SampleKeys)                    \
  KERNEL(CountDigit<KeySource>)         \
  KERNEL(CountDigit<ValueSource>)       \
  KERNEL(CountDigit<PositionSource>)    \
  KERNEL(Collect<MagnitudeTest>)        \
  KERNEL(CountSegments)                 \
  KERNEL(EmitSegments)

namespace millrace::cuda {

MILLRACE_KERNELS(load_select_kernels, MILLRACE_SELECT_KERNELS)

}  // namespace millrace::cuda
