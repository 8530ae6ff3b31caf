#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/arrays.h"
#include "worker/session/device_weights.h"

namespace millrace::worker {

/// Weights where a queue's kernels run: DeviceQueue on a card; HostQueue on the host, for tests.
template <class Queue>
class QueueWeights final : public DeviceWeights {
 public:
  /// array   the caller's. stream: of the caller's work with it.
  QueueWeights(std::unique_ptr<Queue> queue, float* array, void* stream)
      : queue_(std::move(queue)), array_(array), stream_(stream) {}

  Status add(uint64_t begin, const StreamView& stream, float factor) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto waits = queue_->wait_for_stream(stream_); !waits) return waits;
    cuda::enqueue_add_stream(*queue_, array_ + begin, stream, factor);
    return queue_->finish();
  }
  Status write(uint64_t begin, std::span<const float> values) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto waits = queue_->wait_for_stream(stream_); !waits) return waits;
    queue_->upload(array_ + begin, values);
    return queue_->finish();
  }
  Status read(uint64_t begin, std::span<float> out) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto waits = queue_->wait_for_stream(stream_); !waits) return waits;
    queue_->download(out, static_cast<const float*>(array_) + begin);
    return queue_->finish();
  }

 private:
  std::unique_ptr<Queue> queue_;
  float* array_;
  void* stream_;
};

}  // namespace millrace::worker
