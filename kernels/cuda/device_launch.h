#pragma once

#include <cstdint>

namespace millrace::cuda {

/// Enqueues a kernel on a stream (a cudaStream_t). The .cu files have an instance for each kernel.
///
/// Returns  cudaSuccess (0) or CUDA's error.
template <class Kernel>
int launch_kernel(const Kernel& kernel, uint32_t blocks, void* stream);

}  // namespace millrace::cuda
