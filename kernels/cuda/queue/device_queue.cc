#include "kernels/cuda/queue/device_queue.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::cuda {
namespace {

constexpr size_t kStagingBytes = DevicePool::kStagingBytes;

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

std::unexpected<Error> cuda_failure(int code, const char* what) {
  (void)cudaGetLastError();  // a launch of another queue of this thread would report it again
  return fail(error_code_of(code),
              std::string("cuda: ") + what + ": " + cudaGetErrorString(static_cast<cudaError_t>(code)));
}

/// Says whether the error is that of a handle which names no stream of the device.
bool is_of_handle(int code) {
  return code == cudaErrorInvalidResourceHandle || code == cudaErrorInvalidValue || code == cudaErrorInvalidDevice ||
         code == cudaErrorInvalidConfiguration || code == cudaErrorContextIsDestroyed;
}

std::unexpected<Error> no_stream() {
  return fail(
      ErrorCode::kInvalidArgument,
      "cuda: the stream of an array is no stream of the array's device: pass the cudaStream_t whose work writes "
      "the array, or null for the device's default stream");
}

/// Refuses cudaStreamPerThread, which names another stream in each thread, and a stream that is being captured. A wait
/// for the latter would enter the caller's graph, or end the capture. REQUIRES: a DeviceScope.
Status may_wait_for(void* stream) {
  if (stream_of(stream) == cudaStreamPerThread) {
    return fail(ErrorCode::kInvalidArgument,
                "cuda: cudaStreamPerThread names another stream in each thread: pass a stream "
                "of cudaStreamCreate()");
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const int code = cudaStreamIsCapturing(stream_of(stream), &capture);
  if (code != cudaSuccess) (void)cudaGetLastError();  // of another error the next call with the stream says more
  const bool is_captured = code == cudaSuccess && capture != cudaStreamCaptureStatusNone;
  if (!is_captured && code != cudaErrorStreamCaptureImplicit) return {};
  return fail(ErrorCode::kInvalidArgument,
              "cuda: the stream of an array is being captured into a CUDA graph: call this after "
              "cudaStreamEndCapture()");
}

/// The driver's calls about contexts; null where the driver lacks them.
struct ContextCalls {
  CUresult (*get)(CUcontext* context) = nullptr;
  CUresult (*set)(CUcontext context) = nullptr;
  CUresult (*device)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*primary_state)(CUdevice device, unsigned int* flags, int* active) = nullptr;
  CUresult (*attribute)(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) = nullptr;
};

template <class Call>
void find_driver_call(const char* name, Call*& call) {
  constexpr unsigned int kDriverRelease = 12'000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const int code = cudaGetDriverEntryPointByVersion(name, &found, kDriverRelease, cudaEnableDefault, &result);
  if (code != cudaSuccess) (void)cudaGetLastError();
  if (code == cudaSuccess && result == cudaDriverEntryPointSuccess) call = std::bit_cast<Call*>(found);
}

const ContextCalls& context_calls() {
  static const ContextCalls kCalls = [] {
    ContextCalls calls;
    find_driver_call("cuCtxGetCurrent", calls.get);
    find_driver_call("cuCtxSetCurrent", calls.set);
    find_driver_call("cuDeviceGet", calls.device);
    find_driver_call("cuDevicePrimaryCtxGetState", calls.primary_state);
    find_driver_call("cuPointerGetAttribute", calls.attribute);
    return calls;
  }();
  return kCalls;
}

/// Says whether the process has the device's primary context, in which the runtime works.
bool has_primary_context(int device) {
  const ContextCalls& calls = context_calls();
  CUdevice handle = 0;
  unsigned int flags = 0;
  int active = 0;
  return calls.device != nullptr && calls.primary_state != nullptr && calls.device(&handle, device) == CUDA_SUCCESS &&
         calls.primary_state(handle, &flags, &active) == CUDA_SUCCESS && active != 0;
}

/// Says whether memory of a device belongs to a context that is no device's primary one. Memory of pools has none.
bool has_context_of_its_own(const void* pointer, int device_count) {
  const ContextCalls& calls = context_calls();
  CUcontext context = nullptr;
  if (calls.get == nullptr || calls.attribute == nullptr ||
      calls.attribute(static_cast<void*>(&context), CU_POINTER_ATTRIBUTE_CONTEXT,
                      std::bit_cast<CUdeviceptr>(pointer)) != CUDA_SUCCESS) {
    return false;
  }
  for (int device = 0; device < device_count && context != nullptr; ++device) {
    if (!has_primary_context(device)) continue;
    const DeviceScope there(device);
    CUcontext primary = nullptr;
    if (calls.get(&primary) != CUDA_SUCCESS || primary == context) return false;
  }
  return context != nullptr;
}

}  // namespace

ErrorCode error_code_of(int cuda_error) {
  switch (cuda_error) {
    case cudaErrorMemoryAllocation: return ErrorCode::kLimitExceeded;
    // No card, or no driver for it.
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    // No code of a kernel for this card and driver. cudaFuncGetAttributes() says the first, a launch the second.
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    // The card lacks a function.
    case cudaErrorNotSupported: return ErrorCode::kUnavailable;
    // The caller captures a stream into a graph.
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread: return ErrorCode::kInvalidArgument;
    default: return ErrorCode::kInternal;
  }
}

Status await_stream(int device, void* stream) {
  const DeviceScope here(device);
  if (auto possible = may_wait_for(stream); !possible) return possible;
  cudaEvent_t event = nullptr;
  if (const int code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
      code != cudaSuccess) {
    return cuda_failure(code, "an event");
  }
  const int recorded = cudaEventRecord(event, stream_of(stream));
  const int ended = recorded == cudaSuccess ? cudaEventSynchronize(event) : cudaSuccess;
  cudaEventDestroy(event);
  if (is_of_handle(recorded)) {
    (void)cudaGetLastError();
    return no_stream();
  }
  if (recorded != cudaSuccess) return cuda_failure(recorded, "an event of another stream");
  if (ended != cudaSuccess) return cuda_failure(ended, "the work of another stream");
  return {};
}

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
  // The next call needs any context. In a thread without one it would make one on device 0.
  std::optional<DeviceScope> here;
  for (int device = 0; device < count && !here; ++device) {
    if (has_primary_context(device)) here.emplace(device);
  }
  cudaPointerAttributes attributes{};
  if (const int code = cudaPointerGetAttributes(&attributes, pointer); code != cudaSuccess) {
    return cuda_failure(code, "the memory of a pointer");
  }
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) {
    return fail(ErrorCode::kInvalidArgument, "cuda: the array is not in a device's memory");
  }
  if (!has_context_of_its_own(pointer, count)) return attributes.device;
  return fail(ErrorCode::kInvalidArgument,
              "cuda: the array's memory belongs to a context of its own: allocate it in the device's primary context "
              "(PyCUDA: pycuda.autoprimaryctx)");
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

int DeviceScope::exchange_capture_mode(int mode) {
  auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
  if (cudaThreadExchangeStreamCaptureMode(&exchanged) == cudaSuccess) return exchanged;
  (void)cudaGetLastError();
  return kNoMode;
}

DeviceScope::DeviceScope(int device) {
  const ContextCalls& calls = context_calls();
  CUcontext before = nullptr;
  const bool has_calls = calls.get != nullptr && calls.set != nullptr;
  // An error: the driver is not initialised yet, and the thread has no context.
  if (has_calls && calls.get(&before) != CUDA_SUCCESS) before = nullptr;
  int current = -1;
  const bool has_device = cudaGetDevice(&current) == cudaSuccess;
  // Also where this is the thread's device: its context may be another one than the primary, which this call sets.
  const bool is_set = cudaSetDevice(device) == cudaSuccess;
  (void)cudaGetLastError();
  if (!is_set) return;
  restore_ = has_calls ? Restore::kContext : has_device ? Restore::kDevice : Restore::kNothing;
  before_ = before;
  device_before_ = current;
  capture_mode_before_ = exchange_capture_mode(cudaStreamCaptureModeRelaxed);
}

DeviceScope::~DeviceScope() {
  if (capture_mode_before_ != kNoMode) (void)exchange_capture_mode(capture_mode_before_);
  if (restore_ == Restore::kContext) (void)context_calls().set(static_cast<CUcontext>(before_));
  if (restore_ == Restore::kDevice && cudaSetDevice(device_before_) != cudaSuccess) (void)cudaGetLastError();
}

Result<std::shared_ptr<DevicePool>> DevicePool::make(int device, uint64_t keeps) {
  std::shared_ptr<DevicePool> made(new DevicePool(device));
  if (const int code = cudaSetDevice(device); code != cudaSuccess) return cuda_failure(code, "a device");
  int has_pools = 0;
  if (const int code = cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device);
      code != cudaSuccess) {
    return cuda_failure(code, "the device's memory pools");
  }
  if (has_pools == 0) return fail(ErrorCode::kUnavailable, "cuda: this device or its driver has no memory pools");
  for (const auto load : {load_accumulate_kernels, load_array_kernels, load_draw_kernels, load_polynomial_kernels,
                          load_quantize_kernels, load_select_kernels}) {
    if (const int code = load(); code != cudaSuccess) return cuda_failure(code, "the code of kernels");
  }
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, {device}};
  cudaMemPool_t pool = nullptr;
  if (const int code = cudaMemPoolCreate(&pool, &properties); code != cudaSuccess) {
    return cuda_failure(code, "a memory pool");
  }
  made->pool_ = pool;
  if (auto kept = made->keep_more(keeps); !kept) return std::unexpected(kept.error());
  return made;
}

DevicePool::~DevicePool() {
  const DeviceScope here(device_);
  for (void* memory : staging_) cudaFreeHost(memory);
  if (pool_ != nullptr) cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool_));
}

Status DevicePool::keep_more(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return set_limit(keeps_ > kKeepsAll - bytes ? kKeepsAll : keeps_ + bytes);
}

void DevicePool::keep_less(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (keeps_ != kKeepsAll) (void)set_limit(keeps_ - bytes);  // with the old limit the pool keeps more
}

Status DevicePool::set_limit(uint64_t keeps) {
  const int code = cudaMemPoolSetAttribute(static_cast<cudaMemPool_t>(pool_), cudaMemPoolAttrReleaseThreshold, &keeps);
  if (code != cudaSuccess) return cuda_failure(code, "the memory pool's threshold");
  keeps_ = keeps;
  return {};
}

uint64_t DevicePool::memory_bytes() const {
  uint64_t bytes = 0;
  const int code =
      cudaMemPoolGetAttribute(static_cast<cudaMemPool_t>(pool_), cudaMemPoolAttrReservedMemCurrent, &bytes);
  if (code != cudaSuccess) (void)cudaGetLastError();
  return code == cudaSuccess ? bytes : 0;
}

Result<void*> DevicePool::take_staging() {
  {
    const std::lock_guard lock(mutex_);
    if (!staging_.empty()) {
      void* const memory = staging_.back();
      staging_.pop_back();
      return memory;
    }
  }
  void* memory = nullptr;
  if (const int code = cudaHostAlloc(&memory, kStagingBytes, cudaHostAllocDefault); code != cudaSuccess) {
    return cuda_failure(code, "pinned memory");
  }
  return memory;
}

void DevicePool::return_staging(void* memory) {
  const std::lock_guard lock(mutex_);
  staging_.push_back(memory);
}

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::make(int device) {
  auto pool = DevicePool::make(device, DevicePool::kKeepsAll);
  if (!pool) return std::unexpected(pool.error());
  return of_pool(std::move(*pool), 0);
}

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::of_pool(std::shared_ptr<DevicePool> pool, uint64_t keeps) {
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue(std::move(pool)));
  if (auto opened = queue->open(); !opened) return std::unexpected(opened.error());
  cudaStream_t stream = nullptr;
  if (const int code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); code != cudaSuccess) {
    return cuda_failure(code, "a stream");
  }
  queue->stream_ = stream;
  if (auto kept = queue->pool_->keep_more(keeps); !kept) return std::unexpected(kept.error());
  queue->keeps_ = keeps;
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
  cudaEvent_t meeting = nullptr;
  if (const int code = cudaEventCreateWithFlags(&meeting, cudaEventDisableTiming); code != cudaSuccess) {
    return cuda_failure(code, "an event");
  }
  meeting_ = meeting;
  auto staging = pool_->take_staging();
  if (!staging) return std::unexpected(staging.error());
  staging_ = *staging;
  return {};
}

DeviceQueue::~DeviceQueue() {
  const DeviceScope here(device_);
  if (stream_ != nullptr) {  // null is the default stream, on which others work
    cudaStreamSynchronize(stream_of(stream_));
    cudaStreamDestroy(stream_of(stream_));
  }
  if (meeting_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(meeting_));
  if (staging_ != nullptr) pool_->return_staging(staging_);
  if (keeps_ != 0) pool_->keep_less(keeps_);
}

bool DeviceQueue::check(int code, const char* what) {
  if (code != cudaSuccess) (void)cudaGetLastError();  // a launch of another queue of this thread would report it again
  if (code != cudaSuccess && first_error_) first_error_ = cuda_failure(code, what);
  return first_error_.has_value();
}

void* DeviceQueue::take(size_t bytes) {
  void* memory = nullptr;
  if (!works() || bytes == 0) return nullptr;
  const int code =
      cudaMallocFromPoolAsync(&memory, bytes, static_cast<cudaMemPool_t>(pool_->handle()), stream_of(stream_));
  if (code == cudaErrorMemoryAllocation) {
    shortage_ = cuda_failure(code, "device memory");
    return nullptr;
  }
  return check(code, "device memory") ? memory : nullptr;
}

void DeviceQueue::release(void* memory) {
  const DeviceScope here(device_);
  check(cudaFreeAsync(memory, stream_of(stream_)), "release of memory");
}

bool DeviceQueue::may_launch(uint64_t blocks) {
  if (first_error_ && blocks >= uint64_t{1} << 31) {
    first_error_ = fail(ErrorCode::kLimitExceeded, "cuda: an array of more than 2^31 blocks");
  }
  // A launch goes to the calling thread's device, which may be that of another queue.
  return works() && blocks != 0 && check(cudaSetDevice(device_), "a device");
}

void DeviceQueue::clear(void* at, size_t bytes) {
  if (works() && bytes != 0) check(cudaMemsetAsync(at, 0, bytes, stream_of(stream_)), "clearing memory");
}

void DeviceQueue::copy_in(void* to, const void* from, size_t bytes) {
  if (!works()) return;
  for (size_t at = 0; at < bytes && first_error_; at += kStagingBytes) {
    const size_t some = std::min(kStagingBytes, bytes - at);
    std::memcpy(staging_, static_cast<const char*>(from) + at, some);
    check(cudaMemcpyAsync(static_cast<char*>(to) + at, staging_, some, cudaMemcpyHostToDevice, stream_of(stream_)),
          "a copy to the device");
    check(cudaStreamSynchronize(stream_of(stream_)), "a copy to the device");
  }
  bytes_up_ += bytes;
  pool_->bytes_up_ += bytes;
}

void DeviceQueue::copy_out(void* to, const void* from, size_t bytes) {
  if (!works()) return;
  for (size_t at = 0; at < bytes && first_error_; at += kStagingBytes) {
    const size_t some = std::min(kStagingBytes, bytes - at);
    check(cudaMemcpyAsync(staging_, static_cast<const char*>(from) + at, some, cudaMemcpyDeviceToHost,
                          stream_of(stream_)),
          "a copy from the device");
    if (check(cudaStreamSynchronize(stream_of(stream_)), "a copy from the device")) {
      std::memcpy(static_cast<char*>(to) + at, staging_, some);
    }
  }
  bytes_down_ += bytes;
  pool_->bytes_down_ += bytes;
}

void DeviceQueue::record(DeviceEvent& event) {
  if (first_error_) {
    check(cudaEventRecord(static_cast<cudaEvent_t>(event.handle()), stream_of(stream_)), "an event");
  }
}

Status DeviceQueue::wait_for_stream(void* stream) {
  if (!first_error_) return first_error_;
  if (auto possible = may_wait_for(stream); !possible) return possible;
  const auto event = static_cast<cudaEvent_t>(meeting_);
  const int recorded = cudaEventRecord(event, stream_of(stream));
  if (is_of_handle(recorded)) {
    (void)cudaGetLastError();
    return no_stream();
  }
  check(recorded, "an event of another stream");
  if (first_error_) check(cudaStreamWaitEvent(stream_of(stream_), event, 0), "an event of another stream");
  return first_error_;
}

Status DeviceQueue::finish() {
  if (first_error_) check(cudaStreamSynchronize(stream_of(stream_)), "the work of a stream");
  if (!first_error_) return first_error_;
  return std::exchange(shortage_, Status());
}

}  // namespace millrace::cuda
