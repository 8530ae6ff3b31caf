#pragma once

#include <cstdint>
#include <vector>

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// A tensor's place in a bucket.
struct BucketMember {
  uint32_t tensor = 0;  ///< index into JobSpec::tensors
  uint64_t offset = 0;  ///< first index of the tensor in the bucket
};

/// A tensor of the protocol: a large tensor alone, or several small ones fused end to end.
struct BucketLayout {
  uint32_t bucket = 0;
  uint64_t dimension = 0;
  ValueType value_type = ValueType::kF32;
  int32_t priority = 0;
  SelectionSpec select;  ///< never by_size: what by_size chooses at this size
  ReselectSpec reselect;
  CodecSpec codec_up;
  CodecSpec codec_down;
  std::vector<BucketMember> members;
  uint32_t first_part = 0;  ///< parts of a bucket are numbered consecutively, in index order
  uint32_t part_count = 0;
};

/// An index range [begin, end) of a bucket on one shard.
struct PartLayout {
  uint32_t part = 0;  ///< number in the job
  uint32_t bucket = 0;
  uint32_t shard = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The division of a job's tensors over the shards. A pure function of (spec, shard count): workers and shards compute
/// it alone and compare layout_hash() in the handshake.
struct JobLayout {
  std::vector<BucketLayout> buckets;
  std::vector<PartLayout> parts;
  uint32_t shard_count = 0;
};

/// REQUIRES: validate(spec) holds, shard_count >= 1.
///
/// A tensor below fuse_below without overrides is fused with its neighbours; a tensor that by_size compresses has a
/// bucket of its own. A bucket has the selection that by_size chooses for the tensor's size. Where by_size sends the
/// tensor uncompressed, its bucket has no re-selection and codecs without loss.
/// A bucket below a minimum per shard stays on one shard (round robin). A larger one is split evenly over all shards.
/// Each shard's range is split into parts_per_shard parts (0: so that a part carries about 32,768 expected entries, 1
/// to 16). Where a reproducible job re-selects, parts begin at blocks of its grid, and are fewer where there are fewer
/// blocks.
JobLayout plan_layout(const JobSpec& spec, uint32_t shard_count);

/// Returns the name of a bucket for users: "tensor 'w'", "tensor 'w' and 3 that travel with it".
std::string bucket_text(const JobSpec& spec, const BucketLayout& bucket);

uint64_t layout_hash(const JobLayout& layout);

/// Returns whether the update of the step carries the bucket's whole sum. True without re-selection, and in steps that
/// workers send uncompressed.
bool update_is_whole(const BucketLayout& bucket, uint64_t step);

/// Returns how many entries of a step's sum a bucket that re-selects sends back, <= its dimension.
uint64_t entries_down(const BucketLayout& bucket);

}  // namespace millrace::protocol
