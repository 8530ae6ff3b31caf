#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/arrays.h"
#include "worker/session/device_weights.h"

namespace millrace::worker {

/// Weights where a queue's kernels run: DeviceQueue on a card; HostQueue on the host, for tests.
template <class Queue>
class QueueWeights final : public DeviceWeights {
 public:
  /// array    [dimension]; the caller's. stream: of the caller's work with it, which this call waits for.
  /// Errors   those of the stream; limit_exceeded: no memory for the room that additions pass through.
  static Result<std::unique_ptr<DeviceWeights>> make(std::unique_ptr<Queue> queue, float* array, uint64_t dimension,
                                                     void* stream) {
    [[maybe_unused]] const auto here = queue->on_its_device();
    if (auto waits = queue->await_stream(stream); !waits) return std::unexpected(waits.error());
    std::unique_ptr<QueueWeights> made(new QueueWeights(std::move(queue), array, dimension, stream));
    if (auto there = made->queue_->finish(); !there) return std::unexpected(there.error());
    made->queue_->keep_more(cuda::StreamRoom<Queue>::bytes(dimension));
    return made;
  }

  Status await_callers_work() const override { return queue_->await_stream(stream_); }
  Status add(uint64_t begin, const StreamView& stream, float factor) override {
    [[maybe_unused]] const auto here = queue_->on_its_device();
    if (auto waits = queue_->wait_for_stream(stream_); !waits) return waits;
    cuda::enqueue_add_stream(*queue_, array_ + begin, stream, factor, room_);
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
    queue_->download(out, static_cast<const float*>(array_) + begin);
    return queue_->finish();
  }

 private:
  QueueWeights(std::unique_ptr<Queue> queue, float* array, uint64_t dimension, void* stream)
      : queue_(std::move(queue)), array_(array), stream_(stream), room_(*queue_, dimension) {}

  std::unique_ptr<Queue> queue_;  ///< before the room, whose memory is the queue's
  float* array_;
  void* stream_;
  cuda::StreamRoom<Queue> room_;
};

}  // namespace millrace::worker
