#include "worker/session/device_memory.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/queue/device_queue.h"
#include "worker/core/residual/queue_residual.h"
#include "worker/session/queue_weights.h"

namespace millrace::worker {

Result<int> device_of_memory(const void* pointer, int device) {
  const auto found = cuda::device_of_memory(pointer);
  if (!found || device == DeviceSpan::kOfPointer || *found == device) return found;
  return fail(ErrorCode::kInvalidArgument, "the array is in the memory of CUDA device " + std::to_string(*found) +
                                               ", not of device " + std::to_string(device));
}

Status await_stream(int device, void* stream) { return cuda::await_stream(device, stream); }

class DevicePools::Impl {
 public:
  Result<std::unique_ptr<cuda::DeviceQueue>> queue(int device, uint64_t residual_bytes) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<cuda::DevicePool>& pool = pools_[device];
    if (!pool) {
      auto made = cuda::DevicePool::make(device, kScratchKept);
      if (!made) return std::unexpected(made.error());
      pool = std::move(*made);
    }
    return cuda::DeviceQueue::of_pool(pool, 2 * residual_bytes);
  }
  DeviceUse use() {
    const std::lock_guard lock(mutex_);
    DeviceUse use;
    for (const auto& [device, pool] : pools_) {
      if (!pool) continue;
      use.bytes_up += pool->bytes_up();
      use.bytes_down += pool->bytes_down();
      use.memory_bytes += pool->memory_bytes();
    }
    return use;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::shared_ptr<cuda::DevicePool>> pools_;
};

DevicePools::DevicePools() : impl_(std::make_unique<Impl>()) {}
DevicePools::~DevicePools() = default;

Result<std::unique_ptr<DeviceResidual>> DevicePools::make_residual(int device, const SelectionSpec& spec,
                                                                   uint64_t dimension) {
  const cuda::DeviceScope here(device);
  auto queue = impl_->queue(device, dimension * sizeof(float));
  if (!queue) return std::unexpected(queue.error());
  auto made = std::make_unique<QueueResidual<cuda::DeviceQueue>>(std::move(*queue), spec, dimension);
  if (auto there = made->status(); !there) return std::unexpected(there.error());
  return made;
}

Result<std::unique_ptr<DeviceWeights>> DevicePools::make_weights(const DeviceArray& weights) {
  const auto device = device_of_memory(weights.pointer, weights.device);
  if (!device) return std::unexpected(device.error());
  const cuda::DeviceScope here(*device);
  auto queue = impl_->queue(*device, 0);
  if (!queue) return std::unexpected(queue.error());
  return QueueWeights<cuda::DeviceQueue>::make(std::move(*queue), weights.pointer, weights.count, weights.stream);
}

DeviceUse DevicePools::use() const { return impl_->use(); }

}  // namespace millrace::worker
