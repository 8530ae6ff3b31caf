#include "tests/server/returning_cluster.h"

/// A run whose workers have all died, and processes that come to its name afterwards.
namespace millrace::server {
namespace {

using protocol::Refuse;
using protocol::Welcome;
using ::testing::HasSubstr;

constexpr int64_t kDeadAfterMs = 2'000;  // ReturningCluster::job()
constexpr int64_t kAbandonMs = 60'000;   // Limits

protocol::Hello fresh_hello(const ReturningCluster& cluster, uint32_t worker) {
  protocol::Hello hello = cluster.hello(worker);
  hello.nonce = 5'000 + worker;
  hello.has_weights = true;
  return hello;
}

uint64_t job_number(ReturningCluster& cluster) { return cluster.core().status(cluster.now).jobs.at(0).job; }

/// Two workers that made a step, and died.
struct DeadRun {
  explicit DeadRun(uint32_t workers = 2, uint32_t shards = 1) : cluster(ReturningCluster::job(workers), shards) {
    cluster.join_all_with_weights();
    std::vector<uint32_t> all;
    for (uint32_t worker = 0; worker < workers; ++worker) all.push_back(worker);
    cluster.step(all);
    first = job_number(cluster);
  }
  ReturningCluster cluster;
  uint64_t first = 0;
};

TEST(DeadRun, TheSameCommandAfterACrashRestartsTheJobWithAllWorkers) {
  DeadRun run;
  run.cluster.pass(kDeadAfterMs + 100);  // one of the two is removed, the last one is not
  ASSERT_EQ(run.cluster.membership().members.size(), 1u);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    const auto welcome = expect_body<Welcome>(run.cluster.say_hello(worker, fresh_hello(run.cluster, worker)));
    EXPECT_GT(welcome.membership.job, run.first);
    for (const protocol::Member& member : welcome.membership.members)
      EXPECT_EQ(member.state, protocol::MemberState::kSynced);
  }
  const auto membership = run.cluster.membership();
  EXPECT_TRUE(membership.started);
  EXPECT_EQ(membership.members.size(), 2u);
  EXPECT_EQ(run.cluster.counted(Metric::kJobsEnded, "abandoned"), 1);
}

TEST(DeadRun, AKeyThatMayNotBeginJobsDoesNotEndIt) {
  DeadRun run;
  run.cluster.may_create = fail(ErrorCode::kUnauthenticated, "key 'guest' lacks the right to create job 'job'");
  run.cluster.pass(kDeadAfterMs + 100);
  for (int tries = 0; tries < 2; ++tries) {
    const auto refusal = expect_body<Refuse>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0)));
    EXPECT_EQ(refusal.code, ErrorCode::kUnavailable);
    EXPECT_TRUE(refusal.retry);
    EXPECT_THAT(refusal.sentence, HasSubstr("has been heard for 2.1 s; key 'guest' lacks the right"));
    EXPECT_EQ(job_number(run.cluster), run.first);
  }
  EXPECT_EQ(run.cluster.counted(Metric::kJobsEnded, "abandoned"), 0);
  run.cluster.may_create = {};
  EXPECT_GT(expect_body<Welcome>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0))).membership.job, run.first);
}

TEST(DeadRun, WhileWorkersMayLiveARefusalReportsTheRemainingWait) {
  DeadRun run;
  run.cluster.pass(1'500);
  const auto wait = expect_body<Refuse>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0)));
  EXPECT_EQ(wait.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(wait.retry) << "the worker tries again by itself";
  EXPECT_THAT(wait.sentence, HasSubstr("none of whose workers has been heard for 1.5 s: its name is free in 0.5 s"));
  run.cluster.pass(600);
  EXPECT_GT(expect_body<Welcome>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0))).membership.job, run.first);
}

TEST(DeadRun, AMemberThatIsHeardIsInTheWayAndTheRefusalSaysForHowLong) {
  DeadRun run;
  run.cluster.live({0, 1}, 500);
  run.cluster.pass(300);
  const auto refusal = expect_body<Refuse>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0)));
  EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
  EXPECT_FALSE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("still a member"));
  EXPECT_THAT(refusal.sentence, HasSubstr("last heard 0.3 s ago; once it has been silent for 2.0 s, in 1.7 s, it is"));
}

TEST(DeadRun, OfWorkersThatReturnIsKeptForThemUntilItIsAbandoned) {
  ReturningCluster cluster(ReturningCluster::job(2));
  for (uint32_t worker = 0; worker < 2; ++worker) {
    ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(worker, cluster.returning(worker, worker + 1))));
  }
  cluster.tick();
  const uint64_t first = job_number(cluster);
  cluster.pass(20'000);
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, fresh_hello(cluster, 0)));
  EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
  EXPECT_FALSE(refusal.retry) << "no use within that time";
  EXPECT_THAT(refusal.sentence, HasSubstr("none of whose workers has been heard for 20.0 s"));
  EXPECT_THAT(refusal.sentence, HasSubstr("wait 40.0 s until the name is free"));
  EXPECT_THAT(refusal.sentence, HasSubstr("--state"));
  const auto back = expect_body<Welcome>(cluster.say_hello(0, cluster.returning(0, 77)));
  EXPECT_EQ(back.membership.job, first) << "a process that returns takes its place";
  cluster.pass(kAbandonMs + 100);
  EXPECT_GT(expect_body<Welcome>(cluster.say_hello(0, fresh_hello(cluster, 0))).membership.job, first);
}

/// Two workers of a running job, whose shard is started again.
struct RestartedShard {
  explicit RestartedShard(bool workers_rejoin) : cluster(ReturningCluster::job(2)) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      hellos.push_back(cluster.returning(worker, worker + 1));
      hellos.back().returns = workers_rejoin;
      EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(worker, hellos.back())));
    }
    cluster.tick();
    first = job_number(cluster);
    cluster.start_shard(0, 1);
  }
  /// The members say Hello to the new process of the shard. Each asks to return: it has been in the job.
  void say_hello_again() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      const protocol::Header header = cluster.header(worker);
      ASSERT_NE(header.incarnation, 0u);
      hellos[worker].returns = true;
      cluster.take(worker);
      cluster.send(ScriptedCluster::peer(worker), 0, {header, hellos[worker], {}});
      ASSERT_EQ(cluster.take_of<Welcome>(worker).size(), 1u) << worker;
    }
  }
  uint64_t welcomed_to(const protocol::Hello& hello) {
    return expect_body<Welcome>(cluster.say_hello(0, hello)).membership.job;
  }
  ReturningCluster cluster;
  std::vector<protocol::Hello> hellos;
  uint64_t first = 0;
};

TEST(DeadRun, AShardThatWasStartedAgainKnowsWhetherTheWorkersReturn) {
  RestartedShard kept(true);
  kept.say_hello_again();
  kept.cluster.pass(20'000);
  const auto refusal = expect_body<Refuse>(kept.cluster.say_hello(0, fresh_hello(kept.cluster, 0)));
  EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
  EXPECT_THAT(refusal.sentence, HasSubstr("none of whose workers has been heard for 20.0 s; its workers return"));
  EXPECT_THAT(refusal.sentence, HasSubstr("wait 40.0 s until the name is free"));
  EXPECT_EQ(kept.welcomed_to(kept.cluster.returning(0, 77)), kept.first);
  kept.cluster.pass(kAbandonMs + 100);
  EXPECT_GT(kept.welcomed_to(fresh_hello(kept.cluster, 0)), kept.first);

  RestartedShard free(false);
  free.say_hello_again();
  free.cluster.pass(kDeadAfterMs + 100);
  EXPECT_GT(free.welcomed_to(fresh_hello(free.cluster, 0)), free.first);
}

TEST(DeadRun, ShardRestartedAfterWorkersDied_KeepsTheRunOfRejoiningOnes) {
  RestartedShard kept(true);
  for (const int64_t wait_ms : {0, 20'000}) {
    kept.cluster.pass(wait_ms);
    const auto refusal = expect_body<Refuse>(kept.cluster.say_hello(0, fresh_hello(kept.cluster, 0)));
    EXPECT_EQ(refusal.code, ErrorCode::kIdentityInUse);
    EXPECT_FALSE(refusal.retry) << "no use within that time";
    EXPECT_THAT(refusal.sentence, HasSubstr("none of whose workers has been heard since this shard started; its"));
    EXPECT_THAT(refusal.sentence, HasSubstr("--state as before"));
    EXPECT_THAT(refusal.sentence, HasSubstr(wait_ms == 0 ? "wait 60.0 s" : "wait 40.0 s"));
  }
  EXPECT_EQ(kept.welcomed_to(kept.hellos[0]), kept.first) << "a process that returns takes its place";

  RestartedShard ended(true);
  expect_body<Refuse>(ended.cluster.say_hello(0, fresh_hello(ended.cluster, 0)));
  ended.cluster.pass(kAbandonMs + 100);
  EXPECT_GT(ended.welcomed_to(fresh_hello(ended.cluster, 0)), ended.first);

  RestartedShard free(false);
  const auto wait = expect_body<Refuse>(free.cluster.say_hello(0, fresh_hello(free.cluster, 0)));
  EXPECT_EQ(wait.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(wait.retry);
  EXPECT_THAT(wait.sentence, HasSubstr("its name is free in 2.0 s"));
  free.cluster.pass(kDeadAfterMs + 100);
  EXPECT_GT(free.welcomed_to(fresh_hello(free.cluster, 0)), free.first);
}

TEST(DeadRun, AKeyThatMayNotBeginJobsDoesNotEndOneThatIsLeftBehind) {
  RestartedShard run(false);
  run.cluster.may_create = fail(ErrorCode::kUnauthenticated, "key 'guest' lacks the right to create job 'job'");
  const auto refusal = expect_body<Refuse>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0)));
  EXPECT_TRUE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("since this shard started; key 'guest' lacks the right"));
  run.cluster.pass(kDeadAfterMs + 100);
  const auto record = run.cluster.table().read_job("job");
  ASSERT_TRUE(record && *record);
  EXPECT_FALSE((*record)->membership.finished);
  EXPECT_EQ((*record)->membership.job, run.first);
}

TEST(DeadRun, APauseOfTheShardIsNoSilenceOfTheWorkers) {
  RestartedShard run(false);
  for (int pauses = 0; pauses < 2; ++pauses) {
    const auto wait = expect_body<Refuse>(run.cluster.say_hello(0, fresh_hello(run.cluster, 0)));
    EXPECT_THAT(wait.sentence, HasSubstr("its name is free in 2.0 s"));
    run.cluster.now += 60 * kNsPerS;
  }
}

TEST(DeadRun, EachShardComesToTheSameJob) {
  DeadRun run(2, 2);
  run.cluster.pass(kDeadAfterMs + 500);
  std::set<uint64_t> jobs;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      const auto welcome = expect_body<Welcome>(run.cluster.say_hello(worker, fresh_hello(run.cluster, worker), shard));
      jobs.insert(welcome.membership.job);
    }
  }
  EXPECT_EQ(jobs.size(), 1u);
  EXPECT_GT(*jobs.begin(), run.first);
}

TEST(DeadRun, AJobThatHasNotStartedIsJoinedAsEver) {
  ReturningCluster cluster(ReturningCluster::job(3));
  cluster.welcome_with_weights(0);
  const uint64_t first = job_number(cluster);
  cluster.pass(1'500);
  EXPECT_EQ(expect_body<Welcome>(cluster.say_hello(1, fresh_hello(cluster, 1))).membership.job, first);
}

// It joined while the others seemed to live. Alone it would not train the job that was requested.
TEST(DeadRun, AProcessThatJoinedDoesNotGoOnAloneWithNothing) {
  DeadRun run(3);
  ReturningCluster& cluster = run.cluster;
  cluster.live({0, 1}, kDeadAfterMs + 300);  // worker 2 is silent, and removed
  ASSERT_EQ(cluster.membership().members.size(), 2u);
  const auto welcome = expect_body<Welcome>(cluster.say_hello(2, fresh_hello(cluster, 2)));
  EXPECT_EQ(welcome.membership.job, run.first) << "of a job that runs";
  cluster.forget(2);
  // The others die before it has their weights.
  for (int64_t passed = 0; passed < 2 * kDeadAfterMs; passed += 100) {
    cluster.pass(100);
    if (cluster.core().status(cluster.now).jobs.empty()) break;
    cluster.say_state(2, false, 0, true);
  }
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs.empty());
  const auto aborts = cluster.take_of<protocol::Abort>(2);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kStale) << "the job has ended early";
  EXPECT_THAT(aborts[0].sentence,
              HasSubstr("are gone. These workers joined later and have no state of their own (--state): 2. Start all"));
  EXPECT_EQ(cluster.counted(Metric::kRecoveries, "cut"), 0);
}

TEST(DeadRun, ARejoiningWorkerContinuesAloneFromItsOwnState) {
  DeadRun run(3);
  ReturningCluster& cluster = run.cluster;
  cluster.live({0, 1}, kDeadAfterMs + 300);
  const auto welcome = expect_body<Welcome>(cluster.say_hello(2, cluster.returning(2, 77)));
  EXPECT_EQ(welcome.membership.job, run.first);
  for (int64_t passed = 0; passed < 2 * kDeadAfterMs && cluster.counted(Metric::kRecoveries, "cut") == 0;
       passed += 100) {
    cluster.pass(100);
    cluster.say_state(2, false, 0, true);
  }
  EXPECT_EQ(cluster.counted(Metric::kRecoveries, "cut"), 1);
  EXPECT_EQ(cluster.membership().members.size(), 1u);
}

}  // namespace
}  // namespace millrace::server
