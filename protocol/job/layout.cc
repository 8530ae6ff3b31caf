#include "protocol/job/layout.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/select/select.h"
#include "protocol/job/step_sends.h"

namespace millrace::protocol {
namespace {

/// A bucket whose share of a shard would be smaller than this stays on one shard: a message costs more than its
/// entries.
constexpr uint64_t kShardRangeMin = 4'096;
constexpr uint64_t kPartEntries = 32'768;
constexpr uint64_t kPartsPerShardMax = 16;
/// Over all buckets, the automatic choice keeps the number of parts a shard near this.
constexpr uint64_t kAutomaticPartsMax = 65'536;
/// Boundaries fall on multiples of this, so that bitmaps and vectors of a part start on whole words.
constexpr uint64_t kBoundaryUnit = 64;

/// Returns whether a selection by size sends a tensor of `dimension` uncompressed in every step.
bool is_uncompressed(const SelectionSpec& select, uint64_t dimension) {
  return chooses_by_size(select.selection) && resolved_by_size(select, dimension).selection == SelectionId::kNone;
}

/// Returns whether the tensor may share a bucket. A selection by size chooses for each tensor: a tensor that it
/// compresses has a bucket of its own. Tensors that it does not compress share one, regardless of the bucket's size.
bool fusible(const JobSpec& spec, const TensorSpec& tensor) {
  const bool overrides = tensor.select || tensor.reselect || tensor.codec_up || tensor.codec_down;
  const bool selected_alone = chooses_by_size(spec.select.selection) && !is_uncompressed(spec.select, tensor.dimension);
  return tensor.dimension < spec.fuse_below && !overrides && !selected_alone;
}

/// Adds a tensor's k to its bucket's: an absolute k is per tensor, so a fused bucket has the sum over its tensors.
uint64_t sum_of_k(uint64_t bucket_k, uint64_t tensor_k, uint64_t dimension) {
  return tensor_k == 0 ? 0 : bucket_k + std::min(tensor_k, dimension);
}

BucketLayout bucket_of(const JobSpec& spec, uint32_t tensor_index) {
  const TensorSpec& tensor = spec.tensors[tensor_index];
  BucketLayout bucket;
  bucket.dimension = tensor.dimension;
  bucket.value_type = tensor.value_type;
  bucket.priority = tensor.priority;
  const SelectionSpec select = tensor.select.value_or(spec.select);
  bucket.select = resolved_by_size(select, tensor.dimension);
  bucket.reselect = tensor.reselect.value_or(spec.reselect);
  bucket.codec_up = tensor.codec_up.value_or(spec.codec_up);
  bucket.codec_down = tensor.codec_down.value_or(spec.codec_down);
  if (is_uncompressed(select, tensor.dimension)) {
    bucket.reselect = {};
    bucket.codec_up = without_loss(bucket.codec_up);
    bucket.codec_down = without_loss(bucket.codec_down);
  }
  bucket.select.k = std::min(bucket.select.k, tensor.dimension);
  bucket.reselect.k = std::min(bucket.reselect.k, tensor.dimension);
  bucket.members.push_back({tensor_index, 0});
  return bucket;
}

void append_member(const JobSpec& spec, uint32_t tensor_index, BucketLayout& bucket) {
  const TensorSpec& tensor = spec.tensors[tensor_index];
  bucket.members.push_back({tensor_index, bucket.dimension});
  bucket.dimension += tensor.dimension;
  if (is_uncompressed(spec.select, tensor.dimension)) return;
  bucket.select.k = sum_of_k(bucket.select.k, spec.select.k, tensor.dimension);
  bucket.reselect.k = sum_of_k(bucket.reselect.k, spec.reselect.k, tensor.dimension);
}

std::vector<BucketLayout> plan_buckets(const JobSpec& spec) {
  std::vector<BucketLayout> buckets;
  bool open = false;  // the last bucket may take another small tensor
  for (uint32_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    const bool small = fusible(spec, tensor);
    if (small && open && buckets.back().value_type == tensor.value_type && buckets.back().priority == tensor.priority &&
        buckets.back().dimension + tensor.dimension <= kDimensionMax) {
      append_member(spec, i, buckets.back());
      continue;
    }
    buckets.push_back(bucket_of(spec, i));
    buckets.back().bucket = static_cast<uint32_t>(buckets.size() - 1);
    open = small;
  }
  return buckets;
}

/// Returns the number of entries that one contribution to the bucket is expected to carry; all of them where it is
/// unknown.
uint64_t expected_entries(const BucketLayout& bucket) {
  const SelectionInfo* info = find_selection(bucket.select.selection);
  if (info == nullptr || info->amount() != SelectionAmount::kShare) return bucket.dimension;
  return k_of(bucket.select, bucket.dimension);
}

/// Returns the unit that no part divides: a reproducible job's sums are cut window by window, each as a whole.
uint64_t partition_unit(const JobSpec& spec, const BucketLayout& bucket) {
  return spec.reproducible && bucket.reselect.reselect != Reselect::kNone ? spec.grid.block_indices : 1;
}

uint64_t parts_per_shard(const JobSpec& spec, const BucketLayout& bucket, uint64_t shards, uint64_t buckets) {
  const uint64_t range = bucket.dimension / partition_unit(spec, bucket) / shards;
  uint64_t parts = spec.parts_per_shard;
  if (parts == 0) {
    const uint64_t entries_a_shard = expected_entries(bucket) / shards;
    const uint64_t room = std::max<uint64_t>(1, kAutomaticPartsMax / buckets);
    parts = std::min({(entries_a_shard + kPartEntries - 1) / kPartEntries, kPartsPerShardMax, room});
  }
  return std::clamp<uint64_t>(parts, 1, std::max<uint64_t>(1, range));
}

/// Returns the start of piece i of `pieces` even pieces of [0, dimension).
uint64_t boundary(uint64_t dimension, uint64_t unit_min, uint64_t pieces, uint64_t i) {
  if (i == pieces) return dimension;
  const uint64_t unit = unit_min == 1 && dimension / kBoundaryUnit >= pieces ? kBoundaryUnit : unit_min;
  return (dimension / unit) * i / pieces * unit;
}

void put_bucket(const BucketLayout& bucket, ByteWriter& writer) {
  writer.put(bucket.dimension);
  writer.put(bucket.value_type);
  writer.put(static_cast<uint32_t>(bucket.members.size()));
  for (const BucketMember& member : bucket.members) {
    writer.put(member.tensor);
    writer.put(member.offset);
  }
  writer.put(bucket.first_part);
  writer.put(bucket.part_count);
}

}  // namespace

JobLayout plan_layout(const JobSpec& spec, uint32_t shard_count) {
  MILLRACE_CHECK(shard_count >= 1, shard_count);
  JobLayout layout;
  layout.shard_count = shard_count;
  layout.buckets = plan_buckets(spec);
  uint32_t next_small_shard = 0;
  for (BucketLayout& bucket : layout.buckets) {
    const uint64_t unit = partition_unit(spec, bucket);
    const bool split = shard_count > 1 && bucket.dimension / shard_count >= std::max(kShardRangeMin, unit);
    const uint32_t shards = split ? shard_count : 1;
    const uint64_t parts = parts_per_shard(spec, bucket, shards, layout.buckets.size());
    const uint64_t pieces = parts * shards;
    bucket.first_part = static_cast<uint32_t>(layout.parts.size());
    bucket.part_count = static_cast<uint32_t>(pieces);
    for (uint64_t i = 0; i < pieces; ++i) {
      PartLayout part;
      part.part = static_cast<uint32_t>(layout.parts.size());
      part.bucket = bucket.bucket;
      part.shard = split ? static_cast<uint32_t>(i / parts) : next_small_shard;
      part.begin = boundary(bucket.dimension, unit, pieces, i);
      part.end = boundary(bucket.dimension, unit, pieces, i + 1);
      layout.parts.push_back(part);
    }
    if (!split) next_small_shard = (next_small_shard + 1) % shard_count;
  }
  return layout;
}

std::string bucket_text(const JobSpec& spec, const BucketLayout& bucket) {
  const std::string first = "tensor '" + spec.tensors[bucket.members.front().tensor].name + '\'';
  const size_t others = bucket.members.size() - 1;
  return others == 0 ? first : first + " and " + std::to_string(others) + " that travel with it";
}

bool update_is_whole(const BucketLayout& bucket, uint64_t step) {
  return bucket.reselect.reselect == Reselect::kNone ||
         step_sends(bucket.select, bucket.dimension, step) == StepSends::kUncompressed;
}

uint64_t entries_down(const BucketLayout& bucket) {
  if (bucket.reselect.k != 0)
    return std::min(bucket.dimension, bucket.reselect.k);  // the density may then be any number
  const double by_density = std::ceil(bucket.reselect.density * static_cast<double>(bucket.dimension));
  return std::min(bucket.dimension, static_cast<uint64_t>(by_density));
}

uint64_t layout_hash(const JobLayout& layout) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(layout.shard_count);
  writer.put(static_cast<uint32_t>(layout.buckets.size()));
  for (const BucketLayout& bucket : layout.buckets) put_bucket(bucket, writer);
  writer.put(static_cast<uint32_t>(layout.parts.size()));
  for (const PartLayout& part : layout.parts) {
    writer.put(part.bucket);
    writer.put(part.shard);
    writer.put(part.begin);
    writer.put(part.end);
  }
  return hash64(bytes);
}

}  // namespace millrace::protocol
