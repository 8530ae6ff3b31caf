// An aggregator allocates in add_job() and never after.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/replaced_new.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using Event = switch_agg::AggregatorEvent;

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

}  // namespace
}  // namespace millrace::testing
