#pragma once

#include <type_traits>

#include "kernels/cuda/queue/block_kernel.h"

namespace millrace::cuda {

/// One thread of a block.
struct DeviceThread {
  uint32_t rank;
  MILLRACE_DEVICE uint32_t lane() const { return rank % kWarp; }
  MILLRACE_DEVICE uint32_t warp() const { return rank / kWarp; }
};

/// A thread's own value: on the device a register.
template <class T>
struct DeviceOwn {
  T value{};
  MILLRACE_DEVICE T& operator[](DeviceThread) { return value; }
  MILLRACE_DEVICE const T& operator[](DeviceThread) const { return value; }
};

/// Memory that a block shares.
template <class T>
struct DeviceShared {
  T* words;
  MILLRACE_DEVICE T load(DeviceThread, uint32_t i) const { return words[i]; }
  MILLRACE_DEVICE void store(DeviceThread, uint32_t i, T value) const { words[i] = value; }
  MILLRACE_DEVICE T add(DeviceThread, uint32_t i, T value) const { return atomicAdd(words + i, value); }
  MILLRACE_DEVICE T uniform(uint32_t i) const { return words[i]; }
};

/// A block of threads on a card: phases are the code of one thread, with a barrier behind each.
template <uint32_t kThreads>
class DeviceBlock {
 public:
  template <class T>
  using Own = DeviceOwn<T>;

  MILLRACE_DEVICE DeviceBlock(uint64_t* memory, uint64_t* sums) : memory_(memory), sums_(sums) {}

  MILLRACE_DEVICE uint32_t index() const { return blockIdx.x; }
  MILLRACE_DEVICE uint32_t blocks() const { return gridDim.x; }
  template <class T>
  MILLRACE_DEVICE DeviceOwn<T> own() {
    return {};
  }
  template <class T>
  MILLRACE_DEVICE DeviceShared<T> shared(uint32_t first_word) {
    return {reinterpret_cast<T*>(reinterpret_cast<uint32_t*>(memory_) + first_word)};
  }

  template <class F>
  MILLRACE_DEVICE void step(F&& each) {
    each(DeviceThread{threadIdx.x});
  }
  template <class F>
  MILLRACE_DEVICE void phase(F&& each) {
    each(DeviceThread{threadIdx.x});
    __syncthreads();
  }

  template <class F>
  MILLRACE_DEVICE DeviceOwn<uint32_t> ballot(F&& each) {
    return {__ballot_sync(~0u, each(DeviceThread{threadIdx.x}))};
  }
  template <class F>
  MILLRACE_DEVICE DeviceOwn<uint32_t> warp_max(F&& each) {
    return {__reduce_max_sync(~0u, each(DeviceThread{threadIdx.x}))};
  }
  /// Leaves in `values` what lower lanes of the warp have in sum; returns the warp's sum.
  MILLRACE_DEVICE DeviceOwn<uint32_t> warp_scan(DeviceOwn<uint32_t>& values) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t sum = values.value;
    MILLRACE_UNROLL
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      const uint32_t below = __shfl_up_sync(~0u, sum, by);
      if (lane >= by) sum += below;
    }
    values.value = sum - values.value;
    return {__shfl_sync(~0u, sum, kWarp - 1)};
  }
  template <class F>
  MILLRACE_DEVICE uint32_t count(F&& each) {
    return static_cast<uint32_t>(__syncthreads_count(each(DeviceThread{threadIdx.x}) ? 1 : 0));
  }

  /// What threads of lower rank have in sum, and all of them.
  template <class T>
  MILLRACE_DEVICE T scan(DeviceOwn<T>& values) {
    T* sums = reinterpret_cast<T*>(sums_);
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warp = threadIdx.x / kWarp;
    T sum = values.value;
    MILLRACE_UNROLL
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      const T below = __shfl_up_sync(~0u, sum, by);
      if (lane >= by) sum += below;
    }
    if (lane == kWarp - 1) sums[warp] = sum;
    __syncthreads();
    T before = 0;
    T total = 0;
    MILLRACE_UNROLL
    for (uint32_t w = 0; w < kThreads / kWarp; ++w) {
      if (w == warp) before = total;
      total += sums[w];
    }
    values.value = before + sum - values.value;
    __syncthreads();
    return total;
  }

  /// The value of thread 0. REQUIRES all threads of a warp, or of the block, to have the same.
  template <class T>
  MILLRACE_DEVICE T uniform(const DeviceOwn<T>& own) {
    return own.value;
  }

  MILLRACE_DEVICE uint32_t add_global(uint32_t* at, uint32_t value) { return atomicAdd(at, value); }
  MILLRACE_DEVICE uint64_t add_global(uint64_t* at, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
  }
  MILLRACE_DEVICE void or_global(uint32_t* at, uint32_t bits) { atomicOr(at, bits); }
  MILLRACE_DEVICE void max_global(uint32_t* at, uint32_t value) { atomicMax(at, value); }
  MILLRACE_DEVICE void fence() { __threadfence(); }
  /// Reads what other blocks may have written.
  template <class T>
  MILLRACE_DEVICE T fresh(const T* at) {
    return *static_cast<const volatile T*>(at);
  }

  MILLRACE_DEVICE Float4 load4(const float* at) {
    const float4 loaded = __ldcs(reinterpret_cast<const float4*>(at));
    return {{loaded.x, loaded.y, loaded.z, loaded.w}};
  }
  MILLRACE_DEVICE void store4(float* at, const Float4& from) {
    *reinterpret_cast<float4*>(at) = make_float4(from.at[0], from.at[1], from.at[2], from.at[3]);
  }
  /// Stores values that this launch does not use again.
  MILLRACE_DEVICE void stream4(float* at, const Float4& from) {
    __stcs(reinterpret_cast<float4*>(at), make_float4(from.at[0], from.at[1], from.at[2], from.at[3]));
  }
  MILLRACE_DEVICE void store_halves(uint16_t* at, uint32_t low, uint32_t high) {
    *reinterpret_cast<uint2*>(at) = make_uint2(low, high);
  }
  /// Stores the low `bytes` bytes: 1, 2 or 4, at an address that is a multiple of them.
  template <uint32_t kBytes>
  MILLRACE_DEVICE void store_bytes(uint8_t* at, uint32_t bits) {
    if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(at) = bits;
    } else if constexpr (kBytes == 2) {
      *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(bits);
    } else {
      *at = static_cast<uint8_t>(bits);
    }
  }

 private:
  uint64_t* memory_;
  uint64_t* sums_;
};

/// Blocks that a multiprocessor is to hold: Kernel::kBlocksAtOnce, where a kernel says it.
template <class Kernel, class = void>
struct BlocksAtOnce {
  static constexpr uint32_t kBlocks = 1;
};
template <class Kernel>
struct BlocksAtOnce<Kernel, std::enable_if_t<(Kernel::kBlocksAtOnce > 0)>> {
  static constexpr uint32_t kBlocks = Kernel::kBlocksAtOnce;
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, BlocksAtOnce<Kernel>::kBlocks) run_kernel(const Kernel kernel) {
  __shared__ uint64_t memory[(Kernel::kSharedWords + 1) / 2 + 1];
  __shared__ uint64_t sums[kWarp];
  DeviceBlock<Kernel::kThreads> block(memory, sums);
  kernel(block);
}

}  // namespace millrace::cuda
