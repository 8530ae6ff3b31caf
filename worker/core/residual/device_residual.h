#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/result.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"

namespace millrace::worker {

/// Views a gradient in a device's memory.
struct DeviceGradient {
  const float* values = nullptr;
  uint64_t count = 0;
  int device = 0;
  void* stream = nullptr;  ///< whose work so far writes the values: a stream of that device
};

/// Holds the sum that waits to be sent, of a tensor whose gradients are in a device's memory. Numbers only: Bucket has
/// the rules and the accounts, as for a sum in the host's memory.
///
/// Errors   after an error of the device every later call that returns a status returns it, and the sum is lost.
/// Threads  one at a time; its owner is that of the bucket's residual.
class DeviceResidual {
 public:
  virtual ~DeviceResidual() = default;

  /// Adds weight * gradient, and waits until the gradient has been read. Returns how many values it left out.
  ///
  /// rule     of values that are NaN or infinite.
  /// Errors   non_finite: refused, the sum is unchanged. invalid_argument: of another device.
  virtual Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) = 0;
  /// Adds a stream of the host from index `begin` on.
  virtual void add(const StreamView& stream, uint64_t begin) = 0;
  /// Selects for the step and takes the selected entries out; sparse, in the memory of `arrays`.
  ///
  /// Errors   non_finite: the sums overflowed; nothing is taken.
  virtual Result<Stream> take_selected(uint64_t step, Stream&& arrays) = 0;
  /// Copies all values to the host; dense.
  virtual Result<Stream> copy() const = 0;
  /// Takes all values out.
  virtual void forget() = 0;
  /// Returns the device's first error, without a wait.
  virtual Status status() const = 0;
};

/// Says whether a device can select by this specification.
inline bool device_selects(const SelectionSpec& spec) {
  const bool known = spec.selection == SelectionId::kTopK || spec.selection == SelectionId::kThreshold;
  return known && !spec.alternate_signs;
}

/// Makes the sum of nothing on a device. REQUIRES: device_selects(spec).
using MakeDeviceResidual =
    std::function<Result<std::unique_ptr<DeviceResidual>>(const SelectionSpec& spec, uint64_t dimension)>;

}  // namespace millrace::worker
