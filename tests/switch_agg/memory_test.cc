// An aggregator allocates in add_job() and never after.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/replaced_new.h"
#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using switch_agg::SwitchPhase;
using Event = switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

/// Takes packets without keeping them.
class CountingSink : public protocol::PacketSink {
 public:
  std::span<uint8_t> room() override { return room_; }
  void send(size_t /*bytes*/, const protocol::Endpoint& /*to*/) override { ++sent; }
  uint64_t sent = 0;

 private:
  std::array<uint8_t, 9000> room_{};
};

TEST(MemoryTest, NoPacketAndNoTickAllocates) {
  SwitchRig rig({.reselect_k = 3});
  rig.open();
  std::vector<std::pair<uint32_t, ByteBuffer>> packets;
  for (uint64_t turn = 1; turn <= 20; ++turn) {
    for (uint32_t at = 0; at < 3; ++at) {
      packets.emplace_back(at, rig.worker(at).contribution({.turn = turn, .step = static_cast<uint32_t>(turn - 1)},
                                                           {{1, 5}, {2, 70'000}, {200, -3}}));
      packets.emplace_back(at, packets.back().second);  // and its replay
    }
  }
  for (uint32_t at = 0; at < 3; ++at) {
    packets.emplace_back(at, rig.worker(at).hello({.epoch = 2, .live = 7, .positions = {21, 1}}));
  }
  packets.emplace_back(0, rig.worker(0).contribution({.turn = 20, .epoch = 1}, {{1, 5}}));
  packets.emplace_back(0, rig.worker(0).challenge_request());
  CountingSink sink;
  rig.since_now();
  {
    // Armed at an allocation that is never reached: it counts.
    const FailingAllocation counting(UINT64_MAX, FailingAllocation::Then::kGoesOn);
    for (const auto& [from, packet] : packets) {
      rig.aggregator().receive({.bytes = packet, .from = rig.worker(from).endpoint()}, rig.now, sink);
    }
    rig.now += 20 * kNsPerS;
    rig.aggregator().tick(rig.now, sink);
    EXPECT_EQ(counting.taken(), 0);
  }
  EXPECT_EQ(rig.counted(Event::kClosed), 20);
  EXPECT_EQ(rig.counted(Event::kOpened), 1);
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 1);
  EXPECT_GT(sink.sent, 60);
}

TEST(MemoryTest, ANewSessionDoesNotAllocate) {
  SwitchRig rig;
  rig.open();
  rig.shake_hands(0);
  const ByteBuffer hello = rig.worker(0).hello({.live = 7, .positions = {1, 1}});
  CountingSink sink;
  rig.since_now();
  {
    const FailingAllocation counting(UINT64_MAX, FailingAllocation::Then::kGoesOn);
    rig.aggregator().receive({.bytes = hello, .from = rig.worker(0).endpoint()}, rig.now, sink);
    EXPECT_EQ(counting.taken(), 0);
  }
  EXPECT_EQ(rig.counted(Event::kHelloAgain), 1);
}

/// Hands on the packets that a machine sends. The test's memory for them does not count as the machine's allocations.
class SparedSink : public protocol::PacketSink {
 public:
  explicit SparedSink(protocol::PacketSink& to) : to_(&to) {}
  std::span<uint8_t> room() override { return to_->room(); }
  void send(size_t bytes, const protocol::Endpoint& to) override {
    const SparedAllocations spared;
    to_->send(bytes, to);
  }

 private:
  protocol::PacketSink* to_;
};

/// Counts the allocations of a rig's machines in all calls.
class CountedCalls {
 public:
  AroundCall around() {
    return [this](protocol::PacketSink& sink, const auto& call) {
      SparedSink spared(sink);
      const FailingAllocation counting(UINT64_MAX, FailingAllocation::Then::kGoesOn);
      call(spared);
      ++calls_;
      allocations_ += counting.taken();
    };
  }
  void expect_none() const {
    EXPECT_GT(calls_, 0);
    EXPECT_EQ(allocations_, 0) << "in " << calls_ << " calls";
  }

 private:
  uint64_t calls_ = 0;
  uint64_t allocations_ = 0;
};

/// A rack and the shard that decides, from their first handshake on.
class RackMemoryTest : public ::testing::Test {
 protected:
  explicit RackMemoryTest(const RackRig::Shape& shape) : rig_(shape) {}
  RackMemoryTest() : RackMemoryTest({.window_indices = kWindow, .rack_reselect_k = 200}) {}
  void SetUp() override {
    rig_.around = calls_.around();
    ASSERT_NO_FATAL_FAILURE(rig_.open());
  }
  void TearDown() override { calls_.expect_none(); }

  /// A step of one window: in the rack's group, and past it.
  static RackRig::Fields fields_of(uint64_t turn) {
    return {.turn = turn, .step = static_cast<uint32_t>(turn - 1), .window_indices = kWindow};
  }
  /// Several parts' worth of entries, in as many fragments.
  void contribute(uint32_t worker, RackRig::Fields fields) {
    constexpr uint8_t kFragments = 3;
    for (uint8_t fragment = 0; fragment < kFragments; ++fragment) {
      Entries entries;
      for (uint16_t index = 0; index < 250; ++index)
        entries[static_cast<uint16_t>(fragment * 1000 + index * 4)] = 70'000 + index * 1000;
      RackRig::Fields piece = fields;
      piece.fragment = fragment;
      if (fragment + 1 < kFragments) piece.flags &= static_cast<uint8_t>(~flag::kLast);
      rig_.to_rack(worker, piece, entries);
    }
  }
  void turn(uint64_t turn) {
    contribute(0, fields_of(turn));
    contribute(1, fields_of(turn));
    rig_.to_shard(2, fields_of(turn), {{1, 5}, {4, 7}});
  }
  uint64_t at_rack(Event event) const { return rig_.counted_at_rack(event); }
  uint64_t at_shard(Event event) const { return rig_.counted_at_shard(event); }

  static constexpr uint32_t kWindow = 4096;
  RackRig rig_;
  CountedCalls calls_;
};

TEST_F(RackMemoryTest, NeitherSumsThatGoUpNorTheirResultsAllocate) {
  for (uint64_t at = 1; at <= 10; ++at) turn(at);
  EXPECT_EQ(at_rack(Event::kGroupSent), 10);
  EXPECT_GT(rig_.partials().size(), 10) << "groups of several parts";
  EXPECT_EQ(at_rack(Event::kReselected), 9) << "the first step has no histogram";
  EXPECT_EQ(at_shard(Event::kGroupAdded), 10);
  EXPECT_EQ(at_shard(Event::kClosed), 10);
}

TEST_F(RackMemoryTest, NeitherFlushesNorRetransmittedPartialsAllocate) {
  turn(1);
  RackRig::Fields flushed = fields_of(2);
  flushed.flags = flag::kLast | flag::kFlush;
  contribute(0, fields_of(2));
  contribute(0, flushed);
  EXPECT_EQ(at_rack(Event::kFlushed), 1);
  EXPECT_GT(at_rack(Event::kForwarded), 0);
  rig_.to_shard(2, fields_of(2), {});
  contribute(1, fields_of(2));
  contribute(0, fields_of(2));
  EXPECT_EQ(at_shard(Event::kClosed), 2);
  turn(3);
  rig_.now += 10 * kNsPerMs;
  contribute(0, fields_of(3));
  contribute(1, fields_of(1));  // of a turn that is over
  rig_.tick_rack();
  rig_.tick_shard();
  EXPECT_GT(at_rack(Event::kGroupAgain), 0);
  EXPECT_GT(at_rack(Event::kPast), 0);
  EXPECT_GT(at_shard(Event::kKeptSent), 0);
}

TEST_F(RackMemoryTest, NeitherLossNoticesNorRetransmissionsAllocate) {
  turn(1);
  uint32_t parts = 0;
  rig_.lost = [&](const Datagram& datagram) { return datagram.header.type == DatagramType::kPartial && ++parts == 1; };
  turn(2);
  for (int i = 0; i < 3; ++i) contribute(0, fields_of(1));  // units of a turn that is over: raw
  EXPECT_GT(at_shard(Event::kLossNotices), 0);
  EXPECT_GT(at_rack(Event::kPartAgain), 0);
  EXPECT_EQ(at_shard(Event::kGroupAdded), 2);
  (void)rig_.at_rack(1).contribution(fields_of(3), {{1, 5}});
  contribute(1, fields_of(3));
  EXPECT_EQ(at_rack(Event::kLossNotices), 1);
}

TEST_F(RackMemoryTest, NeitherANewerEpochNorItsNoticesAllocate) {
  turn(1);
  contribute(0, fields_of(2));
  rig_.greet_rack(2, 5);
  rig_.greet_shard(2, 5, 2);
  contribute(0, fields_of(2));  // of the epoch before
  EXPECT_EQ(at_rack(Event::kOldEpoch), 3);
  rig_.now += kNsPerS;
  RackRig::Fields fields = fields_of(2);
  fields.epoch = 3;
  contribute(0, fields);
  EXPECT_EQ(at_rack(Event::kNotOpen), 3);
  fields.epoch = 2;
  contribute(0, fields);
  rig_.to_shard(2, fields, {});
  EXPECT_EQ(at_shard(Event::kClosed), 2);
  EXPECT_GT(at_rack(Event::kNoticeSent), 1);
}

/// The shard restarts with another incarnation again and again: the rack finds a new session with each.
TEST_F(RackMemoryTest, NoLifeOfTheShardAllocatesAtTheRack) {
  for (uint64_t incarnation = 1; incarnation <= 20; ++incarnation) {
    turn(incarnation);
    EXPECT_EQ(at_shard(Event::kGroupAdded), 1) << "incarnation " << incarnation;
    rig_.restart_shard();
    ASSERT_NO_FATAL_FAILURE(rig_.shake_hands_with_shard());
    rig_.greet_shard(1, 7, incarnation + 1);
    // Packets that go up under the earlier incarnation make the rack ask; its group goes up in the next round.
    rig_.now += kNsPerS;
    contribute(0, fields_of(incarnation));
    rig_.now += kNsPerS;
    rig_.tick_rack();
  }
}

/// A lease ends at both, and their workers return: slots are found again.
TEST_F(RackMemoryTest, NoSecondLifeAllocates) {
  for (int incarnations = 1; incarnations <= 3; ++incarnations) {
    turn(1);
    EXPECT_EQ(at_shard(Event::kClosed), incarnations);
    rig_.now += 3600 * kNsPerS;
    rig_.tick_rack();
    rig_.tick_shard();
    EXPECT_EQ(at_rack(Event::kLeaseExpired), incarnations);
    EXPECT_EQ(at_shard(Event::kLeaseExpired), incarnations);
    EXPECT_EQ(rig_.rack().status()[0].slots, 0);
    ASSERT_NO_FATAL_FAILURE(rig_.shake_hands_with_shard());
    rig_.greet_shard(1, 7, 1);
    ASSERT_NO_FATAL_FAILURE(rig_.shake_hands_with_rack());
    rig_.greet_rack(1, 7);
    // Packets that go up under the earlier incarnation make the rack ask.
    contribute(0, fields_of(1));
    contribute(1, fields_of(1));
    rig_.now += kNsPerS;
  }
}

class RackTooLongMemoryTest : public RackMemoryTest {
 protected:
  RackTooLongMemoryTest()
      : RackMemoryTest({.window_indices = 65'536, .packet_bytes_max = 8000, .rack_packet_bytes_max = 1200}) {}
};

TEST_F(RackTooLongMemoryTest, AGroupThatIsTooLongDoesNotAllocate) {
  RackRig::Fields fields{.window_indices = 65'536};
  for (uint8_t fragment = 0; fragment < 6; ++fragment) {
    fields.fragment = fragment;
    fields.flags = fragment == 5 ? flag::kLast : uint8_t{0};
    Entries entries;
    for (uint32_t index = 0; index < 8000; index += 8)
      entries[static_cast<uint16_t>(index + 8000 * fragment)] = 1 << 27;
    rig_.to_rack(0, fields, entries);
  }
  rig_.to_rack(1, {.window_indices = 65'536}, {});
  EXPECT_EQ(at_rack(Event::kGroupTooLong), 1);
}

/// A decider alone, from its first handshake on.
class DeciderMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rig_.around = calls_.around();
    ASSERT_NO_FATAL_FAILURE(rig_.open());
  }
  void TearDown() override { calls_.expect_none(); }
  static constexpr uint32_t kWindow = 4096;
  SwitchRig rig_{{.window_indices = kWindow}};
  CountedCalls calls_;
};

/// Some have a result that others lack: it is asked for, uploaded and handed on, fragment by fragment.
TEST_F(DeciderMemoryTest, NeitherFetchNorKeptAllocates) {
  Entries entries;
  for (uint16_t index = 0; index < 300; ++index) entries[index] = 1 << 27;
  for (uint32_t at = 0; at < 3; ++at) {
    Entries own;
    for (const auto& [index, value] : entries) own[static_cast<uint16_t>(index + 1000 * at)] = value;
    rig_.give(at, rig_.worker(at).contribution({.window_indices = kWindow}, own));
  }
  std::vector<ByteBuffer> result;
  for (const Sent& packet : rig_.sent()) {
    if (packet.to == rig_.worker(1).endpoint()) result.push_back(packet.bytes);
  }
  ASSERT_GT(result.size(), 1);
  rig_.greet(2, {1, 2, 1});
  ASSERT_EQ(rig_.aggregator().status()[0].phase, SwitchPhase::kFetching);
  rig_.now += kNsPerS;
  rig_.tick();
  EXPECT_EQ(rig_.sent().size(), 2) << "asked again, for both slots";
  for (uint16_t slot = 0; slot < 2; ++slot) {
    for (const ByteBuffer& packet : result) {
      const Datagram datagram = *protocol::parse_datagram(packet);
      DatagramHeader header = datagram.header;
      header.type = DatagramType::kKept;
      header.worker = 1;
      header.epoch = 2;
      header.slot = slot;
      header.window = slot;
      rig_.give(1, rig_.worker(1).sealed(header, datagram.extension, datagram.payload));
    }
  }
  EXPECT_EQ(rig_.counted(Event::kFetched), 2);
  EXPECT_EQ(rig_.aggregator().status()[0].phase, SwitchPhase::kOpen);
  EXPECT_GT(rig_.sent().size(), 3 + 2 * result.size()) << "welcomes and both results, to all";
}

TEST_F(DeciderMemoryTest, LossNoticesDoNotAllocate) {
  for (int i = 0; i < 70; ++i) (void)rig_.worker(1).contribution({.window_indices = kWindow}, {{1, 5}});
  const MadeUpWorker::ContributionFields fields{.window = 1, .next = 3, .slot = 1, .window_indices = kWindow};
  for (int i = 0; i < 4; ++i) rig_.give(1, rig_.worker(1).contribution(fields, {{1, 5}}));
  EXPECT_EQ(rig_.counted(Event::kLossNotices), 70);
}

/// A job ends, and another one of its number begins.
TEST_F(DeciderMemoryTest, NoSecondJobOfTheNumberAllocates) {
  for (uint64_t jobs = 1; jobs <= 3; ++jobs) {
    for (uint16_t slot = 0; slot < 2; ++slot) {
      for (uint32_t at = 0; at < 3; ++at)
        rig_.give(at, rig_.worker(at).empty({.window = slot, .slot = slot, .flags = flag::kFin}));
    }
    EXPECT_EQ(rig_.counted(Event::kClosed), 2 * jobs);
    rig_.now += 2 * kNsPerS;
    rig_.shake_hands();
    rig_.greet(1, {1, 1, 1});
    EXPECT_EQ(rig_.counted(Event::kBegunAnew), jobs);
    rig_.now += kNsPerS;
    rig_.shake_hands();
    rig_.greet(1, {1, 1, 1});
    ASSERT_EQ(rig_.aggregator().status()[0].phase, SwitchPhase::kOpen);
  }
}

}  // namespace
}  // namespace millrace::testing
