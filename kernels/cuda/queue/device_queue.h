#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/cuda/queue/device_launch.h"

namespace millrace::cuda {

/// Returns the code of an error of CUDA (a cudaError_t). unavailable: this process cannot use the card. limit_exceeded:
/// no memory there. invalid_argument: a stream is being captured into a graph. internal: another error.
ErrorCode error_code_of(int cuda_error);

/// Returns how many CUDA devices this process can use: 0 where there is no driver.
int device_count();

/// Returns the device's name ("NVIDIA H100 80GB HBM3").
Result<std::string> device_name(int device);

/// Returns the device of the memory that a pointer is into. Of managed memory that every device reaches: as CUDA says.
///
/// Errors  invalid_argument: it is the host's, or of a context that is no device's primary one, where no kernel of this
///         library can reach it. unavailable: no device, or no driver.
Result<int> device_of_memory(const void* pointer);

/// Blocks until the work so far of a stream has ended.
///
/// stream  a cudaStream_t of the device; null: its default stream.
/// Errors  invalid_argument: no stream of this device; cudaStreamPerThread, which another thread cannot name; a stream
///         that is being captured into a CUDA graph.
Status await_stream(int device, void* stream);

/// A point in a stream's work. A handle of CUDA's.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void* handle() const { return handle_; }
  /// Returns the milliseconds of the device from `begin` to this event. REQUIRES both to have passed.
  Result<float> milliseconds_since(const DeviceEvent& begin) const;

 private:
  void* handle_ = nullptr;
};

/// Makes a device the calling thread's, in its primary context, and the context of before again at its end. A thread
/// that had none has none again: cudaSetDevice() would make one on the thread's device, of some hundred MiB. Meanwhile
/// the thread's capture mode is relaxed: captures of other threads into CUDA graphs forbid allocations to a thread of
/// another mode.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  /// kDevice: the driver lacks the calls about contexts.
  enum class Restore : uint8_t { kNothing, kContext, kDevice };
  Restore restore_ = Restore::kNothing;
  void* before_ = nullptr;  ///< a CUcontext; null: the thread had none
  int device_before_ = -1;
  static constexpr int kNoMode = -1;
  /// Sets the thread's cudaStreamCaptureMode. Returns the one before; kNoMode: CUDA refused.
  static int exchange_capture_mode(int mode);
  int capture_mode_before_ = kNoMode;
};

/// Memory of a device, and pinned memory of the host, of several queues.
///
/// Memory   released memory stays in the pool for later work, up to the limit of keep_more(). The pool of a lone queue
///          keeps all of it.
/// Threads  any.
class DevicePool {
 public:
  /// Pinned memory of each queue.
  static constexpr size_t kStagingBytes = size_t{1} << 20;
  static constexpr uint64_t kKeepsAll = std::numeric_limits<uint64_t>::max();

  /// keeps   bytes, those in use among them, above which the pool returns unused memory to the device.
  /// Loads all kernels to the device.
  ///
  /// Errors  unavailable: no such device, no driver, no code of kernels for it, or a device without memory pools.
  ///         limit_exceeded: no memory there.
  static Result<std::shared_ptr<DevicePool>> make(int device, uint64_t keeps);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Changes the limit. Of kKeepsAll it stays.
  Status keep_more(uint64_t bytes);
  void keep_less(uint64_t bytes);
  int device() const { return device_; }
  void* handle() const { return pool_; }
  /// Returns the bytes of the device that the pool holds now, in use or not.
  uint64_t memory_bytes() const;
  /// Return the bytes that crossed the bus for all queues of the pool.
  uint64_t bytes_up() const { return bytes_up_; }
  uint64_t bytes_down() const { return bytes_down_; }

 private:
  friend class DeviceQueue;
  explicit DevicePool(int device) : device_(device) {}
  Status set_limit(uint64_t keeps);
  /// Returns kStagingBytes of pinned memory. Errors  limit_exceeded.
  Result<void*> take_staging();
  void return_staging(void* memory);

  int device_;
  void* pool_ = nullptr;
  std::mutex mutex_;
  uint64_t keeps_ = 0;
  std::vector<void*> staging_;  ///< of queues that are gone
  std::atomic<uint64_t> bytes_up_ = 0;
  std::atomic<uint64_t> bytes_down_ = 0;
};

class DeviceQueue;

/// Memory of a device, from the queue's pool. Its release is part of the queue's work: work enqueued before may use it.
template <class T>
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceQueue* queue, T* data, size_t count) : queue_(queue), data_(data), count_(count) {}
  DeviceMemory(DeviceMemory&& from) noexcept : queue_(from.queue_), data_(from.data_), count_(from.count_) {
    from.data_ = nullptr;
  }
  DeviceMemory& operator=(DeviceMemory&& from) noexcept {
    std::swap(queue_, from.queue_);
    std::swap(data_, from.data_);
    std::swap(count_, from.count_);
    return *this;
  }
  ~DeviceMemory();
  T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  DeviceQueue* queue_ = nullptr;
  T* data_ = nullptr;
  size_t count_ = 0;
};

/// A stream of a device, with memory from a pool and pinned memory for what crosses the bus.
///
/// Errors   the first error of CUDA is kept, and later calls do nothing; finish() returns it. A shortage of memory is
///          no such error: calls do nothing until the next finish(), which returns limit_exceeded once. Then the queue
///          works as before.
/// Threads  one at a time. No call waits for the whole device.
class DeviceQueue {
 public:
  /// A queue with a stream of its own.
  ///
  /// Errors  unavailable: no such device, or no driver.
  static Result<std::unique_ptr<DeviceQueue>> make(int device);
  /// Does as make(), with the memory of a pool. keeps: bytes by which the pool's limit is higher while the queue lives.
  ///
  /// Errors  also limit_exceeded: no pinned memory. So copies of a queue need no memory.
  static Result<std::unique_ptr<DeviceQueue>> of_pool(std::shared_ptr<DevicePool> pool, uint64_t keeps);
  /// Raises the pool's limit further while the queue lives. Where that fails, the pool returns more to the device.
  void keep_more(uint64_t bytes) {
    if (pool_->keep_more(bytes)) keeps_ += bytes;
  }
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  template <class T>
  DeviceMemory<T> allocate(size_t count) {
    return DeviceMemory<T>(this, static_cast<T*>(take(count * sizeof(T))), count);
  }
  void release(void* memory);

  /// Runs the kernel in `blocks` blocks. None: does nothing.
  ///
  /// Errors  limit_exceeded: 2^31 blocks or more.
  template <class Kernel>
  void launch(const Kernel& kernel, uint64_t blocks) {
    if (may_launch(blocks)) check(launch_kernel(kernel, static_cast<uint32_t>(blocks), stream_), "launch");
  }

  void clear(void* at, size_t bytes);
  /// Copies to the device, through pinned memory.
  template <class T>
  void upload(T* to, std::span<const T> from) {
    copy_in(to, from.data(), from.size_bytes());
  }
  /// Copies from the device, through pinned memory, and waits for this queue's work.
  template <class T>
  void download(std::span<T> to, const T* from) {
    copy_out(to.data(), from, to.size_bytes());
  }

  void record(DeviceEvent& event);
  /// Makes later work of this queue wait for the work so far of another stream of this device (a cudaStream_t), without
  /// blocking the caller.
  ///
  /// Errors  those of await_stream(): the queue works as before.
  Status wait_for_stream(void* stream);
  /// Does as cuda::await_stream(). Threads: any, also beside other calls.
  Status await_stream(void* stream) const { return cuda::await_stream(device_, stream); }
  /// Waits for this queue's work and returns its first error, or the shortage of memory since the last finish().
  Status finish();
  /// Returns the same as far as it is known, without a wait. A shortage stays for finish().
  Status status() const { return first_error_ ? shortage_ : first_error_; }
  /// Makes the queue's device the calling thread's, which the calls of a queue need, until the returned object goes.
  DeviceScope on_its_device() const { return DeviceScope(device_); }

  /// Blocks of `threads` threads that the device runs at once.
  uint32_t filling_blocks(uint32_t threads) const { return multiprocessors_ * (2048 / threads); }
  void* stream() const { return stream_; }
  int device() const { return device_; }
  /// Bytes that crossed the bus so far.
  uint64_t bytes_up() const { return bytes_up_; }
  uint64_t bytes_down() const { return bytes_down_; }

 private:
  explicit DeviceQueue(std::shared_ptr<DevicePool> pool) : pool_(std::move(pool)), device_(pool_->device()) {}
  Status open();
  bool works() const { return first_error_.has_value() && shortage_.has_value(); }
  void* take(size_t bytes);
  bool may_launch(uint64_t blocks);
  bool check(int code, const char* what);
  void copy_in(void* to, const void* from, size_t bytes);
  void copy_out(void* to, const void* from, size_t bytes);

  std::shared_ptr<DevicePool> pool_;
  int device_;
  uint32_t multiprocessors_ = 1;
  void* stream_ = nullptr;
  void* staging_ = nullptr;  ///< pinned
  uint64_t keeps_ = 0;       ///< of the pool's limit
  void* meeting_ = nullptr;  ///< the event that marks another stream's work
  Status first_error_;
  Status shortage_;  ///< since the last finish()
  uint64_t bytes_up_ = 0;
  uint64_t bytes_down_ = 0;
};

template <class T>
DeviceMemory<T>::~DeviceMemory() {
  if (data_ != nullptr) queue_->release(data_);
}

}  // namespace millrace::cuda
