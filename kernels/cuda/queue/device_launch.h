#pragma once

#include <cstdint>

namespace millrace::cuda {

/// Enqueues a kernel on a stream (a cudaStream_t). The .cu files have an instance for each kernel.
///
/// Returns  cudaSuccess (0) or CUDA's error.
template <class Kernel>
int launch_kernel(const Kernel& kernel, uint32_t blocks, void* stream);

/// Load the kernels of a .cu file to the current device. CUDA would load each one at its first launch, which then needs
/// memory of the device.
///
/// Returns  cudaSuccess (0) or CUDA's error.
int load_accumulate_kernels();
int load_array_kernels();
int load_draw_kernels();
int load_polynomial_kernels();
int load_quantize_kernels();
int load_select_kernels();

}  // namespace millrace::cuda
