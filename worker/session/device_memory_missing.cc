#include "worker/session/device_memory.h"

namespace millrace::worker {
namespace {

std::unexpected<Error> no_cuda() {
  return fail(ErrorCode::kUnsupported,
              "this build of Millrace has no CUDA: gradients can be pushed from the host's memory only");
}

}  // namespace

Result<int> device_of_memory(const void*, int) { return no_cuda(); }
Status await_stream(int, void*) { return no_cuda(); }

class DevicePools::Impl {};

DevicePools::DevicePools() = default;
DevicePools::~DevicePools() = default;
Result<std::unique_ptr<DeviceResidual>> DevicePools::make_residual(int, const SelectionSpec&, uint64_t) {
  return no_cuda();
}
Result<std::unique_ptr<DeviceWeights>> DevicePools::make_weights(const DeviceArray&) { return no_cuda(); }
DeviceUse DevicePools::use() const { return {}; }

}  // namespace millrace::worker
