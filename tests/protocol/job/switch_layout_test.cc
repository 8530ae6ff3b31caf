#include "protocol/job/switch_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/random.h"

namespace millrace::protocol {
namespace {

/// Every tensor a bucket of its own.
JobSpec switch_layout_spec_of(std::vector<uint64_t> dimensions, uint32_t block_indices, uint32_t slots = 16) {
  JobSpec spec;
  spec.name = "train";
  spec.workers = 2;
  spec.fuse_below = 0;
  spec.path = Path::kSwitch;
  spec.switch_path.address = "192.0.2.7:7600";
  spec.switch_path.slots = slots;
  spec.grid.block_indices = block_indices;
  for (const uint64_t dimension : dimensions) {
    spec.tensors.push_back({.name = "t" + std::to_string(spec.tensors.size()), .dimension = dimension});
  }
  return spec;
}

SwitchLayout plan(const JobSpec& spec, uint32_t shards = 1) {
  return plan_switch_layout(spec, plan_layout(spec, shards));
}

TEST(SwitchLayout, BucketsBeginWithAWindowOfTheirOwn) {
  const SwitchLayout layout = plan(switch_layout_spec_of({64, 65, 1, 129}, 64));
  EXPECT_THAT(layout.bucket_begin, ::testing::ElementsAre(0, 64, 192, 256));
  EXPECT_EQ(layout.dimension, 256u + 129);
  EXPECT_EQ(layout.windows, 7u);
  EXPECT_EQ(layout.window_indices, 64u);
}

TEST(SwitchLayout, LanesHaveAsManySlotsEachAndShareK) {
  JobSpec spec = switch_layout_spec_of({64 * 7}, 64, 16);
  spec.switch_path.lanes = 4;
  EXPECT_EQ(plan(spec).slots, 4u) << "7 windows: as many slots, less what no lane has alone";
  EXPECT_EQ(plan(spec).lanes, 4u);
  spec.tensors[0].dimension = 64 * 100;
  EXPECT_EQ(plan(spec).slots, 16u);
  for (const uint64_t k : {4u, 9u, 10u, 1'000'003u}) {
    uint64_t all = 0;
    for (uint32_t lane = 0; lane < 4; ++lane) {
      EXPECT_GE(lane_share(k, lane, 4), k / 4);
      all += lane_share(k, lane, 4);
    }
    EXPECT_EQ(all, k);
  }
}

TEST(SwitchLayout, EveryIndexOfEveryBucketIsInAWindowOfThatBucketAlone) {
  RandomSequence random(RandomKey::from(11));
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> dimensions(1 + random.next_below(12));
    for (uint64_t& dimension : dimensions) dimension = 1 + random.next_below(500);
    const auto block = static_cast<uint32_t>(64 * (1 + random.next_below(3)));
    const SwitchLayout layout = plan(switch_layout_spec_of(dimensions, block));
    std::vector<uint32_t> owner(layout.windows, UINT32_MAX);
    for (uint32_t bucket = 0; bucket < dimensions.size(); ++bucket) {
      for (uint64_t index = 0; index < dimensions[bucket]; ++index) {
        const uint64_t place = layout.bucket_begin[bucket] + index;
        ASSERT_LT(place, layout.dimension);
        uint32_t& its = owner.at(place / block);
        ASSERT_TRUE(its == UINT32_MAX || its == bucket);
        its = bucket;
      }
    }
    for (uint32_t window = 0; window < layout.windows; ++window) {
      ASSERT_NE(owner[window], UINT32_MAX) << "no window is empty";
    }
  }
}

TEST(SwitchLayout, SlotsAreNoMoreThanWindows) {
  EXPECT_EQ(plan(switch_layout_spec_of({64, 64, 64}, 64, 2)).slots, 2u);
  EXPECT_EQ(plan(switch_layout_spec_of({64, 64, 64}, 64, 3)).slots, 3u);
  EXPECT_EQ(plan(switch_layout_spec_of({64, 64, 64}, 64, 128)).slots, 3u);
  EXPECT_EQ(plan(switch_layout_spec_of({64, 64, 65}, 64, 128)).slots, 4u);
}

TEST(SwitchLayout, ShardsChangeNothing) {
  const JobSpec spec = switch_layout_spec_of({100'000, 7, 30'000}, 4'096);
  const SwitchLayout one = plan(spec, 1);
  const SwitchLayout five = plan(spec, 5);
  EXPECT_EQ(one.bucket_begin, five.bucket_begin);
  EXPECT_EQ(one.dimension, five.dimension);
  EXPECT_EQ(one.windows, five.windows);
}

TEST(SwitchLayout, FusedTensorsShareTheirWindows) {
  JobSpec spec = switch_layout_spec_of({64, 64, 1'000}, 64);
  spec.fuse_below = 100;
  const SwitchLayout layout = plan(spec);
  EXPECT_THAT(layout.bucket_begin, ::testing::ElementsAre(0, 128));
}

TEST(SwitchLayout, ReselectionIsOfAllBucketsTogether) {
  JobSpec spec = switch_layout_spec_of({1'000, 50, 333}, 64);
  EXPECT_EQ(plan(spec).reselect_k, 0u) << "none: the whole sum";
  spec.reselect = {.reselect = Reselect::kTopK, .density = 0.01};
  EXPECT_EQ(plan(spec).reselect_k, 10u + 1 + 4) << "rounded up for each";
  spec.reselect = {.reselect = Reselect::kTopK, .k = 100};
  EXPECT_EQ(plan(spec).reselect_k, 100u + 50 + 100) << "k is of a tensor, which has no more than its indices";
}

TEST(SwitchLayout, TheLargestTensorFits) {
  const SwitchLayout layout = plan(switch_layout_spec_of({kSwitchDimensionMax}, 64));
  EXPECT_EQ(layout.dimension, kSwitchDimensionMax);
  EXPECT_EQ(layout.windows, uint32_t{1} << 26);
}

}  // namespace
}  // namespace millrace::protocol
