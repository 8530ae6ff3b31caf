#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "switch_agg/aggregator/waiting_text.h"
#include "tests/switch_agg/switch_rig.h"

/// The workers on which a job is blocked at its aggregator, since when, and why.
namespace millrace::testing {
namespace {

using switch_agg::SwitchJobStatus;
using switch_agg::SwitchWait;
using ::testing::HasSubstr;
using ::testing::Not;

SwitchJobStatus status(SwitchRig& rig) { return rig.aggregator().status()[0]; }
std::string sentence(SwitchRig& rig) { return waiting_sentence(status(rig), rig.now); }

/// A worker that has another key than the job's.
MadeUpWorker stranger(uint16_t id) { return {SwitchRig::kJob, job_key(99), id}; }

TEST(SwitchWaits, AJobWithoutWorkersIsBlockedOnNothing) {
  SwitchRig rig;
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing);
  EXPECT_EQ(sentence(rig), "");
}

TEST(SwitchWaits, AnEpochWaitsForTheWorkersThatHaveNotGreeted) {
  SwitchRig rig;
  rig.shake_hands();
  const TimeNs began = rig.now;
  rig.give(0, rig.worker(0).hello({.live = rig.live(), .positions = {1, 1}}));
  rig.now += 2 * kNsPerS;
  rig.give(1, rig.worker(1).hello({.live = rig.live(), .positions = {1, 1}}));
  rig.now += 3 * kNsPerS;
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kGreetings);
  EXPECT_EQ(status(rig).waiting.workers, 0b100u);
  EXPECT_EQ(status(rig).waiting.since, began);
  EXPECT_EQ(status(rig).greeted, 0b011u);
  EXPECT_EQ(sentence(rig), "epoch 1 has waited 5.0 s for worker 2 to greet");
  rig.give(2, rig.worker(2).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing);
}

TEST(SwitchWaits, AWorkerWithAnotherKeyIsNamedWithTheReason) {
  SwitchRig rig;
  rig.shake_hands(0);
  rig.shake_hands(1);
  for (uint32_t at = 0; at < 2; ++at) rig.give(at, rig.worker(at).hello({.live = rig.live(), .positions = {1, 1}}));
  MadeUpWorker other = stranger(2);
  for (int tries = 0; tries < 7; ++tries) {
    rig.now += kNsPerS;
    rig.give(2, other.challenge_request());
  }
  rig.now += kNsPerS / 2;
  EXPECT_EQ(status(rig).doors[2].rejected, 7u);
  EXPECT_EQ(status(rig).doors[2].heard_at, 0);
  EXPECT_EQ(
      sentence(rig),
      "epoch 1 has waited 7.5 s for worker 2 to greet; 7 packets that name worker 2 were dropped, the last 0.5 s ago: "
      "their MAC is wrong (bad_mac); is the key there this job's?");
}

TEST(SwitchWaits, WrongKeysAreReportedWhileNoWorkerIsAwaited) {
  SwitchRig rig;
  for (const uint16_t worker : {uint16_t{0}, uint16_t{2}}) {
    MadeUpWorker other = stranger(worker);
    rig.give(worker, other.challenge_request());
  }
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing);
  EXPECT_THAT(sentence(rig), HasSubstr("2 packets that name workers 0, 2 were dropped"));
}

TEST(SwitchWaits, ARejectionExplainsNothingOnceTheWorkerIsHeardOrItIsLongAgo) {
  SwitchRig rig;
  MadeUpWorker other = stranger(1);
  rig.give(1, other.challenge_request());
  EXPECT_THAT(sentence(rig), HasSubstr("bad_mac"));
  rig.now += 31 * kNsPerS;
  EXPECT_EQ(sentence(rig), "");
  rig.give(1, other.challenge_request());
  rig.now += kNsPerS;
  rig.shake_hands();
  rig.give(1, rig.worker(1).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_THAT(sentence(rig), Not(HasSubstr("bad_mac")));
  EXPECT_EQ(status(rig).doors[1].rejected, 2u) << "they stay counted";
}

TEST(SwitchWaits, AWorkerOfAnotherPacketLengthIsNamedUntilItIsHeard) {
  SwitchRig rig;
  ByteBuffer request = rig.worker(1).challenge_request();
  request.resize(1400);
  rig.give(1, request);
  EXPECT_EQ(sentence(rig),
            "worker 1 has datagrams of 1400 bytes (--switch-packet-bytes), \"packet_bytes\" of this job is 1472: it "
            "gets no answer");
  SwitchJobStatus job;
  add_waiting(status(rig), job);
  EXPECT_EQ(waiting_sentence(job, rig.now), sentence(rig));
  rig.now += kNsPerS;
  rig.shake_hands();
  rig.give(1, rig.worker(1).hello({.live = rig.live(), .positions = {1, 1}}));
  EXPECT_THAT(sentence(rig), Not(HasSubstr("1400")));
}

/// Any host can send it: it proves nothing of the worker.
TEST(SwitchWaits, AForgedRequestOfAnotherLengthIsOnlyRejected) {
  SwitchRig rig;
  ByteBuffer request = stranger(1).challenge_request();
  request.resize(1400);
  rig.give(1, request);
  EXPECT_EQ(status(rig).doors[1].other_bytes, 0u);
  EXPECT_THAT(sentence(rig), HasSubstr("bad_mac"));
}

TEST(SwitchWaits, TurnsWaitForTheWorkersWhoseContributionsLack) {
  SwitchRig rig;
  rig.open();
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing) << "no turn is open";
  rig.now += 600 * kNsPerS;
  const auto contribute = [&](uint32_t at, uint16_t slot) {
    rig.give(at, rig.worker(at).contribution({.window = slot, .slot = slot}, {{5, 1}}));
  };
  contribute(0, 0);
  contribute(0, 1);
  contribute(1, 1);
  rig.now += 4 * kNsPerS;
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kContributions);
  EXPECT_EQ(status(rig).waiting.workers, 0b110u) << "worker 1 lacks in slot 0";
  EXPECT_EQ(sentence(rig), "turns have waited 4.0 s for contributions of workers 1, 2");
  contribute(2, 1);
  rig.now += kNsPerS;
  EXPECT_EQ(sentence(rig), "turns have waited 1.0 s for contributions of workers 1, 2") << "a turn has closed";
  contribute(1, 0);
  contribute(2, 0);
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing);
}

TEST(SwitchWaits, ANewEpochRestartsTheWait) {
  SwitchRig rig;
  rig.open();
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));
  rig.now += 9 * kNsPerS;
  rig.give(0, rig.worker(0).hello({.epoch = 2, .live = 0b011, .positions = {1, 1}}));
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kGreetings);
  EXPECT_EQ(status(rig).waiting.workers, 0b010u);
  EXPECT_EQ(status(rig).waiting.since, rig.now);
  rig.give(1, rig.worker(1).hello({.epoch = 2, .live = 0b011, .positions = {1, 1}}));
  EXPECT_EQ(status(rig).waiting.what, SwitchWait::kNothing) << "open turns of the epoch before are none";
}

TEST(SwitchWaits, LanesOfAJobAreOneWait) {
  SwitchJobStatus job;
  SwitchJobStatus lane;
  lane.waiting = {.what = SwitchWait::kContributions, .workers = 0b001, .since = 50};
  lane.doors[3] = {.heard_at = 0, .rejected = 2, .rejected_at = 40};
  add_waiting(lane, job);
  EXPECT_EQ(job.waiting.workers, 0b001u);
  lane.waiting = {.what = SwitchWait::kContributions, .workers = 0b100, .since = 70};
  lane.doors[3] = {.heard_at = 9, .rejected = 1, .rejected_at = 30};
  add_waiting(lane, job);
  EXPECT_EQ(job.waiting.workers, 0b101u);
  EXPECT_EQ(job.waiting.since, 50);
  EXPECT_EQ(job.doors[3].rejected, 3u);
  EXPECT_EQ(job.doors[3].rejected_at, 40);
  EXPECT_EQ(job.doors[3].heard_at, 9);
  lane.waiting = {.what = SwitchWait::kGreetings, .workers = 0b010, .since = 20};
  add_waiting(lane, job);
  EXPECT_EQ(job.waiting.what, SwitchWait::kGreetings) << "the older one";
  add_waiting({}, job);
  EXPECT_EQ(job.waiting.what, SwitchWait::kGreetings) << "a lane that waits for nothing";
}

}  // namespace
}  // namespace millrace::testing
