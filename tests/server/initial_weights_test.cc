#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/returning_cluster.h"

namespace millrace::server {
namespace {

using protocol::MemberState;
using protocol::Refuse;
using protocol::Settle;
using protocol::Snapshot;
using protocol::SnapshotRequest;
using protocol::Synced;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A job that begins with the weights of worker 0.
struct InitialState : ::testing::Test {
  static protocol::JobSpec first(uint32_t workers) {
    protocol::JobSpec spec = ReturningCluster::job(workers);
    spec.initial_weights = protocol::InitialWeights::kFirst;
    return spec;
  }
  ReturningCluster cluster{first(3), 1};
};

TEST_F(InitialState, WorkersOnTheLog_JoinWorkerZeroAndTakeItsWeights) {
  cluster.join_all_with_weights();
  ASSERT_TRUE(cluster.membership().started);
  for (const uint32_t worker : {1u, 2u}) {
    EXPECT_EQ(find_member(cluster.membership(), worker)->state, MemberState::kJoining);
    cluster.say_state(worker, false);
    const auto requests = ReturningCluster::of<SnapshotRequest>(cluster.deliver_all(0));
    ASSERT_THAT(requests, SizeIs(1));
    cluster.give_weights(0, requests[0]);
    const std::vector<protocol::Message> got = cluster.take(worker);
    ASSERT_THAT(got, SizeIs(2));
    EXPECT_EQ(std::get<Snapshot>(got[0].body).n, 0u);
    EXPECT_EQ(std::get<Settle>(got[1].body).weights, Settle::Weights::kSnapshot);
    EXPECT_TRUE(std::get<Settle>(got[1].body).on_log);
    cluster.say(worker, Synced{});
    for (uint32_t all = 0; all < 3; ++all) cluster.deliver_all(all);
    // The other worker's turn is in a new epoch: it reports its position again.
  }
  EXPECT_EQ(find_member(cluster.membership(), 2)->state, MemberState::kSynced);
  cluster.step({0, 1, 2});
  EXPECT_EQ(cluster.holds(2).n, 1u);
}

TEST_F(InitialState, AWorkerWithoutWeightsLeavesNoRowOfTheJob) {
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, cluster.hello(0)));
  EXPECT_THAT(refusal.sentence, HasSubstr("attach weights to every tensor"));
  EXPECT_FALSE(cluster.table().read_job(cluster.spec().name).value());
}

TEST_F(InitialState, TheStatusListsTheWorkersThatBlockTheFirstStep) {
  cluster.join_all_with_weights();
  cluster.step({0});
  EXPECT_EQ(cluster.holds(0).n, 0u);
  const auto waiting = cluster.core().status(cluster.now).jobs.at(0).waited_for;
  EXPECT_THAT(waiting, ElementsAre(1, 2));
  // A worker that dies meanwhile no longer blocks the round.
  for (const uint32_t worker : {1u, 2u}) cluster.say(worker, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
  cluster.deliver_all(0);
  EXPECT_EQ(cluster.holds(0).n, 1u);
}

TEST_F(InitialState, AfterTheFirstStepARejoiningWorkerKeepsItsWeights) {
  cluster.join_all_with_weights();
  for (const uint32_t worker : {1u, 2u}) cluster.say(worker, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
  cluster.deliver_all(0);
  cluster.step({0});
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(1, cluster.returning(1, 77))));
  cluster.holds(1) = cluster.holds(0);
  cluster.take(1);
  cluster.say_state(1, false);
  EXPECT_THAT(cluster.take_of<Settle>(1), ElementsAre(::testing::Field(&Settle::weights, Settle::Weights::kOwn)));
}

TEST_F(InitialState, NoCutChoosesAJoinerThatWasGivenNoWeights) {
  cluster.join_all_with_weights();
  cluster.live({1, 2}, 2'300);  // worker 0 counts as dead
  ASSERT_EQ(find_member(cluster.membership(), 0), nullptr);
  for (const bool stranded : {false, true}) {
    for (const uint32_t worker : {1u, 2u}) cluster.say_state(worker, false, 0, stranded);
  }
  EXPECT_EQ(cluster.membership().cut, 0u);
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, cluster.returning(0, 77))));
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.take(worker);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, false, 0, true);
  EXPECT_EQ(cluster.membership().cut, cluster.membership().epoch);
  EXPECT_EQ(cluster.membership().cut_worker, 0u);
}

TEST_F(InitialState, AWorkerWithoutWeightsIsRefused) {
  const auto refusal = std::get<Refuse>(cluster.say_hello(1, cluster.hello(1)));
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal.sentence, HasSubstr("begins with the weights of worker 0"));
}

}  // namespace
}  // namespace millrace::server
