// Handshakes, keys, replays, and the answers to a sender without a session.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramType;
using protocol::NoticeCode;
using Event = switch_agg::AggregatorEvent;

TEST(SessionTest, AChallengeIsNoLargerThanItsRequestAndChangesNothing) {
  SwitchRig rig;
  rig.open();
  MadeUpWorker stranger(SwitchRig::kJob, job_key(3), 0);
  const ByteBuffer request = stranger.challenge_request();
  for (int again = 0; again < 3; ++again) {
    rig.give(0, request);
    ASSERT_EQ(rig.sent().size(), 1);
    EXPECT_LE(rig.sent()[0].bytes.size(), request.size());
  }
  // The worker's own session continues.
  rig.since_now();
  rig.give(0, rig.worker(0).contribution({}, {{1, 5}}));
  EXPECT_EQ(rig.counted(Event::kAdded), 1);
}

TEST(SessionTest, AChallengeRequestUnderAnotherJobKeyIsNotAnswered) {
  SwitchRig rig;
  MadeUpWorker stranger(SwitchRig::kJob, job_key(4), 0);
  rig.give(0, stranger.challenge_request());
  EXPECT_EQ(rig.sent().size(), 0);
  EXPECT_EQ(rig.counted(Event::kBadMac), 1);
  ByteBuffer padded = stranger.challenge_request();
  padded.resize(1200);
  rig.give(0, padded);
  EXPECT_EQ(rig.counted(Event::kBadMac), 2);
  EXPECT_EQ(rig.counted(Event::kOtherPacketBytes), 0) << "its sender is not known";
}

/// Results of the one would not fit the other. A switch that is silent from the start is replaced by shard 0.
TEST(SessionTest, ARequestPaddedToAnotherLengthGetsNoAnswer) {
  SwitchRig rig({.packet_bytes_max = 8972, .job_packet_bytes = 1472});
  ByteBuffer request = rig.worker(0).challenge_request();
  for (const size_t bytes : {size_t{1200}, size_t{1471}, size_t{1473}, size_t{8972}}) {
    request.resize(bytes);
    rig.give(0, request);
    EXPECT_EQ(rig.sent().size(), 0) << bytes;
  }
  EXPECT_EQ(rig.counted(Event::kOtherPacketBytes), 4);
  EXPECT_EQ(rig.counted(Event::kChallenged), 0);
  request.resize(1472);
  rig.give(0, request);
  ASSERT_EQ(rig.sent().size(), 1) << "the job's own length";
  EXPECT_EQ(rig.counted(Event::kOtherPacketBytes), 4);
}

/// So a path on which the job's longest datagrams do not reach the worker is silent.
TEST(SessionTest, AChallengeIsAsLongAsItsRequest) {
  SwitchRig rig({.packet_bytes_max = 8972, .job_packet_bytes = 1472});
  ByteBuffer request = rig.worker(0).challenge_request();
  rig.give(0, request);
  ASSERT_EQ(rig.sent().size(), 1);
  EXPECT_EQ(rig.sent()[0].bytes.size(), request.size());
  request.resize(1472);
  rig.give(0, request);
  ASSERT_EQ(rig.sent().size(), 1);
  const ByteBuffer& answer = rig.sent()[0].bytes;
  EXPECT_EQ(answer.size(), 1472);
  EXPECT_TRUE(std::all_of(answer.begin() + 112, answer.end(), [](uint8_t byte) { return byte == 0; }));
  EXPECT_TRUE(rig.worker(0).take_challenge(answer));
}

TEST(SessionTest, AHelloWithoutItsChallengeIsRefused) {
  SwitchRig rig;
  rig.shake_hands();
  MadeUpWorker& worker = rig.worker(0);
  const ByteBuffer packet = worker.hello({.live = rig.live(), .positions = {1, 1}});
  (void)worker.challenge_request();  // another nonce, whose challenge never came
  rig.give(0, worker.hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(rig.counted(Event::kBadMac), 1);
  rig.give(0, packet);
  EXPECT_EQ(rig.counted(Event::kHello), 1);
}

TEST(SessionTest, AReplayedHelloOfAnEarlierSessionIsRefused) {
  SwitchRig rig;
  rig.shake_hands();
  const ByteBuffer first = rig.worker(0).hello({.live = rig.live(), .positions = {1, 1}});
  rig.give(0, first);
  rig.shake_hands(0);  // again, in the same incarnation
  rig.give(0, rig.worker(0).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(rig.counted(Event::kHello), 1);
  EXPECT_EQ(rig.counted(Event::kHelloAgain), 1);
  rig.since_now();
  rig.give(0, first);
  EXPECT_EQ(rig.counted(Event::kBadMac), 1);
  EXPECT_EQ(rig.sent().size(), 0);
}

TEST(SessionTest, APacketBeforeAnyHelloHasNoSession) {
  SwitchRig rig;
  rig.shake_hands();
  rig.give(0, rig.worker(0).contribution({}, {{1, 5}}));
  EXPECT_EQ(rig.counted(Event::kNoSession), 1);
  EXPECT_EQ(rig.sent().size(), 0);
}

TEST(SessionTest, AnswersGoWhereTheHelloCameFrom) {
  SwitchRig rig;
  rig.shake_hands();
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).hello({.live = rig.live(), .positions = {1, 1}}));
  // Worker 2 says hello from worker 1's place (an address translation, say).
  rig.give(1, rig.worker(2).hello({.live = rig.live(), .positions = {1, 1}}));
  ASSERT_EQ(rig.sent().size(), 3);
  EXPECT_EQ(rig.sent()[2].to, rig.worker(1).endpoint());
}

TEST(SessionTest, AHelloOfTheStandingSessionMovesItsAddress) {
  SwitchRig rig;
  rig.open();
  const ByteBuffer late = rig.worker(2).hello({.live = rig.live(), .positions = {1, 1}});
  const ByteBuffer latest = rig.worker(2).hello({.live = rig.live(), .positions = {1, 1}});
  // Worker 2's packets now come from worker 1's place.
  rig.give(1, latest);
  ASSERT_EQ(rig.sent().size(), 1);
  EXPECT_EQ(rig.sent()[0].to, rig.worker(1).endpoint());
  for (const ByteBuffer& packet : {late, latest, late}) rig.give(2, packet);
  rig.since_now();
  rig.turn({}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.counted(Event::kClosed), 1);
  ASSERT_EQ(rig.sent().size(), 3);
  for (const Sent& result : rig.sent()) EXPECT_NE(result.to, rig.worker(2).endpoint()) << "late ones and replays";
}

TEST(SessionTest, SequenceNumbersUnderOneKeyNeverRepeat) {
  SwitchRig rig;
  rig.open();
  std::set<std::pair<uint16_t, uint64_t>> seen;
  for (uint64_t turn = 1; turn < 20; ++turn) {
    const uint32_t step = static_cast<uint32_t>(turn - 1);
    for (uint32_t at = 0; at < 3; ++at) {
      rig.give(at, rig.worker(at).contribution({.turn = turn, .step = step}, {{1, 5}}));
    }
    const auto to_all = rig.heard(0);
    ASSERT_EQ(to_all.size(), 1);
    EXPECT_TRUE(seen.emplace(to_all[0].header.worker, to_all[0].header.sequence).second);
    rig.now += kNsPerMs;
    rig.give(0, rig.worker(0).contribution({.turn = turn, .step = step}, {{1, 5}}));
    const auto kept = rig.heard(0);
    ASSERT_EQ(kept.size(), 1);
    EXPECT_TRUE(seen.emplace(kept[0].header.worker, kept[0].header.sequence).second);
  }
}

TEST(SessionTest, ANewSessionReplacesTheOldOne) {
  SwitchRig rig;
  rig.open();
  const ByteBuffer of_old = rig.worker(0).contribution({}, {{1, 5}});
  rig.shake_hands(0);
  rig.give(0, rig.worker(0).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(rig.only(0).header.type, DatagramType::kWelcome);
  rig.since_now();
  rig.give(0, of_old);
  EXPECT_EQ(rig.counted(Event::kBadMac), 1);
  rig.give(0, rig.worker(0).contribution({}, {{1, 5}}));
  EXPECT_EQ(rig.counted(Event::kAdded), 1);
}

}  // namespace
}  // namespace millrace::testing
