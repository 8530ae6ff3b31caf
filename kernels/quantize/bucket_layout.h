#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/magnitude/value_chunks.h"

namespace millrace {

/// Locates the buckets of an array, in values and in bytes. Each has a head, then the codes of its values, padded to a
/// byte. `codes_values` values take `codes_bits` bits.
///
/// REQUIRES bucket_size, codes_values >= 1.
struct BucketLayout {
  uint64_t count = 0;
  uint64_t bucket_size = 1;
  uint64_t head_bytes = 0;
  uint64_t codes_bits = 8;
  uint64_t codes_values = 1;

  uint64_t buckets() const { return count / bucket_size + (count % bucket_size != 0 ? 1 : 0); }
  uint64_t first(uint64_t bucket) const { return bucket * bucket_size; }
  uint64_t size(uint64_t bucket) const { return std::min(bucket_size, count - first(bucket)); }
  uint64_t code_bytes(uint64_t values) const {
    const uint64_t unit = 8 * codes_values;
    return (values * codes_bits + unit - 1) / unit;
  }
  uint64_t byte(uint64_t bucket) const { return bucket * (head_bytes + code_bytes(bucket_size)); }
  uint64_t bytes() const {
    if (count == 0) return 0;
    const uint64_t last = buckets() - 1;
    return byte(last) + head_bytes + code_bytes(size(last));
  }
};

/// Number of values that are quantized at a time: a chunk's other data stays in the first-level cache. A multiple of 8
/// and of 5, so that chunks of a bucket end on whole bytes.
inline constexpr size_t kQuantizeChunk = 1280;

/// Number of values that justify one task of TBB.
inline constexpr uint64_t kQuantizeTaskValues = uint64_t{1} << 16;

/// Calls each(bucket) for every bucket, in several threads where there are many.
template <typename Each>
void for_each_bucket(const BucketLayout& layout, const Each& each) {
  const uint64_t buckets = layout.buckets();
  const uint64_t of_task = std::max<uint64_t>(1, kQuantizeTaskValues / layout.bucket_size);
  const auto each_of_task = [&](uint64_t task) {
    const uint64_t end = std::min(buckets, (task + 1) * of_task);
    for (uint64_t bucket = task * of_task; bucket < end; ++bucket) each(bucket);
  };
  for_chunks((buckets + of_task - 1) / of_task, each_of_task, {.chunks_min = 2});
}

/// Calls each(first, count) for every chunk of kQuantizeChunk values of `count`, in several threads where there are
/// many.
template <typename Each>
void for_each_chunk(uint64_t count, const Each& each) {
  const BucketLayout chunks{.count = count, .bucket_size = kQuantizeChunk};
  for_each_bucket(chunks, [&](uint64_t chunk) { each(chunks.first(chunk), chunks.size(chunk)); });
}

}  // namespace millrace
