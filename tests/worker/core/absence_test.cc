#include <algorithm>

#include "protocol/messages/participants.h"
#include "tests/worker/core/scripted_core.h"

/// Modes that decide steps without some of the workers, seen from one that is left out.
namespace millrace::worker {
namespace {

using protocol::Ack;
using protocol::Contribution;
using protocol::Heartbeat;
using AbsenceEntries = std::vector<std::pair<uint32_t, float>>;

struct Absence : testing::ScriptedCore {
  Absence() {
    config_.spec.mode = protocol::Mode::kPartial;
    config_.spec.quorum = 1;
  }
  void hear_without_me(uint32_t part, uint64_t step, const AbsenceEntries& entries) {
    protocol::Update update = update_of(part, step);
    update.contributors = {{1, 1}};
    hear(part, update, sum_of(entries, part_dimension(part)));
  }
  std::vector<uint64_t> steps_sent() {
    std::vector<uint64_t> steps;
    for (const auto& [shard, message] : take_sent<Contribution>())
      steps.push_back(std::get<Contribution>(message.body).step);
    return steps;
  }
};

TEST_F(Absence, StepsDecidedWithoutThisWorker_AppliedThenNextOpenStep) {
  make_running();
  for (uint64_t step = 0; step < 3; ++step) {
    hear_without_me(0, step, {{5, 1}});
    hear_without_me(1, step, {{7, 2}});
  }
  ASSERT_EQ(actions_.delivered.size(), 6u);
  EXPECT_EQ(core().steps_applied(0), 3u);
  for (const DeliveredUpdate& delivered : actions_.delivered) {
    EXPECT_EQ(delivered.push, 0u) << "they come with the first push";
    EXPECT_FALSE(delivered.answers_push);
    EXPECT_FALSE(delivered.counted);
  }
  push({5}, {1});
  EXPECT_EQ(steps_sent(), (std::vector<uint64_t>{3, 3}));
  hear_update(0, 3, {{5, 2}});
  hear_update(1, 3, {});
  EXPECT_EQ(actions_.delivered.back().push, 0u);
  EXPECT_TRUE(actions_.delivered.back().answers_push);
  EXPECT_EQ(core().steps_allowed(0), 2u);
}

TEST_F(Absence, StepDecidedWhileItIsCoded_TheResidualHasAllOfIt) {
  for (const int coded_before : {0, 1}) {
    SCOPED_TRACE(coded_before);
    make_running();
    ASSERT_TRUE(core().push_sparse(0, {{5, 150'000}}, {{1.0f, 2.0f}}, 1, now_).has_value());
    for (int done = 0; done < 1 + coded_before; ++done) ASSERT_TRUE(core().work(now_, actions_));
    hear_without_me(0, 0, {{9, 1}});
    hear_without_me(1, 0, {});
    const auto idle = core().idle_tensor(0);
    ASSERT_TRUE(idle.has_value()) << idle.error().message;
    const Stream taken = idle->take_residual();
    EXPECT_TRUE(std::ranges::equal(taken.indices, std::vector<uint32_t>{5, 150'000}));
    EXPECT_TRUE(std::ranges::equal(taken.values, std::vector<float>{1, 2}));
    actions_.clear();
    push({5}, {1});
    EXPECT_EQ(steps_sent(), (std::vector<uint64_t>{1, 1}));
  }
}

TEST_F(Absence, APushContributesOnlyToPartsThatHaveNotDecidedTheStep) {
  make_running();
  hear_without_me(0, 0, {{9, 1}});  // part 1 has not decided step 0
  actions_.clear();
  push({5, 150'000}, {1, 2});
  ASSERT_EQ(actions_.delivered.size(), 1u);
  EXPECT_TRUE(actions_.delivered[0].delivered_before);
  EXPECT_TRUE(actions_.delivered[0].answers_push);
  EXPECT_EQ(actions_.delivered[0].part, 0u);
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 1u) << "part 0 has nothing to wait for";
  EXPECT_EQ(sent[0].first, 1u);
  EXPECT_EQ(residual(), (AbsenceEntries{{5, 1}}));
  hear_update(1, 0, {{50'000, 2}});
  EXPECT_EQ(core().steps_allowed(0), 2u) << "the push is answered";
  push({}, {});
  EXPECT_EQ(steps_sent(), (std::vector<uint64_t>{1, 1}));
  EXPECT_EQ(residual(), AbsenceEntries{}) << "what stayed went with the next push";
}

TEST_F(Absence, ALateContributionReturnsToTheResidual) {
  make_running();
  push({5}, {1});
  hear_without_me(0, 0, {{5, 7}});
  hear_without_me(1, 0, {});
  EXPECT_EQ(residual(), (AbsenceEntries{{5, 1}}));
  EXPECT_EQ(core().counters().not_counted, 2u);
}

TEST_F(Absence, TheWorkerRequestsALostUpdateWithAnAck) {
  make_running();
  Heartbeat ahead;
  ahead.steps_applied = 2;
  hear(0, ahead);
  core().end_pass(now_, actions_);
  const auto acks = take_sent<Ack>();
  ASSERT_EQ(acks.size(), 1u);
  EXPECT_EQ(std::get<Ack>(acks[0].second.body), (Ack{{{0, 0, true}}}));
  hear(0, ahead);
  core().end_pass(now_, actions_);
  EXPECT_TRUE(take_sent<Ack>().empty()) << "asked a moment ago";
}

TEST_F(Absence, UpdateAheadOfItsTurnIsHeldUntilTheOneBeforeItCame) {
  make_running();
  hear_without_me(0, 1, {{5, 2}});
  EXPECT_EQ(core().part_steps_applied(0), 0u);
  hear_without_me(0, 0, {{5, 1}});
  EXPECT_EQ(core().part_steps_applied(0), 2u);
}

TEST_F(Absence, ResendSaysThatItIsOne) {
  make_running();
  push({5}, {1});
  for (const auto& [shard, message] : take_sent<Contribution>())
    EXPECT_FALSE(std::get<Contribution>(message.body).again);
  pass(5 * kNsPerS);
  const auto sent = take_sent<Contribution>();
  ASSERT_FALSE(sent.empty());
  for (const auto& [shard, message] : sent) EXPECT_TRUE(std::get<Contribution>(message.body).again);
}

TEST_F(Absence, AFinishingWorkerNotifiesEveryShardAtOnce) {
  make_running();
  push({5}, {1});
  actions_.clear();
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  const auto heartbeats = take_sent<Heartbeat>();
  ASSERT_EQ(heartbeats.size(), 2u);
  for (const auto& [shard, message] : heartbeats) EXPECT_TRUE(std::get<Heartbeat>(message.body).finishing);
}

TEST_F(Absence, AnUndrawnWorkerContributesAfterTheStepOrATimeOut) {
  config_.spec.quorum = 0;
  config_.spec.participants = 1;
  // A seed that draws worker 1 for step 0 and worker 0 for step 1.
  const auto draws = [&] {
    return !protocol::takes_part(config_.spec, membership_.members, 0, 0) &&
           protocol::takes_part(config_.spec, membership_.members, 1, 0);
  };
  while (!draws()) ++config_.spec.seed;
  make_running();
  push({5}, {1});
  EXPECT_TRUE(steps_sent().empty());
  hear_without_me(0, 0, {});
  hear_without_me(1, 0, {});
  while (core().work(now_, actions_)) {
  }
  EXPECT_EQ(steps_sent(), (std::vector<uint64_t>{1, 1}));

  make_running();
  push({5}, {1});
  EXPECT_TRUE(steps_sent().empty());
  now_ += 3 * TimeNs{config_.spec.heartbeat.count()} * kNsPerMs;
  while (core().work(now_, actions_)) {
  }
  EXPECT_EQ(steps_sent(), (std::vector<uint64_t>{0, 0})) << "a drawn worker may have nothing more to give";
}

}  // namespace
}  // namespace millrace::worker
