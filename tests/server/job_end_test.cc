#include "tests/server/returning_cluster.h"

/// How a job ends for all of its members, and where it must: R10f.
namespace millrace::server {
namespace {

using protocol::Abort;
using protocol::Goodbye;
using protocol::LogReach;
using protocol::Refuse;
using protocol::Welcome;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Sends contributions to one part of the shard whose sum overflows.
void overflow(ScriptedCluster& cluster, uint32_t shard) {
  const auto part = std::ranges::find(cluster.layout().parts, shard, &protocol::PartLayout::shard);
  ASSERT_NE(part, cluster.layout().parts.end());
  const SharedBytes bytes = cluster.payload(std::vector<float>(part->end - part->begin, 3e38F));
  for (const uint32_t worker : {0u, 1u}) {
    cluster.send(ScriptedCluster::peer(worker), shard, cluster.contribution(worker, part->part, 0, bytes, shard));
  }
}

TEST(JobEnd, EveryShardAbortsAJobWithTheCodeAndTheSentenceOfItsEnd) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2), 2);
  cluster.join_all();
  overflow(cluster, 0);
  const std::vector<Abort> found = cluster.take_of<Abort>(0, 0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, ErrorCode::kNonFinite) << found[0].sentence;
  cluster.pass(100);
  const std::vector<Abort> learned = cluster.take_of<Abort>(0, 1);
  ASSERT_EQ(learned.size(), 1u) << "from the table";
  EXPECT_EQ(learned[0], found[0]);
}

TEST(JobEnd, TheEndInTheTableGoesBeforeTheFaultThatAShardFindsLater) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2), 2);
  cluster.join_all();
  protocol::JobRecord record = cluster.table().read_job("job").value().value();
  const uint64_t epoch = record.membership.epoch++;
  ASSERT_EQ(end(record, {ErrorCode::kIo, "the weights are lost"}), Change::kChanged);  // by shard 1
  ASSERT_EQ(cluster.table().compare_and_swap(epoch, record), true);
  overflow(cluster, 0);
  const std::vector<Abort> aborts = cluster.take_of<Abort>(0, 0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kIo);
  EXPECT_EQ(aborts[0].sentence, "the weights are lost");
}

/// A job of two workers and two shards, whose end the tests bring about. A worker that asks later must end as the
/// members did: with the same message.
struct AfterTheEnd : ::testing::Test {
  AfterTheEnd() : cluster(job(), 2, limits()) {
    cluster.join_all();
    for (uint32_t shard = 0; shard < 2; ++shard) known[shard] = cluster.header(1, shard);
  }
  static protocol::JobSpec job() {
    protocol::JobSpec spec = ScriptedCluster::small_job(2, 8'192);  // over both shards
    spec.heartbeat = std::chrono::milliseconds(200);
    spec.dead_after = std::chrono::milliseconds(2'000);
    return spec;
  }
  static Limits limits() {
    Limits limits;
    limits.jobs_max = 1;
    return limits;
  }
  /// Ends the job in the table alone, as a third shard would.
  void end_in_table() {
    const auto table = millrace::testing::open_memory_table(cluster.table_state);
    protocol::JobRecord record = table->read_job(known[0].job).value().value();
    const uint64_t epoch = record.membership.epoch++;
    ASSERT_EQ(end(record, {ErrorCode::kIo, "the weights are lost"}), Change::kChanged);
    ASSERT_EQ(table->compare_and_swap(epoch, record), true);
  }
  /// Worker 1 says Hello as one that knows the job, over a new connection.
  std::vector<protocol::Message> ask(uint32_t shard, uint64_t nonce = 1001) {
    cluster.take(1, shard);
    protocol::Hello hello = cluster.hello(1);
    hello.nonce = nonce;
    hello.returns = hello.has_weights = nonce != 1001;
    cluster.send(ScriptedCluster::peer(1), shard, {known[shard], hello, {}});
    return cluster.take(1, shard);
  }
  std::vector<Abort> aborts(uint32_t shard) { return ReturningCluster::of<Abort>(ask(shard)); }

  const Abort lost{ErrorCode::kIo, "the weights are lost"};
  ScriptedCluster cluster;
  protocol::Header known[2];
};

TEST_F(AfterTheEnd, AShardThatEndedTheJobAnswersAHelloAsItToldTheMembers) {
  overflow(cluster, 0);
  const std::vector<Abort> told = cluster.take_of<Abort>(1, 0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code, ErrorCode::kNonFinite);
  const auto answers = ask(0);
  EXPECT_EQ(ReturningCluster::of<Abort>(answers), told);
  EXPECT_THAT(ReturningCluster::of<Refuse>(answers), IsEmpty()) << "one answer";
  EXPECT_EQ(cluster.counted(Metric::kRefused, "non_finite"), 1);
}

TEST_F(AfterTheEnd, AShardThatStartsLaterAnswersTheSame) {
  end_in_table();
  cluster.start_shard(1, 2);
  EXPECT_THAT(aborts(1), ElementsAre(lost));
  EXPECT_TRUE(cluster.core(1).status(cluster.now).jobs.empty());
}

TEST_F(AfterTheEnd, AShardThatShutsDownAnswersTheSame) {
  const auto part = std::ranges::find(cluster.layout().parts, 1u, &protocol::PartLayout::shard);
  const SharedBytes bytes = cluster.payload(std::vector<float>(part->end - part->begin, 1.0F));
  cluster.hold_tasks = true;  // a round in flight delays the end
  cluster.send(ScriptedCluster::peer(0), 1, cluster.contribution(0, part->part, 0, bytes, 1));
  cluster.shut_down(1);
  EXPECT_FALSE(cluster.core(1).stopped());
  const auto refusals = ReturningCluster::of<Refuse>(ask(1));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry) << "the job has not ended";
  end_in_table();
  EXPECT_THAT(aborts(1), ElementsAre(lost));
}

TEST_F(AfterTheEnd, AMemberLearnsTheEndOnceTheShardReadsTheTable) {
  end_in_table();
  const auto answers = ask(1);
  EXPECT_EQ(ReturningCluster::of<Welcome>(answers).size(), 1u) << "as before: the table is not read for a member";
  cluster.pass(200);
  EXPECT_THAT(cluster.take_of<Abort>(1, 1), ElementsAre(lost)) << "once the shard has read it";
}

TEST_F(AfterTheEnd, AnotherProcessOfAMemberLearnsTheEndAtOnce) {
  end_in_table();
  const auto told = ReturningCluster::of<Abort>(ask(1, 77));
  EXPECT_THAT(told, Each(lost));
  EXPECT_EQ(told.size(), 2u) << "the member has the same connection here, and gets it, too";
}

TEST_F(AfterTheEnd, TheNextJobOfTheNameIsNotInTheWay) {
  end_in_table();
  cluster.pass(200);
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.join(1, 1)));
  EXPECT_THAT(aborts(1), ElementsAre(lost));
  EXPECT_THAT(aborts(0), ElementsAre(lost));
}

TEST_F(AfterTheEnd, AShardWithoutRoomAnswersTheSame) {
  end_in_table();
  cluster.pass(200);
  cluster.room = fail(ErrorCode::kUnavailable, "no descriptor is left");
  EXPECT_THAT(aborts(0), ElementsAre(lost));
  cluster.room = {};
  protocol::Hello other = cluster.hello(0);
  other.spec.name = "other";
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, other))) << "as many as --jobs-max";
  EXPECT_THAT(aborts(0), ElementsAre(lost));
}

TEST_F(AfterTheEnd, ATableThatCannotBeReadMakesTheWorkerAskAgain) {
  end_in_table();
  cluster.pass(200);
  cluster.table().mode = millrace::testing::FailingTable::Mode::kUnavailable;
  const auto refusals = ReturningCluster::of<Refuse>(ask(0));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry);
  EXPECT_EQ(refusals[0].code, ErrorCode::kTimeout);
  cluster.table().mode = millrace::testing::FailingTable::Mode::kWorks;
  EXPECT_THAT(aborts(0), ElementsAre(lost));
}

TEST_F(AfterTheEnd, ACodeOfTheTableIsNoTroubleWithTheTable) {
  end_in_table();
  cluster.pass(200);
  EXPECT_THAT(aborts(0), ElementsAre(lost));
  EXPECT_THAT(cluster.core(0).status(cluster.now).table_error, IsEmpty());
}

TEST_F(AfterTheEnd, TheProcessThatLeavesTheShardsNumberTellsTheEnd) {
  end_in_table();
  const auto table = millrace::testing::open_memory_table(cluster.table_state);
  ASSERT_EQ(table->start_shard(1, 2, "tcp://next:9"), 2u);
  cluster.take(1, 1);
  cluster.pass(200);
  EXPECT_TRUE(cluster.core(1).stopped());
  const auto told = cluster.take(1, 1);
  EXPECT_THAT(ReturningCluster::of<Abort>(told), ElementsAre(lost));
  EXPECT_THAT(ReturningCluster::of<protocol::MembershipChange>(told), IsEmpty());
}

TEST_F(AfterTheEnd, AShardThatShutsDownTellsTheEndOfBefore) {
  end_in_table();
  cluster.take(1, 1);
  cluster.shut_down(1);
  const auto told = cluster.take(1, 1);
  EXPECT_THAT(ReturningCluster::of<Abort>(told), ElementsAre(lost));
  EXPECT_THAT(ReturningCluster::of<Goodbye>(told), IsEmpty());
  EXPECT_TRUE(cluster.core(1).stopped());
}

TEST_F(AfterTheEnd, AHelloDuringWhichTheJobEndsIsRepeated) {
  cluster.start_shard(1, 2);
  cluster.table(1).before_read_by_number = [this] { end_in_table(); };
  const auto waits = cluster.join(1, 1);
  ASSERT_TRUE(std::holds_alternative<Refuse>(waits)) << "it names no job";
  EXPECT_TRUE(std::get<Refuse>(waits).retry);
  EXPECT_THAT(std::get<Refuse>(waits).sentence, HasSubstr("the weights are lost"));
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(1, 1))) << "the name is free";
}

TEST_F(AfterTheEnd, AHelloOfAMemberDuringWhichTheJobEndsIsAnsweredByTheEnd) {
  cluster.start_shard(1, 2);
  cluster.table(1).before_read_by_number = [this] { end_in_table(); };
  EXPECT_THAT(aborts(1), ElementsAre(lost));
}

struct AfterAFinish : ::testing::Test {
  explicit AfterAFinish(uint32_t workers = 3, uint32_t shards = 1, uint32_t parts = 1)
      : cluster(ReturningCluster::job(workers, parts), shards) {
    cluster.join_all_with_weights();
  }
  void step(const std::vector<uint32_t>& workers) {
    cluster.step(workers);
    for (const uint32_t worker : workers) cluster.ack(worker, cluster.holds(worker).n);
  }
  std::vector<LogReach> reach_of(uint32_t worker) {
    std::vector<LogReach> reach(cluster.layout().shard_count);
    for (const protocol::PartLayout& part : cluster.layout().parts) {  // a shard has one part
      reach[part.shard] = {cluster.holds(worker, part.part).n, cluster.holds(worker, part.part).decided_in};
    }
    return reach;
  }
  void leave(uint32_t worker, Goodbye::Reason reason) {
    cluster.say(worker, Goodbye{reason, "", reach_of(worker)});
    for (uint32_t other = 0; other < cluster.spec().workers; ++other) cluster.deliver_all(other);
  }
  /// The worker's process dies. Another one returns from a save after n steps.
  void return_alone(uint32_t worker, uint64_t n, uint32_t shard = 0) {
    cluster.pass(1'100);
    ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(worker, cluster.returning(worker, 77), shard)));
    for (const protocol::PartLayout& part : cluster.layout().parts) {
      ReturningCluster::Holds& mine = cluster.holds(worker, part.part);
      const auto& last = std::get<protocol::Update>(mine.kept.at(n - 1).body);
      mine.decided_in = last.decided_in;
      mine.summary = last.summary;
      mine.n = n;
      mine.kept.clear();
    }
    cluster.deliver_all(worker);
    cluster.say_state(worker, false, shard);
    cluster.say_state(worker, false, shard, true);
  }
  protocol::JobRecord record() { return cluster.table().read_job(uint64_t{1}).value().value(); }
  /// The steps that are noted, by shard.
  std::vector<uint64_t> noted() {
    cluster.pass(100);
    for (uint32_t worker = 0; worker < cluster.spec().workers; ++worker) cluster.deliver_all(worker);
    std::vector<uint64_t> steps;
    for (const LogReach& reach : record().finished) steps.push_back(reach.steps);
    return steps;
  }
  void expect_end() {
    EXPECT_TRUE(record().membership.finished);
    EXPECT_EQ(record().end_code, ErrorCode::kStale);
    EXPECT_THAT(record().end_reason, HasSubstr("take the model of a worker that finished"));
  }
  ReturningCluster cluster;
};

TEST_F(AfterAFinish, AJobThatWouldRepeatStepsOfAFinishedWorkerEnds) {
  for (int count = 0; count < 3; ++count) step({0, 1, 2});
  leave(0, Goodbye::Reason::kFinished);
  leave(2, Goodbye::Reason::kFinished);
  EXPECT_THAT(noted(), ElementsAre(3));
  return_alone(1, 2);
  expect_end();
  const auto aborts = ReturningCluster::of<Abort>(cluster.take(1));
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kStale);
}

TEST_F(AfterAFinish, AJobGoesBackToAStateThatHasAllStepsOfTheFinishedWorkers) {
  step({0, 1, 2});
  step({0, 1, 2});
  leave(0, Goodbye::Reason::kFinished);
  EXPECT_THAT(noted(), ElementsAre(2));
  step({1, 2});
  leave(2, Goodbye::Reason::kFailed);
  EXPECT_THAT(noted(), ElementsAre(2)) << "it has not finished";
  return_alone(1, 2);
  EXPECT_FALSE(record().membership.finished);
  EXPECT_EQ(record().membership.cut_worker, 1u);
  EXPECT_EQ(record().membership.cut, record().membership.epoch);
}

TEST_F(AfterAFinish, AFinishThatTheTableDoesNotHaveYetIsNoDeath) {
  step({0, 1, 2});
  cluster.table().mode = millrace::testing::FailingTable::Mode::kUnavailable;
  leave(2, Goodbye::Reason::kFinished);
  cluster.live({0, 1}, 1'100);
  cluster.table().mode = millrace::testing::FailingTable::Mode::kWorks;
  EXPECT_TRUE(std::holds_alternative<Refuse>(cluster.say_hello(2, cluster.returning(2, 77))));
  EXPECT_THAT(noted(), ElementsAre(1));
  EXPECT_EQ(record().membership.left, 1u);
}

TEST_F(AfterAFinish, AWorkerThatFinishesTwiceIsNotTwoWorkers) {
  step({0, 1, 2});
  step({0, 1, 2});
  leave(0, Goodbye::Reason::kFinished);
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, cluster.returning(0, 77))));
  leave(0, Goodbye::Reason::kFinished);
  cluster.live({1}, 2'300);
  return_alone(1, 1);
  cluster.live({1}, 5'000);
  EXPECT_FALSE(record().membership.finished) << "worker 2 may have the steps";
  cluster.live({1}, 60'000);
  expect_end();
}

TEST_F(AfterAFinish, AnEvictionInTheSameChangeIsNoFinish) {
  step({0, 1, 2});
  step({0, 1, 2});
  protocol::JobRecord changed = record();  // as two other shards change it, before this one reads the table
  const uint64_t epoch = changed.membership.epoch++;
  const std::vector<protocol::Member> members = changed.membership.members;
  ASSERT_EQ(millrace::server::leave(changed, members[0], Leaving::kSilent, 1), Change::kChanged);
  ASSERT_EQ(millrace::server::leave(changed, members[2], Leaving::kFinished, 1, reach_of(2)), Change::kChanged);
  ASSERT_EQ(cluster.table().compare_and_swap(epoch, changed), true);
  EXPECT_THAT(noted(), ElementsAre(2));
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
  cluster.holds(2) = {};
  return_alone(1, 1);
  for (const bool stranded : {false, true}) cluster.say_state(2, false, 0, stranded);
  cluster.live({1, 2}, 5'000);
  EXPECT_FALSE(record().membership.finished) << "worker 0 may have the steps";
}

/// Worker 0 has finished with 3 steps, worker 2 is evicted, worker 1 returns with 2 steps.
struct AfterAFinishAndAnEviction : AfterAFinish {
  AfterAFinishAndAnEviction() {
    for (int count = 0; count < 3; ++count) step({0, 1, 2});
    leave(0, Goodbye::Reason::kFinished);
    cluster.live({1}, 2'300);
    EXPECT_EQ(record().membership.members.size(), 1u);
    return_alone(1, 2);
    cluster.live({1}, 5'000);
    EXPECT_FALSE(record().membership.finished) << "worker 2 may have the steps";
    EXPECT_EQ(record().membership.cut, 0u);
  }
};

TEST_F(AfterAFinishAndAnEviction, TheJobContinuesWithALaterWorkerThatHasTheSteps) {
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 78))));
  cluster.holds(2).kept.clear();
  for (const uint32_t worker : {1u, 2u}) cluster.deliver_all(worker);
  for (const uint32_t worker : {1u, 2u}) cluster.say_state(worker, false);
  for (const uint32_t worker : {1u, 2u}) cluster.say_state(worker, false, 0, true);
  EXPECT_FALSE(record().membership.finished);
  EXPECT_EQ(record().membership.cut_worker, 2u);
  EXPECT_EQ(record().membership.cut, record().membership.epoch);
}

TEST_F(AfterAFinishAndAnEviction, TheJobEndsWhereNoneComes) {
  cluster.live({1}, 60'000);
  expect_end();
}

TEST_F(AfterAFinishAndAnEviction, ASuspensionOfTheShardDoesNotEndTheJob) {
  cluster.now += 60 * kNsPerS;
  cluster.tick();
  cluster.live({1}, 5'000);
  EXPECT_FALSE(record().membership.finished) << "worker 2 had no time to come";
}

struct AfterAFinishOfOne : AfterAFinish {
  AfterAFinishOfOne() : AfterAFinish(2) {}
};

TEST_F(AfterAFinishOfOne, ItsNextProcessIsNoOtherWorker) {
  step({0, 1});
  step({0, 1});
  leave(0, Goodbye::Reason::kFinished);
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, cluster.returning(0, 77))));
  cluster.holds(0) = {};
  cluster.live({0}, 2'300);
  EXPECT_EQ(record().membership.members.size(), 1u) << "worker 1 is silent";
  cluster.deliver_all(0);
  cluster.say_state(0, false);
  cluster.say_state(0, false, 0, true);
  cluster.live({0}, 5'000);
  EXPECT_FALSE(record().membership.finished) << "worker 1 has the steps";
  cluster.live({0}, 60'000);
  expect_end();
}

struct AfterAFinishOfShards : AfterAFinish {
  AfterAFinishOfShards() : AfterAFinish(2, 2, 2) {}
  uint32_t part_of(uint32_t shard) {
    return std::ranges::find(cluster.layout().parts, shard, &protocol::PartLayout::shard)->part;
  }
  void restart_shard_1() {
    cluster.start_shard(1, 2);
    cluster.welcome_with_weights(1, 1);
    cluster.say_state(1, true, 1);
    cluster.give_all(1, 1);
  }
  void expect_recovered() {
    EXPECT_FALSE(record().membership.finished) << record().end_reason;
    EXPECT_FALSE(cluster.core(1).status(cluster.now).jobs.at(0).recovering);
  }
};

TEST_F(AfterAFinishOfShards, ASuccessorWhoseLogLacksStepsOfAFinishedWorkerEndsTheJob) {
  step({0, 1});
  step({0, 1});
  ReturningCluster::Holds& mine = cluster.holds(1, part_of(1));
  leave(0, Goodbye::Reason::kFinished);
  EXPECT_THAT(noted(), ElementsAre(2, 2)) << "the Goodbye to shard 0 has both";
  mine.kept.erase(1);  // the update did not reach worker 1
  mine.summary = std::get<protocol::Update>(mine.kept.at(0).body).summary;
  mine.n = 1;
  restart_shard_1();
  expect_end();
}

TEST_F(AfterAFinishOfShards, ASuccessorWithAllStepsOfAFinishedWorkerRecovers) {
  step({0, 1});
  step({0, 1});
  leave(0, Goodbye::Reason::kFinished);
  EXPECT_THAT(noted(), ElementsAre(2, 2));
  restart_shard_1();
  expect_recovered();
}

TEST_F(AfterAFinishOfShards, TensorsThatWerePushedLessOftenLackNothing) {
  step({0, 1});
  const SharedBytes bytes = cluster.payload(std::vector<float>(64, 1));
  for (const uint32_t worker : {0u, 1u}) {
    cluster.send(ScriptedCluster::peer(worker), 0, cluster.contribution(worker, part_of(0), 1, bytes, 0));
  }
  for (const uint32_t worker : {0u, 1u}) cluster.deliver_all(worker);
  leave(0, Goodbye::Reason::kFinished);
  EXPECT_THAT(noted(), ElementsAre(2, 1));
  restart_shard_1();
  expect_recovered();
}

/// Seed 7,105,800 of the simulator: the shard died before it learned that the worker had finished.
TEST_F(AfterAFinishOfShards, AShardThatDiesBeforeTheFinishDoesNotRepeatTheSteps) {
  step({0, 1});
  step({0, 1});
  cluster.table(1).mode = millrace::testing::FailingTable::Mode::kUnavailable;
  leave(0, Goodbye::Reason::kFinished);
  cluster.table(1).mode = millrace::testing::FailingTable::Mode::kWorks;
  EXPECT_THAT(record().finished, ElementsAre(reach_of(0)[0], reach_of(0)[1]));
  cluster.forget(1);
  restart_shard_1();
  expect_end();
}

TEST_F(AfterAFinish, WhatCannotBeIsNotNoted) {
  step({0, 1, 2});
  const uint64_t epoch = record().membership.epoch;
  cluster.say(0, Goodbye{Goodbye::Reason::kFinished, "", {{1, epoch}, {0, 0}}});
  EXPECT_THAT(noted(), IsEmpty()) << "the job has one shard";
  cluster.say(1, Goodbye{Goodbye::Reason::kFinished, "", {{2, epoch}}});
  EXPECT_THAT(noted(), IsEmpty()) << "one step is decided";
  EXPECT_EQ(cluster.counted(Metric::kDropped, "impossible_reach"), 2);
}

TEST_F(AfterAFinish, EpochsThatHaveNotBegunAreNotNoted) {
  step({0, 1, 2});
  cluster.say(0, Goodbye{Goodbye::Reason::kFinished, "", {{1, record().membership.epoch + 1}}});
  EXPECT_EQ(record().membership.left, 1u);
  EXPECT_THAT(noted(), IsEmpty());
  EXPECT_EQ(cluster.counted(Metric::kDropped, "impossible_reach"), 1);
}

TEST_F(AfterAFinish, FinishesThatTheTableLearnsOfTogetherAreNotedTogether) {
  step({0, 1, 2});
  step({0, 1, 2});
  cluster.table().mode = millrace::testing::FailingTable::Mode::kUnavailable;
  cluster.say(0, Goodbye{Goodbye::Reason::kFinished, "", {{2, 1}}});
  cluster.say(1, Goodbye{Goodbye::Reason::kFinished, "", {{1, reach_of(1)[0].decided_in}}});
  cluster.table().mode = millrace::testing::FailingTable::Mode::kWorks;
  EXPECT_THAT(noted(), ElementsAre(2));
  EXPECT_EQ(record().membership.left, 2u);
  EXPECT_EQ(record().finished[0].decided_in, reach_of(1)[0].decided_in);
}

struct FinishedSteps : ::testing::Test {
  FinishedSteps() {
    record.membership.started = true;
    for (uint32_t worker = 0; worker < 4; ++worker) {
      const auto state = worker == 3 ? protocol::MemberState::kJoining : protocol::MemberState::kSynced;
      record.membership.members.push_back({worker, 1, worker + 1, state});
    }
  }
  Change finish(uint32_t worker, const std::vector<LogReach>& reach) {
    return millrace::server::leave(record, {.worker = worker, .incarnation = 1}, Leaving::kFinished, 1, reach);
  }
  protocol::JobRecord record;
};

TEST_F(FinishedSteps, AreInALogThatGoesAsFarInStepsAndEpochs) {
  EXPECT_EQ(finish(0, {{}, {.steps = 3, .decided_in = 4}}), Change::kChanged);
  EXPECT_EQ(finish(1, {{}, {.steps = 2, .decided_in = 5}}), Change::kChanged);
  EXPECT_THAT(record.finished, ElementsAre(LogReach{}, LogReach{3, 5}));
  EXPECT_TRUE(has_finished_steps(record, 1, {3, 5}));
  EXPECT_TRUE(has_finished_steps(record, 1, {4, 6}));
  EXPECT_TRUE(has_finished_steps(record, 0, {0, 0})) << "of shard 0 nothing is noted";
  EXPECT_TRUE(has_finished_steps(record, 2, {0, 0}));
  EXPECT_EQ(has_finished_steps(record, 1, {2, 9}).error().code, ErrorCode::kStale);
  EXPECT_EQ(has_finished_steps(record, 1, {9, 4}).error().code, ErrorCode::kStale) << "steps of a log that is void";
}

TEST_F(FinishedSteps, OfAJoiningWorkerAreNotNoted) {
  EXPECT_EQ(finish(3, {{.steps = 3, .decided_in = 4}}), Change::kChanged);
  EXPECT_TRUE(record.finished.empty()) << "they may be void";
}

TEST_F(FinishedSteps, AreForgottenWithTheJob) {
  finish(0, {{3, 5}});
  ASSERT_EQ(end(record, {ErrorCode::kIo, "the weights are lost"}), Change::kChanged);
  EXPECT_TRUE(record.finished.empty());
  EXPECT_EQ(finish(1, {{3, 5}}), Change::kNone);
  EXPECT_TRUE(record.finished.empty());
}

}  // namespace
}  // namespace millrace::server
