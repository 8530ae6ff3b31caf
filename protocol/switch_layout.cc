#include "protocol/switch_layout.h"

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

uint32_t bucket_of_window(const SwitchLayout& layout, uint32_t window) {
  MILLRACE_CHECK(window < layout.windows, window, layout.windows);
  const uint64_t first = uint64_t{window} * layout.window_indices;
  const auto next = std::ranges::upper_bound(layout.bucket_begin, first);
  return static_cast<uint32_t>(next - layout.bucket_begin.begin()) - 1;
}

}  // namespace millrace::protocol
