// A job's number is used again, while the job before runs, has ended, or was killed. Epochs, lives, turns of the second
// job are those of the first one all over again (tables begin low), and so are its workers' numbers.
#include <gtest/gtest.h>

#include <deque>

#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramType;
using protocol::NoticeCode;
using switch_agg::SwitchPhase;
using Event = switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

constexpr uint64_t kSecondJobFirst = 77;   ///< membership of the job before
constexpr uint64_t kSecondJobSecond = 78;  ///< ... and of the one that comes

/// The rig's workers are the job before; these are processes of the one that comes, under the same numbers.
class SecondJob {
 public:
  explicit SecondJob(SwitchRig& rig) : rig_(rig) {
    for (uint16_t id = 0; id < 3; ++id) workers_.emplace_back(SwitchRig::kJob, job_key(3), id);
    // Nonces of their own: the made-up ones count from 1.
    for (MadeUpWorker& worker : workers_) (void)worker.challenge_request();
    for (MadeUpWorker& worker : workers_) (void)worker.challenge_request();
  }
  MadeUpWorker& worker(uint32_t at) { return workers_[at]; }

  void shake_hands(uint32_t at) {
    rig_.give(at, workers_[at].challenge_request());
    ASSERT_EQ(rig_.sent().size(), 1);
    ASSERT_TRUE(workers_[at].take_challenge(rig_.sent()[0].bytes));
  }
  void shake_hands() {
    for (uint32_t at = 0; at < workers_.size(); ++at) ASSERT_NO_FATAL_FAILURE(shake_hands(at));
  }
  void hello(uint32_t at, MadeUpWorker::HelloFields fields) {
    fields.live = 7;
    if (fields.positions.empty()) fields.positions = {1, 1};
    rig_.give(at, workers_[at].hello(fields));
  }
  /// The one answer to that worker, a notice.
  NoticeCode told(uint32_t at) const {
    EXPECT_EQ(rig_.sent().size(), 1);
    if (rig_.sent().size() != 1) return NoticeCode::kNoSlots;
    const auto heard = workers_[at].hear(rig_.sent()[0].bytes);
    EXPECT_TRUE(heard && heard->authentic && heard->datagram.header.type == DatagramType::kNotice);
    return protocol::read_notice(heard->datagram.extension)->code;
  }
  /// Performs handshakes, HELLOs, and a first turn of all three; checks that the result has their entries alone.
  void begins(uint32_t epoch) {
    ASSERT_NO_FATAL_FAILURE(shake_hands());
    for (uint32_t at = 0; at < 3; ++at)
      hello(at, {.epoch = epoch, .positions = {}, .membership_hash = kSecondJobSecond});
    ASSERT_EQ(rig_.aggregator().status()[0].phase, SwitchPhase::kOpen);
    ASSERT_EQ(rig_.aggregator().status()[0].epoch, epoch);
    for (uint32_t at = 0; at < 3; ++at)
      rig_.give(at, workers_[at].contribution({.epoch = epoch}, {{static_cast<uint16_t>(at), 10}}));
    const auto heard = workers_[0].hear(rig_.sent().at(0).bytes);
    ASSERT_TRUE(heard && heard->authentic && heard->datagram.header.type == DatagramType::kResult);
    EXPECT_EQ(entries_of(heard->datagram, 256), (Entries{{0, 10}, {1, 10}, {2, 10}}));
  }

 private:
  SwitchRig& rig_;
  std::deque<MadeUpWorker> workers_;
};

uint64_t incarnation(SwitchRig& rig) { return rig.aggregator().status()[0].incarnation; }

void close_all(SwitchRig& rig, uint32_t epoch, uint64_t turn) {
  for (uint16_t slot = 0; slot < 2; ++slot) {
    for (uint32_t at = 0; at < 3; ++at) {
      rig.give(at,
               rig.worker(at).empty({.turn = turn, .epoch = epoch, .window = slot, .slot = slot, .flags = flag::kFin}));
    }
  }
}

TEST(SecondJobTest, BeginsAtOnceWhereTheOneBeforeHasEndedAndIsQuiet) {
  struct Case {
    uint32_t epoch_before;
    uint32_t epoch;
    uint64_t membership_hash;
    NoticeCode told;
  };
  for (const Case& one :
       {Case{5, 1, kSecondJobSecond, NoticeCode::kOldEpoch}, Case{1, 1, kSecondJobSecond, NoticeCode::kOtherMembership},
        Case{1, 1, kSecondJobFirst, NoticeCode::kOtherMembership}}) {
    SwitchRig rig;
    rig.open();
    if (one.epoch_before != 1) rig.greet(one.epoch_before, {1, 1, 1});
    close_all(rig, one.epoch_before, 1);
    SecondJob second(rig);
    ASSERT_NO_FATAL_FAILURE(second.shake_hands());
    const uint64_t before = incarnation(rig);
    second.hello(0, {.epoch = one.epoch, .positions = {}, .membership_hash = one.membership_hash});
    EXPECT_EQ(second.told(0), one.told) << "a worker may still ask for the last result";
    EXPECT_EQ(incarnation(rig), before);
    rig.now += kNsPerS;
    second.hello(0, {.epoch = one.epoch, .positions = {}, .membership_hash = one.membership_hash});
    EXPECT_EQ(second.told(0), NoticeCode::kUnknownIncarnation);
    EXPECT_NE(incarnation(rig), before);
    EXPECT_EQ(rig.counted(Event::kBegunAnew), 1);
    EXPECT_EQ(rig.counted(Event::kLeaseExpired), 0);
    ASSERT_NO_FATAL_FAILURE(second.begins(one.epoch));
  }
}

/// The first worker that leaves raises the epoch; a worker of the next job may still greet in it.
TEST(SecondJobTest, BeginsWhereTheOneBeforeHasEndedAndNotAllGreetInItsLastEpoch) {
  SwitchRig rig;
  rig.open();
  close_all(rig, 1, 1);
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 6, .positions = {2, 2}}));
  EXPECT_EQ(rig.aggregator().status()[0].phase, SwitchPhase::kCollecting);
  SecondJob second(rig);
  ASSERT_NO_FATAL_FAILURE(second.shake_hands());
  rig.now += kNsPerS;
  second.hello(0, {.epoch = 1, .positions = {}, .membership_hash = kSecondJobSecond});
  EXPECT_EQ(rig.counted(Event::kBegunAnew), 1);
  ASSERT_NO_FATAL_FAILURE(second.begins(1));
}

TEST(SecondJobTest, WaitsWhileTheOneBeforeHasMoreToSend) {
  SwitchRig rig;
  rig.open();
  close_all(rig, 1, 1);
  rig.give(0, rig.worker(0).contribution({.turn = 2, .step = 1}, {{5, 1}}));  // a worker joined later
  SecondJob second(rig);
  ASSERT_NO_FATAL_FAILURE(second.shake_hands());
  rig.now += 5 * kNsPerS;
  second.hello(0, {.positions = {}, .membership_hash = kSecondJobSecond});
  EXPECT_EQ(second.told(0), NoticeCode::kOtherMembership);
  EXPECT_EQ(rig.counted(Event::kBegunAnew), 0);
}

/// Of the very sessions that the first job's workers have: they stand, and its turns go on.
TEST(SecondJobTest, AJobThatRunsKeepsItsSessionsAndItsEpoch) {
  SwitchRig rig;
  rig.open();
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));
  rig.give(1, rig.worker(1).contribution({}, {{5, 1}}));
  const uint64_t before = incarnation(rig);
  SecondJob second(rig);
  ASSERT_NO_FATAL_FAILURE(second.shake_hands());
  rig.now += 5 * kNsPerS;  // it computes for long
  for (uint32_t at = 0; at < 3; ++at) {
    second.hello(at, {.positions = {}, .membership_hash = kSecondJobSecond});
    EXPECT_EQ(second.told(at), NoticeCode::kOtherMembership);
  }
  // Of the same hash as well, by where it stands or because its name has contributed.
  second.hello(0, {.positions = {}, .membership_hash = kSecondJobFirst});
  rig.now += kNsPerMs;
  second.hello(2, {.positions = {7, 7}, .membership_hash = kSecondJobFirst});
  EXPECT_EQ(second.told(2), NoticeCode::kOtherMembership);
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 5);
  EXPECT_EQ(incarnation(rig), before);
  rig.give(2, rig.worker(2).contribution({}, {{5, 1}}));
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
}

/// Its packets do not hold the lease of a job that is gone.
TEST(SecondJobTest, BeginsWhenTheLeaseOfAKilledJobIsOver) {
  for (const uint32_t epoch_before : {1u, 4u}) {
    SwitchRig rig;
    rig.open();
    if (epoch_before != 1) rig.greet(epoch_before, {1, 1, 1});
    rig.give(0, rig.worker(0).contribution({.epoch = epoch_before}, {{5, 1}}));
    SecondJob second(rig);
    ASSERT_NO_FATAL_FAILURE(second.shake_hands());
    for (int time = 0; time < 19; ++time) {
      rig.now += kNsPerS / 2;
      second.hello(0, {.positions = {}, .membership_hash = kSecondJobSecond});
      rig.tick();
    }
    EXPECT_EQ(rig.counted(Event::kLeaseExpired), 0);
    rig.now += kNsPerS / 2;
    rig.tick();
    EXPECT_EQ(rig.counted(Event::kLeaseExpired), 1);
    EXPECT_EQ(rig.counted(Event::kBegunAnew), 0);
    ASSERT_NO_FATAL_FAILURE(second.begins(1));
  }
}

/// A higher epoch moves the epoch of either job. The counts of the earlier job cut nothing of a job that begins.
TEST(SecondJobTest, IgnoresTheCountsOfTheEarlierJob) {
  SwitchRig rig({.reselect_k = 1});
  rig.open();
  for (uint16_t slot = 0; slot < 2; ++slot) {
    const Entries large{{1, 1'000}, {2, 2'000}};
    rig.turn({.window = slot, .slot = slot}, {large, large, large});
  }
  rig.greet(2, {1, 1, 1});
  for (uint16_t slot = 0; slot < 2; ++slot) {
    const Entries small{{1, 1}, {2, 2}};
    rig.turn({.epoch = 2, .window = slot, .slot = slot}, {small, small, small});
    EXPECT_EQ(rig.result(0), (Entries{{1, 3}, {2, 6}})) << "a first step is sent whole";
  }
  rig.turn({.turn = 2, .epoch = 2, .step = 1}, {{{1, 1}, {2, 12}}, {{1, 1}}, {{1, 1}}});
  EXPECT_EQ(rig.result(0), (Entries{{2, 12}})) << "the boundary is the first step's, of the second job";
}

/// A worker without a WELCOME may begin another session: it has contributed nothing, and its position is unchanged.
TEST(SecondJobTest, AWorkerWhoseWelcomeWasLostIsNoOther) {
  SwitchRig rig;
  rig.shake_hands();
  rig.greet(1, {4, 4, 3});
  rig.give(0, rig.worker(0).contribution({.turn = 4}, {{5, 1}}));
  for (const uint32_t at : {1u, 2u}) {
    rig.shake_hands(at);
    rig.give(at, rig.worker(at).hello({.live = 7, .positions = std::vector<uint64_t>(2, at == 1 ? 4 : 3)}));
  }
  EXPECT_EQ(rig.counted(Event::kHelloRefused), 0);
  EXPECT_EQ(rig.counted(Event::kHelloAgain), 2);
}

/// Units that a rack sends for a worker may be from before the decider's restart: the worker itself may still wait for
/// its WELCOME.
TEST(SecondJobTest, AWorkerWhoseRackSentItsUnitsIsNoOther) {
  RackRig rig;
  rig.open();
  rig.to_rack(0, {}, {{1, 5}});
  rig.restart_shard();
  ASSERT_NO_FATAL_FAILURE(rig.shake_hands_with_shard());
  rig.greet_shard(1, 7, 1);
  for (const uint32_t at : {1u, 0u, 1u}) {  // under the incarnation before; the notice makes the rack ask
    rig.to_rack(at, {}, {{1, at == 0 ? 5 : 7}});
    rig.now += 100 * kNsPerMs;
  }
  ASSERT_EQ(rig.counted_at_shard(Event::kGroupAdded), 1);
  ASSERT_NO_FATAL_FAILURE(rig.shake_hands_with_shard());
  rig.greet_shard(1, 7, 1);
  EXPECT_EQ(rig.counted_at_shard(Event::kHelloRefused), 0);
  EXPECT_EQ(rig.counted_at_shard(Event::kHelloAgain), 3);
}

/// A rack holds nothing that costs more than speed: its other job need only be quiet.
TEST(SecondJobTest, BeginsAtARackThatIsQuiet) {
  RackRig rig;
  rig.open();
  const uint64_t before = rig.rack().status()[0].incarnation;
  rig.to_rack(0, {}, {{1, 5}});
  ASSERT_NO_FATAL_FAILURE(rig.shake_hands_with_rack());
  rig.greet_rack(1, 7, kSecondJobSecond);
  EXPECT_EQ(rig.rack().status()[0].incarnation, before);
  EXPECT_EQ(rig.counted_at_rack(Event::kHelloRefused), 2);
  rig.now += kNsPerS;
  rig.greet_rack(1, 7, kSecondJobSecond);
  EXPECT_NE(rig.rack().status()[0].incarnation, before);
  EXPECT_EQ(rig.counted_at_rack(Event::kBegunAnew), 1);
  ASSERT_NO_FATAL_FAILURE(rig.shake_hands_with_rack());
  rig.greet_rack(1, 7, kSecondJobSecond);
  rig.partials();
  rig.to_rack(1, {}, {{1, 7}});
  EXPECT_TRUE(rig.partials().empty()) << "what worker 0 of the job before sent is in no sum";
  rig.to_rack(0, {}, {{1, 50}});
  const auto partials = rig.partials();
  ASSERT_EQ(partials.size(), 1);
  EXPECT_EQ(entries_of(partials[0], 256), (Entries{{1, 57}}));
}

}  // namespace
}  // namespace millrace::testing
