#include "worker/session/device_memory.h"

#include <string>
#include <utility>

#include "kernels/cuda/device_queue.h"
#include "worker/core/residual/queue_residual.h"
#include "worker/session/queue_weights.h"

namespace millrace::worker {

Result<int> device_of_memory(const void* pointer, int device) {
  const auto found = cuda::device_of_memory(pointer);
  if (!found || device == DeviceSpan::kOfPointer || *found == device) return found;
  return fail(ErrorCode::kInvalidArgument, "the array is in the memory of CUDA device " + std::to_string(*found) +
                                               ", not of device " + std::to_string(device));
}

Result<std::unique_ptr<DeviceResidual>> make_device_residual(int device, const SelectionSpec& spec,
                                                             uint64_t dimension) {
  const cuda::DeviceScope here(device);
  auto queue = cuda::DeviceQueue::make(device);
  if (!queue) return std::unexpected(queue.error());
  return std::make_unique<QueueResidual<cuda::DeviceQueue>>(std::move(*queue), spec, dimension);
}

Result<std::unique_ptr<DeviceWeights>> make_device_weights(const DeviceArray& weights) {
  const auto device = device_of_memory(weights.pointer, weights.device);
  if (!device) return std::unexpected(device.error());
  const cuda::DeviceScope here(*device);
  auto queue = cuda::DeviceQueue::make(*device);
  if (!queue) return std::unexpected(queue.error());
  return std::make_unique<QueueWeights<cuda::DeviceQueue>>(std::move(*queue), weights.pointer, weights.stream);
}

}  // namespace millrace::worker
