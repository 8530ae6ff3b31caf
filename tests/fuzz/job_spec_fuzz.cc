// Job specifications on hostile bytes: accepted bytes are the canonical ones, a valid specification has a layout that
// covers it.
#include <algorithm>

#include "kernels/base/check.h"
#include "protocol/job/switch_layout.h"

namespace {

using millrace::protocol::JobLayout;
using millrace::protocol::JobSpec;

void check_layout(const JobSpec& spec, uint32_t shard_count) {
  const JobLayout layout = millrace::protocol::plan_layout(spec, shard_count);
  size_t tensors = 0;
  for (const auto& bucket : layout.buckets) {
    tensors += bucket.members.size();
    uint64_t begin = 0;
    for (uint32_t i = 0; i < bucket.part_count; ++i) {
      const auto& part = layout.parts.at(bucket.first_part + i);
      MILLRACE_CHECK(part.begin == begin && part.end > begin && part.shard < shard_count, part.part);
      begin = part.end;
    }
    MILLRACE_CHECK(begin == bucket.dimension, begin, bucket.dimension);
  }
  MILLRACE_CHECK(tensors == spec.tensors.size(), tensors);
}

/// Buckets in windows of their own, and no more indices than datagrams can name.
void check_switch_layout(const JobSpec& spec) {
  const JobLayout layout = millrace::protocol::plan_layout(spec, 1);
  const auto planned = millrace::protocol::plan_switch_layout(spec, layout);
  MILLRACE_CHECK(planned.dimension <= millrace::protocol::kSwitchDimensionMax, planned.dimension);
  MILLRACE_CHECK(planned.slots >= 1 && planned.slots <= planned.windows, planned.slots, planned.windows);
  for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
    const uint64_t begin = planned.bucket_begin[bucket];
    const uint64_t end = begin + layout.buckets[bucket].dimension;
    const bool is_last = bucket + 1 == layout.buckets.size();
    const uint64_t next =
        is_last ? uint64_t{planned.windows} * planned.window_indices : planned.bucket_begin[bucket + 1];
    MILLRACE_CHECK(begin % planned.window_indices == 0, bucket, begin);
    MILLRACE_CHECK(end <= next && next - end < planned.window_indices, bucket, end, next);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const millrace::ByteSpan bytes(data, size);
  const auto spec = millrace::protocol::decode_job_spec(bytes);
  if (!spec) {
    MILLRACE_CHECK(!spec.error().message.empty());
    return 0;
  }
  MILLRACE_CHECK(std::ranges::equal(millrace::protocol::encode_job_spec(*spec), bytes));
  MILLRACE_CHECK(millrace::protocol::first_difference(*spec, *spec) == "no difference");
  if (!validate(*spec)) return 0;
  check_layout(*spec, 1);
  if (spec->path == millrace::protocol::Path::kSwitch) check_switch_layout(*spec);
  check_layout(*spec, 3);
  return 0;
}
