#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/cuda/accumulator.h"
#include "kernels/select/top_k.h"
#include "kernels/select/warm_up.h"
#include "worker/core/residual/device_residual.h"

namespace millrace::worker {

/// Holds a residual where a queue's kernels run: DeviceQueue on a card; HostQueue on the host, for tests.
template <class Queue>
class QueueResidual final : public DeviceResidual {
 public:
  QueueResidual(std::unique_ptr<Queue> queue, const SelectionSpec& spec, uint64_t dimension)
      : queue_(std::move(queue)), spec_(spec), sum_(*queue_, dimension) {}

  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (gradient.device != queue_->device()) {
      return fail(ErrorCode::kInvalidArgument, "the tensor's residual is on device " +
                                                   std::to_string(queue_->device()) + ", this gradient on device " +
                                                   std::to_string(gradient.device));
    }
    [[maybe_unused]] const auto here = queue_->on_its_device();
    queue_->wait_for_stream(gradient.stream);
    return sum_.add(
        gradient.values, weight,
        rule == protocol::NonFinite::kRefuse ? cuda::NonFiniteValues::kRefused : cuda::NonFiniteValues::kLeftOut);
  }

  void add(const StreamView& stream, uint64_t begin) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    (void)sum_.add(stream, begin);  // status() has the error
  }

  Result<Stream> take_selected(uint64_t step, Stream&& arrays) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const auto selected = select(step);
    if (!selected) return std::unexpected(selected.error());
    return sum_.take_at(*selected, std::move(arrays));
  }

  Result<Stream> copy() const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.read(0, sum_.dimension());
  }

  void forget() override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    sum_.forget();
  }

  Status status() const override { return queue_->status(); }

 private:
  Result<cuda::Positions<Queue>> select(uint64_t step) {
    if (spec_.selection == SelectionId::kThreshold) return sum_.select_at_least(threshold_in_f32(spec_.threshold));
    const std::optional<double> density = warm_up_density(spec_, sum_.dimension(), step);
    if (density == 1.0) return sum_.select_at_least(std::numeric_limits<float>::denorm_min());
    return sum_.select_top_k(k_of(density ? SelectionSpec{.density = *density} : spec_, sum_.dimension()));
  }

  std::unique_ptr<Queue> queue_;  ///< before the sum, whose memory is the queue's
  SelectionSpec spec_;
  cuda::Accumulator<Queue> sum_;
};

}  // namespace millrace::worker
