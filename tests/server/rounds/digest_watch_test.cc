#include "protocol/messages/log_digest.h"
#include "server/part/log_digests.h"
#include "tests/server/scripted_cluster.h"

/// The updates that workers report as applied, against those that the shard decided.
namespace millrace::server {
namespace {

using protocol::Heartbeat;
using ::testing::IsEmpty;

struct Digests : ::testing::Test {
  Digests() : cluster(job()) { cluster.join_all(); }
  static protocol::JobSpec job() {
    protocol::JobSpec spec = ScriptedCluster::small_job(2);
    spec.parts_per_shard = 2;
    return spec;
  }
  /// Decides the next step of both parts; the digests of a worker that applies it.
  void round() {
    cluster.take(0);
    for (const uint32_t worker : {0u, 1u})
      cluster.push(worker, step, std::vector<float>(64, worker == 0 ? 1.0f : 2.0f));
    for (const protocol::Message& message : cluster.take(0)) {
      const auto* update = std::get_if<protocol::Update>(&message.body);
      if (!update) continue;
      digest[update->part] = protocol::extend_log_digest(digest[update->part], *update, message.payload.bytes);
    }
    ++step;
  }
  void say(uint32_t worker, std::vector<Heartbeat::Digest> digests) {
    Heartbeat heartbeat;
    heartbeat.digests = std::move(digests);
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), heartbeat, {}});
  }
  std::vector<DisagreementStatus> named() { return cluster.core().status(cluster.now).jobs.at(0).disagreements; }

  ScriptedCluster cluster;
  uint64_t step = 0;
  uint64_t digest[2] = {protocol::kLogDigestStart, protocol::kLogDigestStart};
};

TEST_F(Digests, CorrectDigestsOfEarlierStepsStillAgree) {
  round();
  const Heartbeat::Digest early{0, 1, digest[0]};
  round();
  say(0, {early, {0, 2, digest[0]}, {1, 2, digest[1]}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "agree"), 3);
  EXPECT_THAT(named(), IsEmpty());
  EXPECT_NE(digest[0], digest[1]) << "equal updates of different parts";
}

TEST_F(Digests, UpdatesCarryTheDigestWithTheirSummary) {
  round();
  cluster.take(1);
  for (const uint32_t worker : {0u, 1u}) cluster.push(worker, 1, std::vector<float>(64, 1));
  for (const protocol::Message& message : cluster.take(1)) {
    const auto* update = std::get_if<protocol::Update>(&message.body);
    if (!update) continue;
    EXPECT_EQ(update->summary.log_digest,
              protocol::extend_log_digest(digest[update->part], *update, message.payload.bytes));
  }
}

TEST_F(Digests, ADigestOfAnEarlierEpochIsNotCompared) {
  round();
  Heartbeat heartbeat;
  heartbeat.digests = {{0, 1, digest[0] ^ 1}};
  protocol::Header earlier = cluster.header(0);
  --earlier.epoch;
  cluster.send(ScriptedCluster::peer(0), 0, {earlier, heartbeat, {}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 0) << "it may have been about to drop its own state";
  say(0, heartbeat.digests);
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 1);
}

TEST_F(Digests, DisagreementIsCountedLoggedOnceAndNamed) {
  round();
  round();
  say(1, {{0, 2, digest[0]}, {1, 2, digest[1] ^ 1}});
  cluster.pass(300);
  round();
  say(1, {{0, 3, digest[0] ^ 1}, {1, 3, digest[1] ^ 1}});
  say(0, {{0, 3, digest[0]}, {1, 3, digest[1]}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 3);
  EXPECT_EQ(cluster.said("worker 1 has not applied the updates of this shard: after 2 steps of part 1"), 1u);
  EXPECT_EQ(cluster.said("has not applied"), 1u) << "once a worker";
  const std::vector<DisagreementStatus> all = named();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].worker, 1u);
  EXPECT_EQ(all[0].part, 0u);
  EXPECT_EQ(all[0].steps, 3u);
  EXPECT_EQ(all[1].part, 1u);
  EXPECT_EQ(all[1].steps, 2u) << "when it was found first";
  EXPECT_EQ(all[1].since_ms, 300);
  cluster.take(0);
  round();
  EXPECT_EQ(cluster.counted(Metric::kRounds), 8) << "the job continues";
}

TEST_F(Digests, AWorkerWithCorrectDigestsAgreesAgain) {
  round();
  say(1, {{0, 1, 5}, {1, 1, 6}});
  ASSERT_EQ(named().size(), 2u);
  round();
  say(1, {{0, 2, digest[0]}});
  EXPECT_EQ(named().size(), 1u);
  EXPECT_EQ(cluster.said("agrees again"), 0u);
  say(1, {{1, 2, digest[1]}});
  EXPECT_THAT(named(), IsEmpty());
  EXPECT_EQ(cluster.said("worker 1 agrees again"), 1u);
}

TEST_F(Digests, AWorkerThatLeftIsNotNamed) {
  round();
  say(1, {{0, 1, 5}});
  ASSERT_EQ(named().size(), 1u);
  cluster.send(ScriptedCluster::peer(1), 0, {cluster.header(1), protocol::Goodbye{}, {}});
  EXPECT_THAT(named(), IsEmpty());
}

TEST_F(Digests, DigestsOfFutureStepsAndUnknownPartsAreOnlyCounted) {
  round();
  say(0, {{0, 2, 5}, {2, 1, 5}, {UINT32_MAX, UINT64_MAX, 5}});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "impossible_digest"), 3);
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 0);
  say(0, {{0, 0, protocol::kLogDigestStart}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "agree"), 1);
  EXPECT_THAT(named(), IsEmpty());
}

TEST_F(Digests, StepsLongAgoAreNotJudged) {
  round();
  const uint64_t first = digest[0];
  for (uint64_t more = 1; more < LogDigests::kReach; ++more) round();
  say(0, {{0, 1, first}, {0, 1, first ^ 1}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "agree"), 1) << "the oldest that is known";
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 1);
  round();
  say(0, {{0, 1, first ^ 1}});
  EXPECT_EQ(cluster.counted(Metric::kDigests, "too_old"), 1);
  EXPECT_EQ(cluster.counted(Metric::kDigests, "differ"), 1);
}

TEST(LogDigests, AGapOrACutDropsEarlierDigests) {
  LogDigests digests;
  EXPECT_EQ(digests.after(0), protocol::kLogDigestStart);
  EXPECT_EQ(digests.after(1), std::nullopt);
  digests.record(1, 11);
  digests.record(2, 12);
  EXPECT_EQ(digests.after(1), 11u);
  digests.record(8, 18);
  digests.record(9, 19);
  EXPECT_EQ(digests.after(2), std::nullopt);
  EXPECT_EQ(digests.after(7), std::nullopt);
  EXPECT_EQ(digests.after(8), 18u);
  digests.record(9, 29);  // a cut: step 8 was decided again
  EXPECT_EQ(digests.after(8), std::nullopt);
  EXPECT_EQ(digests.after(9), 29u);
  EXPECT_EQ(digests.last(), 9u);
}

}  // namespace
}  // namespace millrace::server
