#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "protocol/job/step_sends.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/local_clip.h"

/// Momentum and clipping: select() computes the values of a gradient that enter the residual.
namespace millrace::worker {

Status Bucket::let_enter(float clip) {
  const auto watch = ledger_.is_observed() ? ResidualSum::Watch::kYes : ResidualSum::Watch::kNo;
  auto entering = residual_.enter(join_staged(), clip, watch);
  if (!entering) return std::unexpected(entering.error());
  if (spec_.audit || ledger_.is_observed()) {
    for (auto& slot : slots_) {
      const Stream of_slot = slice_of(entering->values.view(), slot->offset_, slot->offset_ + slot->dimension_);
      slot->book_entered(of_slot.view());
      ledger_.enter(slot->offset_, of_slot.view(), 1);
    }
  }
  if (!entering->is_added) add_to_residual(std::move(entering->values));
  return {};
}

bool Bucket::masks(uint64_t step) const {
  if (!velocity_ || !spec_.momentum.masked) return false;
  return protocol::keeps_remainder(protocol::step_sends(residual_.spec(), dimension_, steps_before_ + step), update_);
}

void Bucket::mask_applied(size_t at, uint64_t step, const SharedStream& sent, const SharedStream* carried) {
  if (masks(step)) velocity_->applied(parts_[at].begin, sent, carried);
}

BucketState Bucket::state(float clip) const {
  BucketState state{residual(), std::nullopt};
  std::optional<Velocity> velocity;
  if (velocity_) velocity.emplace(velocity_->copied());
  std::vector<Stream> staged;
  if (auto copied = residual_.copy_staged(); copied && *copied) staged.push_back(std::move(**copied));
  for (const auto& slot : slots_) {
    if (!enters_in_select() || slot->staged_.dimension == 0) continue;
    staged.push_back(rebased(slot->staged_.view(), slot->offset_, dimension_));
  }
  if (!staged.empty()) {
    std::vector<StreamView> views;
    for (Stream& stream : staged) {
      scale(stream, clip);
      views.push_back(stream.view());
    }
    auto entering = sum_many(views);
    MILLRACE_CHECK(entering.has_value(), dimension_);
    // Where fused neighbours are still to be pushed the gradient stands alone: their velocities must not move twice.
    const bool whole_push = std::ranges::all_of(slots_, [](const auto& slot) { return slot->filled_; });
    if (velocity && whole_push) *entering = velocity->enter(std::move(*entering));
    auto sum = sum_two(std::as_const(state.residual).view(), std::as_const(*entering).view());
    MILLRACE_CHECK(sum.has_value(), dimension_);
    state.residual = std::move(*sum);
  }
  if (velocity) state.velocity = velocity->values();
  return state;
}

}  // namespace millrace::worker
