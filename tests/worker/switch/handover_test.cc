#include "worker/switch/handover.h"

#include <gtest/gtest.h>

#include "protocol/handover_frame.h"

/// A handover's bytes: what goes in comes out, and what is damaged is refused or is another handover, never a fault.
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

SwitchHandover example() {
  SwitchHandover handover;
  handover.next_step = 12;
  handover.exponents.whole = {-20, 4};
  handover.exponents.blocks = {{0, -3}, {9, 90}};
  handover.slots = {{.turn = 8, .last_result = {fragment(5)}}, {.turn = 1, .last_result = {}}};
  SwitchRemoval removal{.epoch = 6, .gone = {{2, 77}, {5, 1}}, .slots = {}};
  removal.slots = {{.turn = 7, .result = {fragment(9), fragment(0)}}, {.turn = 0, .result = {}}};
  handover.removals = {removal, removal};
  handover.opened_live = 5;
  handover.opened_lives[2] = 99;
  return handover;
}

void expect_equal(const std::vector<SwitchFragment>& got, const std::vector<SwitchFragment>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].header, wanted[i].header);
    EXPECT_EQ(got[i].extension, wanted[i].extension);
    EXPECT_EQ(got[i].payload, wanted[i].payload);
  }
}

TEST(Handover, ComesOutAsItWentIn) {
  const SwitchHandover wanted = example();
  const ByteBuffer bytes = encode_handover(wanted);
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "MLRHAND1");
  const auto got = decode_handover(bytes, 2, 2);
  ASSERT_TRUE(got.has_value()) << got.error().message;
  EXPECT_EQ(got->next_step, 12u);
  EXPECT_EQ(got->exponents, wanted.exponents);
  for (size_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(got->slots[slot].turn, wanted.slots[slot].turn);
    expect_equal(got->slots[slot].last_result, wanted.slots[slot].last_result);
  }
  EXPECT_EQ(got->opened_live, 5u);
  EXPECT_EQ(got->opened_lives, wanted.opened_lives);
  ASSERT_EQ(got->removals.size(), 2u);
  for (const SwitchRemoval& removal : got->removals) {
    EXPECT_EQ(removal.epoch, 6u);
    EXPECT_EQ(removal.gone, wanted.removals[0].gone);
    EXPECT_EQ(removal.slots[0].turn, 7u);
    expect_equal(removal.slots[0].result, wanted.removals[0].slots[0].result);
  }
}

TEST(Handover, BlocksTwiceOrOutOfOrderAreRefused) {
  for (const uint32_t second : {3u, 9u, 10u}) {
    SwitchHandover handover = example();
    handover.exponents.blocks = {{9, -3}, {second, 90}};
    EXPECT_EQ(decode_handover(encode_handover(handover), 2, 2).has_value(), second > 9) << second;
  }
}

TEST(Handover, OfAnotherJobsSlotsOrTensorsIsRefused) {
  const ByteBuffer bytes = encode_handover(example());
  EXPECT_FALSE(decode_handover(bytes, 3, 2).has_value());
  EXPECT_FALSE(decode_handover(bytes, 2, 1).has_value());
}

TEST(Handover, EveryTruncationIsRefused) {
  const ByteBuffer bytes = encode_handover(example());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_handover(ByteSpan(bytes).first(size), 2, 2).has_value()) << size;
}

TEST(Handover, EveryChangedByteIsRefusedOrWithinBounds) {
  const ByteBuffer good = encode_handover(example());
  for (size_t at = 0; at < good.size(); ++at) {
    for (const uint8_t flip : {uint8_t{1}, uint8_t{0x80}, uint8_t{0xFF}}) {
      ByteBuffer bytes = good;
      bytes[at] ^= flip;
      const auto got = decode_handover(bytes, 2, 2);
      if (!got) continue;
      EXPECT_EQ(got->slots.size(), 2u);
      EXPECT_LE(got->removals.size(), kSwitchRemovalsMax);
      for (const SwitchRemoval& removal : got->removals) EXPECT_EQ(removal.slots.size(), 2u);
    }
  }
}

}  // namespace
}  // namespace millrace::worker
