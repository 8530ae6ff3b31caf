// Packets that a rack drops at its door, and a rack's packets that the shard drops; a rack that has no slots.
#include <gtest/gtest.h>

#include "tests/switch_agg/made_up_rack.h"
#include "tests/switch_agg/rack_rig.h"

namespace millrace::testing {
namespace {

using Event = switch_agg::AggregatorEvent;
using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::NoticeCode;
namespace flag = protocol::datagram_flag;

class RackDoor : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(rig_.open()); }
  RackRig rig_;
};

TEST_F(RackDoor, TruncatedPacketsAreDroppedAtEveryLength) {
  const ByteBuffer packet = rig_.at_rack(0).contribution({}, {{1, 5}, {9, -3}});
  for (size_t bytes = 0; bytes < packet.size(); ++bytes) rig_.give_rack(ByteSpan(packet).first(bytes));
  EXPECT_EQ(rig_.counted_at_rack(Event::kTooShort), 80);
  EXPECT_EQ(rig_.counted_at_rack(Event::kWrongLength), packet.size() - 80);
  EXPECT_EQ(rig_.counted_at_rack(Event::kAdded), 0);
  EXPECT_TRUE(rig_.partials().empty());
  rig_.give_rack(packet);
  EXPECT_EQ(rig_.counted_at_rack(Event::kAdded), 1);
}

TEST_F(RackDoor, BadMacsAndReplaysAreDropped) {
  const ByteBuffer packet = rig_.at_rack(0).contribution({}, {{1, 5}});
  ByteBuffer damaged = packet;
  damaged.back() ^= 1;
  rig_.give_rack(damaged);
  EXPECT_EQ(rig_.counted_at_rack(Event::kBadMac), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kAdded), 0);
  rig_.give_rack(packet);
  rig_.give_rack(packet);
  EXPECT_EQ(rig_.counted_at_rack(Event::kReplay), 1);
  EXPECT_EQ(rig_.counted_at_rack(Event::kAdded), 1);
  EXPECT_TRUE(rig_.partials().empty());
}

/// Neither into the sum nor, raw, to the shard; and it takes no other turn's place.
TEST_F(RackDoor, AMalformedPayloadIsDroppedWholeAndClaimsNothing) {
  rig_.to_rack(0, {}, {{1, 5}});
  for (const uint64_t turn : {1, 2}) {
    DatagramHeader header = rig_.at_rack(1).header(DatagramType::kContribution);
    header.turn = turn;
    header.epoch = 1;
    header.flags = flag::kLast;
    header.exponent = -10;
    header.entries = 3;
    header.index_codec = 99;
    header.value_codec = 2;
    rig_.give_rack(rig_.at_rack(1).sealed(header, {}, ByteBuffer(40)));
  }
  EXPECT_EQ(rig_.counted_at_rack(Event::kMalformedPayload), 2);
  EXPECT_EQ(rig_.counted_at_rack(Event::kForwarded), 0);
  EXPECT_TRUE(rig_.partials().empty());
  rig_.to_rack(1, {}, {{1, 7}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 1) << "turn 1's sum is as it was";
  EXPECT_EQ(entries_of(partials[0], 256), (Entries{{1, 12}}));
}

/// Only the shard knows the present turn. A rack takes the newest turn that its workers name, and forwards units of
/// older ones.
TEST_F(RackDoor, AFutureTurnTakesThePlaceOfAnOpenOneWhoseUnitsGoUpRaw) {
  rig_.to_rack(0, {}, {{1, 5}});
  rig_.to_rack(1, {.turn = 9, .step = 8}, {{1, 7}});
  EXPECT_EQ(rig_.counted_at_rack(Event::kAdded), 2);
  EXPECT_TRUE(rig_.partials().empty());
  for (const uint32_t worker : {0u, 1u}) rig_.to_rack(worker, {}, {{1, 5}});
  const auto partials = rig_.partials();
  ASSERT_EQ(partials.size(), 2);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(protocol::read_partial_terms(partials[worker].extension)->hash, 0) << "a unit";
    EXPECT_EQ(partials[worker].header.turn, 1);
  }
  EXPECT_EQ(rig_.counted_at_rack(Event::kForwarded), 2);
  EXPECT_EQ(rig_.counted_at_rack(Event::kPast), 2);
  rig_.to_shard(2, {}, {{1, 100}});
  EXPECT_EQ(rig_.told(0), (Entries{{1, 110}}));
  // The shard refuses a group that is beyond the next turn.
  rig_.to_rack(0, {.turn = 9, .step = 8}, {{1, 5}});
  EXPECT_EQ(rig_.counted_at_rack(Event::kGroupSent), 1);
  EXPECT_EQ(rig_.counted_at_shard(Event::kFuture), 1);
  EXPECT_EQ(rig_.counted_at_shard(Event::kGroupPart), 0);
}

/// Returns the rack's answers to the sender of the packet.
std::vector<Sent> answers(RackRig& rig, ByteSpan packet) {
  KeepingSink sink;
  rig.rack().receive({.bytes = packet, .from = rig.at_rack(0).endpoint()}, rig.now, sink);
  return sink.sent;
}

void expect_notice(MadeUpWorker& worker, const std::vector<Sent>& said, NoticeCode code) {
  ASSERT_EQ(said.size(), 1);
  const auto heard = worker.hear(said[0].bytes);
  ASSERT_TRUE(heard && heard->authentic);
  ASSERT_EQ(heard->datagram.header.type, DatagramType::kNotice);
  EXPECT_EQ(protocol::read_notice(heard->datagram.extension)->code, code);
}

/// It would forward no unit that is longer than its own packets. So its workers go past it at once.
TEST_F(RackDoor, AWorkersRequestPaddedToAnotherLengthGetsNoAnswer) {
  ByteBuffer request = rig_.at_rack(0).challenge_request();
  for (const size_t bytes : {size_t{1200}, size_t{1471}, size_t{1473}, size_t{8000}}) {
    request.resize(bytes);
    EXPECT_TRUE(answers(rig_, request).empty()) << bytes;
  }
  EXPECT_EQ(rig_.counted_at_rack(Event::kOtherPacketBytes), 4);
  request.resize(1472);
  EXPECT_EQ(answers(rig_, request).size(), 1) << "the job's own length";
}

/// The shard has no room for the parts of its groups.
TEST(RackLength, ARackOfLongerPacketsThanItsShardIsNeverWelcome) {
  RackRig rig({.packet_bytes_max = 1472, .rack_packet_bytes_max = 8000});
  ASSERT_NO_FATAL_FAILURE(rig.open());
  EXPECT_GT(rig.counted_at_shard(Event::kOtherPacketBytes), 0);
  EXPECT_NE(rig.rack().status()[0].rack->uplink, switch_agg::RackUplink::kWelcome);
  rig.to_rack(0, {}, {{1, 5}});
  EXPECT_EQ(rig.counted_at_rack(Event::kNotOpen), 1) << "the worker goes past it";
}

/// All send past the rack, and the turn closes.
void close_past_the_rack(RackRig& rig) {
  for (uint32_t worker = 0; worker < 3; ++worker) rig.to_shard(worker, {}, {{1, 5}});
  for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_EQ(rig.told(worker), (Entries{{1, 15}}));
  EXPECT_EQ(rig.counted_at_shard(Event::kGroupPart), 0);
}

TEST(RackSlots, ARackWithoutSlotsSendsANoticeAndWorkersBypassIt) {
  RackRig rig({.rack_slots_max = 0});
  rig.shake_hands_with_shard();
  rig.greet_shard(1, 7, 1);
  const ByteBuffer request = rig.at_rack(0).challenge_request();
  const std::vector<Sent> said = answers(rig, request);
  expect_notice(rig.at_rack(0), said, NoticeCode::kNoSlots);
  EXPECT_LE(said[0].bytes.size(), request.size());
  EXPECT_EQ(rig.counted_at_rack(Event::kNoSlots), 1);
  EXPECT_EQ(rig.rack().status()[0].slots, 0);
  rig.tick_rack();
  EXPECT_TRUE(rig.partials().empty());
  close_past_the_rack(rig);
}

/// There were slots when the worker asked for a challenge, and there are none when it sends HELLO.
TEST(RackSlots, ARackThatLostItsSlotsToAnotherJobSendsANotice) {
  RackRig rig({.rack_slots_max = 1});
  ASSERT_NO_FATAL_FAILURE(rig.open());
  rig.now += 3600 * kNsPerS;
  rig.tick_rack();
  ASSERT_EQ(rig.counted_at_rack(Event::kLeaseExpired), 1);
  MadeUpWorker& worker = rig.at_rack(0);
  const std::vector<Sent> challenge = answers(rig, worker.challenge_request());
  ASSERT_EQ(challenge.size(), 1);
  ASSERT_TRUE(worker.take_challenge(challenge[0].bytes));
  switch_agg::SwitchJob other = rig.rack_job();
  other.job = 8;
  ASSERT_TRUE(rig.rack().add_job(other, rig.now).has_value());
  expect_notice(worker, answers(rig, worker.hello({.live = 7, .positions = {}})), NoticeCode::kNoSlots);
  EXPECT_EQ(rig.counted_at_rack(Event::kNoSlots), 1);
  expect_notice(worker, answers(rig, worker.contribution({}, {{1, 5}})), NoticeCode::kSayHello);
  EXPECT_EQ(rig.counted_at_rack(Event::kAdded), 0);
  close_past_the_rack(rig);

  rig.rack().remove_job(8);
  rig.give_rack(worker.hello({.live = 7, .positions = {}}));
  EXPECT_EQ(rig.rack().status()[0].slots, 1) << "free again";
}

class PartialDoor : public MadeUpRack {
 protected:
  void close_turn(uint64_t turn) {
    const auto step = static_cast<uint32_t>(turn - 1);
    give({.turn = turn, .step = step, .entries = {{1, 12}}});
    rig_.to_shard(2, {.turn = turn, .step = step}, {{1, 100}});
    for (uint32_t worker = 0; worker < 3; ++worker) ASSERT_EQ(rig_.told(worker), (Entries{{1, 112}}));
    rig_.now += kNsPerMs;
  }
  /// The group of that turn again, of which both workers asked.
  void ask(uint64_t turn) {
    give({.terms = {.have = 3, .last = 3, .hash = 55},
          .turn = turn,
          .step = static_cast<uint32_t>(turn - 1),
          .entries = {{1, 12}}});
  }
};

TEST_F(PartialDoor, ABadMacIsDropped) {
  ByteBuffer damaged = packet({.entries = {{1, 12}}});
  damaged.back() ^= 1;
  rig_.give_shard(damaged);
  EXPECT_EQ(counted(Event::kBadMac), 1);
  EXPECT_EQ(counted(Event::kGroupPart), 0);
  give({.entries = {{1, 12}}});
  EXPECT_EQ(counted(Event::kGroupPart), 1);
  EXPECT_EQ(counted(Event::kGroupAdded), 1);
}

TEST_F(PartialDoor, AReplayIsDropped) {
  const ByteBuffer part = packet({.part = 0, .flags = 0, .entries = {{1, 12}}});
  rig_.give_shard(part);
  rig_.give_shard(part);
  EXPECT_EQ(counted(Event::kReplay), 1);
  EXPECT_EQ(counted(Event::kGroupPart), 1);
  EXPECT_EQ(counted(Event::kGroupAdded), 0);
  give({.part = 1, .entries = {{9, 12}}});
  EXPECT_EQ(counted(Event::kGroupPart), 2);
  EXPECT_EQ(counted(Event::kGroupAdded), 1);
}

TEST_F(PartialDoor, APartialOfAClosedTurnIsAnsweredAndNotAdded) {
  ASSERT_NO_FATAL_FAILURE(close_turn(1));
  ask(1);
  EXPECT_EQ(counted(Event::kCurrentClosed), 1);
  EXPECT_EQ(counted(Event::kGroupAdded), 1);
  EXPECT_EQ(counted(Event::kKeptSent), 2);
  for (uint32_t worker = 0; worker < 2; ++worker) EXPECT_EQ(rig_.told(worker), (Entries{{1, 112}}));
  EXPECT_TRUE(rig_.results(2).empty());
}

TEST_F(PartialDoor, OfTheTurnBeforeItIsAnsweredToo) {
  ASSERT_NO_FATAL_FAILURE(close_turn(1));
  rig_.to_shard(2, {.turn = 2, .step = 1}, {{1, 100}});
  ask(1);
  EXPECT_EQ(counted(Event::kPrevious), 1);
  EXPECT_EQ(counted(Event::kGroupAdded), 1);
  EXPECT_EQ(rig_.told(0), (Entries{{1, 112}}));
  EXPECT_TRUE(rig_.results(2).empty());
}

TEST_F(PartialDoor, OfAPastTurnItIsDropped) {
  for (uint64_t turn = 1; turn <= 3; ++turn) ASSERT_NO_FATAL_FAILURE(close_turn(turn));
  ask(1);
  EXPECT_EQ(counted(Event::kPast), 1);
  EXPECT_EQ(counted(Event::kGroupAdded), 3);
  EXPECT_EQ(counted(Event::kKeptSent), 0);
  for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_TRUE(rig_.results(worker).empty());
}

}  // namespace
}  // namespace millrace::testing
