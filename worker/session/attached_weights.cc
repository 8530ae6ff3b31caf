#include "worker/session/attached_weights.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/stream/stream.h"

namespace millrace::worker {
namespace {

std::unexpected<Error> not_finite(uint64_t step, float scale, double denominator) {
  return fail(ErrorCode::kNonFinite, "the scale of step " + std::to_string(step) + " is " + std::to_string(scale) +
                                         " over a denominator of " + std::to_string(denominator) +
                                         ", which is not finite: the update was not added to the weights. A schedule "
                                         "must return a finite scale, and 0 for no update");
}

}  // namespace

void AttachedWeights::set_positions(std::vector<Run> runs) {
  const std::lock_guard array(array_);
  const std::lock_guard behind(behind_);
  runs_ = std::move(runs);
  for (auto arrival = waiting_.rbegin(); arrival != waiting_.rend(); ++arrival) {
    run_at(arrival->piece.begin).steps = arrival->replaces ? 0 : arrival->step;
  }
}

void AttachedWeights::attach(Target target, uint64_t pushes_made) {
  const std::lock_guard array(array_);
  const std::lock_guard behind(behind_);
  const auto is_past = [&](const Arrival& arrival) { return arrival.push < pushes_made; };
  for (const Arrival& arrival : waiting_) {
    if (is_past(arrival)) run_at(arrival.piece.begin).steps = arrival.step + 1;
  }
  std::erase_if(waiting_, is_past);
  target_ = std::move(target);
}

void AttachedWeights::set_scale(float scale) {
  const std::lock_guard array(array_);
  target_.scale = scale;
}

bool AttachedWeights::attached() {
  const std::lock_guard array(array_);
  return target_.is_there();
}

AttachedWeights::Run& AttachedWeights::run_at(uint64_t begin) {
  const auto found = std::ranges::lower_bound(runs_, begin, {}, &Run::begin);
  MILLRACE_CHECK(found != runs_.end() && found->begin == begin, begin);
  return *found;
}

Status AttachedWeights::apply(const Arrival& arrival, std::span<float> run) const {
  const UpdatePiece& piece = arrival.piece;
  if (arrival.replaces) {
    MILLRACE_CHECK(piece.dense && piece.values.size() == run.size(), piece.values.size(), run.size());
    std::ranges::copy(piece.values, run.begin());
    return {};
  }
  const float scale = target_.schedule ? target_.schedule(arrival.step, piece.begin, run) : target_.scale;
  const float factor = static_cast<float>(static_cast<double>(scale) / piece.denominator);
  if (!std::isfinite(factor)) return not_finite(arrival.step, scale, piece.denominator);
  add_scaled(run, {piece.dimension, piece.dense, piece.indices, piece.values}, factor);
  return {};
}

Status AttachedWeights::apply_on_device(const Arrival& arrival) const {
  const UpdatePiece& piece = arrival.piece;
  if (arrival.replaces) return target_.on_device->write(piece.begin, piece.values);
  const float factor = static_cast<float>(static_cast<double>(target_.scale) / piece.denominator);
  if (!std::isfinite(factor)) return not_finite(arrival.step, target_.scale, piece.denominator);
  return target_.on_device->add(piece.begin, {piece.dimension, piece.dense, piece.indices, piece.values}, factor);
}

Status AttachedWeights::apply_to_array(const Arrival& arrival) {
  if (!usable_) return usable_;
  if (target_.is_there()) {
    usable_ = target_.on_device ? apply_on_device(arrival)
                                : apply(arrival, target_.weights.subspan(arrival.piece.begin, arrival.piece.dimension));
    if (!usable_) return usable_;
    replaced_ = replaced_ || arrival.replaces;
  }
  run_at(arrival.piece.begin).steps = arrival.replaces ? arrival.steps : arrival.step + 1;
  return {};
}

Status AttachedWeights::arrive(Arrival&& arrival, uint64_t pushes_made) {
  {
    const std::lock_guard behind(behind_);
    const bool in_turn = waiting_.empty() && !arrival.replaces;
    const bool wanted_now = !target_.is_there() || target_.when == ApplyWhen::kOnArrival;
    if (!in_turn || !wanted_now || arrival.push >= pushes_made) {
      if (arrival.replaces) {
        std::erase_if(waiting_, [&](const Arrival& older) { return older.piece.begin == arrival.piece.begin; });
        replacement_waits_ = true;
      }
      waiting_.push_back(std::move(arrival));
      return {};
    }
  }
  // No other thread adds to the waiting arrivals: the order is kept.
  const std::lock_guard array(array_);
  return apply_to_array(arrival);
}

Status AttachedWeights::bring_up(std::optional<uint64_t> push) {
  const std::lock_guard array(array_);
  std::deque<Arrival> due;
  {
    const std::lock_guard behind(behind_);
    const bool whole = std::exchange(replacement_waits_, false) || target_.when == ApplyWhen::kOnArrival;
    const auto is_due = [&](const Arrival& arrival) { return whole || (push && arrival.push <= *push); };
    std::ranges::copy_if(waiting_, std::back_inserter(due), is_due);
    std::erase_if(waiting_, is_due);
  }
  for (const Arrival& arrival : due) {
    if (auto applied = apply_to_array(arrival); !applied) return applied;
  }
  return usable_;
}

std::shared_ptr<DeviceWeights> AttachedWeights::due_on_device(std::optional<uint64_t> push) {
  const std::lock_guard behind(behind_);
  const auto is_due = [&](const Arrival& arrival) { return push && arrival.push <= *push; };
  return replacement_waits_ || std::ranges::any_of(waiting_, is_due) ? target_.on_device : nullptr;
}

std::shared_ptr<DeviceWeights> AttachedWeights::on_device() {
  const std::lock_guard behind(behind_);
  return target_.on_device;
}

bool AttachedWeights::take_replaced() {
  const std::lock_guard array(array_);
  return std::exchange(replaced_, false);
}

Status AttachedWeights::copy_run(uint64_t begin, std::span<float> out, std::span<const Arrival> coming) {
  const std::lock_guard array(array_);
  if (!usable_) return usable_;
  std::vector<Arrival> missing;
  {
    const std::lock_guard behind(behind_);
    for (const Arrival& arrival : waiting_) {
      if (arrival.piece.begin == begin) missing.push_back(arrival);
    }
  }
  if (target_.on_device) {
    if (auto copied = target_.on_device->read(begin, out); !copied) return copied;
  } else {
    MILLRACE_CHECK(begin + out.size() <= target_.weights.size(), begin, out.size(), target_.weights.size());
    std::ranges::copy(target_.weights.subspan(begin, out.size()), out.begin());
  }
  for (const Arrival& arrival : missing) {
    if (auto applied = apply(arrival, out); !applied) return applied;
  }
  for (const Arrival& arrival : coming) {
    if (arrival.piece.begin != begin) continue;
    if (auto applied = apply(arrival, out); !applied) return applied;
  }
  return {};
}

uint64_t AttachedWeights::steps() {
  const std::lock_guard array(array_);
  MILLRACE_CHECK(!runs_.empty());
  return std::ranges::min_element(runs_, {}, &Run::steps)->steps;
}

}  // namespace millrace::worker
