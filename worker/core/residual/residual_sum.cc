#include "worker/core/residual/residual_sum.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "worker/core/residual/local_clip.h"

namespace millrace::worker {
namespace {

constexpr const char* kOverflow = "the gradients pushed so far add up to infinity";

/// Returns the difference that added values make to the sum of the squares of the held ones, value by value.
double change_of_squares(std::span<const float> held, std::span<const float> added) {
  double sum = 0;
  for (size_t i = 0; i < added.size(); ++i) {
    const auto more = static_cast<double>(added[i]);
    sum += more * (2 * static_cast<double>(held[i]) + more);  // (held + more)^2 - held^2
  }
  return sum;
}

/// Returns the root of a sum that rounding may leave a little below 0, where entries cancel out.
double root_of(double squares) { return std::sqrt(squares < 0 ? 0 : squares); }

/// Returns the values that enter for clip * gradient by a velocity, which moves; null: by none.
Stream entering_by(Velocity* velocity, Stream&& gradient, float clip) {
  scale(gradient, clip);
  return velocity != nullptr ? velocity->enter(std::move(gradient)) : std::move(gradient);
}

}  // namespace

ResidualSum::ResidualSum(const SelectionSpec& spec, uint64_t dimension, Velocity* velocity)
    : spec_(spec), on_host_(dimension), velocity_(velocity) {
  if (spec.selection == SelectionId::kNone) return;
  auto selector = make_selector(spec, dimension);
  MILLRACE_CHECK(selector.has_value(), selector.error().message);
  selector_ = std::move(*selector);
}

ResidualSum::Form ResidualSum::form() const {
  if (device_ || on_host_.is_dense()) return Form::kDense;
  return on_host_.is_empty() ? Form::kEmpty : Form::kSparse;
}

void ResidualSum::add(Stream&& stream) {
  if (device_) return add_at({0, stream.view()});
  on_host_.add(std::move(stream));
}

void ResidualSum::add(const std::vector<PlacedStream>& pieces) {
  const bool any_dense = std::ranges::any_of(pieces, [](const PlacedStream& piece) { return piece.stream.dense; });
  if (any_dense && !device_) on_host_.make_dense();
  if (device_ || on_host_.is_dense()) {
    for (const PlacedStream& piece : pieces) add_at(piece);
    return;
  }
  on_host_.merge(pieces);
  on_host_.make_dense_where_smaller();
}

void ResidualSum::add_at(const PlacedStream& piece) {
  // No memory there: the host has some. After an error of the device the values are lost with the others there.
  if (device_ && (device_->add(piece.stream, piece.begin) || !leave_device())) return;
  on_host_.add_to_dense(piece.stream, 1, piece.begin);
}

void ResidualSum::add_to_dense(const StreamView& stream, float weight, uint64_t wanted) {
  if (!stream.dense) return on_host_.add_to_dense(stream, weight);
  on_host_.make_dense();
  on_host_.add_and_collect(stream.values, weight, wanted);
}

Result<Stream> ResidualSum::take_selected(const SelectContext& context, Stream& spare, TakenEntries entries) {
  if (device_) {
    auto taken = device_->take_selected(context.step, std::exchange(spare, {}), entries);
    if (taken || !is_shortage(taken.error())) return taken;
    // No memory to select there: the sum is the host's until the next gradient of a device.
    if (auto left = leave_device(); !left) return std::unexpected(left.error());
  }
  return on_host_.take_selected(*selector_, context);
}

Result<bool> ResidualSum::keep_errors(const EntryRange& entries, const EncodeOptions& options) {
  if (!device_ || !device_codes(options.spec, on_host_.dimension())) return false;
  const Status kept = device_->keep_errors(entries, options);
  if (kept) return true;
  return is_shortage(kept.error()) ? Result<bool>(false) : std::unexpected(kept.error());
}

Result<Stream> ResidualSum::take_finite(Values values) {
  holds_selection_ = false;
  if (!device_) {
    if (values == Values::kUnknown && !all_finite_on_threads(on_host_.view().values)) {
      return fail(ErrorCode::kNonFinite, kOverflow);
    }
    return on_host_.take_all();
  }
  if (!selector_) {
    const Status finite = device_->check_finite();
    holds_selection_ = finite.has_value();
    if (holds_selection_) return Stream::empty(on_host_.dimension());
    if (finite.error().code == ErrorCode::kNonFinite) return fail(ErrorCode::kNonFinite, kOverflow);
    // Without memory for the check the values are copied.
    if (!is_shortage(finite.error())) return std::unexpected(finite.error());
  }
  auto all = device_->copy();
  if (!all) return all;
  if (!all_finite_on_threads(all->values)) return fail(ErrorCode::kNonFinite, kOverflow);
  device_->forget();
  return all;
}

bool ResidualSum::is_shortage(const Error& error) const {
  return error.code == ErrorCode::kLimitExceeded && device_ && device_->status();
}

Result<Stream> ResidualSum::copy_part(const IndexRange& part) const {
  MILLRACE_CHECK(holds_selection_);
  return device_->copy_part(part);
}

Result<std::optional<Mass>> ResidualSum::take_coded(const IndexRange& part, const EncodeOptions& options,
                                                    protocol::CodecError errors, ByteBuffer& out) {
  MILLRACE_CHECK(holds_selection_);
  auto lost = device_->take_coded(part, options, errors, out);
  // The host codes the part then. It also has the sentence about a value that the codec cannot hold.
  if (!lost && is_shortage(lost.error())) return std::nullopt;
  return lost;
}

void ResidualSum::forget(const IndexRange& part) {
  MILLRACE_CHECK(holds_selection_);
  device_->forget(part);
}

Stream ResidualSum::take_all() {
  if (!device_) return on_host_.take_all();
  bring_values();
  const Stream all = on_host_.take_all();
  return to_sparse(all.view());
}

Stream ResidualSum::take_range(uint64_t begin, uint64_t end) {
  on_host_.drop_zeros();
  bring_values();
  return on_host_.take_range(begin, end);
}

void ResidualSum::bring_values() {
  if (!device_) return;
  auto all = device_->copy();
  if (!all) return;
  on_host_.add(std::move(*all));
  device_->forget();  // now that the host has its values
}

StreamView ResidualSum::view(Stream& copied) const {
  if (device_) {
    if (auto all = device_->copy()) {
      copied = std::move(*all);
      return copied.view();
    }
  }
  return on_host_.view();
}

double ResidualSum::norm(const StreamView& more) const {
  if (device_ && !more.dense) {
    const auto norm = device_->norm();
    const auto held = norm ? device_->read_at(more.indices) : Result<Buffer<float>>();
    if (norm && held) return root_of(*norm * *norm + change_of_squares(*held, more.values));
  }
  Stream copied;
  const StreamView sum = view(copied);
  if (sum.dense && !more.dense) {
    Buffer<float> held(more.indices.size());
    for (size_t i = 0; i < held.size(); ++i) held[i] = sum.values[more.indices[i]];
    return root_of(squared_norm_of(sum.values) + change_of_squares(held, more.values));
  }
  const auto together = sum_two(sum, more);
  MILLRACE_CHECK(together.has_value(), sum.dimension);
  return std::sqrt(squared_norm_of(together->values));
}

Retained ResidualSum::retained() const {
  if (device_) return device_->retained();
  return selector_ ? selector_->retained() : Retained{};
}

Status ResidualSum::restore_retained(std::span<const uint64_t> retained) {
  if (device_) return device_->restore_retained(retained);
  return selector_ ? selector_->restore_retained(retained) : RetainedReader(retained).end();
}

Status ResidualSum::move_to_device(const MakeDeviceResidual& make) {
  if (device_) return {};
  auto made = make(spec_, on_host_.dimension());
  if (!made) return std::unexpected(made.error());
  if (auto there = (*made)->status(); !there) return there;
  if (auto restored = (*made)->restore_retained(retained()); !restored) return restored;
  if (!on_host_.is_empty()) {
    if (auto moved = (*made)->add(on_host_.view(), 0); !moved) return moved;
  }
  on_host_.take_all();
  device_ = std::move(*made);
  return {};
}

Result<uint64_t> ResidualSum::add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule, Enters when) {
  if (when == Enters::kNow) return device_->add(gradient, weight, rule);
  auto left_out = device_->stage(gradient, weight, rule);
  has_staged_ = left_out.has_value();
  return left_out;
}

Result<double> ResidualSum::squares(const DeviceGradient& gradient) { return device_->squares(gradient); }

Result<Stream> ResidualSum::copy(const DeviceGradient& gradient) const { return device_->copy(gradient); }

Result<std::optional<Stream>> ResidualSum::copy_staged() const {
  if (!has_staged_) return std::nullopt;
  auto copied = device_->copy_staged();
  if (!copied) return std::unexpected(copied.error());
  return std::move(*copied);
}

Result<ResidualSum::Entering> ResidualSum::enter(Stream&& gradient, float clip, Watch watch) {
  if (!device_) return Entering{entering_by(velocity_, std::move(gradient), clip)};
  Entering added;
  added.is_added = true;
  if (watch == Watch::kYes) {
    auto copied = has_staged_ ? device_->copy_staged() : Result<Stream>(gradient);
    if (!copied) return std::unexpected(copied.error());
    std::optional<Velocity> velocity;
    if (velocity_ != nullptr) velocity.emplace(velocity_->copied());
    added.values = entering_by(velocity ? &*velocity : nullptr, std::move(*copied), clip);
  }
  const Status entered = enter_there(gradient.view(), clip);
  if (entered) return added;
  if (!is_shortage(entered.error())) return std::unexpected(entered.error());
  // No memory there: gradient, velocity and sum are the host's until the next gradient of a device.
  if (std::exchange(has_staged_, false)) {
    auto staged = device_->copy_staged();
    if (!staged) return std::unexpected(staged.error());
    gradient = std::move(*staged);
  }
  if (auto left = leave_device(); !left) return std::unexpected(left.error());
  return Entering{entering_by(velocity_, std::move(gradient), clip)};
}

Status ResidualSum::add_velocity(const StreamView& entries) {
  const Status added = velocity_->add(entries);
  if (added || !is_shortage(added.error())) return added;
  if (auto left = leave_device(); !left) return left;
  return velocity_->add(entries);
}

Status ResidualSum::enter_there(const StreamView& gradient, float clip) {
  if (velocity_ != nullptr) {
    if (auto moved = velocity_->move_to(*device_); !moved) return moved;
  }
  if (!has_staged_) {
    if (auto staged = device_->stage(gradient); !staged) return staged;
  }
  const Status entered = velocity_ != nullptr ? velocity_->enter_there(clip) : device_->enter(clip);
  if (!entered) return entered;
  has_staged_ = false;
  return {};
}

Status ResidualSum::leave_device() {
  MILLRACE_CHECK(!has_staged_);
  auto all = device_->copy();
  if (!all) return std::unexpected(all.error());
  if (velocity_ != nullptr) {
    if (auto left = velocity_->leave_device(); !left) return left;
  }
  on_host_.add(std::move(*all));
  const Retained kept = device_->retained();
  device_.reset();
  return restore_retained(kept);
}

}  // namespace millrace::worker
