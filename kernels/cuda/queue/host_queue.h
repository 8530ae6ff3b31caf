#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/cuda/queue/host_block.h"

namespace millrace::cuda {

/// Memory of a HostQueue. It begins as garbage.
template <class T>
class HostMemory {
 public:
  explicit HostMemory(size_t count = 0) : values_(count) {
    if (count != 0) std::memset(static_cast<void*>(values_.data()), 0xA5, count * sizeof(T));
  }
  HostMemory(HostMemory&&) noexcept = default;
  HostMemory& operator=(HostMemory&&) noexcept = default;
  // Where the memory lies is what matters, so a constant object's may be written.
  T* data() const { return const_cast<T*>(values_.data()); }
  size_t size() const { return values_.size(); }

 private:
  Buffer<T> values_;
};

/// Runs block kernels on the host, to test them without a card: the counterpart of DeviceQueue. Slow.
///
/// Order   threads of a phase, and blocks of a launch, run in the orders given. A correct kernel gives the same result
///         in any order.
/// Errors  the first race of a block's threads is kept, and finish() returns it. Shortages of memory and streams that
///         are none are made up, to test what depends on them: they have DeviceQueue's consequences.
class HostQueue {
 public:
  /// Takes the place of this device.
  explicit HostQueue(int device = 0) : device_(device) {}
  HostQueue(HostOrder threads, HostOrder blocks) : threads_(threads), blocks_(blocks) {}

  /// A stream that every HostQueue refuses.
  static void* no_stream() { return &refused_; }
  /// Lets all allocations fail, once `count` more have succeeded.
  void let_allocations_fail_after(uint64_t count) { allocations_left_ = count; }

  template <class T>
  HostMemory<T> allocate(size_t count) {
    if (!shortage_ || count == 0) return HostMemory<T>(0);
    if (allocations_left_ == 0) {
      shortage_ = fail(ErrorCode::kLimitExceeded, "host queue: out of memory");
      return HostMemory<T>(0);
    }
    --allocations_left_;
    return HostMemory<T>(count);
  }

  /// Runs the kernel in `blocks` blocks. None: does nothing.
  template <class Kernel>
  void launch(const Kernel& kernel, uint64_t blocks) {
    if (!shortage_) return;
    const auto rounded = static_cast<uint32_t>(std::bit_ceil(std::max<uint64_t>(blocks, 1)));
    for (uint32_t i = 0; i < rounded; ++i) {
      const uint32_t index = blocks_.at(i, rounded);
      if (index >= blocks) continue;
      HostBlock<Kernel::kThreads> block(index, static_cast<uint32_t>(blocks), Kernel::kSharedWords, threads_);
      kernel(block);
      if (race_.empty()) race_ = block.race();
    }
  }

  void clear(void* at, size_t bytes) {
    if (shortage_ && bytes != 0) std::memset(at, 0, bytes);
  }
  template <class T>
  void upload(T* to, std::span<const T> from) {
    if (!shortage_) return;
    bytes_up_ += from.size_bytes();
    if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
  }
  template <class T>
  void download(std::span<T> to, const T* from) {
    if (!shortage_) return;
    bytes_down_ += to.size_bytes();
    if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
  }

  Status wait_for_stream(void* stream) const {
    if (stream != no_stream()) return {};
    return fail(ErrorCode::kInvalidArgument, "host queue: no stream");
  }
  Status await_stream(void* stream) const { return wait_for_stream(stream); }
  Status status() const { return shortage_; }
  void keep_more(uint64_t) const {}
  int device() const { return device_; }
  int on_its_device() const { return 0; }
  Status finish() {
    if (!race_.empty()) return fail(ErrorCode::kInternal, race_);
    return std::exchange(shortage_, Status());
  }

  /// Blocks of `threads` threads that a kernel is cut into that loops over an array.
  uint32_t filling_blocks(uint32_t) const { return 3; }
  /// Bytes that would have crossed the bus so far.
  uint64_t bytes_up() const { return bytes_up_; }
  uint64_t bytes_down() const { return bytes_down_; }

 private:
  static inline char refused_ = 0;

  int device_ = 0;
  HostOrder threads_;
  HostOrder blocks_;
  std::string race_;
  Status shortage_;  ///< since the last finish()
  uint64_t allocations_left_ = std::numeric_limits<uint64_t>::max();
  uint64_t bytes_up_ = 0;
  uint64_t bytes_down_ = 0;
};

}  // namespace millrace::cuda
