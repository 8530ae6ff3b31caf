#include "kernels/cuda/quantize_kernels.h"

#include "kernels/cuda/bucket_kernels.h"
#include "kernels/cuda/queue/device_launch.cuh"

#define MILLRACE_QUANTIZE_KERNELS(KERNEL) \
  KERNEL(QsgdWarps<2, false>)             \
  KERNEL(QsgdWarps<2, true>)              \
  KERNEL(QsgdWarps<4, false>)             \
  KERNEL(QsgdWarps<4, true>)              \
  KERNEL(QsgdWarps<8, false>)             \
  KERNEL(QsgdWarps<8, true>)              \
  KERNEL(CodeBuckets<QsgdFormat>)         \
  KERNEL(CodeBuckets<TernaryFormat>)      \
  KERNEL(CodeBuckets<OneBitFormat>)       \
  KERNEL(SumSigns)                        \
  KERNEL(RoundSigns)                      \
  KERNEL(RoundHalves<Bf16Format>)         \
  KERNEL(RoundHalves<F16Format>)          \
  KERNEL(BucketTopK)                      \
  KERNEL(ScanCounts)                      \
  KERNEL(CompactBuckets)

namespace millrace::cuda {

MILLRACE_KERNELS(load_quantize_kernels, MILLRACE_QUANTIZE_KERNELS)

}  // namespace millrace::cuda
