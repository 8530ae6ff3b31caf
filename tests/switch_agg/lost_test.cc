// NOTICE 7: a worker learns which of its packets have not come.
#include <gtest/gtest.h>

#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::DatagramType;
using protocol::LostSequences;
using protocol::NoticeCode;
using Event = switch_agg::AggregatorEvent;

class LostTest : public ::testing::Test {
 protected:
  LostTest() {
    rig_.open();
    rig_.since_now();
  }
  /// A packet of worker 1 that does not come.
  uint64_t lose() {
    (void)rig_.worker(1).contribution({.slot = 0}, {{1, 5}});
    return rig_.worker(1).sequence();
  }
  /// Sends a packet that arrives; returns the losses that the aggregator then reports.
  LostSequences send() {
    rig_.give(1, rig_.worker(1).contribution({.window = 1, .next = 3, .slot = 1}, {{1, 5}}));
    return told();
  }
  LostSequences told() const {
    if (rig_.sent().empty()) return {};
    EXPECT_EQ(rig_.sent().size(), 1);
    const auto datagram = rig_.only(1);
    EXPECT_EQ(datagram.header.type, DatagramType::kNotice);
    const auto notice = protocol::read_notice(datagram.extension);
    EXPECT_TRUE(notice && notice->code == NoticeCode::kLost && notice->epoch == 1);
    return notice ? lost_of(*notice) : LostSequences{};
  }
  SwitchRig rig_;
};

TEST_F(LostTest, AMissingNumberIsReportedOnceAfterThreeLaterOnes) {
  const uint64_t first = lose();
  EXPECT_EQ(send(), LostSequences{});
  EXPECT_EQ(send(), LostSequences{});
  EXPECT_EQ(send(), (LostSequences{first, 0}));
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(send(), LostSequences{}) << "once is enough";
}

TEST_F(LostTest, APacketThatArrivesTwoLaterIsNotReportedLost) {
  const ByteBuffer late = rig_.worker(1).contribution({.slot = 0}, {{1, 5}});
  send();
  send();
  rig_.give(1, late);
  EXPECT_EQ(told(), LostSequences{});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(send(), LostSequences{});
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 0);
}

TEST_F(LostTest, ManyLossesAreReportedByOneNoticePerArrivingPacket) {
  uint64_t first = 0;
  for (int i = 0; i < 70; ++i) first = first == 0 ? lose() : (lose(), first);
  EXPECT_EQ(send(), (LostSequences{first, ~uint64_t{0}})) << "65, and those behind them with the next";
  EXPECT_EQ(send(), (LostSequences{first + 65, 0b111}));
  EXPECT_EQ(send(), (LostSequences{first + 69, 0}));
  EXPECT_EQ(send(), LostSequences{});
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 70);
}

TEST_F(LostTest, NoLossIsReportedOutsideTheOpenEpoch) {
  lose();
  for (int i = 0; i < 3; ++i) {
    rig_.now += kNsPerS;
    rig_.give(1, rig_.worker(1).contribution({.epoch = 2, .window = 1, .next = 3, .slot = 1}, {{1, 5}}));
    EXPECT_EQ(protocol::read_notice(rig_.only(1).extension)->code, NoticeCode::kSayHello);
  }
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 0);
}

/// A session's first packet may have any number: lower numbers belong to another session.
TEST_F(LostTest, ANewSessionHasLostNothing) {
  for (int i = 0; i < 10; ++i) lose();
  rig_.shake_hands(1);
  rig_.greet(2, {1, 1, 1});
  for (int i = 0; i < 5; ++i) {
    rig_.give(1, rig_.worker(1).contribution({.epoch = 2, .window = 1, .next = 3, .slot = 1}, {{1, 5}}));
    EXPECT_TRUE(rig_.sent().empty());
  }
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 0);
}

}  // namespace
}  // namespace millrace::testing
