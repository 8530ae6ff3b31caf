#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace::worker {

/// Is a tensor's array of weights in a device's memory: the numbers alone. AttachedWeights has the rules.
///
/// Memory   no call needs more of the device's: a call that fails would leave the array without an update.
/// Errors   after an error of the device every later call returns it.
/// Threads  one at a time; await_callers_work() also beside the others.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  /// Blocks until the caller's work so far with the array has ended.
  ///
  /// Errors  invalid_argument: its stream is none, or is being captured. internal: the device has failed.
  virtual Status await_callers_work() const = 0;
  /// Computes weights[begin + index] += factor * value for every entry, the product rounded first.
  virtual Status add(uint64_t begin, const StreamView& stream, float factor) = 0;
  /// Replaces the weights from `begin` on.
  virtual Status write(uint64_t begin, std::span<const float> values) = 0;
  /// Copies the weights from `begin` on. The session's thread does so: it waits for no work of the caller's.
  virtual Status read(uint64_t begin, std::span<float> out) = 0;
};

}  // namespace millrace::worker
