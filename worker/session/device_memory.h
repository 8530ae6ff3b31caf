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

/// Blocks until the work so far of a device's stream has ended.
///
/// Errors   as device_of_memory(). invalid_argument: no stream of that device.
Status await_stream(int device, void* stream);

/// Says how much of the devices a session uses.
struct DeviceUse {
  uint64_t bytes_up = 0;  ///< over the bus, to the devices
  uint64_t bytes_down = 0;
  uint64_t memory_bytes = 0;  ///< of the devices, at present
};

/// Holds a session's memory on CUDA devices: one pool a device.
///
/// Memory   a pool keeps 8 bytes an index of its residuals, 16 with momentum, and kScratchKept. Memory beyond goes back
///          to the device. Weights take 2 MiB at most. Of the host: 1 MiB of pinned memory a tensor.
/// Threads  any.
class DevicePools {
 public:
  static constexpr uint64_t kScratchKept = uint64_t{64} << 20;

  DevicePools();
  ~DevicePools();
  DevicePools(const DevicePools&) = delete;
  DevicePools& operator=(const DevicePools&) = delete;

  /// Makes the sum of nothing on a device. REQUIRES: as MakeDeviceResidual.
  ///
  /// Errors   as device_of_memory(). limit_exceeded: no memory there.
  Result<std::unique_ptr<DeviceResidual>> make_residual(int device, const SelectionSpec& spec, uint64_t dimension);
  /// Makes weights of an array in a device's memory. Waits for the work so far of its stream.
  ///
  /// Errors   as device_of_memory(). invalid_argument: also a stream that is none of the device. limit_exceeded: no
  ///          memory there.
  Result<std::unique_ptr<DeviceWeights>> make_weights(const DeviceArray& weights);
  DeviceUse use() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::worker
