#include <cuda.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <optional>
#include <thread>

#include "tests/kernels/cuda/device_under_test.h"
// The suites test the queues of the first header.
#include "tests/kernels/cuda/accumulator_suite.h"
#include "tests/kernels/cuda/arrays_suite.h"
#include "tests/kernels/cuda/draw_suite.h"
#include "tests/kernels/cuda/polynomial_suite.h"
#include "tests/kernels/cuda/quantize_suite.h"
#include "tests/kernels/cuda/select_suite.h"
#include "tests/kernels/cuda/threshold_suite.h"

namespace millrace::cuda {
namespace {

/// Entries of the large arrays: more than a card runs threads, and no multiple of anything.
constexpr size_t kLarge = (size_t{1} << 27) + 3;

/// Values that are made fast: about normal, all equal, or of 16 magnitudes.
std::vector<float> large_values(int kind, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = bloom_mix(static_cast<uint32_t>(i) + 77);
    const float unit = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31F;
    values[i] = kind == 0 ? unit * unit * unit : kind == 1 ? 1.0F : static_cast<float>(bits % 16);
  }
  return values;
}

class CudaLarge : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DeviceUnderTest::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST(CudaErrors, CardsThatCannotBeUsedAreUnavailable) {
  for (const int error :
       {cudaErrorStubLibrary, cudaErrorInsufficientDriver, cudaErrorDevicesUnavailable, cudaErrorNoDevice,
        cudaErrorInvalidDevice, cudaErrorInvalidKernelImage, cudaErrorNoKernelImageForDevice, cudaErrorInvalidPtx,
        cudaErrorJitCompilerNotFound, cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilationDisabled,
        cudaErrorNotSupported, cudaErrorSystemNotReady, cudaErrorSystemDriverMismatch,
        cudaErrorCompatNotSupportedOnDevice, cudaErrorInvalidDeviceFunction}) {
    EXPECT_EQ(error_code_of(error), ErrorCode::kUnavailable) << error;
  }
  EXPECT_EQ(error_code_of(cudaErrorMemoryAllocation), ErrorCode::kLimitExceeded);
  EXPECT_EQ(error_code_of(cudaErrorIllegalAddress), ErrorCode::kInternal);
}

TEST(CudaErrors, CapturesOfTheCallerAreInvalidArguments) {
  for (int error = cudaErrorStreamCaptureUnsupported; error <= cudaErrorStreamCaptureWrongThread; ++error) {
    EXPECT_EQ(error_code_of(error), ErrorCode::kInvalidArgument) << error;
  }
}

class CudaContexts : public CudaLarge {};

TEST_F(CudaContexts, StreamsThatAreCapturedAreRefusedAndTheCaptureStays) {
  const auto queue = DeviceQueue::make(0).value();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  {
    const DeviceScope here(0);
    EXPECT_EQ(await_stream(0, stream).error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(queue->wait_for_stream(stream).error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(DeviceQueue::make(0).has_value()) << "the capture forbids pinned memory to threads of another mode";
    EXPECT_TRUE(queue->finish().has_value());
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_TRUE(await_stream(0, stream).has_value());
  EXPECT_TRUE(queue->wait_for_stream(stream).has_value());
  EXPECT_TRUE(queue->finish().has_value());
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/// Returns a call of the driver, which the tests do not link: as CUDA 4.0 had it.
template <class Call>
Call* driver_call(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 4'000, cudaEnableDefault, &result), cudaSuccess);
  return std::bit_cast<Call*>(found);
}

/// Returns the calling thread's context; null: it has none.
CUcontext current_context() {
  CUcontext context = nullptr;
  EXPECT_EQ(driver_call<CUresult(CUcontext*)>("cuCtxGetCurrent")(&context), CUDA_SUCCESS);
  return context;
}

TEST_F(CudaContexts, ContextOfTheCallersOwnReturnsAndItsMemoryIsRefused) {
  auto* const create = driver_call<CUresult(CUcontext*, unsigned int, CUdevice)>("cuCtxCreate");
  auto* const destroy = driver_call<CUresult(CUcontext)>("cuCtxDestroy");
  auto* const allocate = driver_call<CUresult(CUdeviceptr*, size_t)>("cuMemAlloc");
  const auto queue = DeviceQueue::make(0).value();
  const Array<DeviceQueue> array(*queue, std::vector<float>(1000, 1.0F));
  CUcontext own = nullptr;
  ASSERT_EQ(create(&own, 0, 0), CUDA_SUCCESS);  // is the thread's now
  CUdeviceptr memory = 0;
  ASSERT_EQ(allocate(&memory, 4000), CUDA_SUCCESS);
  EXPECT_EQ(device_of_memory(std::bit_cast<void*>(memory)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(current_context(), own);
  EXPECT_EQ(device_of_memory(array.data).value(), 0);
  {
    const DeviceScope here(0);
    EXPECT_NE(current_context(), own);
    EXPECT_TRUE(DeviceQueue::make(0).has_value());
    EXPECT_TRUE(add(*queue, array.data, array.data, 1000, 1, nullptr).has_value());
  }
  EXPECT_EQ(current_context(), own);
  EXPECT_EQ(destroy(own), CUDA_SUCCESS);
}

TEST_F(CudaContexts, ThreadsWithoutOneHaveNoneAfterAQueueEnds) {
  auto queue = DeviceQueue::make(0).value();
  std::optional memory(queue->allocate<float>(1000));
  std::thread([&] {
    EXPECT_EQ(current_context(), nullptr);
    EXPECT_EQ(device_of_memory(memory->data()).value(), 0);
    EXPECT_EQ(current_context(), nullptr);
    memory.reset();
    EXPECT_EQ(current_context(), nullptr);
    queue.reset();
    EXPECT_EQ(current_context(), nullptr);
  }).join();
}

/// Takes all memory of the card that is left.
class FullCard {
 public:
  FullCard() {
    for (size_t bytes = size_t{1} << 32; bytes >= 4096; bytes /= 2) {
      for (void* memory = nullptr; cudaMalloc(&memory, bytes) == cudaSuccess;) taken_.push_back(memory);
      (void)cudaGetLastError();
    }
  }
  ~FullCard() {
    for (void* memory : taken_) cudaFree(memory);
  }
  FullCard(const FullCard&) = delete;
  FullCard& operator=(const FullCard&) = delete;

 private:
  std::vector<void*> taken_;
};

/// Takes the unused memory of the queue's pool. REQUIRES: the card is full.
std::vector<DeviceMemory<uint8_t>> rest_of_pool(DeviceQueue& queue) {
  std::vector<DeviceMemory<uint8_t>> taken;
  for (size_t bytes = size_t{1} << 25; bytes >= 512; bytes /= 2) {
    for (;;) {
      DeviceMemory<uint8_t> memory = queue.allocate<uint8_t>(bytes);
      if (memory.data() == nullptr) break;
      taken.push_back(std::move(memory));
    }
    EXPECT_EQ(queue.finish().error().code, ErrorCode::kLimitExceeded);
  }
  return taken;
}

/// No kernel is launched before the card is full: its code must be there.
TEST_F(CudaContexts, FullCardIsAShortageAndNoErrorOfTheQueue) {
  constexpr uint64_t kDimension = 100'003;
  const auto queue = DeviceQueue::make(0).value();
  const auto values = testing::values_of(testing::Pattern::kGaussian, kDimension, 1);
  const Array<DeviceQueue> array(*queue, values);
  Accumulator sum(*queue, kDimension), staged(*queue, kDimension), velocity(*queue, kDimension);
  bool lacked = false;
  const auto works = [&](const auto& result) {
    lacked = lacked || !result.has_value();
    EXPECT_TRUE(result.has_value() || result.error().code == ErrorCode::kLimitExceeded) << result.error().message;
    EXPECT_TRUE(queue->status().has_value()) << queue->status().error().message;
  };
  {
    const FullCard full;
    const auto rest = rest_of_pool(*queue);
    works(sum.add(array.data, 1, NonFiniteValues::kRefused));
    works(sum.enter(staged, 1, velocity, {0.9F, 0, 1}));
    works(sum.norm());
    works(sum.select_top_k(100));
    works(sum.add(StreamView{kDimension, true, {}, values}));
    EXPECT_TRUE(lacked) << "the card was not full";
  }
  EXPECT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
  EXPECT_TRUE(sum.select_top_k(100).has_value());
}

TEST_F(CudaLarge, TopKEqualsTheHost) {
  for (const auto& queue : DeviceUnderTest::queues()) {
    for (const int kind : {0, 1, 2}) {
      const std::vector<float> values = large_values(kind, kLarge);
      const Array<DeviceQueue> array(*queue, values);
      for (const uint64_t k : {kLarge / 1000, kLarge / 3}) {
        IndexBuffer wanted;
        ASSERT_TRUE(select_top_k(values, k, wanted).has_value());
        const auto found = top_k(*queue, array.data, kLarge, k, Zeros::kSelected);
        ASSERT_TRUE(found.has_value()) << found.error().message;
        ASSERT_TRUE(on_host(*queue, *found) == testing::listed(wanted)) << kind << " " << k;
      }
    }
  }
}

TEST_F(CudaLarge, CodeAndFilterEqualTheHost) {
  const std::vector<float> values = large_values(0, kLarge);
  ByteBuffer code;
  std::vector<float> meant(kLarge);
  ASSERT_TRUE(qsgd_encode(values, {.random = RandomKey::from(1)}, code, meant).has_value());
  IndexBuffer indices;
  ASSERT_TRUE(select_top_k(values, kLarge / 100, indices).has_value());
  const BloomFilter filter = BloomFilter::of(indices, 0.01, 3).value();
  std::vector<uint32_t> known;
  filter.scan(kLarge, [&](IndexSpan some) {
    known.insert(known.end(), some.begin(), some.end());
    return true;
  });
  for (const auto& queue : DeviceUnderTest::queues()) {
    const Array<DeviceQueue> array(*queue, values);
    auto out = queue->allocate<uint8_t>(code.size());
    auto decoded = queue->allocate<float>(kLarge);
    ASSERT_TRUE(
        qsgd(*queue, array.data, kLarge, {.random = RandomKey::from(1)}, out.data(), decoded.data()).has_value());
    ASSERT_TRUE(downloaded(*queue, out.data(), code.size()) == std::vector<uint8_t>(code.begin(), code.end()));
    ASSERT_TRUE(downloaded(*queue, decoded.data(), kLarge) == meant);
    auto words = queue->allocate<uint32_t>(filter.words.size());
    queue->upload(words.data(), std::span<const uint32_t>(filter.words));
    const auto found = bloom_query(*queue, filter.hashes, words.data(), kLarge, indices.size());
    ASSERT_TRUE(found.has_value()) << found.error().message;
    ASSERT_TRUE(on_host(*queue, *found) == known);
  }
}

}  // namespace
}  // namespace millrace::cuda
