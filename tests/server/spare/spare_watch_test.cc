#include "server/spare/spare_watch.h"

#include <gtest/gtest.h>

namespace millrace::server {
namespace {

using Map = std::vector<protocol::ShardEntry>;

using Shards = std::vector<protocol::ClusterView::Shard>;

Shards shards_of(const Map& map, const std::vector<bool>& held) {
  Shards shards;
  for (size_t at = 0; at < map.size(); ++at) shards.push_back({map[at], held[at], {}, {}});
  return shards;
}

constexpr TimeNs kSoon = SpareWatch::kFreeAfter;
constexpr TimeNs kLate = SpareWatch::kFreeUnseenAfter;
constexpr TimeNs kOld = SpareWatch::kOldLeaseAfter;

TEST(SpareWatch, ANumberIsFreeSomeTimeAfterItsLeaseWasSeenHeld) {
  SpareWatch watch;
  const Map map = {{"tcp://a:1", 1}, {"tcp://b:1", 4}};
  EXPECT_FALSE(watch.look(shards_of(map, {true, true}), 0));
  EXPECT_FALSE(watch.look(shards_of(map, {true, false}), 5));
  EXPECT_FALSE(watch.look(shards_of(map, {true, false}), 5 + kSoon - 1));
  const auto vacancy = watch.look(shards_of(map, {true, false}), 5 + kSoon);
  ASSERT_TRUE(vacancy);
  EXPECT_EQ(vacancy->shard, 1u);
  EXPECT_EQ(vacancy->incarnation, 4u);
}

TEST(SpareWatch, AProcessThatStartsAgainKeepsItsNumber) {
  SpareWatch watch;
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 1}}, {true}), 0));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 1}}, {false}), 1));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), kSoon)) << "it has started, and its lease comes";
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {true}), kSoon + 1));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {true}), kSoon + kOld));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), 2 * kSoon + kOld));
  EXPECT_TRUE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), 3 * kSoon + kOld));
}

TEST(SpareWatch, ALeaseOfTheStartBeforeDoesNotCountAtOneAddress) {
  SpareWatch watch;
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 1}}, {true}), 0));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {true}), 1)) << "killed: its lease has not ended";
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {true}), kOld));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), kOld + 1));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), kOld + 2 * kSoon)) << "its own comes late";
  EXPECT_TRUE(watch.look(shards_of({{"tcp://a:1", 2}}, {false}), kOld + 1 + kLate));
}

TEST(SpareWatch, AStartThatShowsItsLeaseLateKeepsItsNumber) {
  SpareWatch watch;
  Shards shards = shards_of({{"tcp://a:1", 1}}, {true});
  shards[0].process.address = "tcp://a:1";
  EXPECT_FALSE(watch.look(shards, 0));
  shards[0].entry = {"tcp://b:1", 2};
  EXPECT_FALSE(watch.look(shards, 1)) << "the lease is that of the start before";
  shards[0].held = false;
  shards[0].process = {};
  EXPECT_FALSE(watch.look(shards, 2));
  EXPECT_FALSE(watch.look(shards, 2 + 2 * kSoon));
  EXPECT_FALSE(watch.look(shards, 2 + kLate - 1));
  EXPECT_EQ(watch.look(shards, 2 + kLate)->incarnation, 2u) << "it died before it showed its lease";
}

TEST(SpareWatch, ALeaseThatASpareShowsIsThatOfItsStart) {
  SpareWatch watch;
  Shards shards = shards_of({{"tcp://b:1", 2}}, {true});
  shards[0].process.address = "tcp://b:1";
  EXPECT_FALSE(watch.look(shards, 0));
  shards[0].held = false;
  shards[0].process = {};
  EXPECT_FALSE(watch.look(shards, 1));
  EXPECT_TRUE(watch.look(shards, 1 + kSoon));
}

TEST(SpareWatch, ANumberWhoseLeaseWasNeverSeenIsFreeLater) {
  SpareWatch watch;
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 3}}, {false}), 0));
  EXPECT_FALSE(watch.look(shards_of({{"tcp://a:1", 3}}, {false}), kLate - 1));
  EXPECT_EQ(watch.look(shards_of({{"tcp://a:1", 3}}, {false}), kLate)->incarnation, 3u);
}

TEST(SpareWatch, ALaterSpareTakesANumberThatItsProcessLeaves) {
  SpareWatch watch;
  Shards shards = shards_of({{"tcp://a:1", 3}}, {false});
  shards[0].drain = protocol::DrainNote{3, "its process refuses"};
  EXPECT_FALSE(watch.look(shards, 0));
  EXPECT_FALSE(watch.look(shards, kSoon));
  shards[0].drain = protocol::DrainNote{3, ""};
  EXPECT_TRUE(watch.look(shards, kSoon));
}

TEST(SpareWatch, ALaterSpareTakesTheNumberOfAProcessThatEnds) {
  SpareWatch watch;
  Shards shards = shards_of({{"tcp://a:1", 3}}, {false});
  shards[0].leaving = true;
  shards[0].process.address = "tcp://a:1";
  EXPECT_FALSE(watch.look(shards, 0));
  EXPECT_FALSE(watch.look(shards, kSoon - 1));
  EXPECT_TRUE(watch.look(shards, kSoon));
}

TEST(SpareWatch, AProcessThatEndsDoesNotLeaveTheNumberOfItsSuccessor) {
  SpareWatch watch;
  Shards shards = shards_of({{"tcp://b:1", 4}}, {false});  // its lease comes
  shards[0].leaving = true;
  shards[0].process.address = "tcp://a:1";
  EXPECT_FALSE(watch.look(shards, 0));
  EXPECT_FALSE(watch.look(shards, kLate - 1));
}

TEST(SpareWatch, ANumberThatNeverStartedIsNotFree) {
  SpareWatch watch;
  EXPECT_FALSE(watch.look(shards_of({}, {}), 0));
  EXPECT_FALSE(watch.look(shards_of({{"", 0}, {"tcp://b:1", 1}}, {false, true}), 1));
  EXPECT_FALSE(watch.look(shards_of({{"", 0}, {"tcp://b:1", 1}}, {false, true}), 2 * kLate));
}

}  // namespace
}  // namespace millrace::server
