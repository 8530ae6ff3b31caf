#include "kernels/cuda/segment_kernels.h"

#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(BeginSelection);
MILLRACE_KERNEL(CountUp);
MILLRACE_KERNEL(MaxKey);
MILLRACE_KERNEL(SampleKeys);
MILLRACE_KERNEL(CountDigit<KeySource>);
MILLRACE_KERNEL(CountDigit<ValueSource>);
MILLRACE_KERNEL(CountDigit<PositionSource>);
MILLRACE_KERNEL(Collect<MagnitudeTest>);
MILLRACE_KERNEL(CountSegments);
MILLRACE_KERNEL(EmitSegments);

}  // namespace millrace::cuda
