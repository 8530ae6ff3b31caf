#pragma once

#include "kernels/cuda/queue/device_block.cuh"
#include "kernels/cuda/queue/device_launch.h"

namespace millrace::cuda {

template <class Kernel>
int launch_kernel(const Kernel& kernel, uint32_t blocks, void* stream) {
  (void)cudaGetLastError();  // of an earlier call, perhaps of another queue: not of this launch
  run_kernel<Kernel><<<blocks, Kernel::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
  return static_cast<int>(cudaGetLastError());
}

/// Copies a kernel's code to the current device, if it is not there yet. Returns CUDA's error.
template <class Kernel>
int load_kernel() {
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, run_kernel<Kernel>);
  if (code != cudaSuccess) (void)cudaGetLastError();
  return static_cast<int>(code);
}

}  // namespace millrace::cuda

/// Defines the instances of launch_kernel() for a file's kernels, and the function `load`, which loads them.
/// LIST(KERNEL) has KERNEL(type) for each kernel of namespace millrace::cuda.
#define MILLRACE_KERNELS(load, LIST) \
  LIST(MILLRACE_INSTANCE)            \
  int load() {                       \
    int code = 0;                    \
    LIST(MILLRACE_LOAD)              \
    return code;                     \
  }
#define MILLRACE_INSTANCE(...) template int launch_kernel<__VA_ARGS__>(const __VA_ARGS__&, uint32_t, void*);
#define MILLRACE_LOAD(...) \
  if (code == 0) code = load_kernel<__VA_ARGS__>();
