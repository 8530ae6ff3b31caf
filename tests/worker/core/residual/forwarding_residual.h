#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "worker/core/residual/device_residual.h"

namespace millrace::testing {

/// Forwards every call to another residual. A test overrides those that are to fail.
class ForwardingResidual : public worker::DeviceResidual {
 public:
  explicit ForwardingResidual(std::unique_ptr<worker::DeviceResidual> works) : works_(std::move(works)) {}

  Result<uint64_t> add(const worker::DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    return works_->add(gradient, weight, rule);
  }
  Status add(const StreamView& stream, uint64_t begin) override { return works_->add(stream, begin); }
  Result<Stream> take_selected(uint64_t step, Stream&& arrays, worker::TakenEntries entries) override {
    return works_->take_selected(step, std::move(arrays), entries);
  }
  Status keep_errors(const worker::EntryRange& entries, const EncodeOptions& options) override {
    return works_->keep_errors(entries, options);
  }
  Status check_finite() const override { return works_->check_finite(); }
  Result<std::optional<Mass>> take_coded(const worker::IndexRange& range, const EncodeOptions& options,
                                         protocol::CodecError errors, ByteBuffer& out) override {
    return works_->take_coded(range, options, errors, out);
  }
  Result<Stream> copy_part(const worker::IndexRange& range) const override { return works_->copy_part(range); }
  void forget(const worker::IndexRange& range) override { works_->forget(range); }
  Result<Stream> copy() const override { return works_->copy(); }
  Result<Buffer<float>> read_at(IndexSpan indices) const override { return works_->read_at(indices); }
  Result<double> norm() const override { return works_->norm(); }
  Result<Stream> copy(const worker::DeviceGradient& gradient) const override { return works_->copy(gradient); }
  Result<double> squares(const worker::DeviceGradient& gradient) override { return works_->squares(gradient); }
  Result<uint64_t> stage(const worker::DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    return works_->stage(gradient, weight, rule);
  }
  Status stage(const StreamView& gradient) override { return works_->stage(gradient); }
  Status enter(float scale, const cuda::MomentumShares& shares) override { return works_->enter(scale, shares); }
  Status enter(float scale) override { return works_->enter(scale); }
  Result<Stream> copy_staged() const override { return works_->copy_staged(); }
  Status add_velocity(const StreamView& stream) override { return works_->add_velocity(stream); }
  Status end_velocity(IndexSpan indices) override { return works_->end_velocity(indices); }
  Result<Stream> copy_velocity() const override { return works_->copy_velocity(); }
  void forget_velocity() override { works_->forget_velocity(); }
  void forget() override { works_->forget(); }
  Retained retained() const override { return works_->retained(); }
  Status restore_retained(std::span<const uint64_t> numbers) override { return works_->restore_retained(numbers); }
  Status status() const override { return works_->status(); }

 private:
  std::unique_ptr<worker::DeviceResidual> works_;
};

}  // namespace millrace::testing
