#include "protocol/job/switch_layout.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::protocol {

SwitchLayout plan_switch_layout(const JobSpec& spec, const JobLayout& layout) {
  const uint64_t window = spec.grid.block_indices;
  MILLRACE_CHECK(window >= 1 && spec.switch_path.lanes >= 1, window, spec.switch_path.lanes);
  SwitchLayout planned;
  planned.window_indices = spec.grid.block_indices;
  uint64_t windows = 0;
  for (const BucketLayout& bucket : layout.buckets) {
    planned.bucket_begin.push_back(windows * window);
    planned.dimension = windows * window + bucket.dimension;
    windows += (bucket.dimension + window - 1) / window;
    if (bucket.reselect.reselect == Reselect::kTopK) planned.reselect_k += entries_down(bucket);
  }
  planned.windows = static_cast<uint32_t>(windows);
  planned.lanes = spec.switch_path.lanes;
  planned.slots = switch_slots(spec.switch_path.slots, windows, planned.lanes);
  return planned;
}

}  // namespace millrace::protocol
