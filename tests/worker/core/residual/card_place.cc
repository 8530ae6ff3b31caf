#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/queue/device_queue.h"
#include "tests/worker/core/residual/device_place.h"
#include "worker/core/residual/queue_residual.h"

namespace millrace::worker {
namespace {

/// A DeviceQueue whose allocations ScarceMemory limits. One that fails asks the card for more memory than any has.
class ScarceCardQueue {
 public:
  explicit ScarceCardQueue(std::unique_ptr<cuda::DeviceQueue> queue) : queue_(std::move(queue)) {}

  template <class T>
  cuda::DeviceMemory<T> allocate(size_t count) {
    constexpr size_t kTooMuch = size_t{1} << 50;
    return queue_->allocate<T>(ScarceMemory::takes(count) ? count : kTooMuch / sizeof(T));
  }
  template <class Kernel>
  void launch(const Kernel& kernel, uint64_t blocks) {
    queue_->launch(kernel, blocks);
  }
  void clear(void* at, size_t bytes) { queue_->clear(at, bytes); }
  template <class T>
  void upload(T* to, std::span<const T> from) {
    queue_->upload(to, from);
  }
  template <class T>
  void download(std::span<T> to, const T* from) {
    queue_->download(to, from);
  }
  Status finish() { return queue_->finish(); }
  Status status() const { return queue_->status(); }
  void keep_more(uint64_t bytes) { queue_->keep_more(bytes); }
  int device() const { return queue_->device(); }
  cuda::DeviceScope on_its_device() const { return queue_->on_its_device(); }
  uint32_t filling_blocks(uint32_t threads) const { return queue_->filling_blocks(threads); }
  uint64_t bytes_up() const { return queue_->bytes_up(); }
  uint64_t bytes_down() const { return queue_->bytes_down(); }

 private:
  std::unique_ptr<cuda::DeviceQueue> queue_;
};

const ScarceCardQueue* last_card_queue = nullptr;

/// The pool of all queues. It stays to the end of the process, as CUDA does.
std::unique_ptr<cuda::DeviceQueue> new_queue() {
  static const auto* const pool = [] {
    auto made = cuda::DevicePool::make(0, cuda::DevicePool::kKeepsAll);
    MILLRACE_CHECK(made.has_value(), made.error().message);
    return new std::shared_ptr<cuda::DevicePool>(std::move(*made));
  }();
  auto queue = cuda::DeviceQueue::of_pool(*pool, 0);
  MILLRACE_CHECK(queue.has_value(), queue.error().message);
  return std::move(*queue);
}

}  // namespace

std::string why_no_device() { return cuda::device_count() == 0 ? "no CUDA device on this machine" : std::string(); }

struct GradientThere::Memory {
  std::unique_ptr<cuda::DeviceQueue> queue;
  cuda::DeviceMemory<float> values;
};

GradientThere::GradientThere(std::span<const float> values) : memory_(std::make_unique<Memory>()) {
  memory_->queue = new_queue();
  memory_->values = memory_->queue->allocate<float>(values.size());
  memory_->queue->upload(memory_->values.data(), values);
  const Status done = memory_->queue->finish();
  MILLRACE_CHECK(done.has_value(), done.error().message);
}
GradientThere::~GradientThere() = default;
GradientThere::operator DeviceGradient() const { return {memory_->values.data(), memory_->values.size(), 0}; }

Result<std::unique_ptr<DeviceResidual>> make_there(const SelectionSpec& spec, uint64_t dimension) {
  auto queue = std::make_unique<ScarceCardQueue>(new_queue());
  last_card_queue = queue.get();
  return std::make_unique<QueueResidual<ScarceCardQueue>>(std::move(queue), spec, dimension);
}

uint64_t bytes_up() { return last_card_queue->bytes_up(); }
uint64_t bytes_down() { return last_card_queue->bytes_down(); }

}  // namespace millrace::worker
