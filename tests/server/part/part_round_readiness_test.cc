#include "protocol/messages/participants.h"
#include "tests/server/scripted_cluster.h"

/// Steps that do not need all workers: modes bounded_staleness and partial.
namespace millrace::server {
namespace {

using protocol::ContributorId;
using protocol::Mode;
using protocol::Refuse;
using protocol::Update;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<float> patience_constant(float value) { return std::vector<float>(64, value); }

protocol::JobSpec partial_job(uint32_t workers, uint32_t quorum, uint32_t deadline_ms) {
  protocol::JobSpec spec = ScriptedCluster::small_job(workers);
  spec.mode = Mode::kPartial;
  spec.quorum = quorum;
  spec.deadline = std::chrono::milliseconds(deadline_ms);
  return spec;
}

protocol::JobSpec bounded_job(uint32_t workers, uint32_t staleness, uint32_t quorum) {
  protocol::JobSpec spec = partial_job(workers, quorum, 0);
  spec.mode = Mode::kBoundedStaleness;
  spec.staleness = staleness;
  return spec;
}

struct Modes : ::testing::Test {
  void start(const protocol::JobSpec& spec) {
    ASSERT_TRUE(protocol::validate(spec).has_value()) << protocol::validate(spec).error().message;
    cluster = std::make_unique<ScriptedCluster>(spec);
    cluster->join_all();
  }
  /// Workers named by the updates that worker 0 has got since the last call, step by step.
  std::vector<std::vector<uint32_t>> contributors() {
    std::vector<std::vector<uint32_t>> out;
    for (const Update& update : cluster->take_of<Update>(0)) {
      std::vector<uint32_t>& step = out.emplace_back();
      for (const ContributorId& who : update.contributors) step.push_back(who.worker);
    }
    return out;
  }
  std::unique_ptr<ScriptedCluster> cluster;
};

TEST_F(Modes, AQuorumDecidesAndTheUpdateNamesItsContributors) {
  start(partial_job(3, 2, 0));
  cluster->push(2, 0, patience_constant(4));
  EXPECT_THAT(contributors(), IsEmpty()) << "one of two is no quorum";
  cluster->push(0, 0, patience_constant(1));
  const std::vector<protocol::Message> got = cluster->take(1);
  ASSERT_EQ(got.size(), 1u) << "the worker that was left out gets the update too";
  EXPECT_THAT(std::get<Update>(got[0].body).contributors, ElementsAre(ContributorId{0, 1}, ContributorId{2, 1}));
  EXPECT_EQ(std::get<Update>(got[0].body).weight_sum, 2) << "the denominator is of the contributors";
  EXPECT_EQ(cluster->counted(Metric::kLeftOut), 1);
}

TEST_F(Modes, ContributionCrossedTheUpdate_OnlyARepeatedOneIsAnswered) {
  start(partial_job(3, 2, 0));
  cluster->push(0, 0, patience_constant(1));
  cluster->push(2, 0, patience_constant(4));
  cluster->take(1);
  cluster->push(1, 0, patience_constant(2));
  EXPECT_THAT(cluster->take(1), IsEmpty());
  EXPECT_EQ(cluster->counted(Metric::kLate, "crossed"), 1);
  cluster->push(1, 0, patience_constant(2));
  EXPECT_EQ(cluster->gather(1, 0).dense, patience_constant(5)) << "without its own";
}

TEST_F(Modes, AQuorumDecidesAtTheDeadlineAndAllMembersAtOnce) {
  start(partial_job(3, 2, 100));
  cluster->push(0, 0, patience_constant(1));
  cluster->push(1, 0, patience_constant(2));
  cluster->pass(90);
  EXPECT_THAT(contributors(), IsEmpty());
  cluster->pass(20);
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1)));
  for (uint32_t worker = 0; worker < 3; ++worker) cluster->push(worker, 1, patience_constant(1));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1, 2))) << "no time has passed";
}

TEST_F(Modes, DeadlineWithoutItsQuorumDecidesNothing) {
  start(partial_job(3, 2, 100));
  cluster->push(0, 0, patience_constant(1));
  cluster->pass(1'000);
  EXPECT_THAT(contributors(), IsEmpty());
  cluster->push(2, 0, patience_constant(1));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 2))) << "the deadline has passed: the quorum is enough";
}

TEST_F(Modes, DeadlineCountsFromWhenTheStepBeforeWasDecided) {
  protocol::JobSpec spec = partial_job(3, 2, 100);
  spec.staleness = 1;
  start(spec);
  cluster->push(0, 1, patience_constant(1));  // ahead
  cluster->push(1, 1, patience_constant(1));
  cluster->pass(300);
  cluster->push(0, 0, patience_constant(1));
  cluster->push(1, 0, patience_constant(1));
  cluster->pass(110);
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1)));
  cluster->push(2, 1, patience_constant(1));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1, 2))) << "the others of step 1 have waited for it";
}

TEST_F(Modes, ContributionsBeingDecodedAreCountedInTheStep) {
  start(partial_job(3, 2, 0));
  cluster->hold_tasks = true;
  for (uint32_t worker = 0; worker < 3; ++worker) cluster->push(worker, 0, patience_constant(1));
  cluster->hold_tasks = false;
  cluster->run_held_tasks();
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST_F(Modes, PayloadThatDoesNotDecodeIsNotWaitedForOnceItsPlaceIsEmpty) {
  start(partial_job(3, 2, 0));
  cluster->hold_tasks = true;
  cluster->push(0, 0, patience_constant(1));
  cluster->push(1, 0, patience_constant(1));
  SharedBytes broken = cluster->payload(patience_constant(1));
  ByteBuffer bytes(broken.bytes.begin(), broken.bytes.end());
  bytes.back() ^= 1;
  broken = SharedBytes::from(std::move(bytes));
  cluster->send(ScriptedCluster::peer(2), 0, cluster->contribution(2, 0, 0, broken));
  cluster->hold_tasks = false;
  cluster->run_held_tasks();
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(cluster->take_of<Refuse>(2).size(), 1u);
}

TEST_F(Modes, BoundedStaleness_OmitsTheSlowForTheLimitOfStepsThenWaits) {
  start(bounded_job(3, 2, 2));
  for (uint64_t step = 0; step < 3; ++step) {
    cluster->push(0, step, patience_constant(1));
    cluster->push(1, step, patience_constant(1));
  }
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1))) << "steps 0 and 1; step 2 waits";
  cluster->pass(5'000);
  EXPECT_THAT(contributors(), IsEmpty());
  cluster->push(2, 2, patience_constant(1));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1, 2)));
  cluster->push(0, 3, patience_constant(1));
  cluster->push(1, 3, patience_constant(1));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1))) << "its two steps begin again";
}

TEST_F(Modes, ALostUpdateIsSentAgainOnRequest) {
  start(partial_job(3, 2, 0));
  for (uint64_t step = 0; step < 2; ++step) {
    cluster->push(0, step, patience_constant(1));
    cluster->push(1, step, patience_constant(2));
  }
  cluster->take(2);
  protocol::Ack ask;
  ask.entries.push_back({0, 0, false});
  cluster->send(ScriptedCluster::peer(2), 0, {cluster->header(2), ask, {}});
  EXPECT_THAT(cluster->take(2), IsEmpty()) << "an ack that asks for nothing";
  ask.entries[0].again = true;
  ask.entries.resize(1'000, ask.entries[0]);  // is served once
  cluster->send(ScriptedCluster::peer(2), 0, {cluster->header(2), ask, {}});
  const std::vector<Update> updates = cluster->take_of<Update>(2);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].step, 0u);
  EXPECT_EQ(updates[1].step, 1u);
  EXPECT_EQ(cluster->counted(Metric::kServedAgain), 2);
}

TEST_F(Modes, MemberRemoved_BlocksNoStepAndItsContributionNotCounted) {
  start(partial_job(4, 3, 0));
  cluster->push(0, 0, patience_constant(1));
  cluster->push(3, 0, patience_constant(8));
  cluster->send(ScriptedCluster::peer(3), 0, {cluster->header(3), protocol::Goodbye{}, {}});
  cluster->push(1, 0, patience_constant(2));
  EXPECT_THAT(contributors(), IsEmpty()) << "two of the three that are left";
  cluster->push(2, 0, patience_constant(4));
  EXPECT_THAT(contributors(), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST_F(Modes, AStepIsBlockedOnItsParticipantsOnly) {
  protocol::JobSpec spec = partial_job(5, 0, 0);
  spec.participants = 2;
  start(spec);
  const std::vector<protocol::Member> members = cluster->table().read_job(1)->value().membership.members;
  for (uint64_t step = 0; step < 8; ++step) {
    const std::vector<uint32_t> drawn = protocol::participants_of(spec, members, step);
    ASSERT_EQ(drawn.size(), 2u);
    cluster->push(drawn[1], step, patience_constant(1));
    cluster->pass(1'000);
    EXPECT_THAT(contributors(), IsEmpty()) << "no quorum and no deadline: the step blocks on both";
    cluster->push(drawn[0], step, patience_constant(1));
    EXPECT_THAT(contributors(), ElementsAre(drawn));
  }
}

TEST(Participants, AreDrawnEvenlyAndAlikeAndAreAllWhereThereAreNotMore) {
  protocol::JobSpec spec = partial_job(10, 0, 0);
  spec.participants = 3;
  std::vector<protocol::Member> members;
  for (uint32_t worker = 0; worker < 10; ++worker) members.push_back({.worker = worker, .incarnation = 1});
  std::vector<int> times(10);
  constexpr int kSteps = 2'000;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const std::vector<uint32_t> drawn = protocol::participants_of(spec, members, step);
    ASSERT_EQ(drawn.size(), 3u);
    EXPECT_TRUE(std::ranges::is_sorted(drawn));
    for (const uint32_t worker : drawn) {
      ++times[worker];
      EXPECT_TRUE(protocol::takes_part(spec, members, step, worker));
    }
  }
  // 600 each; a standard deviation is 20.5, and five of them are allowed.
  for (const int count : times) EXPECT_NEAR(count, 600, 103);
  members.resize(3);
  EXPECT_THAT(protocol::participants_of(spec, members, 7), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace millrace::server
