#include <algorithm>
#include <string>

#include "worker/core/session_core_impl.h"

/// Jobs that clip, or that use path switch: a push is sent when every tensor has been pushed. So all tensors must be
/// pushed equally often.
namespace millrace::worker {

std::string SessionCore::Impl::push_waits_for() const {
  if (!clip.on() && !by_switch()) return {};
  const uint64_t most = std::ranges::max(tensors, {}, &TensorRun::pushed).pushed;
  const auto behind = std::ranges::find_if(tensors, [&](const TensorRun& run) { return run.pushed < most; });
  if (behind == tensors.end()) return {};
  return "tensor '" + config.spec.tensors[static_cast<size_t>(behind - tensors.begin())].name +
         "' has not been pushed for step " + std::to_string(most - 1) +
         (clip.on() ? ": gradients are clipped by the norm over all tensors"
                    : ": on path switch a step has all tensors");
}

}  // namespace millrace::worker
