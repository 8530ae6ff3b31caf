#pragma once

#include "kernels/cuda/device_block.cuh"
#include "kernels/cuda/device_launch.h"

namespace millrace::cuda {

template <class Kernel>
int launch_kernel(const Kernel& kernel, uint32_t blocks, void* stream) {
  (void)cudaGetLastError();  // of an earlier call, perhaps of another queue: not of this launch
  run_kernel<Kernel><<<blocks, Kernel::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace millrace::cuda

/// An instance of launch_kernel(), for a kernel of namespace millrace::cuda.
#define MILLRACE_KERNEL(...) template int launch_kernel<__VA_ARGS__>(const __VA_ARGS__&, uint32_t, void*)
