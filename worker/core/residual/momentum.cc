#include "worker/core/residual/momentum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/magnitude/value_chunks.h"
#include "kernels/reduce/reduce.h"

namespace millrace::worker {
namespace {

constexpr float kFaded = std::numeric_limits<float>::min();

float next_velocity(float factor, float velocity, float gradient) {
  const float kept = factor * velocity;
  const float next = kept + gradient;
  return std::abs(next) < kFaded ? 0.0f : next;
}

void append(Stream& stream, uint32_t index, float value) {
  if (value == 0) return;
  stream.indices.push_back(index);
  stream.values.push_back(value);
}

/// The position of `index` in `indices`, at `from` or after it; their end where it is missing.
size_t find_from(IndexSpan indices, size_t from, uint64_t index) {
  const auto found = std::lower_bound(indices.begin() + static_cast<std::ptrdiff_t>(from), indices.end(), index);
  return static_cast<size_t>(found - indices.begin());
}

}  // namespace

Velocity::Velocity(const protocol::MomentumSpec& spec, uint64_t dimension)
    : shares_{.kept = static_cast<float>(spec.factor)}, velocity_(Stream::empty(dimension)) {
  const bool looks_ahead = spec.momentum == protocol::Momentum::kNesterov;
  if (looks_ahead || spec.momentum == protocol::Momentum::kNesterovPrinted) shares_.of_gradient = 1;
  if (looks_ahead) shares_.of_velocity = shares_.kept;
}

Stream Velocity::enter(Stream&& gradient) {
  MILLRACE_CHECK(gradient.dimension == velocity_.dimension, gradient.dimension, velocity_.dimension);
  resolve_here();
  if (!velocity_.dense && (gradient.dense || velocity_.count() >= dense_from_count(velocity_.dimension))) {
    velocity_ = to_dense(velocity_.view());
  }
  if (!velocity_.dense) return enter_sparse(gradient);
  Stream entering = gradient.dense ? std::move(gradient) : to_dense(gradient.view());
  enter_dense(entering.values, entering.values);
  return entering;
}

Stream Velocity::enter(std::span<const float> gradient) {
  MILLRACE_CHECK(gradient.size() == velocity_.dimension, gradient.size(), velocity_.dimension);
  resolve_here();
  if (!velocity_.dense) velocity_ = to_dense(velocity_.view());
  Stream entering{velocity_.dimension, true, {}, Buffer<float>(gradient.size())};
  enter_dense(gradient, entering.values);
  return entering;
}

void Velocity::resolve_here() {
  MILLRACE_CHECK(there_ == nullptr, velocity_.dimension);
  while (resolve_one_deferred()) {
  }
}

Status Velocity::move_to(DeviceResidual& there) {
  if (there_ != nullptr) return {};
  if (auto moved = there.add_velocity(velocity_.view()); !moved) return moved;
  velocity_ = Stream::empty(velocity_.dimension);
  there_ = &there;
  return {};
}

Status Velocity::enter_there(float scale) {
  if (auto masked = resolve_all(); !masked) return masked;
  return there_->enter(scale, shares_);
}

Status Velocity::leave_device() {
  if (there_ == nullptr) return {};
  auto all = there_->copy_velocity();
  if (!all) return std::unexpected(all.error());
  velocity_ = std::move(*all);
  there_ = nullptr;
  return {};
}

Velocity Velocity::copied() const {
  Velocity copied = *this;
  if (copied.there_ != nullptr && !copied.leave_device()) copied.there_ = nullptr;
  return copied;
}

void Velocity::enter_dense(std::span<const float> gradient, std::span<float> entering) {
  const std::span<float> velocity = velocity_.values;
  const auto enter_chunk = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float value = gradient[i];
      const float next = next_velocity(shares_.kept, velocity[i], value);
      velocity[i] = next;
      entering[i] = shares_.of_gradient * value + shares_.of_velocity * next;
    }
  };
  for_value_chunks(velocity.size(), enter_chunk, kMemoryPass);
}

Stream Velocity::enter_sparse(const Stream& gradient) {
  Stream next = Stream::empty(velocity_.dimension);
  Stream entering = Stream::empty(velocity_.dimension);
  const auto take = [&](uint32_t index, float velocity, float value) {
    const float moved = next_velocity(shares_.kept, velocity, value);
    append(next, index, moved);
    append(entering, index, shares_.of_gradient * value + shares_.of_velocity * moved);
  };
  size_t had = 0;
  size_t new_one = 0;
  while (had < velocity_.indices.size() || new_one < gradient.indices.size()) {
    const bool no_more = new_one == gradient.indices.size();
    const bool none_yet = had == velocity_.indices.size();
    if (none_yet || (!no_more && gradient.indices[new_one] < velocity_.indices[had])) {
      take(gradient.indices[new_one], 0, gradient.values[new_one]);
      ++new_one;
    } else if (no_more || velocity_.indices[had] < gradient.indices[new_one]) {
      take(velocity_.indices[had], velocity_.values[had], 0);
      ++had;
    } else {
      take(velocity_.indices[had], velocity_.values[had], gradient.values[new_one]);
      ++had;
      ++new_one;
    }
  }
  velocity_ = std::move(next);
  return entering;
}

void Velocity::applied(uint64_t begin, const SharedStream& sent, const SharedStream* carried) {
  if (sent.view.count() == 0) return;
  masks_.push_back({begin, sent, carried == nullptr ? std::nullopt : std::optional(*carried)});
}

bool Velocity::resolve_one_deferred() {
  // A device's queue belongs to the thread that pushes until the step selects.
  if (there_ != nullptr || masks_.empty()) return false;
  end(velocity_, masks_.front());
  masks_.pop_front();
  return true;
}

Status Velocity::resolve_all() {
  while (resolve_one_deferred()) {
  }
  for (; !masks_.empty(); masks_.pop_front()) {
    IndexBuffer ended;
    for_each(masks_.front(), [&ended](uint64_t index) { ended.push_back(static_cast<uint32_t>(index)); });
    if (auto done = there_->end_velocity(ended); !done) return done;
  }
  return {};
}

template <typename Call>
void Velocity::for_each(const Mask& mask, Call&& call) {
  const StreamView& sent = mask.sent.view;
  size_t in_carried = 0;
  for (size_t i = 0; i < sent.values.size(); ++i) {
    if (sent.values[i] == 0) continue;  // of a dense stream not selected; of a quantizer, nothing was applied
    const uint64_t local = sent.dense ? i : sent.indices[i];
    if (mask.carried && !mask.carried->view.dense) {
      const IndexSpan carried = mask.carried->view.indices;
      in_carried = find_from(carried, in_carried, local);
      if (in_carried == carried.size()) return;
      if (carried[in_carried] != local) continue;
    }
    call(mask.begin + local);
  }
}

void Velocity::end(Stream& velocity, const Mask& mask) {
  if (velocity.dense) return for_each(mask, [&](uint64_t index) { velocity.values[index] = 0; });
  size_t at = 0;
  for_each(mask, [&](uint64_t index) {
    at = find_from(velocity.indices, at, index);
    if (at < velocity.indices.size() && velocity.indices[at] == index) velocity.values[at] = 0;
  });
}

Stream Velocity::take(uint64_t begin, uint64_t end) {
  if (there_ != nullptr) {
    // Of a tensor alone in its bucket: all of it. Masks on the device might find no memory there.
    MILLRACE_CHECK(begin == 0 && end == velocity_.dimension, begin, end);
    Stream all = values();
    masks_.clear();
    there_->forget_velocity();
    return all.dense ? to_sparse(all.view()) : all;
  }
  while (resolve_one_deferred()) {
  }
  Stream taken = slice_of(velocity_.view(), begin, end);
  if (taken.dense) taken = to_sparse(taken.view());
  if (velocity_.dense) {
    std::fill(velocity_.values.begin() + static_cast<std::ptrdiff_t>(begin),
              velocity_.values.begin() + static_cast<std::ptrdiff_t>(end), 0.0f);
    return taken;
  }
  Stream kept = Stream::empty(velocity_.dimension);
  for (size_t at = 0; at < velocity_.indices.size(); ++at) {
    if (velocity_.indices[at] < begin || velocity_.indices[at] >= end)
      append(kept, velocity_.indices[at], velocity_.values[at]);
  }
  velocity_ = std::move(kept);
  return taken;
}

Status Velocity::add(const StreamView& entries) {
  if (auto masked = resolve_all(); !masked) return masked;
  if (there_ != nullptr) return there_->add_velocity(entries);
  if (velocity_.dense) {
    add_scaled(velocity_.values, entries, 1);
    return {};
  }
  auto sum = sum_two(velocity_.view(), entries);
  MILLRACE_CHECK(sum.has_value(), entries.dimension);
  velocity_ = std::move(*sum);
  return {};
}

Stream Velocity::values() const {
  if (there_ != nullptr) return copied().values();
  Stream masked = velocity_;
  for (const Mask& mask : masks_) end(masked, mask);
  if (masked.dense) return masked;
  Stream alive = Stream::empty(masked.dimension);
  for (size_t i = 0; i < masked.values.size(); ++i) append(alive, masked.indices[i], masked.values[i]);
  return alive;
}

}  // namespace millrace::worker
