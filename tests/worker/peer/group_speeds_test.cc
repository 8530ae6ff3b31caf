#include "worker/peer/algorithms/group_speeds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/worker/training/peers/on_ranks.h"

/// What ranks learn of each other's speeds, over threads.
namespace millrace::peer::testing {
namespace {

using training::testing::on_ranks;

Result<GroupSpeeds> measured(PeerGroup& group, const GroupSpeeds& own) {
  auto pending = group.start<GroupSpeeds>("speeds", [own](Channel& channel) { return measure_group(channel, own, 5); });
  if (!pending) return std::unexpected(pending.error());
  return pending->wait();
}

/// Rank r's own numbers: a different rank is the slowest of each.
GroupSpeeds speeds_of_rank(uint32_t rank, uint32_t ranks) {
  const auto up = static_cast<double>(rank + 1), down = static_cast<double>(ranks - rank);
  return {.speeds = {.select = {.callers_s = up, .topk_s = down, .gaussian_s = 2 * up, .reevaluate_s = 3, .reuse_s = 0},
                     .contribution = {.bytes = down, .encode_s = up, .decode_s = 0.5 * down},
                     .sums = {.bytes = 0.25 * up, .encode_s = 0, .decode_s = up}},
          .entries = 10 * up};
}

TEST(GroupSpeeds, AllRanksHaveTheSlowestOnesSpeedsAndTheMeanOfTheEntries) {
  for (const uint32_t ranks : {2U, 3U, 5U, 8U}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const auto all = on_ranks<Result<GroupSpeeds>>(ranks, Progress::kByThread, [ranks](PeerGroup& group) {
      return measured(group, speeds_of_rank(group.rank(), ranks));
    });
    const double most = ranks;
    for (const Result<GroupSpeeds>& one : all) {
      ASSERT_TRUE(one.has_value()) << one.error().message;
      const MachineSpeeds& speeds = one->speeds;
      EXPECT_DOUBLE_EQ(one->entries, 5 * (most + 1));
      EXPECT_EQ(speeds.select.callers_s, most);
      EXPECT_EQ(speeds.select.topk_s, most);
      EXPECT_EQ(speeds.select.gaussian_s, 2 * most);
      EXPECT_EQ(speeds.select.reevaluate_s, 3);
      EXPECT_EQ(speeds.select.reuse_s, 0);
      EXPECT_EQ(speeds.contribution.bytes, most) << "also where that is less than pairs'";
      EXPECT_EQ(speeds.contribution.encode_s, most);
      EXPECT_EQ(speeds.contribution.decode_s, 0.5 * most);
      EXPECT_EQ(speeds.sums.bytes, 0.25 * most);
      EXPECT_EQ(speeds.sums.encode_s, 0);
      EXPECT_EQ(speeds.sums.decode_s, most);
      // The ranks' measurements of each other are the same on all of them.
      const MachineSpeeds& first = all.front()->speeds;
      EXPECT_GT(speeds.latency_s, 0);
      EXPECT_GT(speeds.byte_s, 0);
      EXPECT_GT(speeds.add_entry_s, 0);
      EXPECT_GT(speeds.add_value_s, 0);
      EXPECT_EQ(speeds.latency_s, first.latency_s);
      EXPECT_EQ(speeds.byte_s, first.byte_s);
      EXPECT_EQ(speeds.add_entry_s, first.add_entry_s);
      EXPECT_EQ(speeds.add_value_s, first.add_value_s);
    }
  }
}

TEST(GroupSpeeds, OneRankKeepsItsOwn) {
  GroupSpeeds own = speeds_of_rank(0, 1);
  own.speeds.latency_s = 4;
  const auto all =
      on_ranks<Result<GroupSpeeds>>(1, Progress::kByCaller, [&own](PeerGroup& group) { return measured(group, own); });
  ASSERT_TRUE(all.front().has_value()) << all.front().error().message;
  EXPECT_EQ(all.front()->speeds.latency_s, 4);
  EXPECT_EQ(all.front()->entries, own.entries);
}

TEST(GroupSpeeds, NumbersThatCannotBeEndTheGroup) {
  for (const double wrong : {std::nan(""), -1.0, std::numeric_limits<double>::infinity(), 1e18}) {
    const auto all = on_ranks<Result<GroupSpeeds>>(3, Progress::kByThread, [wrong](PeerGroup& group) {
      GroupSpeeds own = speeds_of_rank(group.rank(), 3);
      if (group.rank() == 1) own.speeds.sums.bytes = wrong;
      return measured(group, own);
    });
    for (const Result<GroupSpeeds>& one : all) {
      ASSERT_FALSE(one.has_value()) << wrong;
      EXPECT_NE(one.error().message.find("a rank's measurements are none"), std::string::npos) << one.error().message;
    }
  }
}

}  // namespace
}  // namespace millrace::peer::testing
