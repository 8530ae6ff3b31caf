#pragma once

#include "kernels/base/result.h"
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
  /// Errors   invalid_argument: a velocity in a job without momentum. Nothing is restored then.
  Status restore(Stream&& residual, const StreamView& velocity) const;
};

}  // namespace millrace::worker
