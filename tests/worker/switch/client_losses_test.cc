// Losses that sequence numbers show: contributions that the aggregator names (NOTICE 7), results that have not come.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/switch_client_peek.h"
#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
using protocol::NoticeCode;

constexpr uint32_t kSlots = 8;

SwitchClientOptions options() {
  SwitchClientOptions out = ClientRig::options();
  out.slots = kSlots;
  out.dimension = 64 * kSlots * 4;
  out.round_trip.min_ns = kNsPerS;  // no time-out happens in between
  out.round_trip.max_ns = 2 * kNsPerS;
  return out;
}

class ClientLosses : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(rig_.run_from_start()); }
  std::vector<SentPacket> contributions() { return rig_.sink.take(DatagramType::kContribution); }
  ByteBuffer lost(uint32_t epoch, uint64_t first, uint64_t others = 0) {
    return rig_.aggregator.notice(NoticeCode::kLost, epoch, protocol::put_lost({first, others}));
  }
  ClientRig rig_{options()};
};

void expect_same_but_for_sequence(const SentPacket& before, const SentPacket& again) {
  auto one = before.header();
  const auto other = again.header();
  EXPECT_GT(other.sequence, one.sequence);
  one.sequence = other.sequence;
  EXPECT_EQ(one, other);
  EXPECT_TRUE(std::ranges::equal(before.datagram().payload, again.datagram().payload));
}

TEST_F(ClientLosses, ALossNoticeRetransmitsOnlyListedPacketsAtOnce) {
  rig_.begin(0, {{2 * 64 + 1, 3.0F}, {5 * 64, 1.0F}});
  const auto sent = contributions();
  ASSERT_EQ(sent.size(), kSlots);
  const uint64_t first = sent[2].header().sequence;
  ASSERT_EQ(sent[5].header().sequence, first + 3);
  rig_.hand(lost(1, first, 0b100));
  const auto again = contributions();
  ASSERT_EQ(again.size(), 2u);
  expect_same_but_for_sequence(sent[2], again[0]);
  expect_same_but_for_sequence(sent[5], again[1]);
  EXPECT_EQ(rig_.client.counters().sent_on_notice, 2u);
  EXPECT_EQ(rig_.client.counters().resends, 2u);
  EXPECT_EQ(rig_.client.counters().timeouts, 0u);
  EXPECT_EQ(SwitchClientPeek::active_slots(rig_.client), kSlots) << "a lossy network is no congestion";
}

/// Its new sequence number may be lost as well.
TEST_F(ClientLosses, ARetransmittedPacketCanBeListedAgain) {
  rig_.begin(0, {});
  uint64_t sequence = contributions()[3].header().sequence;
  for (int time = 0; time < 5; ++time) {
    rig_.hand(lost(1, sequence));
    const auto again = contributions();
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].header().slot, 3u);
    sequence = again[0].header().sequence;
  }
}

TEST_F(ClientLosses, OfATurnOfSeveralPacketsOnlyTheNamedOneIsSentAgain) {
  SwitchClientOptions wide = options();
  wide.window_indices = 4096;
  wide.dimension = 4096 * kSlots;
  ClientRig rig(wide);
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  std::map<uint32_t, float> entries;
  for (uint32_t index = 0; index < 4096; index += 2) entries[index] = 1.0F + static_cast<float>(index * 7);
  rig.begin(0, entries);
  const auto sent = rig.sink.take(DatagramType::kContribution);
  ASSERT_GE(std::ranges::count(sent, 0, [](const SentPacket& packet) { return packet.header().slot; }), 2);
  rig.hand(rig.aggregator.notice(NoticeCode::kLost, 1, protocol::put_lost({sent[1].header().sequence, 0})));
  const auto again = rig.sink.take(DatagramType::kContribution);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].header().fragment, 1u);
  expect_same_but_for_sequence(sent[1], again[0]);
}

TEST_F(ClientLosses, CompletedUnknownOrOtherEpochPacketsAreNotRetransmitted) {
  rig_.begin(0, {});
  const auto sent = contributions();
  const uint64_t first = sent[0].header().sequence;
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}));
  rig_.hand(lost(1, first));
  rig_.hand(lost(1, 0));
  rig_.hand(lost(1, first + 5000, ~uint64_t{0}));
  rig_.hand(lost(1, ~uint64_t{0}, ~uint64_t{0}));
  rig_.hand(lost(2, first + 1));
  EXPECT_TRUE(rig_.sink.take().empty());
  EXPECT_EQ(rig_.client.counters().sent_on_notice, 0u);
  ByteBuffer forged = lost(1, first + 1);
  forged.back() ^= 1;
  rig_.hand(forged);
  EXPECT_TRUE(rig_.sink.take().empty());
  EXPECT_EQ(rig_.client.counters().forged, 1u);
}

TEST_F(ClientLosses, NothingIsSentAgainWhileAHelloIsOut) {
  rig_.begin(0, {});
  const uint64_t first = contributions()[0].header().sequence;
  SwitchEpoch next = rig_.epoch;
  ++next.epoch;
  rig_.client.set_epoch(next, rig_.now, rig_.sink);
  rig_.sink.take();
  rig_.hand(lost(2, first));
  EXPECT_TRUE(rig_.sink.take().empty());
}

/// The last turns of a step have no later turns that would show a loss. A turn that is out for longer than a turn takes
/// is sent again where no packet arrives for 5 ms. Where packets have been lost, 2 ms suffice.
class ClientStillness : public ClientLosses, public ::testing::WithParamInterface<bool> {};

TEST_P(ClientStillness, AfterSilenceAnOverdueTurnIsRetransmitted) {
  const bool lossy = GetParam();
  rig_.begin(0, {});
  const auto sent = contributions();
  rig_.later(kNsPerMs);
  for (uint16_t slot = 2; slot < kSlots; ++slot) {
    rig_.hand(rig_.aggregator.result(1, {.slot = slot, .turn = 1, .window = slot, .next = slot + kSlots}));
  }
  if (lossy) rig_.hand(lost(1, sent[0].header().sequence));
  rig_.later(kNsPerMs);
  for (uint16_t slot = 2; slot < kSlots; ++slot) {
    rig_.hand(rig_.aggregator.result(1, {.slot = slot, .turn = 2, .window = slot + kSlots}));
  }
  contributions();
  rig_.later((lossy ? 2 : 5) * kNsPerMs - 1);
  rig_.tick();
  EXPECT_TRUE(contributions().empty());
  rig_.later(1);
  rig_.tick();
  const auto again = contributions();
  ASSERT_EQ(again.size(), 2u);
  for (uint16_t slot = 0; slot < 2; ++slot) EXPECT_EQ(again[slot].header().slot, slot);
  EXPECT_EQ(rig_.client.counters().timeouts, 0u);
}

INSTANTIATE_TEST_SUITE_P(Links, ClientStillness, ::testing::Values(false, true));

/// A number of those to all is missing among three later ones: this worker's result is lost, and asked for at once.
TEST_F(ClientLosses, AnOvertakenTurnWhoseResultIsMissingIsSentAgainAtOnce) {
  rig_.begin(0, {});
  contributions();
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  (void)rig_.aggregator.result(1, {.slot = 0, .turn = 1});  // lost
  for (uint16_t slot = 2; slot < 5; ++slot) {
    rig_.hand(rig_.aggregator.result(1, {.slot = slot, .turn = 1, .window = slot}));
    rig_.tick();
    EXPECT_EQ(contributions().size(), slot == 4 ? 1u : 0u) << slot;
  }
  EXPECT_EQ(rig_.client.counters().overtaken, 1u);
  // Once: the same loss does not ask for another turn.
  for (uint16_t slot = 6; slot < kSlots; ++slot) {
    rig_.hand(rig_.aggregator.result(1, {.slot = slot, .turn = 1, .window = slot}));
    rig_.tick();
    EXPECT_TRUE(contributions().empty()) << slot;
  }
}

}  // namespace
}  // namespace millrace::worker::testing
