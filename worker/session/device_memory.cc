#include "worker/session/device_memory.h"

#include <string>
#include <utility>

#include "kernels/cuda/device_queue.h"
#include "millrace/device.h"
#include "worker/core/residual/queue_residual.h"

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

}  // namespace millrace::worker
