#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/accumulator.h"
#include "kernels/cuda/selector.h"
#include "kernels/cuda/tail_sums.h"
#include "worker/core/residual/device_code.h"
#include "worker/core/residual/device_residual.h"

namespace millrace::worker {

/// Holds a residual where a queue's kernels run: DeviceQueue on a card; HostQueue on the host, for tests.
template <class Queue>
class QueueResidual final : public DeviceResidual {
 public:
  QueueResidual(std::unique_ptr<Queue> queue, const SelectionSpec& spec, uint64_t dimension)
      : queue_(std::move(queue)), sum_(*queue_, dimension), selector_(spec, dimension) {}

  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (auto ours = is_of_this_device(gradient); !ours) return std::unexpected(ours.error());
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return add_to(sum_, gradient, weight, rule);
  }

  Status add(const StreamView& stream, uint64_t begin) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.add(stream, begin);
  }

  Result<Stream> take_selected(uint64_t step, Stream&& arrays, TakenEntries entries) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const Retained before = selector_.retained();
    taken_.reset();
    auto selected = selector_.select(*queue_, sum_, step);
    auto values = queue_->template allocate<float>(selected ? selected->count : 0);
    auto taken =
        selected ? sum_.take_at(*selected, values.data(), std::move(arrays)) : std::unexpected(selected.error());
    if (taken && entries == TakenEntries::kKept) taken_.emplace(std::move(*selected), std::move(values));
    if (!taken) {
      // Without memory nothing is taken, and the host selects for this step again.
      (void)selector_.restore_retained(before);
    }
    return taken;
  }

  Status keep_errors(const EntryRange& entries, const EncodeOptions& options) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    MILLRACE_CHECK(taken_ && entries.first <= entries.last && entries.last <= taken_->at.count, entries.first,
                   entries.last);
    return sum_.keep_errors(taken_->at.positions.data() + entries.first, taken_->values.data() + entries.first,
                            entries.last - entries.first, [&](const float* values, uint64_t count, float* decoded) {
                              return decoded_values(*queue_, {values, count, decoded}, options);
                            });
  }

  Status check_finite() const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.check_finite();
  }

  Result<std::optional<Mass>> take_coded(const IndexRange& range, const EncodeOptions& options,
                                         protocol::CodecError errors, ByteBuffer& out) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const auto found = sum_.count_nonzero(range.begin, range.end);
    if (!found) return std::unexpected(found.error());
    if (*found < dense_from_count(range.end - range.begin)) return std::nullopt;
    const bool stay = errors == protocol::CodecError::kRetain;
    const auto lost =
        sum_.take_coded(range.begin, range.end, stay ? cuda::CodeErrors::kStay : cuda::CodeErrors::kDropped,
                        [&](const float* values, uint64_t count, float* decoded) {
                          return append_code(*queue_, {values, count, decoded}, options, out);
                        });
    if (!lost) return std::unexpected(lost.error());
    return Mass{lost->sum, lost->magnitude};
  }

  Result<Stream> copy_part(const IndexRange& range) const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.read_part(range.begin, range.end);
  }

  void forget(const IndexRange& range) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    sum_.forget(range.begin, range.end);
  }

  Result<Stream> copy() const override { return copy_of(sum_); }

  Result<Buffer<float>> read_at(IndexSpan indices) const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.read_at(indices);
  }

  Result<double> norm() const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.norm();
  }

  Result<Stream> copy(const DeviceGradient& gradient) const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    Stream copied{gradient.count, true, {}, {}};
    copied.values.resize(gradient.count);
    queue_->download(std::span<float>(copied.values), gradient.values);
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return copied;
  }

  Result<uint64_t> stage(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (auto ours = is_of_this_device(gradient); !ours) return std::unexpected(ours.error());
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto there = make(staged_); !there) return std::unexpected(there.error());
    staged_->forget();
    return add_to(*staged_, gradient, weight, rule);
  }

  Status stage(const StreamView& gradient) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto there = make(staged_); !there) return there;
    staged_->forget();
    return staged_->add(gradient);
  }

  Result<double> squares(const DeviceGradient& gradient) override {
    if (auto ours = is_of_this_device(gradient); !ours) return std::unexpected(ours.error());
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const auto sums = cuda::tail_sums(*queue_, gradient.values, gradient.count, kInfinityKey);
    return sums ? Result<double>(sums->squares) : std::unexpected(sums.error());
  }

  Status enter(float scale, const cuda::MomentumShares& shares) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.enter(*staged_, scale, *velocity_, shares);
  }

  Status enter(float scale) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const auto added = sum_.add(staged_->values(), scale, cuda::NonFiniteValues::kRefused);
    return added ? Status() : std::unexpected(added.error());
  }

  Result<Stream> copy_staged() const override { return copy_of(*staged_); }

  Status add_velocity(const StreamView& stream) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto there = make(velocity_); !there) return there;
    return stream.count() == 0 ? Status() : velocity_->add(stream);
  }

  Status end_velocity(IndexSpan indices) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return velocity_->clear_at(indices);
  }

  Result<Stream> copy_velocity() const override { return copy_of(*velocity_); }

  void forget_velocity() override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    velocity_->forget();
  }

  void forget() override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    sum_.forget();
  }

  Retained retained() const override { return selector_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) override { return selector_.restore_retained(retained); }

  Status status() const override { return queue_->status(); }

 private:
  using Sum = cuda::Accumulator<Queue>;
  struct Taken {
    cuda::Positions<Queue> at;
    cuda::MemoryOf<Queue, float> values;
  };

  Status is_of_this_device(const DeviceGradient& gradient) const {
    if (gradient.device == queue_->device()) return {};
    return fail(ErrorCode::kInvalidArgument, "the tensor's residual is on device " + std::to_string(queue_->device()) +
                                                 ", this gradient on device " + std::to_string(gradient.device));
  }
  Result<uint64_t> add_to(Sum& sum, const DeviceGradient& gradient, float weight, protocol::NonFinite rule) {
    const bool refuses = rule == protocol::NonFinite::kRefuse;
    return sum.add(gradient.values, weight,
                   refuses ? cuda::NonFiniteValues::kRefused : cuda::NonFiniteValues::kLeftOut);
  }
  /// Makes an array of zeros, if there is none.
  Status make(std::unique_ptr<Sum>& sum) {
    if (sum) return {};
    auto made = std::make_unique<Sum>(*queue_, sum_.dimension());
    if (auto there = queue_->finish(); !there) return there;
    queue_->keep_more(sum_.dimension() * sizeof(float));
    sum = std::move(made);
    return {};
  }
  Result<Stream> copy_of(const Sum& sum) const {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum.read(0, sum.dimension());
  }

  std::unique_ptr<Queue> queue_;  ///< before the sums, whose memory is the queue's
  Sum sum_;
  std::unique_ptr<Sum> staged_;    ///< jobs with momentum or clipping
  std::unique_ptr<Sum> velocity_;  ///< jobs with momentum
  std::optional<Taken> taken_;     ///< by the last selection
  cuda::SumSelector<Queue> selector_;
};

}  // namespace millrace::worker
