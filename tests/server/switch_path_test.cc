#include <tuple>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/messages/handover_frame.h"
#include "tests/server/returning_cluster.h"

/// Jobs of path switch at the shards. Tests the decider, the processes that may report on it, and the jobs in which
/// shard 0 is asked to take over.
namespace millrace::server {
namespace {

using protocol::Goodbye;
using protocol::Heartbeat;
using protocol::Path;
using protocol::Refuse;
using protocol::Welcome;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Word = Heartbeat::Switch;

constexpr const char* kDatagrams = "192.0.2.1:7800";

protocol::JobSpec switch_job(uint32_t workers) {
  protocol::JobSpec spec = ReturningCluster::job(workers);
  spec.path = Path::kSwitch;
  spec.switch_path.address = "192.0.2.7:7700";
  spec.switch_path.job = 7;
  return spec;
}

struct SwitchPath : ::testing::Test {
  explicit SwitchPath(uint32_t workers = 3, uint32_t shards = 1, std::string datagrams = kDatagrams)
      : cluster(switch_job(workers), shards, {}, {}, std::move(datagrams)) {
    cluster.join_all();
  }
  /// Said in the epoch that the worker knows.
  void say(uint32_t worker, Word word, uint32_t shard = 0) {
    say_in(worker, word, cluster.header(worker, shard).epoch, shard);
  }
  void say_in(uint32_t worker, Word word, uint64_t epoch, uint32_t shard = 0) {
    protocol::Header header = cluster.header(worker, shard);
    header.epoch = epoch;
    Heartbeat heartbeat;
    heartbeat.switch_state = word;
    cluster.send(ScriptedCluster::peer(worker), shard, {header, heartbeat, {}});
  }
  void beat(uint32_t worker) { say(worker, Word::kNoReport); }
  const protocol::Membership& membership() { return cluster.view_of(0); }
  JobStatus status() { return cluster.core().status(cluster.now).jobs.at(0); }
  void fall_back() {
    say(0, Word::kSilent);
    ASSERT_EQ(membership().path, Path::kServer);
  }

  ReturningCluster cluster;
};

TEST_F(SwitchPath, JobBeginsWithThePathOfItsSpecification) {
  EXPECT_EQ(membership().path, Path::kSwitch);
  EXPECT_EQ(membership().shards.at(0).datagrams, kDatagrams);
  ScriptedCluster other(ScriptedCluster::small_job(1));
  other.join_all();
  EXPECT_EQ(other.view_of(0).path, Path::kServer);
}

TEST_F(SwitchPath, OneSyncedWorkerThatHearsNothingBringsTheJobToShardZero) {
  const uint64_t epoch = membership().epoch;
  say(1, Word::kSilent);
  for (const uint32_t worker : {0u, 1u, 2u}) {
    EXPECT_EQ(cluster.view_of(worker).path, Path::kServer) << worker;
    EXPECT_EQ(cluster.view_of(worker).epoch, epoch + 1) << worker;
  }
  EXPECT_EQ(cluster.counted(Metric::kPathChanges, "server"), 1);
  EXPECT_EQ(cluster.said("worker 1 says that the switch is silent or refuses the job; shard 0 decides"), 1u);
  EXPECT_EQ(cluster.said("shard 0 has no aggregator of datagrams"), 0u);
  const SwitchPathStatus path = *status().switch_path;
  EXPECT_EQ(path.decided_by, "server");
  EXPECT_EQ(path.changes, 1u);
  EXPECT_THAT(path.because, HasSubstr("worker 1"));
}

TEST_F(SwitchPath, WordOfAnOlderEpochDoesNotCount) {
  say_in(1, Word::kSilent, membership().epoch - 1);
  cluster.pass(200);
  EXPECT_EQ(membership().path, Path::kSwitch);
  EXPECT_THAT(status().switch_path->reports, IsEmpty());
}

TEST_F(SwitchPath, RepeatedReportsInOneEpochChangeThePathOnce) {
  const uint64_t epoch = membership().epoch;
  say_in(1, Word::kSilent, epoch);
  say_in(1, Word::kSilent, epoch);
  say_in(2, Word::kSilent, epoch);
  EXPECT_EQ(membership().epoch, epoch + 1);
  EXPECT_EQ(cluster.counted(Metric::kPathChanges, "server"), 1);
}

TEST_F(SwitchPath, TheSwitchDecidesAgainOnceAllSyncedWorkersReportAnswers) {
  fall_back();
  say(0, Word::kAnswers);
  say(1, Word::kAnswers);
  cluster.pass(200);
  EXPECT_EQ(membership().path, Path::kServer) << "worker 2 has not";
  say(2, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch);
  EXPECT_EQ(cluster.counted(Metric::kPathChanges, "switch"), 1);
  EXPECT_EQ(cluster.said("all 3 workers say that the switch answers again; the switch decides"), 1u);
}

TEST_F(SwitchPath, AWithdrawnReportDelaysTheReturnToTheSwitch) {
  fall_back();
  say(0, Word::kAnswers);
  say(1, Word::kAnswers);
  say(1, Word::kNoReport);
  say(2, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kServer);
  say(1, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch);
}

TEST_F(SwitchPath, ReportsExpireWithTheirEpoch) {
  fall_back();
  say(0, Word::kAnswers);
  cluster.send(ScriptedCluster::peer(2), 0, {cluster.header(2), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  say(1, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kServer) << "what worker 0 said was of the epoch before";
  say(0, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch);
}

TEST_F(SwitchPath, StatusReportsTheWaitOfEachMemberAndItsDuration) {
  using Wait = Heartbeat::SwitchWait;
  EXPECT_TRUE(status().switch_path->waits.empty());
  const auto progress = [this](uint32_t worker, Wait wait, uint64_t steps) {
    Heartbeat heartbeat;
    heartbeat.switch_wait = wait;
    heartbeat.switch_steps = steps;
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), heartbeat, {}});
  };
  progress(0, Wait::kContributions, 4);
  progress(1, Wait::kNothing, 3);
  progress(2, Wait::kNotReported, 0);
  cluster.pass(300);
  progress(0, Wait::kContributions, 4);
  progress(1, Wait::kAnswer, 3);
  cluster.pass(200);
  SwitchPathStatus path = *status().switch_path;
  EXPECT_EQ(path.moved_ms, 500) << "no step was over since they first spoke";
  ASSERT_THAT(path.waits, SizeIs(2)) << "worker 2 said nothing";
  EXPECT_EQ(path.waits[0].waits_for, "contributions");
  EXPECT_EQ(path.waits[0].since_ms, 500);
  EXPECT_EQ(path.waits[0].steps, 4u);
  EXPECT_EQ(path.waits[1].waits_for, "answer");
  EXPECT_EQ(path.waits[1].since_ms, 200);
  progress(1, Wait::kAnswer, 4);
  path = *status().switch_path;
  EXPECT_EQ(path.moved_ms, 0);
  EXPECT_EQ(path.waits[1].since_ms, 0) << "of another step";
}

// The new process may report as many steps as the earlier one: it has waited since its own report, not since that
// one's.
TEST(SwitchWordsProgress, ANewIncarnationWaitsFromItsOwnFirstReport) {
  SwitchHealth words("job");
  protocol::Membership one;
  one.members = {{.worker = 5, .incarnation = 1}};
  const auto waits = [&](TimeNs now) {
    SwitchPathStatus path;
    words.add_status(path, one, now);
    return path;
  };
  words.on_progress(one.members[0], Heartbeat::SwitchWait::kAnswer, 3, 0);
  words.on_progress(one.members[0], Heartbeat::SwitchWait::kAnswer, 3, kNsPerS);
  EXPECT_EQ(waits(kNsPerS).waits.at(0).since_ms, 1'000);
  EXPECT_EQ(waits(kNsPerS).moved_ms, 1'000);
  one.members[0].incarnation = 2;
  EXPECT_THAT(waits(kNsPerS).waits, IsEmpty()) << "the new process has said nothing";
  words.on_progress(one.members[0], Heartbeat::SwitchWait::kAnswer, 3, kNsPerS);
  EXPECT_EQ(waits(kNsPerS).waits.at(0).since_ms, 0);
  EXPECT_EQ(waits(kNsPerS).moved_ms, 0);
  words.on_progress(one.members[0], Heartbeat::SwitchWait::kAnswer, 3, 2 * kNsPerS);
  EXPECT_EQ(waits(2 * kNsPerS).waits.at(0).since_ms, 1'000);
}

TEST_F(SwitchPath, StatusOmitsTheWaitOfAnEvictedWorker) {
  Heartbeat heartbeat;
  heartbeat.switch_wait = Heartbeat::SwitchWait::kAnswer;
  cluster.send(ScriptedCluster::peer(2), 0, {cluster.header(2), heartbeat, {}});
  EXPECT_THAT(status().switch_path->waits, SizeIs(1));
  for (int beats = 0; beats < 30; ++beats) {
    cluster.pass(100);
    beat(0), beat(1);
  }
  ASSERT_THAT(membership().members, SizeIs(2));
  EXPECT_TRUE(status().switch_path->waits.empty());
}

TEST_F(SwitchPath, AnswersDoNotCountForTheSwitchThatDecides) {
  const uint64_t epoch = membership().epoch;
  for (const uint32_t worker : {0u, 1u, 2u}) say(worker, Word::kAnswers);
  EXPECT_EQ(membership().epoch, epoch);
}

TEST_F(SwitchPath, AnEvictedWorkersReportIsNeitherAwaitedNorCounted) {
  fall_back();
  say(0, Word::kAnswers);
  protocol::Header removed = cluster.header(2);
  for (int beats = 0; beats < 30; ++beats) {
    cluster.pass(100);
    beat(0), beat(1);
  }
  ASSERT_THAT(membership().members, SizeIs(2));
  EXPECT_EQ(membership().path, Path::kServer);
  removed.epoch = membership().epoch;
  Heartbeat heartbeat;
  heartbeat.switch_state = Word::kAnswers;
  cluster.send(ScriptedCluster::peer(2), 0, {removed, heartbeat, {}});
  say(1, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kServer) << "what worker 0 said was of an earlier epoch";
  say(0, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch);
}

TEST_F(SwitchPath, TableChangedByAnotherProcessFirst_AdoptedReportForgotten) {
  Result<std::optional<protocol::JobRecord>> record = cluster.table().read_job("job");
  ASSERT_TRUE(record && *record);
  const uint64_t epoch = (*record)->membership.epoch;
  ++(*record)->membership.epoch;
  std::erase_if((*record)->membership.members, [](const protocol::Member& member) { return member.worker == 2; });
  ASSERT_TRUE(cluster.table().compare_and_swap(epoch, **record).value());
  say(1, Word::kSilent);
  EXPECT_EQ(membership().epoch, epoch + 1) << "only the other's change";
  EXPECT_EQ(membership().path, Path::kSwitch);
  say(1, Word::kSilent);
  EXPECT_EQ(membership().path, Path::kServer);
  EXPECT_EQ(membership().epoch, epoch + 2);
  EXPECT_THAT(membership().members, SizeIs(2));
}

TEST_F(SwitchPath, TableThatCannotBeWrittenIsTriedAgain) {
  cluster.fail_table_writes(true);
  say(1, Word::kSilent);
  EXPECT_EQ(membership().path, Path::kSwitch);
  cluster.fail_table_writes(false);
  cluster.pass(200);
  EXPECT_EQ(membership().path, Path::kServer);
}

TEST_F(SwitchPath, ContributionByMessageIsRefusedWithASentence) {
  cluster.take(0);
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 0, cluster.payload(std::vector<float>(64, 1))));
  const auto refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].about_contribution);
  EXPECT_FALSE(refusals[0].retry);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("path switch"));
  EXPECT_EQ(status().steps_decided_max, 0u);
  EXPECT_EQ(cluster.counted_in_all(Metric::kContributions), 0);
}

TEST_F(SwitchPath, ARunningJobRefusesAJoinerWithoutWeights) {
  protocol::Hello hello = cluster.returning(1, 4711);
  hello.has_weights = false;
  for (int beats = 0; beats < 30; ++beats) {
    cluster.pass(100);
    beat(0), beat(2);
  }
  ASSERT_THAT(membership().members, SizeIs(2));
  const auto refusal = expect_body<Refuse>(cluster.say_hello(1, hello));
  EXPECT_THAT(refusal.sentence, HasSubstr("attach weights"));
  EXPECT_FALSE(refusal.retry);
  EXPECT_THAT(cluster.view_of(0).members, SizeIs(2));
}

/// Worker 2 has left, and another process comes as worker 2; all have weights.
struct SwitchJoiner : ::testing::Test {
  SwitchJoiner() : cluster(switch_job(3), 1, {}, {}, kDatagrams) {
    cluster.join_all_with_weights();
    cluster.say(2, Goodbye{Goodbye::Reason::kFailed, ""});
    cluster.forget(2);
    EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(2, cluster.returning(2, 77))));
    for (uint32_t worker = 0; worker < 3; ++worker) cluster.take(worker);
  }
  protocol::SnapshotRequest asked() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      const auto requests = cluster.take_of<protocol::SnapshotRequest>(worker);
      if (requests.empty()) continue;
      giver = worker;
      return requests.at(0);
    }
    ADD_FAILURE() << "no worker is asked";
    return {};
  }
  /// Bytes of a handover from `begin` on, as shard 0 sees them.
  void give(const protocol::SnapshotRequest& request, uint64_t all, uint64_t begin, uint64_t end,
            uint64_t magic = protocol::kHandoverMagic) {
    ByteBuffer bytes;
    ByteWriter writer(bytes);
    writer.put(magic);
    writer.put(all);
    bytes.resize(end);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(begin));
    SharedBytes payload = SharedBytes::from(std::move(bytes));
    protocol::Snapshot run;
    run.part = request.parts.at(0);
    run.for_worker = request.for_worker;
    run.for_incarnation = request.for_incarnation;
    run.offset = begin / sizeof(float);
    run.payload_hash = hash64(payload.bytes);
    cluster.say(giver, run, 0, payload);
  }
  ReturningCluster cluster;
  uint32_t giver = 0;
};

TEST_F(SwitchJoiner, GetsAHandoverAndWeightsAndTakesPart) {
  cluster.say_state(2, false);
  const protocol::SnapshotRequest first = asked();
  EXPECT_EQ(first.parts, std::vector<uint32_t>{1}) << "one behind the last part";
  give(first, 48, 0, 32);
  give(first, 48, 32, 48);
  const protocol::SnapshotRequest second = asked();
  EXPECT_EQ(second.parts, std::vector<uint32_t>{0});
  cluster.give_weights(giver, second);
  const std::vector<protocol::Message> got = cluster.take(2);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(std::get<protocol::Snapshot>(got[0].body).part, 1u);
  EXPECT_EQ(std::get<protocol::Snapshot>(got[1].body).offset, 8u);
  EXPECT_EQ(std::get<protocol::Snapshot>(got[2].body).part, 0u);
  const auto& settle = std::get<protocol::Settle>(got[3].body);
  EXPECT_EQ(settle.weights, protocol::Settle::Weights::kSnapshot)
      << "never its own: no process keeps the steps after them";
  EXPECT_TRUE(settle.on_log);
  cluster.say(2, protocol::Synced{});
  EXPECT_EQ(find_member(cluster.membership(), 2)->state, protocol::MemberState::kSynced);
}

// Shards know of no step. A rejoining worker reports its position for the case that no other member is left.
TEST_F(SwitchJoiner, IsOnTheLogAtAnyReportedPosition) {
  protocol::State state = cluster.state_of(2);
  for (protocol::State::Part& part : state.parts) {
    part.n = 7;
    part.decided_in = 1;
  }
  cluster.say(2, state);
  const protocol::SnapshotRequest first = asked();
  give(first, 16, 0, 16);
  cluster.give_weights(giver, asked());
  const auto settles = cluster.take_of<protocol::Settle>(2);
  ASSERT_EQ(settles.size(), 1u);
  EXPECT_EQ(settles[0].weights, protocol::Settle::Weights::kSnapshot);
  EXPECT_TRUE(settles[0].on_log) << "else it would lose all that it has, by name";
}

TEST_F(SwitchJoiner, TheJobContinuesFromTheWorkerWithMostSteps) {
  cluster.say(1, Goodbye{Goodbye::Reason::kFailed, ""});
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(1, cluster.returning(1, 78))));
  cluster.say(0, Goodbye{Goodbye::Reason::kFailed, ""});
  for (const uint32_t worker : {1u, 2u}) {
    protocol::State state = cluster.state_of(worker);
    state.stranded = true;
    for (protocol::State::Part& part : state.parts) {
      part.n = worker == 2 ? 7 : 0;
      part.decided_in = part.n == 0 ? 0 : 1;
    }
    cluster.say(worker, state);
  }
  EXPECT_EQ(cluster.membership().cut_worker, 2u);
  EXPECT_EQ(find_member(cluster.membership(), 2)->state, protocol::MemberState::kSynced);
}

TEST_F(SwitchJoiner, ADamagedHandoverIsDroppedAndRequestedAgain) {
  cluster.say_state(2, false);
  const uint32_t part = 1;
  for (const auto& [all, end, magic] : {std::tuple{uint64_t{48}, uint64_t{32}, uint64_t{5}},
                                        {uint64_t{24}, uint64_t{32}, protocol::kHandoverMagic},
                                        {protocol::kHandoverBytesMax + 8, uint64_t{32}, protocol::kHandoverMagic}}) {
    const protocol::SnapshotRequest request = asked();
    EXPECT_EQ(request.parts, std::vector<uint32_t>{part});
    give(request, all, 0, end, magic);
    EXPECT_THAT(cluster.take(2), IsEmpty());
  }
  EXPECT_EQ(cluster.counted(Metric::kDropped, "damaged_snapshot"), 3);
  const protocol::SnapshotRequest request = asked();
  give(request, 16, 0, 16);
  EXPECT_THAT(cluster.take_of<protocol::Snapshot>(2), SizeIs(1));
}

TEST_F(SwitchJoiner, IsStrandedIfNoMemberWithWeightsRemains) {
  for (const uint32_t worker : {0u, 1u}) cluster.say(worker, Goodbye{Goodbye::Reason::kFailed, ""});
  cluster.take(2);
  cluster.say_state(2, false);
  const auto settles = cluster.take_of<protocol::Settle>(2);
  ASSERT_EQ(settles.size(), 1u);
  EXPECT_EQ(settles[0].weights, protocol::Settle::Weights::kNone);
}

TEST_F(SwitchPath, AFinishedWorkerLeavesAndTheOthersContinue) {
  cluster.send(ScriptedCluster::peer(1), 0, {cluster.header(1), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  ASSERT_THAT(membership().members, SizeIs(2));
  EXPECT_EQ(membership().left, 1u);
  EXPECT_EQ(membership().path, Path::kSwitch);
  say(2, Word::kSilent);
  EXPECT_EQ(membership().path, Path::kServer);
  for (const uint32_t worker : {0u, 2u}) say(worker, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch) << "a worker that has left is not asked";
  for (const uint32_t worker : {0u, 2u}) {
    cluster.send(ScriptedCluster::peer(worker), 0,
                 {cluster.header(worker), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  }
  EXPECT_THAT(cluster.core().status(cluster.now).jobs, IsEmpty());
}

TEST_F(SwitchPath, AggregatorIsAskedForWhenTheJobIsOpenedAndGivenBackAtItsEnd) {
  ASSERT_THAT(cluster.datagram_changes, SizeIs(1));
  EXPECT_EQ(cluster.datagram_changes[0].job, membership().job);
  EXPECT_EQ(cluster.datagram_changes[0].spec, cluster.spec());
  EXPECT_EQ(cluster.datagram_changes[0].layout.slots, 1u);
  for (const uint32_t worker : {0u, 1u, 2u}) {
    cluster.send(ScriptedCluster::peer(worker), 0,
                 {cluster.header(worker), Goodbye{Goodbye::Reason::kFinished, ""}, {}});
  }
  ASSERT_THAT(cluster.datagram_changes, SizeIs(2));
  EXPECT_EQ(cluster.datagram_changes[1].job, cluster.datagram_changes[0].job);
  EXPECT_FALSE(cluster.datagram_changes[1].spec);
}

TEST_F(SwitchPath, ShardZeroRestarted_RecoversUndecidedAndKeepsChangingThePath) {
  say(0, Word::kSilent);
  for (const uint32_t worker : {0u, 1u, 2u}) say(worker, Word::kAnswers);
  ASSERT_EQ(membership().path, Path::kSwitch);
  cluster.datagrams_of_shard_0 = "192.0.2.1:7801";
  cluster.start_shard(0, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.welcome_with_weights(worker);
  EXPECT_TRUE(status().recovering);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  EXPECT_FALSE(status().recovering);
  EXPECT_EQ(status().steps_decided, 0u);
  EXPECT_EQ(membership().shards.at(0).datagrams, "192.0.2.1:7801");
  EXPECT_EQ(membership().path, Path::kSwitch) << "the table keeps it";
  say(2, Word::kSilent);
  EXPECT_EQ(membership().path, Path::kServer);
}

TEST_F(SwitchPath, WordsAreLostWithTheShardThatHeardThem) {
  fall_back();
  say(0, Word::kAnswers);
  say(1, Word::kAnswers);
  cluster.start_shard(0, 1);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.welcome_with_weights(worker);
  for (const uint32_t worker : {0u, 1u, 2u}) cluster.say_state(worker, true);
  say(2, Word::kAnswers);
  cluster.pass(100);
  EXPECT_EQ(membership().path, Path::kServer);
  say(0, Word::kAnswers);
  say(1, Word::kAnswers);
  EXPECT_EQ(membership().path, Path::kSwitch);
}

struct TwoShards : SwitchPath {
  TwoShards() : SwitchPath(2, 2) {}
};

TEST_F(TwoShards, OnlyShardZeroChangesThePathAndTheOthersFollow) {
  say(0, Word::kSilent, 1);
  cluster.pass(200);
  EXPECT_EQ(membership().path, Path::kSwitch);
  say(0, Word::kSilent, 0);
  cluster.pass(200);
  EXPECT_EQ(cluster.view_of(1, 1).path, Path::kServer);
  EXPECT_THAT(cluster.datagram_changes, SizeIs(1)) << "shard 1 replaces no switch";
}

struct NoAggregator : SwitchPath {
  NoAggregator() : SwitchPath(2, 1, "") {}
};

TEST_F(NoAggregator, JobKeepsPathSwitchAndTheShardLogsTheReasonOnce) {
  const uint64_t epoch = membership().epoch;
  say(0, Word::kSilent);
  say(1, Word::kSilent);
  cluster.pass(200);
  EXPECT_EQ(membership().epoch, epoch);
  EXPECT_EQ(cluster.said("shard 0 has no aggregator of datagrams"), 1u);
  EXPECT_THAT(status().switch_path->because, HasSubstr("--datagrams"));
  EXPECT_THAT(status().switch_path->reports, SizeIs(2));
  EXPECT_THAT(cluster.datagram_changes, IsEmpty());
  say(0, Word::kNoReport);
  say(1, Word::kNoReport);
  EXPECT_EQ(status().switch_path->because, "");
}

TEST(SwitchPathHello, JobWithoutAFallbackAtShardZeroIsRefusedAndNotStored) {
  ScriptedCluster cluster(switch_job(1), 1, {}, {}, kDatagrams);
  cluster.judged = fail(ErrorCode::kInvalidArgument, "there is no key of job 7");
  const auto refusal = expect_body<Refuse>(cluster.join(0));
  EXPECT_EQ(refusal.sentence, "there is no key of job 7");
  EXPECT_FALSE(refusal.retry);
  EXPECT_FALSE(*cluster.table().read_job("job"));
  EXPECT_THAT(cluster.datagram_changes, IsEmpty());
  cluster.judged = {};
  expect_body<Welcome>(cluster.join(0));
}

TEST(SwitchPathHello, NumberAtTheSwitchIsOfOneOpenJob) {
  ScriptedCluster cluster(switch_job(1), 1, {}, {}, kDatagrams);
  cluster.join_all();
  protocol::Hello hello = cluster.hello(0);
  hello.spec.name = "other";
  hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, hello));
  EXPECT_THAT(refusal.sentence, HasSubstr("job 'job' has number 7 at its switch"));
}

TEST(SwitchPathHello, NumbersOfAJobsLanesAreItsOwn) {
  ScriptedCluster cluster(switch_job(1), 1, {}, {}, kDatagrams);
  cluster.join_all();
  protocol::Hello hello = cluster.hello(0);
  hello.spec.name = "other";
  hello.spec.grid.block_indices = 64;
  hello.spec.tensors[0].dimension = 64 * 4;
  hello.spec.switch_path.slots = 4;
  hello.spec.switch_path.lanes = 2;
  hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
  hello.spec.switch_path.job = 6;
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, hello));
  EXPECT_THAT(refusal.sentence, HasSubstr("job 'job' has number 7 at its switch"));
  hello.spec.switch_path.job = 8;
  expect_body<Welcome>(cluster.say_hello(0, hello));
}

}  // namespace
}  // namespace millrace::server
