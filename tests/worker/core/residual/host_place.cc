#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/core/residual/device_place.h"
#include "tests/worker/core/residual/scarce_queue.h"
#include "worker/core/residual/queue_residual.h"

namespace millrace::worker {
namespace {

const ScarceQueue* last_host_queue = nullptr;

}  // namespace

std::string why_no_device() { return {}; }

struct GradientThere::Memory {
  std::vector<float> values;
};

GradientThere::GradientThere(std::span<const float> values)
    : memory_(std::make_unique<Memory>(Memory{{values.begin(), values.end()}})) {}
GradientThere::~GradientThere() = default;
GradientThere::operator DeviceGradient() const { return {memory_->values.data(), memory_->values.size(), 0}; }

Result<std::unique_ptr<DeviceResidual>> make_there(const SelectionSpec& spec, uint64_t dimension) {
  auto queue = std::make_unique<ScarceQueue>();
  last_host_queue = queue.get();
  return std::make_unique<QueueResidual<ScarceQueue>>(std::move(queue), spec, dimension);
}

uint64_t bytes_up() { return last_host_queue->bytes_up(); }
uint64_t bytes_down() { return last_host_queue->bytes_down(); }

}  // namespace millrace::worker
