#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/slice_kernels.h"

namespace millrace {
namespace {

// The loop prefetches the cache line of this many entries ahead, into the second level. The first level has few
// outstanding misses, and a processor that looks ahead fills these by itself.
constexpr size_t kScatterPrefetchAhead = 128;
constexpr int kSecondLevelCache = 2;

}  // namespace

void add_scaled(std::span<float> target, const StreamView& stream, float scale) {
  MILLRACE_CHECK(target.size() == stream.dimension, target.size(), stream.dimension);
  if (stream.dense) {
    add_scaled_dense(target, stream.values, scale);
    return;
  }
  const size_t count = stream.count();
  const uint32_t* const index = stream.indices.data();
  size_t i = 0;
  // The indices are far apart: every entry is a cache miss.
  for (; i + kScatterPrefetchAhead < count; ++i) {
    __builtin_prefetch(&target[index[i + kScatterPrefetchAhead]], 0, kSecondLevelCache);
    target[index[i]] += scale * stream.values[i];
  }
  for (; i < count; ++i) target[index[i]] += scale * stream.values[i];
}

}  // namespace millrace
