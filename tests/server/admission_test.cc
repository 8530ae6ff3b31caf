#include "tests/server/scripted_cluster.h"

namespace millrace::server {
namespace {

using protocol::Abort;
using protocol::MembershipChange;
using protocol::Refuse;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

protocol::JobSpec admission_job(uint32_t workers = 2) { return ScriptedCluster::small_job(workers); }

TEST(Admission, WelcomeNamesTheMemberAndTheJobStartsWithTheLastJoin) {
  ScriptedCluster cluster(admission_job());
  const auto first = expect_body<Welcome>(cluster.join(0));
  EXPECT_FALSE(first.membership.started);
  EXPECT_EQ(first.membership.members.size(), 1u);
  EXPECT_EQ(first.dead_after_ms, cluster.spec().dead_after.count());
  const auto second = expect_body<Welcome>(cluster.join(1));
  EXPECT_TRUE(second.membership.started);
  const std::vector<MembershipChange> changes = cluster.take_of<MembershipChange>(0);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].membership.started);
}

TEST(Admission, RepeatedHelloIsTheSameIncarnation) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  const auto again = expect_body<Welcome>(cluster.join(1));
  ASSERT_EQ(again.membership.members.size(), 2u);
  EXPECT_EQ(again.membership.members[1].incarnation, 1u);
  EXPECT_EQ(again.membership.epoch, cluster.core().status(cluster.now).jobs[0].epoch) << "nothing changed in the table";
}

TEST(Admission, SecondProcessUnderOneIdentityIsRefusedByName) {
  ScriptedCluster cluster(admission_job());
  cluster.join(0);
  protocol::Hello other = cluster.hello(0);
  other.nonce = 99;
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, other));
  EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
  EXPECT_THAT(refusal.sentence, HasSubstr("worker 0"));
}

TEST(Admission, ANonceOfAnotherProcessIsNoWayIntoItsPlace) {
  ScriptedCluster cluster(admission_job());
  protocol::PeerId alice = ScriptedCluster::peer(0);
  protocol::PeerId bob = ScriptedCluster::peer(1);
  alice.key.bytes[0] = 1;
  bob.key.bytes[0] = 2;
  const auto welcomed = [&](const protocol::PeerId& from, uint32_t worker, uint64_t nonce, uint32_t inbox) {
    protocol::Hello hello = cluster.hello(worker);
    hello.nonce = nonce;
    cluster.take(inbox);
    cluster.send(from, 0, {{.worker = worker}, hello, {}});
    for (const protocol::Message& answer : cluster.take(inbox)) {
      if (std::holds_alternative<Welcome>(answer.body) || std::holds_alternative<Refuse>(answer.body))
        return answer.body;
    }
    return protocol::Body();
  };
  const uint64_t alices = cluster.hello(0).nonce;
  const auto first = expect_body<Welcome>(welcomed(alice, 0, alices, 0));
  EXPECT_EQ(first.membership.members[0].nonce, alices) << "by it the process knows itself";
  const auto second = expect_body<Welcome>(welcomed(bob, 1, cluster.hello(1).nonce, 1));
  EXPECT_EQ(second.membership.members[0].nonce, 0u) << "it is no member's business";
  const std::vector<MembershipChange> changes = cluster.take_of<MembershipChange>(0);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].membership.members[1].nonce, 0u);
  const auto stolen = expect_body<Refuse>(welcomed(bob, 0, alices, 1));
  EXPECT_EQ(stolen.code, ErrorCode::kIdentityInUse);
  EXPECT_THAT(stolen.sentence, HasSubstr("another key"));
  expect_body<Welcome>(welcomed(alice, 0, alices, 0));
}

TEST(Admission, WorkerBeyondTheJobIsRefused) {
  ScriptedCluster cluster(admission_job());
  EXPECT_EQ(expect_body<Refuse>(cluster.join(2)).code, ErrorCode::kInvalidArgument);
}

TEST(Admission, NoDescriptorsLeft_NoMoreWorkersAdmittedAndMembersKept) {
  ScriptedCluster cluster(admission_job(3));
  cluster.join(0);
  cluster.room = fail(ErrorCode::kLimitExceeded, "1000 of 1024 files are open; raise the limit of open files");
  const auto refusal = expect_body<Refuse>(cluster.join(1));
  EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
  EXPECT_FALSE(refusal.retry) << "it does not pass by itself";
  EXPECT_EQ(refusal.sentence, cluster.room.error().message);
  const StatusReport status = cluster.core().status(cluster.now);
  ASSERT_EQ(status.refusals.size(), 1u) << "/status has the reason too";
  EXPECT_EQ(status.refusals[0].sentence, cluster.room.error().message);
  expect_body<Welcome>(cluster.join(0));
  cluster.room = {};
  expect_body<Welcome>(cluster.join(1));
}

TEST(Admission, NewcomerToARunningJobJoinsIfItCanTakeWeights) {
  ScriptedCluster cluster(admission_job(3));
  cluster.join_all();
  cluster.send(ScriptedCluster::peer(2), 0, {cluster.header(2), protocol::Goodbye{}, {}});
  const auto refusal = expect_body<Refuse>(cluster.join(2));
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_FALSE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("attach weights"));
  protocol::Hello hello = cluster.hello(2);
  hello.has_weights = true;
  const auto welcome = expect_body<Welcome>(cluster.say_hello(2, hello));
  ASSERT_EQ(welcome.membership.members.size(), 3u);
  EXPECT_EQ(welcome.membership.members[2].state, protocol::MemberState::kJoining);
  EXPECT_EQ(welcome.membership.members[2].incarnation, 2u);
  const auto again = expect_body<Welcome>(cluster.say_hello(2, hello));
  EXPECT_EQ(again.membership.epoch, welcome.membership.epoch) << "the same process: nothing changes";
}

TEST(Admission, AGoodbyeRemovesOnlyTheWorkerOfItsConnection) {
  ScriptedCluster cluster(admission_job(3));
  expect_body<Welcome>(cluster.join(0));
  const auto members = [&] {
    const auto row = cluster.table().read_job("job");
    return row->has_value() ? row->value().membership.members.size() : 0;
  };
  const protocol::Goodbye failed{protocol::Goodbye::Reason::kFailed, "another shard refused"};
  cluster.send(ScriptedCluster::peer(1), 0, {{.worker = 1}, failed, {}});
  EXPECT_EQ(members(), 1u) << "no worker said Hello there";
  EXPECT_TRUE(cluster.take_of<Refuse>(1).empty());
  expect_body<Welcome>(cluster.join(1));
  EXPECT_EQ(members(), 2u);
  cluster.send(ScriptedCluster::peer(1), 0, {{.worker = 0}, failed, {}});
  EXPECT_EQ(members(), 2u) << "that connection is another worker's";
  cluster.send(ScriptedCluster::peer(1), 0, {{.worker = 1}, failed, {}});
  EXPECT_EQ(members(), 1u);
  cluster.send(ScriptedCluster::peer(1), 0, {{.worker = 1}, failed, {}});
  cluster.send(ScriptedCluster::peer(0), 0, {{.worker = 0}, failed, {}});
  EXPECT_EQ(members(), 0u);
  EXPECT_FALSE(cluster.table().read_job("job")->has_value()) << "the name is free";
}

TEST(Admission, HelloOfARemovedWorkerThatDoesNotKnowItIsNoReturn) {
  ScriptedCluster cluster(admission_job(3));
  cluster.join_all();
  const protocol::Header known = cluster.header(2);
  cluster.send(ScriptedCluster::peer(2), 0, {known, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""}, {}});
  protocol::Hello hello = cluster.hello(2);
  hello.has_weights = true;
  cluster.take(2);
  cluster.send(ScriptedCluster::peer(2), 0, {known, hello, {}});
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(2);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kNotAMember) << "it would go on as if nothing had happened";
  hello.returns = true;
  cluster.send(ScriptedCluster::peer(2), 0, {known, hello, {}});
  EXPECT_EQ(cluster.take_of<Welcome>(2).size(), 1u);
}

TEST(Admission, OtherSpecificationIsRefusedWithTheDifference) {
  ScriptedCluster cluster(admission_job());
  cluster.join(0);
  protocol::Hello other = cluster.hello(1);
  other.spec.tensors[0].dimension = 65;
  other.layout_hash = protocol::layout_hash(protocol::plan_layout(other.spec, 1));
  const auto refusal = expect_body<Refuse>(cluster.say_hello(1, other));
  EXPECT_EQ(refusal.code, ErrorCode::kJobMismatch);
  EXPECT_THAT(refusal.sentence, HasSubstr("65"));
}

TEST(Admission, VersionsWithoutOverlapAreRefused) {
  ScriptedCluster cluster(admission_job());
  protocol::Hello hello = cluster.hello(0);
  hello.version_min = hello.version_max = protocol::kProtocolVersion + 1;
  EXPECT_EQ(expect_body<Refuse>(cluster.say_hello(0, hello)).code, ErrorCode::kVersionMismatch);
}

TEST(Admission, AWorkerOfAnEarlierVersionIsWelcomedInItsOwn) {
  ScriptedCluster cluster(admission_job());
  for (uint32_t worker = 0; worker < 2; ++worker) {
    protocol::Hello hello = cluster.hello(worker);
    hello.version_max = protocol::kProtocolVersionMin + worker;
    EXPECT_EQ(expect_body<protocol::Welcome>(cluster.say_hello(worker, hello)).version, hello.version_max);
  }
}

TEST(Admission, OtherShardMapOrLayoutIsRefused) {
  ScriptedCluster cluster(admission_job());
  protocol::Hello hello = cluster.hello(0);
  hello.shard_count = 2;
  EXPECT_EQ(expect_body<Refuse>(cluster.say_hello(0, hello)).code, ErrorCode::kShardMapMismatch);
  hello = cluster.hello(0);
  hello.layout_hash ^= 1;
  EXPECT_EQ(expect_body<Refuse>(cluster.say_hello(0, hello)).code, ErrorCode::kShardMapMismatch);
  const auto record = cluster.table().read_job("job");
  ASSERT_TRUE(record.has_value());
  EXPECT_FALSE(record->has_value()) << "a refused Hello leaves nothing in the table";
}

TEST(Admission, ReconnectToAJobThatHasEndedDoesNotOpenANewOne) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  protocol::Header head = cluster.header(0);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Goodbye{}, {}});
  }
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  cluster.take(0);
  cluster.send(ScriptedCluster::peer(0), 0, {head, cluster.hello(0), {}});
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kNotAMember);
  EXPECT_EQ(refusals[0].sentence, "job 'job' has ended: its workers have finished");
}

TEST(Admission, NameIsFreeOnceAllMembersHaveFinished) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  const uint64_t first = cluster.core().status(cluster.now).jobs[0].job;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Goodbye{}, {}});
  }
  const auto welcome = expect_body<Welcome>(cluster.join(0));
  EXPECT_GT(welcome.membership.job, first);
}

TEST(Lives, MemberThatDiesBeforeTheStartRejoinsAsANewIncarnation) {
  ScriptedCluster cluster(admission_job(3));
  cluster.join(0);
  cluster.join(1);
  for (int second = 0; second < 12; ++second) {
    cluster.pass(1'000);
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
  }
  protocol::Hello other = cluster.hello(1);
  other.nonce = 77;
  const auto welcome = expect_body<Welcome>(cluster.say_hello(1, other));
  ASSERT_EQ(welcome.membership.members.size(), 2u);
  EXPECT_EQ(welcome.membership.members[1].incarnation, 2u);
}

TEST(Lives, JobWhoseWorkersAreTooFewEndsForAllShards) {
  protocol::JobSpec spec = admission_job(3);
  spec.workers_min = 3;
  ScriptedCluster cluster(spec, 2);
  cluster.join_all();
  cluster.send(ScriptedCluster::peer(2), 0,
               {cluster.header(2), protocol::Goodbye{protocol::Goodbye::Reason::kFailed, "out of memory"}, {}});
  const std::string reason = "worker 2 of job 'job' left; the 2 left are fewer than workers_min (3)";
  std::vector<Abort> aborts = cluster.take_of<Abort>(0, 0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].sentence, reason);
  const protocol::Header late = cluster.header(1, 1);
  cluster.pass(100);
  aborts = cluster.take_of<Abort>(0, 1);
  ASSERT_EQ(aborts.size(), 1u) << "the other shard learns it from the table";
  EXPECT_EQ(aborts[0].sentence, reason);
  cluster.take(1, 1);
  cluster.send(ScriptedCluster::peer(1), 1, {late, cluster.hello(1), {}});
  EXPECT_THAT(cluster.take_of<Abort>(1, 1), ElementsAre(aborts[0]));
  EXPECT_TRUE(cluster.core(1).status(cluster.now).jobs.empty());
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(0))) << "the name is free";
}

TEST(Lives, AJobWhoseLastWorkerFailsHasNotFinished) {
  ScriptedCluster cluster(admission_job(1), 2);
  cluster.join_all();
  cluster.send(ScriptedCluster::peer(0), 0,
               {cluster.header(0), protocol::Goodbye{protocol::Goodbye::Reason::kFailed, "out of memory"}, {}});
  cluster.pass(100);
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "too_few_workers"), 1);
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "ended"), 1) << "the other shard learns it from the table";
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "finished"), 0);
  const std::string reason = "worker 0 of job 'job' left; the 0 left are fewer than workers_min (1)";
  for (const uint32_t shard : {0u, 1u}) {
    const auto ended = cluster.core(shard).status(cluster.now).ended;
    ASSERT_EQ(ended.size(), 1u) << shard;
    EXPECT_THAT(ended[0].sentence, HasSubstr(reason)) << shard;
  }
}

TEST(Lives, LastWorkerIsNeverRemovedForSilenceButAnAbandonedJobEnds) {
  ScriptedCluster cluster(admission_job(1));
  cluster.join_all();
  cluster.pass(30'000);
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 1u);
  cluster.pass(40'000);
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "abandoned"), 1);
}

TEST(Lives, ASuspendedShardEvictsNoSilentMember) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.now += 60 * kNsPerS;  // suspended: no tick in between
  cluster.tick();
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 1u);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "silent"), 0);
}

TEST(ShardLife, RestartedShardTakesTheRunningJobUpAgain) {
  ScriptedCluster cluster(admission_job());
  const auto first = expect_body<Welcome>(cluster.join(0));
  cluster.join(1);
  cluster.start_shard(0, 1);
  const auto welcome = expect_body<Welcome>(cluster.join(0));
  EXPECT_EQ(welcome.membership.job, first.membership.job);
  EXPECT_GT(welcome.membership.shards[0].incarnation, first.membership.shards[0].incarnation);
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs.at(0).recovering);
}

TEST(ShardLife, RunOfDeadWorkers_NameFreeForAnotherRunOfTheSameSpec) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  const uint64_t admission_job = cluster.core().status(cluster.now).jobs.at(0).job;
  cluster.start_shard(0, 1);  // killed with everything on the machine
  protocol::Hello fresh = cluster.hello(0);
  fresh.nonce = 5;
  const auto wait = expect_body<Refuse>(cluster.say_hello(0, fresh));
  EXPECT_EQ(wait.code, ErrorCode::kUnavailable) << wait.sentence;
  EXPECT_TRUE(wait.retry);
  cluster.pass(11'000);
  EXPECT_GT(expect_body<Welcome>(cluster.say_hello(0, fresh)).membership.job, admission_job);
}

TEST(ShardLife, RowOfACrashedRunDoesNotKeepItsNameFromAnotherSpecification) {
  for (const bool started : {false, true}) {
    ScriptedCluster cluster(admission_job());
    if (started) {
      cluster.join_all();
    } else {
      cluster.join(0);
    }
    cluster.start_shard(0, 1);  // killed with everything on the machine
    for (const uint32_t dimension : {64u, 128u}) {
      if (started && dimension == 64) continue;  // RunOfDeadWorkers_NameFreeForAnotherRunOfTheSameSpec
      protocol::Hello fresh = cluster.hello(0);
      fresh.nonce = 5;
      fresh.spec.tensors[0].dimension = dimension;
      fresh.layout_hash = protocol::layout_hash(protocol::plan_layout(fresh.spec, 1));
      const auto wait = expect_body<Refuse>(cluster.say_hello(0, fresh));
      EXPECT_EQ(wait.code, ErrorCode::kUnavailable) << wait.sentence;
      EXPECT_TRUE(wait.retry);
      EXPECT_THAT(wait.sentence, HasSubstr("earlier run"));
      cluster.pass(11'000);
      EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, fresh))) << started << dimension;
      cluster.start_shard(0, 1);
    }
  }
}

TEST(ShardLife, AShardRestartEndsNoJobWhileItsWorkersReturn) {
  ScriptedCluster cluster(admission_job());
  const auto first = expect_body<Welcome>(cluster.join(0));
  cluster.start_shard(0, 1);
  protocol::Hello other = cluster.hello(0);
  other.nonce = 5;
  EXPECT_TRUE(expect_body<Refuse>(cluster.say_hello(0, other)).retry);
  EXPECT_EQ(expect_body<Welcome>(cluster.join(0)).membership.job, first.membership.job);
  EXPECT_EQ(expect_body<Refuse>(cluster.say_hello(0, other)).code, ErrorCode::kIdentityInUse);
  for (int second = 0; second < 12; ++second) {
    cluster.pass(1'000);
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
  }
  EXPECT_EQ(expect_body<Welcome>(cluster.join(1)).membership.job, first.membership.job);
}

TEST(ShardLife, AJobWithAnUnrecordedEndIsNotReopened) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 3e38F));
  cluster.fail_table_writes(true);
  cluster.push(1, 0, std::vector<float>(64, 3e38F));  // the sum overflows: the job ends
  const std::vector<Abort> told = cluster.take_of<Abort>(0);
  EXPECT_EQ(told.size(), 1u);
  // A worker that missed the Abort sends Hello again; the decided rounds are gone.
  const auto wait = expect_body<Refuse>(cluster.join(1));
  EXPECT_EQ(wait.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(wait.retry);
  cluster.fail_table_writes(false);
  cluster.pass(100);
  protocol::Header head = cluster.header(1);
  cluster.send(ScriptedCluster::peer(1), 0, {head, cluster.hello(1), {}});
  EXPECT_EQ(cluster.take_of<Abort>(1), told);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(1))) << "the name is free";
}

TEST(Ends, AGoodbyeWhileTheTableCannotBeWrittenIsNotForgotten) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.fail_table_writes(true);
  for (const uint32_t worker : {0u, 1u}) {
    const protocol::Message goodbye{cluster.header(worker), protocol::Goodbye{}, {}};
    cluster.send(ScriptedCluster::peer(worker), 0, goodbye);
    cluster.send(ScriptedCluster::peer(worker), 0, goodbye);  // once more changes nothing
  }
  cluster.pass(90'000);  // past dead_after_ms and past --abandon-after: they have left, they are not dead
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 1u) << "only the table can say that it is over";
  cluster.fail_table_writes(false);
  cluster.pass(1'000);
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  EXPECT_EQ(cluster.counted(Metric::kMembersFinished), 2);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "silent"), 0);
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "finished"), 1);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(0))) << "the name is free";
}

TEST(Ends, AFailingTableAndASilentMemberAreNotLoggedAtEveryPoll) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.pass(9'000);
  cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
  cluster.fail_table_writes(true);
  cluster.pass(9'000);  // worker 1 is silent, and cannot be removed
  EXPECT_EQ(cluster.said("the table does not answer"), 1u);
  EXPECT_EQ(cluster.said("is removed"), 0u) << "it is not";
  EXPECT_GT(cluster.counted(Metric::kTableErrors, "timeout"), 1);
  cluster.fail_table_writes(false);
  cluster.pass(100);
  EXPECT_EQ(cluster.said("worker 1 has been silent for 10000 ms and is removed"), 1u);
}

TEST(ShardLife, ShardThatStartsAfterTheJoinsTakesItsPlaceInTheMap) {
  ScriptedCluster cluster(admission_job(), 2);
  cluster.join(0, 0);
  cluster.join(1, 0);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.join(0, 1)));
  EXPECT_FALSE(cluster.core(1).status(cluster.now).jobs.at(0).recovering) << "nothing can have been decided there";
}

TEST(Shards, HelloWithAnotherShardMapIsRefused) {
  ScriptedCluster cluster(admission_job(), 2);
  protocol::ShardHello hello;
  hello.shard_map_hash = 1;
  protocol::Header head;
  head.shard = 1;
  head.shard_incarnation = 1;
  cluster.send(ScriptedCluster::peer(9), 0, {head, hello, {}});
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(9);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::kShardMapMismatch);
}

TEST(Shards, AShardRepeatsItsHelloAfterARefusalWithRetry) {
  ScriptedCluster cluster(admission_job(), 2);
  const auto believed = [&] { return cluster.core(1).status(cluster.now).peers.at(0).heard; };
  ASSERT_TRUE(believed());
  cluster.start_shard(1, 2);
  cluster.on_the_way = [](protocol::Message& message) {
    if (auto* hello = std::get_if<protocol::ShardHello>(&message.body)) hello->shard_map_hash ^= 1;
  };
  cluster.pass(500);
  EXPECT_FALSE(believed());
  EXPECT_GE(cluster.counted(Metric::kDropped, "refused_by_shard"), 1);
  cluster.on_the_way = {};
  cluster.pass(1'500);
  EXPECT_TRUE(believed());
}

TEST(Shards, OneThatMovesIsConnectedToAtItsNewAddress) {
  ScriptedCluster cluster(admission_job(), 2);
  EXPECT_EQ(cluster.connected_to(0, 1), "tcp://shard:1");
  cluster.start_shard(1, 2, "elsewhere");
  cluster.pass(100);
  EXPECT_EQ(cluster.connected_to(0, 1), "tcp://elsewhere:1");
  EXPECT_TRUE(cluster.core(1).status(cluster.now).peers.at(0).heard);
  EXPECT_TRUE(cluster.core(0).status(cluster.now).peers.at(0).heard);
}

TEST(Shards, HistogramsOfStrangersAreDropped) {
  ScriptedCluster cluster(admission_job(), 2);
  cluster.join_all();
  protocol::Header head;
  head.shard = 1;
  head.shard_incarnation = 1;
  head.job = 1;
  cluster.send({"stranger"}, 0, {head, protocol::ThresholdHistogram{}, {}});
  EXPECT_EQ(cluster.counted(Metric::kDropped, "no_hello"), 1);
}

TEST(Shutdown, RoundsInFlightFinishAndMembersAreNotified) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  const std::vector<float> ones(64, 1);
  cluster.push(0, 0, ones);
  cluster.shut_down();
  EXPECT_FALSE(cluster.core().stopped());
  EXPECT_EQ(expect_body<Refuse>(cluster.join(0)).code, ErrorCode::kUnavailable);
  cluster.push(0, 1, ones);
  EXPECT_EQ(cluster.take_of<Refuse>(0).size(), 1u) << "no new steps";
  cluster.push(1, 0, ones);
  EXPECT_TRUE(cluster.core().stopped());
  bool updated = false;
  for (const protocol::Message& message : cluster.take(0)) {
    if (std::holds_alternative<protocol::Update>(message.body)) updated = true;
    if (const auto* goodbye = std::get_if<protocol::Goodbye>(&message.body)) {
      EXPECT_EQ(goodbye->reason, protocol::Goodbye::Reason::kShutdown);
      EXPECT_TRUE(updated) << "the update goes out first";
      updated = false;
    }
  }
  EXPECT_FALSE(updated);
  EXPECT_FALSE(cluster.core().failure().has_value());
}

TEST(Shutdown, DrainingIsBounded) {
  Limits limits;
  limits.drain_ms = 2'000;
  ScriptedCluster cluster(admission_job(), 1, limits);
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 1));
  cluster.shut_down();
  cluster.pass(1'900);
  EXPECT_FALSE(cluster.core().stopped());
  cluster.pass(200);
  EXPECT_TRUE(cluster.core().stopped());
}

TEST(Shutdown, ShutdownRetriesToRecordTheEndOfAJob) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.fail_table_writes(true);
  cluster.shut_down();
  cluster.pass(3'000);
  EXPECT_FALSE(cluster.core().stopped());
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 1u);
  EXPECT_LE(cluster.said("the table does not answer"), 1u) << "once in ten seconds";
  cluster.fail_table_writes(false);
  cluster.pass(100);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_TRUE(cluster.table().read_job(uint64_t{1}).value()->membership.finished);
  for (const uint32_t worker : {0u, 1u}) EXPECT_EQ(cluster.take_of<protocol::Goodbye>(worker).size(), 1u);
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "shutdown"), 1);
  EXPECT_EQ(cluster.said("its end is not in the membership table"), 0u);
}

TEST(Shutdown, ATimedOutShutdownNamesTheJobWithAnUnrecordedEnd) {
  for (const uint32_t drain_ms : {0u, 5'000u}) {
    Limits limits;
    limits.drain_ms = drain_ms;
    ScriptedCluster cluster(admission_job(), 1, limits);
    cluster.join_all();
    cluster.fail_table_writes(true);
    cluster.shut_down();
    const int64_t tried_ms = std::max(drain_ms, 1'000u);
    cluster.pass(tried_ms - 100);
    EXPECT_FALSE(cluster.core().stopped()) << drain_ms;
    cluster.pass(200);
    EXPECT_TRUE(cluster.core().stopped()) << drain_ms;
    EXPECT_FALSE(cluster.core().failure().has_value());
    for (const uint32_t worker : {0u, 1u}) EXPECT_EQ(cluster.take_of<protocol::Goodbye>(worker).size(), 1u);
    EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "shutdown"), 1);
    EXPECT_EQ(cluster.said("job 'job' (1) is over, and its end is not in the membership table"), 1u);
    // The refusal's sentence at a shard that is started again.
    cluster.start_shard(0, 1);
    protocol::Hello fresh = cluster.hello(0);
    fresh.nonce = 5;
    EXPECT_TRUE(expect_body<Refuse>(cluster.say_hello(0, fresh)).retry);
    cluster.pass(cluster.spec().dead_after.count() + 100);
    EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, fresh)));
  }
}

TEST(Shutdown, ShutdownRetriesToRecordTheEndOfAnEarlierJob) {
  ScriptedCluster cluster(admission_job());
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 3e38F));
  cluster.fail_table_writes(true);
  cluster.push(1, 0, std::vector<float>(64, 3e38F));  // the sum overflows: the job ends
  ASSERT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  cluster.shut_down();
  cluster.pass(500);
  EXPECT_FALSE(cluster.core().stopped());
  cluster.fail_table_writes(false);
  cluster.pass(100);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_TRUE(cluster.table().read_job(uint64_t{1}).value()->membership.finished);
}

TEST(StatusReport, NamesTheMissingWorkersAndTheReason) {
  ScriptedCluster cluster(admission_job(3));
  cluster.join(1);
  JobStatus status = cluster.core().status(cluster.now).jobs.at(0);
  EXPECT_THAT(status.waited_for, ElementsAre(0, 2));
  EXPECT_THAT(status.waiting_because, HasSubstr("missing: 0, 2"));
  cluster.join(0);
  cluster.join(2);
  cluster.push(0, 0, std::vector<float>(64, 1));
  cluster.pass(300);
  status = cluster.core().status(cluster.now).jobs.at(0);
  EXPECT_THAT(status.waited_for, ElementsAre(1, 2));
  EXPECT_EQ(status.waiting_ms, 300);
  EXPECT_THAT(status.waiting_because, HasSubstr("step 0 of part 0 is blocked on worker 1, 2"));
  cluster.take(0);
  cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{5, 0, {}, {}, false}, {}});
  const std::vector<protocol::Heartbeat> answers = cluster.take_of<protocol::Heartbeat>(0);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].sequence, 5u);
  EXPECT_THAT(answers[0].waited_for, ElementsAre(1, 2));
}

}  // namespace
}  // namespace millrace::server
