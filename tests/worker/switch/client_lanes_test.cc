// A job of several lanes: each is a job of the protocol, and a step is over when it is in all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace flag = protocol::datagram_flag;

constexpr uint32_t kLanes = 2;

SwitchClientOptions lane_options() {
  SwitchClientOptions out = ClientRig::options();
  out.slots = 4;
  out.lanes = kLanes;  // 8 windows: lane 0 has 0, 2, 4, 6, lane 1 the others; each two slots
  return out;
}

/// One client, running unless told, each of its lanes' aggregators scripted.
struct LanesRig {
  LanesRig() : client(lane_options(), told) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      SwitchClientOptions of = lane_options();
      of.job += lane;
      lanes.emplace_back(of, 0xA11CE + lane);
    }
    epoch = {.epoch = 1, .live = 3, .membership_hash = 77, .decider = endpoint(1000)};
  }

  void hand(const ByteBuffer& bytes) { client.receive({.bytes = bytes, .from = endpoint(1000)}, now, sink); }

  /// CHALREQ of each lane is answered, and its hello.
  void greet() {
    client.set_epoch(epoch, now, sink);
    const auto requests = sink.take(DatagramType::kChallengeRequest);
    ASSERT_EQ(requests.size(), kLanes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      ASSERT_EQ(requests[lane].header().job, 5 + lane);
      hand(lanes[lane].challenge(requests[lane]));
      const auto hellos = sink.take(DatagramType::kHello);
      ASSERT_EQ(hellos.size(), 1u);
      EXPECT_TRUE(lanes[lane].verifies(hellos[0]));
      EXPECT_EQ(protocol::read_hello(hellos[0].datagram().extension)->slots, 2u);
    }
  }
  void welcome(uint32_t lane, uint64_t turn = 0) { hand(lanes[lane].welcome(epoch.epoch, {turn, turn})); }
  void run_from_start() {
    ASSERT_NO_FATAL_FAILURE(greet());
    for (uint32_t lane = 0; lane < kLanes; ++lane) welcome(lane);
    ASSERT_EQ(client.phase(), SwitchPhase::kRunning);
  }
  void begin(uint32_t step, const std::vector<uint32_t>& indices, const std::vector<float>& values) {
    ASSERT_TRUE(client.begin_step(step, indices, values, now, sink).has_value());
  }
  /// The opening of a slot of a lane; the client's window is slot x lanes + lane.
  void opening(uint32_t lane, uint16_t slot, uint32_t step, ResultSays says = {}) {
    says.slot = slot;
    says.window = slot;
    says.step = step;
    says.turn = step + 1;
    hand(lanes[lane].result(epoch.epoch, says));
  }

  Told told;
  SwitchClient client;
  std::vector<ScriptedSwitch> lanes;
  CollectingSink sink;
  SwitchEpoch epoch;
  TimeNs now = kNsPerS;
};

class ClientLanes : public ::testing::Test {
 protected:
  LanesRig rig_;
};

TEST_F(ClientLanes, WindowsAreDealtOverTheJobNumbersAndNumberedInEachFrom0) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {2 * 64, 5 * 64, 5 * 64 + 1}, {1.0F, 2.0F, 3.0F});
  const auto sent = rig_.sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 4u);
  for (uint32_t at = 0; at < 4; ++at) {
    const auto header = sent[at].header();
    const uint32_t lane = at / 2;
    EXPECT_TRUE(rig_.lanes[lane].verifies(sent[at]));
    EXPECT_EQ(header.job, 5 + lane);
    EXPECT_EQ(header.slot, at % 2);
    EXPECT_EQ(header.window, at % 2);
    EXPECT_EQ(header.entries, lane == 0 && header.slot == 1 ? 1 : 0) << "the client's window 2";
    EXPECT_EQ(header.next, lane == 1 && header.slot == 0 ? 2 : protocol::kNoWindow) << "the client's window 5";
  }
  rig_.opening(1, 0, 0, {.next = 2});
  const auto next = rig_.sink.take(DatagramType::kContribution);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].header().window, 2u);
  EXPECT_EQ(next[0].header().entries, 2);
}

TEST_F(ClientLanes, AStepCompletesAfterAllLanesAndReportsClientIndices) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {3 * 64 + 7}, {2.5F});
  rig_.opening(0, 0, 0);
  rig_.opening(0, 1, 0);
  rig_.opening(1, 0, 0);
  EXPECT_THAT(rig_.told.steps, IsEmpty());
  EXPECT_FALSE(rig_.client.at_rest());
  EXPECT_FALSE(rig_.client.begin_step(1, {}, {}, rig_.now, rig_.sink).has_value());
  rig_.opening(1, 1, 0, {.indices = {7, 9}, .sums = {4, 1}});
  EXPECT_THAT(rig_.told.steps, ElementsAre(0));
  ASSERT_EQ(rig_.told.windows.size(), 4u);
  EXPECT_EQ(rig_.told.windows.back().window, 3u);
  EXPECT_EQ(rig_.told.windows.back().update, (std::map<uint32_t, int32_t>{{3 * 64 + 7, 4}, {3 * 64 + 9, 1}}));
  EXPECT_EQ(rig_.told.windows.back().returned, (std::map<uint32_t, float>{{3 * 64 + 7, 0.5F}}));
}

TEST_F(ClientLanes, ExponentsAreOfTheWholeStepWhicheverLaneSawIt) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {3}, {1.0F});
  rig_.opening(0, 0, 0, {.indices = {3}, .sums = {1 << 20}});
  rig_.opening(0, 1, 0);
  rig_.opening(1, 0, 0);
  rig_.opening(1, 1, 0);
  rig_.sink.take();
  rig_.begin(1, {}, {});
  const auto sent = rig_.sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 4u);
  const int of_the_update = 21 + 2 - 14;
  EXPECT_EQ(sent[0].header().exponent, of_the_update);
  // The windows of the other openings had no sums: 8 down, or as before; none of them is lane 1's own guess.
  for (size_t at = 1; at < sent.size(); ++at) EXPECT_EQ(sent[at].header().exponent, sent[1].header().exponent);
  rig_.opening(1, 0, 1, {.next = 2, .exponent = sent[2].header().exponent});
  const auto unseen = rig_.sink.take(DatagramType::kContribution);
  ASSERT_EQ(unseen.size(), 1u);
  EXPECT_EQ(unseen[0].header().exponent, of_the_update)
      << "a window that had no result goes by the update of all lanes";
}

TEST_F(ClientLanes, RunsWhenAllLanesAreWelcomeAndOneSendsMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(rig_.greet());
  rig_.begin(0, {}, {});
  EXPECT_THAT(rig_.sink.take(DatagramType::kContribution), IsEmpty());
  rig_.welcome(1);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kHello);
  const auto sent = rig_.sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header().job, 6u);
  rig_.welcome(0);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  EXPECT_EQ(rig_.sink.take(DatagramType::kContribution).size(), 2u);
}

TEST_F(ClientLanes, ALaneThatIsSilentMakesThePathSuspect) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {}, {});
  for (int second = 0; second < 60 && !rig_.client.path_suspect(); ++second) {
    rig_.now += kNsPerS;
    // Lane 0 lives: it answers with something authentic.
    rig_.hand(rig_.lanes[0].notice(protocol::NoticeCode::kSayHello, 1, {}));
    rig_.client.tick(rig_.now, rig_.sink);
  }
  EXPECT_TRUE(rig_.client.path_suspect());
}

TEST_F(ClientLanes, PacketsOfOtherNumbersAreOfNoLane) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  SwitchClientOptions of = lane_options();
  for (const uint32_t job : {4u, 7u}) {
    of.job = job;
    rig_.hand(ScriptedSwitch(of, 0xA11CE).result(1, {}));
  }
  EXPECT_EQ(rig_.client.counters().wrong_job, 2u);
  EXPECT_EQ(rig_.client.counters().results, 0u);
}

TEST_F(ClientLanes, APauseStopsAllLanesAndAJoinerTakesTheirPositions) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {}, {});
  rig_.client.pause();
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint16_t slot = 0; slot < 2; ++slot) rig_.opening(lane, slot, 0);
  }
  rig_.sink.take();
  rig_.begin(1, {}, {});
  EXPECT_THAT(rig_.sink.take(DatagramType::kContribution), IsEmpty());
  ASSERT_TRUE(rig_.client.at_rest());
  const SwitchHandover handover = rig_.client.handover();
  EXPECT_EQ(handover.next_step, 1u);
  ASSERT_EQ(handover.lanes.size(), kLanes);
  for (const SwitchHandover::Lane& lane : handover.lanes) {
    ASSERT_EQ(lane.slots.size(), 2u);
    EXPECT_EQ(lane.slots[1].turn, 2u);
  }
  Told told;
  SwitchClient joiner(lane_options(), told, handover);
  EXPECT_EQ(encode_handover(joiner.handover()), encode_handover(handover));
}

TEST_F(ClientLanes, FinishesWhenAllHaveEndedInAllLanes) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  ASSERT_TRUE(rig_.client.finish(rig_.now, rig_.sink).has_value());
  for (const SentPacket& packet : rig_.sink.take(DatagramType::kContribution))
    EXPECT_EQ(packet.header().flags & flag::kFin, flag::kFin);
  const ResultSays ended{.flags = flag::kLast | flag::kFin};
  for (uint16_t slot = 0; slot < 2; ++slot) rig_.opening(0, slot, 0, ended);
  rig_.opening(1, 0, 0, ended);
  EXPECT_FALSE(rig_.client.finished());
  rig_.opening(1, 1, 0, ended);
  EXPECT_TRUE(rig_.client.finished());
}

TEST_F(ClientLanes, AnEvictedWorkerResolvesEachLaneByThatLanesRemoval) {
  ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
  rig_.begin(0, {0, 64}, {1.0F, 3.0F});  // one entry in each lane's first slot
  rig_.client.leave();
  // Lane 0: turn 1 was counted, with this worker. Lane 1: closed without it.
  LanesRig other;
  ASSERT_NO_FATAL_FAILURE(other.run_from_start());
  other.begin(0, {}, {});
  other.opening(0, 0, 0, {.indices = {0}, .sums = {1}});
  SwitchHandover known{.next_step = 1, .exponents = {}, .lanes = std::vector<SwitchHandover::Lane>(kLanes)};
  SwitchRemoval::Slot counted{.turn = 1, .result = {}};
  {
    other.opening(0, 1, 0);
    for (uint16_t slot = 0; slot < 2; ++slot) other.opening(1, slot, 0);
    ASSERT_TRUE(other.client.at_rest());
    counted.result = other.client.handover().lanes[0].slots[0].last_result;
  }
  ASSERT_FALSE(counted.result.empty());
  const SwitchRemoval::Slot before{.turn = 0, .result = {}};
  known.lanes[0].removals = {{.epoch = 2, .gone = {{1, 44}}, .slots = {counted, before}}};
  known.lanes[1].removals = {{.epoch = 2, .gone = {{1, 44}}, .slots = {before, before}}};
  EXPECT_THAT(rig_.client.abandon_step(44, known), IsEmpty());
  EXPECT_THAT(rig_.told.steps, ElementsAre(0));
  std::map<uint32_t, float> returned;
  for (const Told::Window& window : rig_.told.windows) returned.insert(window.returned.begin(), window.returned.end());
  EXPECT_EQ(returned, (std::map<uint32_t, float>{{64, 3.0F}}));
}

TEST(ClientLanesOptions, AreRefusedWhereTheyDoNotFit) {
  const auto valid = [](const auto& change) {
    SwitchClientOptions options = lane_options();
    change(options);
    return SwitchClient::validate(options).has_value();
  };
  EXPECT_TRUE(valid([](SwitchClientOptions&) {}));
  EXPECT_FALSE(valid([](SwitchClientOptions& options) { options.lanes = 0; }));
  EXPECT_FALSE(valid([](SwitchClientOptions& options) { options.lanes = 3; }));
  EXPECT_FALSE(valid([](SwitchClientOptions& options) { options.lanes = 17, options.slots = 34; }));
  EXPECT_FALSE(valid([](SwitchClientOptions& options) { options.job = UINT32_MAX; }));
  EXPECT_TRUE(valid([](SwitchClientOptions& options) { options.job = UINT32_MAX - 1; }));
}

}  // namespace
}  // namespace millrace::worker::testing
