#include "worker/session/device_memory.h"

namespace millrace::worker {
namespace {

std::unexpected<Error> no_cuda() {
  return fail(ErrorCode::kUnsupported,
              "this build of Millrace has no CUDA: gradients can be pushed from the host's memory only");
}

}  // namespace

Result<int> device_of_memory(const void*, int) { return no_cuda(); }
Result<std::unique_ptr<DeviceResidual>> make_device_residual(int, const SelectionSpec&, uint64_t) { return no_cuda(); }
Result<std::unique_ptr<DeviceWeights>> make_device_weights(const DeviceArray&) { return no_cuda(); }

}  // namespace millrace::worker
