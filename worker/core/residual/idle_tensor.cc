#include "worker/core/residual/idle_tensor.h"

#include <utility>

namespace millrace::worker {

Stream IdleTensor::take_residual() const {
  return bucket->take_residual(slot->offset(), slot->offset() + slot->dimension());
}

Stream IdleTensor::take_velocity() const {
  Velocity* const velocity = bucket->velocity();
  if (velocity == nullptr) return Stream::empty(slot->dimension());
  return velocity->take(slot->offset(), slot->offset() + slot->dimension());
}

Status IdleTensor::restore(Stream&& residual, const StreamView& velocity) const {
  Velocity* const own = bucket->velocity();
  if (velocity.count() > 0 && own == nullptr)
    return fail(ErrorCode::kInvalidArgument, "the job has no momentum: it takes no velocity");
  if (velocity.count() > 0) {
    const Stream entries = rebased(velocity, slot->offset(), bucket->dimension());
    if (auto added = bucket->residual_.add_velocity(entries.view()); !added) return added;
  }
  if (residual.count() > 0) slot->restore(residual.view());
  return {};
}

}  // namespace millrace::worker
