#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/stream/stream.h"
#include "worker/core/residual/bucket.h"

namespace millrace::worker {

/// Refers to a tensor of which no step is in flight, while its worker does not rejoin. Residual and velocity may
/// change. Valid until the next push.
struct IdleTensor {
  Bucket* bucket = nullptr;
  PushSlot* slot = nullptr;

  /// Hands out the residual and sets it to zero, as if it had never entered.
  Stream take_residual() const;
  /// Does the same with the velocity; no entries in a job without momentum.
  Stream take_velocity() const;
  /// Adds entries to the residual, as if they had entered without momentum, and to the velocity. Both sparse.
  ///
  /// Errors   invalid_argument: a velocity in a job without momentum. Nothing is restored then. Those of a device.
  Status restore(Stream&& residual, const StreamView& velocity) const;

  /// Returns the state of the tensor's bucket beside residual and velocity that later steps depend on. It is of steps,
  /// selection and grid.
  Retained retained() const;
  /// Continues with that state of an earlier job. The next step has the number behind its steps in draws, signs,
  /// warm-ups and masks. Returns false, and changes nothing, where that job had other settings.
  ///
  /// Errors   invalid_argument: it is no such state. Nothing changes then.
  Result<bool> restore_retained(std::span<const uint64_t> retained) const;
};

}  // namespace millrace::worker
