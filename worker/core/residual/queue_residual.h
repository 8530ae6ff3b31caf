#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/cuda/accumulator.h"
#include "kernels/cuda/selector.h"
#include "worker/core/residual/device_residual.h"

namespace millrace::worker {

/// Holds a residual where a queue's kernels run: DeviceQueue on a card; HostQueue on the host, for tests.
template <class Queue>
class QueueResidual final : public DeviceResidual {
 public:
  QueueResidual(std::unique_ptr<Queue> queue, const SelectionSpec& spec, uint64_t dimension)
      : queue_(std::move(queue)), sum_(*queue_, dimension), selector_(spec, dimension) {}

  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (gradient.device != queue_->device()) {
      return fail(ErrorCode::kInvalidArgument, "the tensor's residual is on device " +
                                                   std::to_string(queue_->device()) + ", this gradient on device " +
                                                   std::to_string(gradient.device));
    }
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto waits = queue_->wait_for_stream(gradient.stream); !waits) return std::unexpected(waits.error());
    return sum_.add(
        gradient.values, weight,
        rule == protocol::NonFinite::kRefuse ? cuda::NonFiniteValues::kRefused : cuda::NonFiniteValues::kLeftOut);
  }

  Status add(const StreamView& stream, uint64_t begin) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.add(stream, begin);
  }

  Result<Stream> take_selected(uint64_t step, Stream&& arrays) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    const auto selected = selector_.select(*queue_, sum_, step);
    if (!selected) return std::unexpected(selected.error());
    return sum_.take_at(*selected, std::move(arrays));
  }

  Result<Stream> copy() const override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    return sum_.read(0, sum_.dimension());
  }

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
    if (auto waits = queue_->wait_for_stream(gradient.stream); !waits) return std::unexpected(waits.error());
    Stream copied{gradient.count, true, {}, {}};
    copied.values.resize(gradient.count);
    queue_->download(std::span<float>(copied.values), gradient.values);
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return copied;
  }

  void forget() override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    sum_.forget();
  }

  Retained retained() const override { return selector_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) override { return selector_.restore_retained(retained); }

  Status status() const override { return queue_->status(); }

 private:
  std::unique_ptr<Queue> queue_;  ///< before the sum, whose memory is the queue's
  cuda::Accumulator<Queue> sum_;
  cuda::SumSelector<Queue> selector_;
};

}  // namespace millrace::worker
