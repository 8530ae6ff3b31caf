#include "worker/switch/switch_handover.h"

#include <gtest/gtest.h>

#include "protocol/messages/handover_frame.h"
#include "tests/support/format_versions.h"

/// A handover's bytes: decoding gives the encoded state. Damaged bytes are refused or are another handover, never a
/// fault.
namespace millrace::worker {
namespace {

SwitchFragment fragment(uint8_t payload) {
  SwitchFragment one;
  one.header.type = protocol::DatagramType::kResult;
  one.header.turn = 7;
  one.header.window = 3;
  one.header.flags = protocol::datagram_flag::kLast;
  one.extension.assign(24, uint8_t{1});
  one.payload.assign(payload, payload);
  one.header.extension_words = 3;
  one.header.payload_bytes = payload;
  return one;
}

SwitchHandover::Lane example_lane(uint32_t epoch) {
  SwitchHandover::Lane lane;
  lane.slots = {{.turn = 8, .last_result = {fragment(5)}}, {.turn = 1, .last_result = {}}};
  SwitchRemoval removal{.epoch = epoch, .gone = {{2, 77}, {5, 1}}, .slots = {}};
  removal.slots = {{.turn = 7, .result = {fragment(9), fragment(0)}}, {.turn = 0, .result = {}}};
  lane.removals = {removal, removal};
  lane.opened_live = 5;
  lane.opened_incarnations[2] = 99;
  return lane;
}

SwitchHandover example() {
  SwitchHandover handover;
  handover.next_step = 12;
  handover.exponents.whole = {-20, 4};
  handover.exponents.blocks = {{0, -3}, {9, 90}};
  handover.lanes = {example_lane(6)};
  return handover;
}

constexpr SwitchHandoverShape kHandoverShape = {.lanes = 1, .slots = 2, .groups = 2};

void expect_same_entries(const std::vector<SwitchFragment>& got, const std::vector<SwitchFragment>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].header, wanted[i].header);
    EXPECT_EQ(got[i].extension, wanted[i].extension);
    EXPECT_EQ(got[i].payload, wanted[i].payload);
  }
}

void expect_same_entries(const SwitchHandover::Lane& got, const SwitchHandover::Lane& wanted) {
  ASSERT_EQ(got.slots.size(), wanted.slots.size());
  for (size_t slot = 0; slot < wanted.slots.size(); ++slot) {
    EXPECT_EQ(got.slots[slot].turn, wanted.slots[slot].turn);
    expect_same_entries(got.slots[slot].last_result, wanted.slots[slot].last_result);
  }
  EXPECT_EQ(got.opened_live, wanted.opened_live);
  EXPECT_EQ(got.opened_incarnations, wanted.opened_incarnations);
  ASSERT_EQ(got.removals.size(), wanted.removals.size());
  for (size_t at = 0; at < wanted.removals.size(); ++at) {
    EXPECT_EQ(got.removals[at].epoch, wanted.removals[at].epoch);
    EXPECT_EQ(got.removals[at].gone, wanted.removals[at].gone);
    ASSERT_EQ(got.removals[at].slots.size(), wanted.removals[at].slots.size());
    for (size_t slot = 0; slot < wanted.slots.size(); ++slot) {
      EXPECT_EQ(got.removals[at].slots[slot].turn, wanted.removals[at].slots[slot].turn);
      expect_same_entries(got.removals[at].slots[slot].result, wanted.removals[at].slots[slot].result);
    }
  }
}

TEST(Handover, ComesOutAsItWentIn) {
  const SwitchHandover wanted = example();
  const SwitchHandover::Lane& lane = wanted.lanes.front();
  const ByteBuffer bytes = encode_handover(wanted);
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "MLRHAND1");
  const auto got = decode_handover(bytes, kHandoverShape);
  ASSERT_TRUE(got.has_value()) << got.error().message;
  EXPECT_EQ(got->next_step, 12u);
  EXPECT_EQ(got->exponents, wanted.exponents);
  ASSERT_EQ(got->lanes.size(), 1u);
  expect_same_entries(got->lanes.front(), lane);
}

TEST(Handover, OfSeveralLanesHasTheSlotsFirstAndThenTheHistoryOfEach) {
  SwitchHandover wanted = example();
  wanted.lanes.push_back(example_lane(9));
  wanted.lanes.back().slots.front().turn = 80;
  const ByteBuffer bytes = encode_handover(wanted);
  const auto got = decode_handover(bytes, {.lanes = 2, .slots = 4, .groups = 2});
  ASSERT_TRUE(got.has_value()) << got.error().message;
  ASSERT_EQ(got->lanes.size(), 2u);
  for (size_t lane = 0; lane < 2; ++lane) expect_same_entries(got->lanes[lane], wanted.lanes[lane]);
  EXPECT_FALSE(decode_handover(bytes, {.lanes = 1, .slots = 4, .groups = 2}).has_value());
  EXPECT_FALSE(decode_handover(bytes, {.lanes = 4, .slots = 4, .groups = 2}).has_value());
}

TEST(Handover, BlocksTwiceOrOutOfOrderAreRefused) {
  for (const uint32_t second : {3u, 9u, 10u}) {
    SwitchHandover handover = example();
    handover.exponents.blocks = {{9, -3}, {second, 90}};
    EXPECT_EQ(decode_handover(encode_handover(handover), kHandoverShape).has_value(), second > 9) << second;
  }
}

TEST(Handover, OfAnotherJobsSlotsOrTensorsIsRefused) {
  const ByteBuffer bytes = encode_handover(example());
  EXPECT_FALSE(decode_handover(bytes, {.lanes = 1, .slots = 3, .groups = 2}).has_value());
  EXPECT_FALSE(decode_handover(bytes, {.lanes = 1, .slots = 2, .groups = 1}).has_value());
}

/// The joiner sends such a fragment on where it is asked for the result.
TEST(Handover, AFragmentLongerThanTheJobsDatagramsIsRefused) {
  const auto is_taken = [](const SwitchHandover& handover, size_t packet_bytes_max) {
    SwitchHandoverShape shape = kHandoverShape;
    shape.packet_bytes_max = packet_bytes_max;
    return decode_handover(encode_handover(handover), shape).has_value();
  };
  const auto bytes_of = [](const SwitchFragment& one) { return protocol::datagram_bytes(one.header); };
  SwitchHandover longest_in_slot = example();
  longest_in_slot.lanes.front().slots.front().last_result = {fragment(200)};
  SwitchHandover longest_in_removal = example();
  longest_in_removal.lanes.front().removals.front().slots.front().result = {fragment(200)};
  for (const SwitchHandover& handover : {longest_in_slot, longest_in_removal}) {
    EXPECT_TRUE(is_taken(handover, bytes_of(fragment(200))));
    EXPECT_FALSE(is_taken(handover, bytes_of(fragment(200)) - 1));
  }
}

TEST(Handover, EveryTruncationIsRefused) {
  const ByteBuffer bytes = encode_handover(example());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_handover(ByteSpan(bytes).first(size), kHandoverShape).has_value()) << size;
}

TEST(Handover, EveryChangedByteIsRefusedOrWithinBounds) {
  const ByteBuffer good = encode_handover(example());
  for (size_t at = 0; at < good.size(); ++at) {
    for (const uint8_t flip : {uint8_t{1}, uint8_t{0x80}, uint8_t{0xFF}}) {
      ByteBuffer bytes = good;
      bytes[at] ^= flip;
      const auto got = decode_handover(bytes, kHandoverShape);
      if (!got) continue;
      const SwitchHandover::Lane& lane = got->lanes.front();
      EXPECT_EQ(lane.slots.size(), 2u);
      EXPECT_LE(lane.removals.size(), kSwitchRemovalsMax);
      for (const SwitchRemoval& removal : lane.removals) EXPECT_EQ(removal.slots.size(), 2u);
    }
  }
}

TEST(Handover, ItsBytesAreThoseOfItsVersion) {
  const ByteBuffer bytes = encode_handover(example());
  millrace::testing::expect_format_version("switch_handover", bytes[7] - uint64_t{'0'},
                                           millrace::testing::Fingerprint().add(bytes),
                                           "the last digit of kHandoverMagic in protocol/messages/handover_frame.h");
}

}  // namespace
}  // namespace millrace::worker
