#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/result.h"
#include "kernels/select/select.h"
#include "millrace/device.h"
#include "worker/core/residual/device_residual.h"
#include "worker/session/device_weights.h"

/// CUDA devices. device_memory.cc is for builds with CUDA, device_memory_missing.cc for others.
namespace millrace::worker {

/// Returns the device of the memory that the pointer is into.
///
/// device   that device; or DeviceSpan::kOfPointer.
/// Errors   unsupported: this build has no CUDA. unavailable: no driver, no such device. invalid_argument: memory of
///          the host, or of another device.
Result<int> device_of_memory(const void* pointer, int device);

/// Makes the sum of nothing on a device. REQUIRES: device_selects(spec).
///
/// Errors   as device_of_memory(). limit_exceeded: no memory there.
Result<std::unique_ptr<DeviceResidual>> make_device_residual(int device, const SelectionSpec& spec, uint64_t dimension);

/// Makes weights of an array in a device's memory.
///
/// Errors   as device_of_memory().
Result<std::unique_ptr<DeviceWeights>> make_device_weights(const DeviceArray& weights);

}  // namespace millrace::worker
