#include "protocol/job/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/base/random.h"

namespace millrace::protocol {
namespace {

JobSpec layout_spec_of(std::vector<uint64_t> dimensions) {
  JobSpec spec;
  spec.name = "train";
  spec.workers = 1;
  for (const uint64_t dimension : dimensions) {
    spec.tensors.push_back({.name = "t" + std::to_string(spec.tensors.size()), .dimension = dimension});
  }
  return spec;
}

/// Every index of every tensor is in exactly one part, and the numbers agree with the places.
void expect_whole(const JobSpec& spec, const JobLayout& layout) {
  uint32_t next_tensor = 0;
  uint32_t next_part = 0;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const BucketLayout& bucket = layout.buckets[b];
    EXPECT_EQ(bucket.bucket, b);
    uint64_t offset = 0;
    for (const BucketMember& member : bucket.members) {
      EXPECT_EQ(member.tensor, next_tensor++);
      EXPECT_EQ(member.offset, offset);
      offset += spec.tensors[member.tensor].dimension;
    }
    EXPECT_EQ(bucket.dimension, offset);
    EXPECT_LE(bucket.dimension, kDimensionMax);
    EXPECT_EQ(bucket.first_part, next_part);
    ASSERT_GE(bucket.part_count, 1u);
    uint64_t begin = 0;
    for (uint32_t i = 0; i < bucket.part_count; ++i) {
      const PartLayout& part = layout.parts.at(next_part);
      EXPECT_EQ(part.part, next_part++);
      EXPECT_EQ(part.bucket, b);
      EXPECT_LT(part.shard, layout.shard_count);
      EXPECT_EQ(part.begin, begin);
      EXPECT_GT(part.end, part.begin);
      begin = part.end;
    }
    EXPECT_EQ(begin, bucket.dimension);
  }
  EXPECT_EQ(next_tensor, spec.tensors.size());
  EXPECT_EQ(next_part, layout.parts.size());
}

TEST(Layout, CoversEveryIndexOnceForManyShapes) {
  RandomSequence random(RandomKey::from(7));
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> dimensions(1 + random.next_below(20));
    for (uint64_t& dimension : dimensions) dimension = 1 + random.next_below(uint64_t{1} << random.next_below(33));
    JobSpec spec = layout_spec_of(dimensions);
    spec.parts_per_shard = static_cast<uint32_t>(random.next_below(17));
    spec.select = {.selection = SelectionId::kTopK, .density = 0.01};
    const auto shards = static_cast<uint32_t>(1 + random.next_below(9));
    expect_whole(spec, plan_layout(spec, shards));
  }
}

TEST(Layout, SmallNeighboursShareABucket) {
  const JobLayout layout = plan_layout(layout_spec_of({100, 200, 50'000, 300, 400}), 1);
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_EQ(layout.buckets[0].members.size(), 2u);
  EXPECT_EQ(layout.buckets[1].members.size(), 1u);
  EXPECT_EQ(layout.buckets[2].members.size(), 2u);
  EXPECT_EQ(layout.buckets[2].dimension, 700u);
}

TEST(Layout, TensorWithOverrideOrOtherTypeOrPriority_KeepsItsOwnBucket) {
  JobSpec spec = layout_spec_of({100, 100, 100, 100});
  spec.tensors[1].codec_up = CodecSpec{.index = IndexCodecId::kRaw};
  spec.tensors[3].priority = 1;
  const JobLayout layout = plan_layout(spec, 1);
  ASSERT_EQ(layout.buckets.size(), 4u);
  EXPECT_EQ(layout.buckets[1].codec_up.index, IndexCodecId::kRaw);
  EXPECT_EQ(layout.buckets[3].priority, 1);
  spec = layout_spec_of({100, 100});
  spec.tensors[1].value_type = ValueType::kF64;
  EXPECT_EQ(plan_layout(spec, 1).buckets.size(), 2u);
}

TEST(Layout, NothingIsFusedWhenFuseBelowIsZero) {
  JobSpec spec = layout_spec_of({1, 1, 1});
  spec.fuse_below = 0;
  EXPECT_EQ(plan_layout(spec, 1).buckets.size(), 3u);
}

TEST(Layout, AFusedBucketNeverGrowsPastTheIndexType) {
  JobSpec spec = layout_spec_of({kDimensionMax - 1, 1, 1});
  spec.fuse_below = UINT64_MAX;
  const JobLayout layout = plan_layout(spec, 1);
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].dimension, kDimensionMax);
}

TEST(Layout, AnAbsoluteKIsPerTensorSoAFusedBucketHasTheSum) {
  JobSpec spec = layout_spec_of({100, 5, 200});
  spec.select = {.selection = SelectionId::kTopK, .k = 10};
  spec.reselect = {.reselect = Reselect::kTopK, .k = 20};
  const JobLayout layout = plan_layout(spec, 1);
  ASSERT_EQ(layout.buckets.size(), 1u);
  EXPECT_EQ(layout.buckets[0].select.k, 10u + 5u + 10u);
  EXPECT_EQ(layout.buckets[0].reselect.k, 20u + 5u + 20u);
}

/// [RedSync19, 2.1]: the choice is a layer's, regardless of the tensors beside it.
TEST(Layout, BySizeIsChosenForEachTensorAlsoWhereSmallOnesTravelTogether) {
  JobSpec spec = layout_spec_of({2304, 16, 2304, 16, 2304, 9216, 32, 9216, 40'000, 100, 5'000'000, 10});
  spec.select = selection_from_text("by_size:0.001:dense=3").value();
  spec.codec_up = codec_from_text("bloom_p1:0.1+sign_mean").value();
  spec.codec_down = codec_from_text("gap+qsgd8").value();
  spec.codec_error = CodecError::kDrop;
  spec.reselect = {.reselect = Reselect::kTopK, .density = 0.01};
  ASSERT_TRUE(validate(spec));
  const JobLayout layout = plan_layout(spec, 1);
  expect_whole(spec, layout);
  struct Expected {
    uint64_t dimension;
    const char* select;
  };
  // Three convolutions and their batch norms are uncompressed, also in a bucket of 6,944 entries.
  const std::vector<Expected> buckets = {{6944, "none"},
                                         {9216, "radix:0.001:dense=3"},
                                         {32, "none"},
                                         {9216, "radix:0.001:dense=3"},
                                         {40'000, "trimmed:0.001:dense=3"},
                                         {100, "none"},
                                         {5'000'000, "sampled:0.001:5:dense=3"},
                                         {10, "none"}};
  ASSERT_EQ(layout.buckets.size(), buckets.size());
  for (size_t at = 0; at < buckets.size(); ++at) {
    SCOPED_TRACE(at);
    const BucketLayout& bucket = layout.buckets[at];
    EXPECT_EQ(bucket.dimension, buckets[at].dimension);
    const bool compressed = std::string_view(buckets[at].select) != "none";
    EXPECT_EQ(bucket.select, compressed ? selection_from_text(buckets[at].select).value() : SelectionSpec{});
    EXPECT_EQ(bucket.codec_up == spec.codec_up, compressed);
    EXPECT_EQ(bucket.codec_up, compressed ? spec.codec_up : without_loss(spec.codec_up));
    EXPECT_EQ(find_value_codec(bucket.codec_down.value)->lossless(bucket.codec_down), !compressed);
    EXPECT_EQ(bucket.reselect, compressed ? spec.reselect : ReselectSpec{});
    EXPECT_EQ(update_is_whole(bucket, 0), true) << "a dense first step, or not compressed";
    EXPECT_EQ(update_is_whole(bucket, 3), !compressed);
  }
}

TEST(Layout, BySizeWithSignsAndOfATensorsOwnIsChosenByItsSizeToo) {
  JobSpec spec = layout_spec_of({100, 5'000'000, 300, 200});
  spec.select = selection_from_text("by_size:0.001:signs").value();
  spec.tensors[2].select = selection_from_text("by_size:0.1:signs").value();
  spec.tensors[3].select = selection_from_text("topk:7:signs").value();
  const JobLayout layout = plan_layout(spec, 1);
  ASSERT_EQ(layout.buckets.size(), 4u);
  EXPECT_EQ(layout.buckets[0].select, SelectionSpec{});
  EXPECT_EQ(layout.buckets[1].select, selection_from_text("binary_search:0.001:signs"));
  EXPECT_EQ(layout.buckets[2].select, SelectionSpec{});
  EXPECT_EQ(layout.buckets[3].select, selection_from_text("topk:7:signs"));
}

TEST(Layout, AnAbsoluteKOfBySizeIsATensorsAndNotThatOfItsNeighbours) {
  JobSpec spec = layout_spec_of({100, 200, 9000, 9000});
  spec.select = selection_from_text("by_size:50").value();
  const JobLayout layout = plan_layout(spec, 1);
  ASSERT_EQ(layout.buckets.size(), 3u);
  EXPECT_EQ(layout.buckets[0].select.k, 0u);
  EXPECT_EQ(layout.buckets[1].select.k, 50u);
  EXPECT_EQ(layout.buckets[2].select.k, 50u);
}

TEST(Layout, UpdatesAreWholeWithoutReselectionAndInDenseFirstSteps) {
  BucketLayout bucket;
  bucket.dimension = 100;
  bucket.select = selection_from_text("topk:0.1:dense=4").value();
  for (const uint64_t step : {0u, 3u, 4u, 100u}) EXPECT_TRUE(update_is_whole(bucket, step));
  bucket.reselect = {.reselect = Reselect::kTopK, .k = 5};
  EXPECT_TRUE(update_is_whole(bucket, 3));
  EXPECT_FALSE(update_is_whole(bucket, 4));
  bucket.select = selection_from_text("topk:1").value();
  EXPECT_FALSE(update_is_whole(bucket, 0)) << "an amount of all does not determine the truncation of the sum";
}

TEST(Layout, ALargeBucketIsSplitEvenlyOverAllShards) {
  const JobLayout layout = plan_layout(layout_spec_of({1'000'000}), 3);
  std::vector<uint64_t> entries(3);
  for (const PartLayout& part : layout.parts) entries[part.shard] += part.end - part.begin;
  for (const uint64_t on_shard : entries) EXPECT_NEAR(static_cast<double>(on_shard), 1e6 / 3, 64);
}

TEST(Layout, SmallBucketsGoRoundTheShards) {
  JobSpec spec = layout_spec_of({100, 100, 100, 100});
  spec.fuse_below = 0;
  const JobLayout layout = plan_layout(spec, 3);
  std::vector<uint32_t> shards;
  for (const PartLayout& part : layout.parts) shards.push_back(part.shard);
  EXPECT_THAT(shards, ::testing::ElementsAre(0, 1, 2, 0));
}

TEST(Layout, PartsFollowTheExpectedEntriesFromOneToSixteenAShard) {
  const auto parts = [](uint64_t dimension, double density, uint32_t shards) {
    JobSpec spec = layout_spec_of({dimension});
    if (density > 0) spec.select = {.selection = SelectionId::kTopK, .density = density};
    return plan_layout(spec, shards).parts.size();
  };
  EXPECT_EQ(parts(1'000'000, 0.001, 1), 1u);
  EXPECT_EQ(parts(4u << 20, 0.0625, 1), 8u);  // 262,144 entries
  EXPECT_EQ(parts(4u << 20, 0.0625, 2), 8u);  // 131,072 a shard: 4 each
  EXPECT_EQ(parts(uint64_t{1} << 32, 0, 1), 16u);
}

TEST(Layout, PartsPerShardIsTakenAsAskedButNoPartIsEmpty) {
  JobSpec spec = layout_spec_of({1'000'000});
  spec.parts_per_shard = 5;
  EXPECT_EQ(plan_layout(spec, 2).parts.size(), 10u);
  spec = layout_spec_of({3});
  spec.parts_per_shard = 5;
  EXPECT_EQ(plan_layout(spec, 2).parts.size(), 3u);
}

TEST(Layout, BoundariesOfLargeBucketsFallOnMultiplesOf64) {
  JobSpec spec = layout_spec_of({1'000'003});
  spec.parts_per_shard = 7;
  for (const PartLayout& part : plan_layout(spec, 3).parts) EXPECT_EQ(part.begin % 64, 0u);
}

TEST(LayoutHash, IsEqualForEqualPlansAndDiffersForOthers) {
  const JobSpec spec = layout_spec_of({100, 1'000'000});
  const uint64_t hash = layout_hash(plan_layout(spec, 2));
  EXPECT_EQ(hash, layout_hash(plan_layout(spec, 2)));
  EXPECT_NE(hash, layout_hash(plan_layout(spec, 3)));
  EXPECT_NE(hash, layout_hash(plan_layout(layout_spec_of({100, 1'000'001}), 2)));
  EXPECT_NE(hash, layout_hash(plan_layout(layout_spec_of({101, 1'000'000}), 2)));
}

}  // namespace
}  // namespace millrace::protocol
