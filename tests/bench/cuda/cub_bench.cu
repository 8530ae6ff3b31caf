// Measures CUB beside a read pass, to compare top_k of 1 % with: the radix sort of the keys, and DeviceTopK where the
// toolkit's CCCL has it (that of toolkit 13.0 does not). Prints JSON. Target millrace_cub_bench; by hand:
// nvcc -std=c++17 -O3 -arch=sm_90 -I. tests/bench/cuda/cub_bench.cu -o millrace_cub_bench
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cub/device/device_radix_sort.cuh>
#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#include <thrust/iterator/counting_iterator.h>
#define MILLRACE_HAS_DEVICE_TOPK
#endif

#include "kernels/cuda/queue/device_block.cuh"
#include "tests/bench/cuda/bench_kernels.h"

using namespace millrace::cuda;

namespace {

void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "cub_bench: %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

template <class T>
T* device_array(uint64_t count) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, count * sizeof(T)), "memory");
  return static_cast<T*>(memory);
}

template <class Work>
double median_ms(const Work& work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(begin);
    work();
    cudaEventRecord(end);
    require(cudaEventSynchronize(end), "work");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

__global__ void keys_of(const float* values, uint32_t* keys, uint64_t n) {
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += uint64_t{gridDim.x} * blockDim.x) {
    keys[i] = key_of(values[i]);
  }
}

double sort_ms(const uint32_t* keys, uint32_t* keys_out, uint64_t n) {
  size_t bytes = 0;
  require(cub::DeviceRadixSort::SortKeysDescending(nullptr, bytes, keys, keys_out, n), "sort");
  auto* scratch = device_array<uint8_t>(bytes);
  const double ms =
      median_ms([&] { require(cub::DeviceRadixSort::SortKeysDescending(scratch, bytes, keys, keys_out, n), "sort"); });
  cudaFree(scratch);
  return ms;
}

#ifdef MILLRACE_HAS_DEVICE_TOPK
std::vector<uint32_t> to_host(const uint32_t* there, uint64_t count) {
  std::vector<uint32_t> here(count);
  require(cudaMemcpy(here.data(), there, count * sizeof(uint32_t), cudaMemcpyDeviceToHost), "copy");
  return here;
}

/// Prints the time of the k largest keys with their indices, in any order, and whether they are the first k of `sorted`.
void print_top_k(const uint32_t* keys, const uint32_t* sorted, uint32_t n, uint32_t k) {
  auto* keys_out = device_array<uint32_t>(k);
  auto* indices = device_array<uint32_t>(k);
  uint8_t* scratch = nullptr;
  size_t bytes = 0;
  const auto select = [&] {
    const auto any = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                              cuda::execution::output_ordering::unsorted);
    const thrust::counting_iterator<uint32_t> positions(0);
    require(cub::DeviceTopK::MaxPairs(scratch, bytes, keys, keys_out, positions, indices, n, k, any), "top-k");
  };
  select();
  scratch = device_array<uint8_t>(bytes);
  const double ms = median_ms(select);
  // A call that wrote nothing would leave the result of an earlier one.
  require(cudaMemset(keys_out, 0, k * sizeof(uint32_t)), "clear");
  select();
  std::vector<uint32_t> selected = to_host(keys_out, k);
  std::sort(selected.rbegin(), selected.rend());
  std::printf("\"cub_top_k_1_percent_ms\": %.4f, \"cub_top_k_1_percent_equals_sort\": %d, ", ms,
              selected == to_host(sorted, k) ? 1 : 0);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const uint64_t n = uint64_t{1} << (argc > 1 ? std::atoi(argv[1]) : 28);
  auto* values = device_array<float>(n);
  auto* keys = device_array<uint32_t>(n);
  auto* keys_out = device_array<uint32_t>(n);
  run_kernel<FillNormal><<<1056, FillNormal::kThreads>>>(FillNormal{values, n, RoundKeys::of(1, 7)});
  keys_of<<<1056, 256>>>(values, keys, n);
  require(cudaDeviceSynchronize(), "fill");
  const double read = median_ms(
      [&] { run_kernel<ReadPass><<<n / ReadPass::kBlockEntries, ReadPass::kThreads>>>(ReadPass{values, keys_out}); });
  const double sort = sort_ms(keys, keys_out, n);
  std::printf("{");
#ifdef MILLRACE_HAS_DEVICE_TOPK
  print_top_k(keys, keys_out, static_cast<uint32_t>(n), static_cast<uint32_t>(n / 100));
#endif
  std::printf("\"read_pass_ms\": %.4f, \"cub_radix_sort_keys_ms\": %.4f, \"cub_version\": %d}\n", read, sort,
              CUB_VERSION);
  return 0;
}
