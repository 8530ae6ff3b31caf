// Packets that the network marked (ECN): their sender cannot know, so the packets that result from them carry the mark.
#include <gtest/gtest.h>

#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::DatagramType;
using protocol::Ecn;
using Event = switch_agg::AggregatorEvent;

class Marks : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(rig_.open());
    rig_.since_now();
  }
  /// Lets all three contribute, worker 0's packet with `ecn`. Returns the result's mark, the same for all.
  Ecn mark_of_turn(uint64_t turn, Ecn ecn) {
    const auto window = static_cast<uint32_t>(2 * (turn - 1));
    const MadeUpWorker::ContributionFields fields{.turn = turn, .window = window, .next = window + 2};
    rig_.give(0, rig_.worker(0).contribution(fields, {{1, 5}}), ecn);
    for (uint32_t at = 1; at < 3; ++at) rig_.give(at, rig_.worker(at).contribution(fields, {{1, 5}}));
    EXPECT_EQ(rig_.sent().size(), 3u);
    for (const Sent& sent : rig_.sent()) EXPECT_EQ(sent.ecn, rig_.sent()[0].ecn);
    return rig_.sent().empty() ? Ecn::kNotEct : rig_.sent()[0].ecn;
  }
  SwitchRig rig_;
};

TEST_F(Marks, TheResultOfAMarkedContributionIsMarkedForAllAndNoLaterOne) {
  EXPECT_EQ(mark_of_turn(1, Ecn::kEct0), Ecn::kEct0);
  EXPECT_EQ(mark_of_turn(2, Ecn::kCe), Ecn::kCe);
  EXPECT_EQ(mark_of_turn(3, Ecn::kEct0), Ecn::kEct0);
  EXPECT_EQ(mark_of_turn(4, Ecn::kNotEct), Ecn::kEct0);
  EXPECT_EQ(rig_.counted(Event::kCongestionMark), 1u);
}

TEST_F(Marks, AContributionThatIsInIsStillMarked) {
  rig_.give(1, rig_.worker(1).contribution({.next = 2}, {{1, 5}}));
  rig_.give(1, rig_.worker(1).contribution({.next = 2}, {{1, 5}}), Ecn::kCe);
  EXPECT_EQ(rig_.counted(Event::kDuplicate), 1u);
  rig_.give(0, rig_.worker(0).contribution({.next = 2}, {{1, 5}}));
  rig_.give(2, rig_.worker(2).contribution({.next = 2}, {{1, 5}}));
  ASSERT_EQ(rig_.sent().size(), 3u);
  EXPECT_EQ(rig_.sent()[0].ecn, Ecn::kCe);
}

TEST_F(Marks, ForgedPacketsAndReplaysMarkNothing) {
  ByteBuffer forged = rig_.worker(1).contribution({.next = 2}, {{1, 5}});
  forged.back() ^= 1;
  rig_.give(1, forged, Ecn::kCe);
  EXPECT_EQ(rig_.counted(Event::kBadMac), 1u);
  const ByteBuffer once = rig_.worker(1).contribution({.window = 1, .next = 3, .slot = 1}, {{1, 5}});
  rig_.give(1, once);
  rig_.give(1, once, Ecn::kCe);
  EXPECT_EQ(rig_.counted(Event::kReplay), 1u);
  EXPECT_EQ(mark_of_turn(1, Ecn::kEct0), Ecn::kEct0);
  EXPECT_EQ(rig_.counted(Event::kCongestionMark), 0u);
}

TEST_F(Marks, AKeptResultForOneWorkerIsNotMarked) {
  EXPECT_EQ(mark_of_turn(1, Ecn::kEct0), Ecn::kEct0);
  rig_.give(1, rig_.worker(1).contribution({.next = 2}, {{1, 5}}), Ecn::kCe);
  ASSERT_EQ(rig_.sent().size(), 1u) << "the kept result";
  EXPECT_EQ(rig_.sent()[0].ecn, Ecn::kEct0);
  EXPECT_EQ(mark_of_turn(2, Ecn::kEct0), Ecn::kCe);
}

TEST(MarksAtRack, AContributionMarkedAtTheRackMarksTheShardsResult) {
  RackRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.open());
  const RackRig::Fields fields;
  rig.give_rack(rig.at_rack(0).contribution(fields, {{1, 5}}), Ecn::kCe);
  rig.to_rack(1, fields, {{1, 7}});
  EXPECT_EQ(rig.counted_at_rack(Event::kCongestionMark), 1u);
  EXPECT_EQ(rig.counted_at_shard(Event::kCongestionMark), 1u) << "the PARTIAL";
  rig.to_shard(2, fields, {{1, 100}});
  ASSERT_EQ(rig.to_workers().size(), 3u);
  for (const Sent& sent : rig.to_workers()) EXPECT_EQ(sent.ecn, Ecn::kCe);
}

TEST(MarksAtRack, WithoutOneNothingIsMarked) {
  RackRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.open());
  const RackRig::Fields fields;
  for (uint32_t worker = 0; worker < 2; ++worker) rig.to_rack(worker, fields, {{1, 5}});
  rig.to_shard(2, fields, {{1, 100}});
  ASSERT_EQ(rig.to_workers().size(), 3u);
  for (const Sent& sent : rig.to_workers()) EXPECT_EQ(sent.ecn, Ecn::kEct0);
  EXPECT_EQ(rig.counted_at_shard(Event::kCongestionMark), 0u);
}

}  // namespace
}  // namespace millrace::testing
