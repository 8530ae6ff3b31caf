#include "kernels/cuda/quantize_kernels.h"

#include "kernels/cuda/bucket_kernels.h"
#include "kernels/cuda/device_launch.cuh"

namespace millrace::cuda {

MILLRACE_KERNEL(QsgdWarps<2, false>);
MILLRACE_KERNEL(QsgdWarps<2, true>);
MILLRACE_KERNEL(QsgdWarps<4, false>);
MILLRACE_KERNEL(QsgdWarps<4, true>);
MILLRACE_KERNEL(QsgdWarps<8, false>);
MILLRACE_KERNEL(QsgdWarps<8, true>);
MILLRACE_KERNEL(CodeBuckets<QsgdFormat>);
MILLRACE_KERNEL(CodeBuckets<TernaryFormat>);
MILLRACE_KERNEL(CodeBuckets<OneBitFormat>);
MILLRACE_KERNEL(SumSigns);
MILLRACE_KERNEL(RoundSigns);
MILLRACE_KERNEL(RoundHalves<Bf16Format>);
MILLRACE_KERNEL(RoundHalves<F16Format>);
MILLRACE_KERNEL(BucketTopK);
MILLRACE_KERNEL(ScanCounts);
MILLRACE_KERNEL(CompactBuckets);

}  // namespace millrace::cuda
