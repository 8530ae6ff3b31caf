#include "kernels/cuda/device_queue.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"

namespace millrace::cuda {
namespace {

/// Pinned memory that one copy uses at a time.
constexpr size_t kStagingBytes = size_t{1} << 20;

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

ErrorCode error_code_of(int code) {
  if (code == cudaErrorMemoryAllocation) return ErrorCode::kLimitExceeded;
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorInvalidDevice ||
      code == cudaErrorNoKernelImageForDevice) {
    return ErrorCode::kUnavailable;
  }
  return ErrorCode::kInternal;
}

std::unexpected<Error> cuda_failure(int code, const char* what) {
  return fail(error_code_of(code),
              std::string("cuda: ") + what + ": " + cudaGetErrorString(static_cast<cudaError_t>(code)));
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  return count;
}

Result<std::string> device_name(int device) {
  cudaDeviceProp properties;
  if (const int code = cudaGetDeviceProperties(&properties, device); code != cudaSuccess) {
    return cuda_failure(code, "properties of a device");
  }
  return std::string(properties.name);
}

Result<int> device_of_memory(const void* pointer) {
  int count = 0;
  if (const int code = cudaGetDeviceCount(&count); code != cudaSuccess) return cuda_failure(code, "the devices");
  cudaPointerAttributes attributes{};
  if (const int code = cudaPointerGetAttributes(&attributes, pointer); code != cudaSuccess) {
    return cuda_failure(code, "the memory of a pointer");
  }
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) return attributes.device;
  return fail(ErrorCode::kInvalidArgument, "cuda: the array is not in a device's memory");
}

DeviceEvent::DeviceEvent() {
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) == cudaSuccess) handle_ = event;
}

DeviceEvent::~DeviceEvent() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

Result<float> DeviceEvent::milliseconds_since(const DeviceEvent& begin) const {
  float milliseconds = 0;
  const int code =
      cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin.handle_), static_cast<cudaEvent_t>(handle_));
  if (code != cudaSuccess) return cuda_failure(code, "time between events");
  return milliseconds;
}

DeviceScope::DeviceScope(int device) {
  int before = -1;
  if (cudaGetDevice(&before) != cudaSuccess || before == device) return;
  if (cudaSetDevice(device) == cudaSuccess) before_ = before;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::make(int device) {
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue(device));
  if (auto opened = queue->open(); !opened) return std::unexpected(opened.error());
  cudaStream_t stream = nullptr;
  if (const int code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); code != cudaSuccess) {
    return cuda_failure(code, "a stream");
  }
  queue->stream_ = stream;
  queue->owns_stream_ = true;
  return queue;
}

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::on_stream(int device, void* stream) {
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue(device));
  if (auto opened = queue->open(); !opened) return std::unexpected(opened.error());
  queue->stream_ = stream;
  return queue;
}

Status DeviceQueue::open() {
  if (const int code = cudaSetDevice(device_); code != cudaSuccess) return cuda_failure(code, "a device");
  int multiprocessors = 0;
  if (const int code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_);
      code != cudaSuccess) {
    return cuda_failure(code, "the device's multiprocessors");
  }
  multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, {device_}};
  cudaMemPool_t pool = nullptr;
  if (const int code = cudaMemPoolCreate(&pool, &properties); code != cudaSuccess) {
    return cuda_failure(code, "a memory pool");
  }
  pool_ = pool;
  // Memory that a step releases stays in the pool for the next step.
  uint64_t kept_bytes = std::numeric_limits<uint64_t>::max();
  if (const int code = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept_bytes);
      code != cudaSuccess) {
    return cuda_failure(code, "the memory pool's threshold");
  }
  if (const int code = cudaHostAlloc(&staging_, kStagingBytes, cudaHostAllocDefault); code != cudaSuccess) {
    return cuda_failure(code, "pinned memory");
  }
  cudaEvent_t meeting = nullptr;
  if (const int code = cudaEventCreateWithFlags(&meeting, cudaEventDisableTiming); code != cudaSuccess) {
    return cuda_failure(code, "an event");
  }
  meeting_ = meeting;
  return {};
}

DeviceQueue::~DeviceQueue() {
  if (stream_ != nullptr || !owns_stream_) cudaStreamSynchronize(stream_of(stream_));
  if (owns_stream_) cudaStreamDestroy(stream_of(stream_));
  if (pool_ != nullptr) cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool_));
  if (staging_ != nullptr) cudaFreeHost(staging_);
  if (meeting_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(meeting_));
}

bool DeviceQueue::check(int code, const char* what) {
  if (code != cudaSuccess && first_error_) first_error_ = cuda_failure(code, what);
  return first_error_.has_value();
}

void* DeviceQueue::take(size_t bytes) {
  void* memory = nullptr;
  if (!first_error_ || bytes == 0) return nullptr;
  check(cudaMallocFromPoolAsync(&memory, bytes, static_cast<cudaMemPool_t>(pool_), stream_of(stream_)),
        "device memory");
  return memory;
}

void DeviceQueue::release(void* memory) { check(cudaFreeAsync(memory, stream_of(stream_)), "release of memory"); }

bool DeviceQueue::may_launch(uint64_t blocks) {
  if (first_error_ && blocks >= uint64_t{1} << 31) {
    first_error_ = fail(ErrorCode::kLimitExceeded, "cuda: an array of more than 2^31 blocks");
  }
  // A launch goes to the calling thread's device, which may be that of another queue.
  return first_error_.has_value() && blocks != 0 && check(cudaSetDevice(device_), "a device");
}

void DeviceQueue::clear(void* at, size_t bytes) {
  if (first_error_ && bytes != 0) check(cudaMemsetAsync(at, 0, bytes, stream_of(stream_)), "clearing memory");
}

void DeviceQueue::copy_in(void* to, const void* from, size_t bytes) {
  bytes_up_ += bytes;
  for (size_t at = 0; at < bytes && first_error_; at += kStagingBytes) {
    const size_t some = std::min(kStagingBytes, bytes - at);
    std::memcpy(staging_, static_cast<const char*>(from) + at, some);
    check(cudaMemcpyAsync(static_cast<char*>(to) + at, staging_, some, cudaMemcpyHostToDevice, stream_of(stream_)),
          "a copy to the device");
    check(cudaStreamSynchronize(stream_of(stream_)), "a copy to the device");
  }
}

void DeviceQueue::copy_out(void* to, const void* from, size_t bytes) {
  bytes_down_ += bytes;
  for (size_t at = 0; at < bytes && first_error_; at += kStagingBytes) {
    const size_t some = std::min(kStagingBytes, bytes - at);
    check(cudaMemcpyAsync(staging_, static_cast<const char*>(from) + at, some, cudaMemcpyDeviceToHost,
                          stream_of(stream_)),
          "a copy from the device");
    if (check(cudaStreamSynchronize(stream_of(stream_)), "a copy from the device")) {
      std::memcpy(static_cast<char*>(to) + at, staging_, some);
    }
  }
}

void DeviceQueue::record(DeviceEvent& event) {
  if (first_error_) {
    check(cudaEventRecord(static_cast<cudaEvent_t>(event.handle()), stream_of(stream_)), "an event");
  }
}

void DeviceQueue::wait_for(const DeviceEvent& event) {
  if (first_error_) {
    check(cudaStreamWaitEvent(stream_of(stream_), static_cast<cudaEvent_t>(event.handle()), 0), "an event");
  }
}

void DeviceQueue::wait_for_stream(void* stream) {
  const auto event = static_cast<cudaEvent_t>(meeting_);
  if (first_error_ && check(cudaEventRecord(event, stream_of(stream)), "an event of another stream")) {
    check(cudaStreamWaitEvent(stream_of(stream_), event, 0), "an event of another stream");
  }
}

Status DeviceQueue::finish() {
  if (first_error_) check(cudaStreamSynchronize(stream_of(stream_)), "the work of a stream");
  return first_error_;
}

}  // namespace millrace::cuda
