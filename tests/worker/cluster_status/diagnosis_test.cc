#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "monitoring/http/http_port.h"
#include "protocol/messages/log_digest.h"
#include "tests/worker/cluster_status/status_fixture.h"

/// What `millrace status` makes of what real shard cores say of scripted jobs.
namespace millrace::cluster_status {

using program::ExitCode;

namespace {

using server::ScriptedCluster;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Status : StatusFixture {};

TEST(FetchStatus, AnAnswerThatIsNoObjectOrNestedTooDeepIsRefused) {
  constexpr int kTimeoutMs = 20'000;
  const std::string deep = R"({"shard": 1, "jobs": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[1]", "something else than a JSON object"},
      {"<html>", "something else than a JSON object (it is no JSON)"},
      {deep, "something else than a JSON object (its JSON is nested deeper than the 32 levels that are read)"}};
  for (const auto& [body, sentence] : cases) {
    const auto port = monitoring::HttpPort::start("127.0.0.1:0", "--http",
                                                  {.metrics_text = [] { return std::string(); },
                                                   .unhealthy = []() -> std::optional<std::string> { return {}; },
                                                   .status_json = [&body] { return body; }});
    ASSERT_TRUE(port);
    const auto status = fetch_status("127.0.0.1:" + std::to_string((*port)->port()), kTimeoutMs);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr(sentence));
  }
}

TEST_F(Status, ClusterWithoutJobsIsWell) {
  start(job(2));
  EXPECT_THAT(look().jobs, IsEmpty());
  EXPECT_THAT(look().troubles, IsEmpty());
  EXPECT_EQ(code_of(look()), std::nullopt);
}

TEST_F(Status, AnAuditedJobReportsCarriedAndMissingValues) {
  protocol::JobSpec spec = job(1);
  spec.audit = true;
  start_running(spec);
  push(0, 0);
  ClusterSnapshot picture = look();
  EXPECT_THAT(report_text(picture, {}), HasSubstr("carried 8192 "));
  EXPECT_THAT(report_text(picture, {}), HasSubstr("nothing is missing"));
  EXPECT_EQ(report_json(picture, {})["jobs"][0]["audit"]["carried"], 8192.0);
  EXPECT_EQ(report_json(picture, {})["jobs"][0]["audit"]["imbalance"], 0.0);
  EXPECT_EQ(code_of(picture), std::nullopt);
}

TEST_F(Status, AnAuditMismatchIsInTheVerdictAndHasAnExitCode) {
  protocol::JobSpec spec = job(1);
  spec.audit = true;
  start_running(spec);
  const std::vector<float> gradient(cluster->layout().parts[1].end - cluster->layout().parts[1].begin, 1);
  push(0, 0);
  protocol::Message message = cluster->contribution(0, 1, 1, cluster->payload(gradient), 1);
  std::get<protocol::Contribution>(message.body).imbalance = -0.25;
  cluster->send(ScriptedCluster::peer(0), 1, std::move(message));
  const ClusterSnapshot picture = look();
  EXPECT_THAT(report_text(picture, {}), HasSubstr("MISMATCH of 0.25"));
  EXPECT_EQ(picture.jobs[0].verdict,
            "running: step 1, 1 of 1 workers; its audit has a mismatch of 0.25 (shard 1; the logs say where)");
  EXPECT_EQ(code_of(picture), ExitCode::kDoesNotBalance);
  Answers answers;
  answers.unanswered = {{"127.0.0.1:7702", "no answer there"}};
  EXPECT_EQ(code_of(picture, answers), ExitCode::kUnreachable) << "nothing is worse than not to know";
}

TEST_F(Status, AJobThatIsNotAuditedDoesNotSpeakOfIt) {
  start_running(job(1));
  EXPECT_THAT(report_text(look(), {}), Not(HasSubstr("audit")));
}

TEST_F(Status, WorkersThatNeverSaidHelloAreNamed) {
  start(job(4));
  cluster->join(1, 0);
  cluster->join(1, 1);
  pass_with({1}, 12'500);
  const JobPicture got = the_job();
  EXPECT_EQ(got.state, JobState::kStarting);
  EXPECT_THAT(got.never_here, ElementsAre(0, 2, 3));
  EXPECT_EQ(got.verdict, "waiting to start for 12.5 s: workers 0, 2 and 3 never said Hello");
  EXPECT_EQ(code_of(look()), ExitCode::kNotStarted);
}

TEST_F(Status, WorkerReachesOneShardOnly_NamedWithTheOtherShardsAddress) {
  start(job(2));
  for (const uint32_t worker : {0u, 1u}) cluster->join(worker, 0);
  cluster->join(0, 1);
  cluster->pass(20);
  const JobPicture got = the_job();
  ASSERT_EQ(got.members.size(), 2u);
  EXPECT_THAT(got.members[1].hello_sent_to, ElementsAre(0));
  EXPECT_THAT(got.members[1].without_hello, ElementsAre(1));
  EXPECT_TRUE(got.started) << "the table knows that all are there";
  pass_with({0}, 6'000);
  cluster->send(ScriptedCluster::peer(1), 0, {cluster->header(1, 0), protocol::Heartbeat{}, {}});
  EXPECT_EQ(the_job().verdict,
            "stalled for 6.0 s: shard 1 is blocked on the Hello of worker 1 (it has not said Hello to shard 1 "
            "(tcp://shard:1))");
}

TEST_F(Status, ShardThatNoWorkerReachesIsNamed) {
  start(job(2));
  for (const uint32_t worker : {0u, 1u}) cluster->join(worker, 0);
  for (int i = 0; i < 12; ++i) {
    for (const uint32_t worker : {0u, 1u}) {
      cluster->send(ScriptedCluster::peer(worker), 0, {cluster->header(worker, 0), protocol::Heartbeat{}, {}});
    }
    cluster->pass(500);
  }
  const JobPicture got = the_job();
  EXPECT_THAT(got.not_open, ElementsAre(1));
  EXPECT_THAT(got.verdict, HasSubstr("no worker has said Hello to shard 1 (tcp://shard:1): is that address"));
}

TEST_F(Status, BeforeTheStartAWorkerAtOneShardOnlyIsNamed) {
  start(job(3));
  for (const uint32_t worker : {0u, 1u}) cluster->join(worker, 0);
  cluster->join(0, 1);
  cluster->pass(200);
  EXPECT_EQ(the_job().verdict,
            "waiting to start for 0.2 s: worker 2 never said Hello; worker 1 said Hello to shard 0 but not to shard 1 "
            "(tcp://shard:1)");
}

TEST_F(Status, RefusedWorkerIsNamedWithTheFieldThatDiffers) {
  start(job(2));
  cluster->join(0, 0);
  cluster->join(0, 1);
  protocol::Hello other = cluster->hello(1);
  other.spec.tensors[0].dimension = kStatusDimension - 1;
  for (int again = 0; again < 3; ++again) cluster->say_hello(1, other);
  cluster->pass(300);
  const JobPicture got = the_job();
  EXPECT_THAT(got.verdict, AllOf(HasSubstr("shard 0 refused worker 1 0.3 s ago"),
                                 HasSubstr("dimension 8192 here, 8191 there"), Not(HasSubstr("never said"))));
  ASSERT_EQ(got.refusals.size(), 1u) << "the same refusal three times is one line";
  EXPECT_EQ(got.refusals[0].said.count, 3u);
  EXPECT_EQ(got.refusals[0].said.code, "job_mismatch");
  EXPECT_THAT(report_text(look(), {}), HasSubstr("shard 0 refused worker 1 of job 'job' 0.3 s ago (3 times)"));
  pass_with({0}, 61'000);
  EXPECT_THAT(the_job().verdict, HasSubstr("worker 1 never said Hello")) << "long ago is no reason";
}

TEST_F(Status, VersionsThatDoNotMeetAreNamedAlsoWithoutAJob) {
  start(job(2));
  protocol::Hello future = cluster->hello(1);
  future.version_min = 7;
  future.version_max = 9;
  future.software = "millrace 9.0";
  cluster->say_hello(1, future);
  const ClusterSnapshot picture = look();
  EXPECT_THAT(picture.jobs, IsEmpty());
  ASSERT_EQ(picture.refusals.size(), 1u);
  EXPECT_EQ(picture.refusals[0].said.software, "millrace 9.0");
  EXPECT_EQ(picture.refusals[0].said.code, "version_mismatch");
  EXPECT_THAT(picture.refusals[0].said.sentence,
              HasSubstr("millrace 9.0 speaks protocol versions 7 to 9, test speaks 2 to "));
  EXPECT_THAT(report_text(picture, {}), HasSubstr("refused, of jobs that are not open"));
}

TEST_F(Status, JobThatMovesIsRunning) {
  start_running(job(2));
  for (uint64_t step = 0; step < 3; ++step) {
    pass_with({0, 1}, 4'000);
    for (const uint32_t worker : {0u, 1u}) push(worker, step);
  }
  EXPECT_EQ(the_job().verdict, "running: step 3, 2 of 2 workers");
  EXPECT_EQ(code_of(look()), std::nullopt);
}

TEST_F(Status, SilentWorkerIsNamedWithTheTimeOfItsEviction) {
  start_running(job(4));
  for (uint64_t step = 0; step < 17; ++step) {
    for (uint32_t worker = 0; worker < 4; ++worker) push(worker, step);
    for (uint32_t worker = 0; worker < 4; ++worker) cluster->ack(worker, step + 1);
  }
  cluster->pass(500);
  for (const uint32_t worker : {0u, 1u, 2u}) push(worker, 17);
  pass_with({0, 1, 2}, 12'000);
  const JobPicture got = the_job();
  EXPECT_EQ(got.verdict,
            "stalled for 12.0 s: shards 0 and 1 are blocked on worker 3 in step 17 (last heard 12.5 s ago; removed at "
            "15 s)");
  EXPECT_EQ(code_of(look()), ExitCode::kStalled);
  ASSERT_EQ(got.at.size(), 2u);
  EXPECT_EQ(got.at[1].said.waiting_step->here, 3u);
  EXPECT_EQ(got.at[1].said.waiting_step->part, 1u);
  pass_with({0, 1, 2}, 3'500);
  EXPECT_THAT(the_job().verdict, HasSubstr("running: step 18, 3 of 4 workers")) << "it was removed";
}

TEST_F(Status, SinceWhenIsCountedFromWhenTheStepCouldBeDecided) {
  protocol::JobSpec spec = job(2);
  spec.staleness = 2;
  start_running(spec);
  for (const uint64_t step : {0u, 1u}) push(0, step);  // step 1 is here, and waits for step 0 first
  pass_with({0, 1}, 7'000);
  push(1, 0);
  pass_with({0, 1}, 1'000);
  const JobPicture got = the_job();
  EXPECT_EQ(got.state, JobState::kRunning) << got.verdict;
  EXPECT_EQ(got.at[0].said.waiting_ms, 1'000);
  EXPECT_EQ(got.at[0].said.waiting_step->step, 1u);
}

TEST_F(Status, WorkerThatIsHeardAndContributesNothingComputesOrHangs) {
  start_running(job(2));
  push(0, 0);
  pass_with({0, 1}, 6'000);
  EXPECT_EQ(
      the_job().verdict,
      "stalled for 6.0 s: shards 0 and 1 are blocked on worker 1 in step 0 (heard 0.5 s ago: its program computes, or "
      "hangs)");
}

TEST_F(Status, ASnapshotJobIdlesBetweenSnapshots) {
  start_running(job(2), 1);
  for (const uint32_t worker : {0u, 1u}) push(worker, 0);
  pass_with({0, 1}, 6'000);
  ShardAnswer idle = answer(0);
  JobStatus snapshots = idle.said.jobs.front();
  snapshots.name += ".snapshots";
  idle.said.jobs.push_back(snapshots);
  ClusterSnapshot picture = picture_of({idle}, {}, kStillAfterS);
  ASSERT_EQ(picture.jobs.size(), 2u);
  EXPECT_EQ(picture.jobs[0].state, JobState::kStalled);
  EXPECT_EQ(picture.jobs[1].verdict, "running: step 1, 2 of 2 workers");
  idle.said.jobs.erase(idle.said.jobs.begin());
  EXPECT_EQ(picture_of({idle}, {}, kStillAfterS).jobs[0].state, JobState::kStalled) << "a job of that name alone";

  push(0, 1);
  pass_with({0, 1}, 6'000);
  ShardAnswer waiting = answer(0);
  snapshots = waiting.said.jobs.front();
  snapshots.name += ".snapshots";
  waiting.said.jobs.push_back(snapshots);
  picture = picture_of({waiting}, {}, kStillAfterS);
  EXPECT_EQ(picture.jobs[1].state, JobState::kStalled) << "a snapshot waits for worker 1";
}

TEST_F(Status, JobWithoutContributionsIsStalled) {
  start_running(job(2));
  for (const uint32_t worker : {0u, 1u}) push(worker, 0);
  pass_with({0, 1}, 6'000);
  EXPECT_EQ(the_job().verdict,
            "stalled for 6.0 s: no worker has sent anything to step 1; all 2 are heard: their programs compute, or "
            "hang");
  pass_with({0}, 6'000);
  EXPECT_THAT(the_job().verdict, HasSubstr("step 1; worker 1 is not heard (last heard 6.5 s ago; removed at 15 s)"));
}

TEST_F(Status, ShardWhoseMagnitudesAreMissingIsNamed) {
  protocol::JobSpec spec = job(2);
  spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 100};
  spec.exchange_timeout = std::chrono::milliseconds(30'000);
  start_running(spec);
  cluster->mute = {1};
  for (const uint32_t worker : {0u, 1u}) push(worker, 0);
  pass_with({0, 1}, 6'000);
  EXPECT_THAT(the_job().verdict,
              HasSubstr("stalled for 6.0 s: shard 0 is blocked on the magnitudes of shard 1 in step 0"));
}

TEST_F(Status, MemoryThatHoldsDecisionsBackIsNamedWithTheFlagAndTheWorker) {
  server::Limits limits;
  limits.job_memory_bytes_max = 10'000;
  protocol::JobSpec spec = ScriptedCluster::small_job(2, 256);
  spec.staleness = 20;
  start_running(spec, 1, limits);
  std::vector<float> few(256, 0.0f);
  std::fill_n(few.begin(), 32, 1.0f);
  for (uint64_t step = 0; step < 8; ++step) {
    for (const uint32_t worker : {0u, 1u}) cluster->push(worker, step, few);
  }
  cluster->ack(0, 7);
  pass_with({0, 1}, 6'000);
  const JobPicture got = the_job();
  EXPECT_EQ(got.state, JobState::kStalled);
  EXPECT_THAT(got.verdict, AllOf(HasSubstr("retained updates fill half of the job's memory (--job-memory-bytes-max)"),
                                 HasSubstr("until worker 1 acknowledges")));
}

TEST_F(Status, DeadlineIsNoStall) {
  protocol::JobSpec spec = job(3);
  spec.mode = protocol::Mode::kPartial;
  spec.quorum = 2;
  spec.deadline = std::chrono::milliseconds(20'000);
  start_running(spec);
  for (const uint32_t worker : {0u, 1u}) push(worker, 0);
  pass_with({0, 1, 2}, 8'000);
  const JobPicture got = the_job();
  EXPECT_EQ(got.state, JobState::kRunning) << got.verdict;
  EXPECT_EQ(got.at[0].said.waiting_for, "deadline");
  EXPECT_EQ(got.at[0].said.decided_in_ms, 12'000);
  EXPECT_THAT(got.at[0].said.waited_for, ElementsAre(2));
  EXPECT_THAT(report_text(look(), {}), HasSubstr("quorum 2, deadline 20.0 s"));
}

TEST_F(Status, JobWhoseWorkersPushNothingMoreIsEnding) {
  start_running(job(2));
  for (const uint32_t worker : {0u, 1u}) {
    protocol::Heartbeat heartbeat;
    heartbeat.finishing = true;
    cluster->send(ScriptedCluster::peer(worker), 0, {cluster->header(worker, 0), heartbeat, {}});
  }
  EXPECT_EQ(the_job().verdict, "ending: its workers push nothing more");
  EXPECT_EQ(code_of(look()), std::nullopt);
}

TEST_F(Status, AShardsShutdownAndTheJobsItEndedAreReported) {
  start_running(job(2));
  push(0, 0);
  cluster->shut_down(1);
  const ClusterSnapshot picture = look();
  EXPECT_THAT(picture.troubles, ElementsAre("shard 1 is shutting down"));
  EXPECT_THAT(picture.jobs.at(0).verdict, HasSubstr("ending: a shard is shutting down"));
  cluster->pass(11'000);
  EXPECT_THAT(look().jobs, IsEmpty());
  EXPECT_THAT(report_text(look(), {}), AllOf(HasSubstr("ended of late"), HasSubstr("shard 1 was shut down")));
}

TEST_F(Status, AShutdownThatASpareWaitsForEndsNoJob) {
  start_running(job(2));
  const auto spare = millrace::testing::open_memory_table(cluster->table_state);
  ASSERT_TRUE(spare->hold_spare_lease());
  cluster->shut_down(1);
  const ClusterSnapshot picture = look();
  EXPECT_THAT(picture.troubles, ElementsAre("shard 1 is shutting down, and leaves its number to a spare"));
  EXPECT_THAT(picture.jobs.at(0).verdict, HasSubstr("running"));
}

TEST_F(Status, WeightsThatDisagreeAreNamedAndHaveAnExitCode) {
  start_running(job(2));
  for (const uint32_t worker : {0u, 1u}) push(worker, 0);
  protocol::Heartbeat heartbeat;
  heartbeat.digests = {{0, 1, 77}};
  cluster->send(ScriptedCluster::peer(1), 0, {cluster->header(1, 0), heartbeat, {}});
  EXPECT_EQ(
      the_job().verdict,
      "running: step 1, 2 of 2 workers; the weights of worker 1 are not those of the others (shard 0, part 0, found "
      "after 1 steps, 0.0 s ago)");
  EXPECT_EQ(code_of(look()), ExitCode::kWeightsDisagree);
}

TEST_F(Status, ATableFailureIsReportedOnlyWhileItLasts) {
  start(job(2));
  cluster->fail_table_writes(true);
  cluster->join(0, 0);
  cluster->pass(100);
  ASSERT_EQ(look().troubles.size(), 1u);
  EXPECT_THAT(look().troubles[0], HasSubstr("shard 0 has had trouble with the membership table for 0.1 s: "));
  cluster->fail_table_writes(false);
  cluster->pass(11'000);
  EXPECT_THAT(look().troubles, IsEmpty());
}

TEST_F(Status, ShardThatWasNotHeardIsMissingAndSaidWithTheJobThatStands) {
  start_running(job(2));
  push(0, 0);
  pass_with({0, 1}, 6'000);
  const ClusterSnapshot picture = picture_of({answer(0)}, {{1, "connection refused"}}, kStillAfterS);
  ASSERT_TRUE(picture.missing.contains(1));
  EXPECT_EQ(picture.missing.at(1).address, "tcp://shard:1");
  EXPECT_THAT(picture.jobs.at(0).verdict, HasSubstr("; shard 1 (tcp://shard:1) was not heard: connection refused"));
  EXPECT_EQ(code_of(picture), ExitCode::kUnreachable);
}

TEST_F(Status, ShardsOfDifferentClustersAreReported) {
  start_running(job(2));
  ShardAnswer other = answer(1);
  other.said.table = "/other";
  other.said.jobs[0].job = 7;
  ShardAnswer twin = answer(0);
  twin.http = "127.0.0.1:9";
  twin.said.incarnation = 9;
  const ClusterSnapshot picture = picture_of({answer(0), other, twin}, {}, kStillAfterS);
  EXPECT_THAT(
      picture.troubles,
      ElementsAre("127.0.0.1:7700 and 127.0.0.1:9 are two processes that both say to be shard 0: they are of two "
                  "clusters, or one is left over",
                  "shards 0 and 1 use different membership tables, /table and /other: start all with the same "
                  "--table"));
  EXPECT_THAT(picture.jobs.at(0).verdict, HasSubstr("shards 0 and 1 know it under different numbers, 1 and 7"));
}

TEST_F(Status, ShardThatSeesAnotherMapIsNamedWithTheAddress) {
  start(job(2));
  protocol::Header header;
  header.shard = 1;
  header.shard_incarnation = 1;
  protocol::ShardHello hello;
  hello.shard_map_hash = 1;
  cluster->send({"shard-1"}, 0, {header, hello, {}});
  const ClusterSnapshot picture = look();
  ASSERT_EQ(picture.troubles.size(), 2u) << "the refuser and the refused say it";
  EXPECT_THAT(picture.troubles[0],
              AllOf(HasSubstr("shard 0 refuses shard 1"), HasSubstr("shard 1 is at tcp://shard:1")));
  EXPECT_THAT(picture.troubles[1], HasSubstr("shard 1 is refused by shard 0"));
  cluster->pass(6'000);
  EXPECT_THAT(look().troubles, IsEmpty()) << "it is repeated every second while it lasts";
}

TEST_F(Status, ManyWorkersAreNamedByTheFirst) {
  start(job(40));
  cluster->join(0, 0);
  cluster->join(0, 1);
  EXPECT_THAT(the_job().verdict, HasSubstr("workers 1, 2, 3, 4, 5, 6, 7, 8, ... (39 of them) never said Hello"));
}

TEST(StatusAsk, AnUnlistedShardIsFoundByTheListedShardsPortOffset) {
  std::vector<std::string> asked;
  const auto shard = [](uint32_t number, const std::string& peer) {
    return nlohmann::json{{"shard", number},
                          {"shard_count", 2},
                          {"address", "tcp://10.0.0.1:" + std::to_string(7600 + number)},
                          {"other_shards", {{{"shard", 1 - number}, {"address", peer}}}}};
  };
  const Fetch fetch = [&](const std::string& address) -> Result<nlohmann::json> {
    asked.push_back(address);
    if (address == "127.0.0.1:7650") return shard(0, "tcp://10.0.0.1:7601");
    if (address == "127.0.0.1:7651") return shard(1, "tcp://10.0.0.1:7600");
    if (address == "127.0.0.1:7652") return shard(0, "tcp://10.0.0.2:7601");
    return fail(ErrorCode::kUnavailable, "no answer there");
  };
  const Answers found = ask_all({"127.0.0.1:7650"}, fetch);
  EXPECT_THAT(asked, ElementsAre("127.0.0.1:7650", "127.0.0.1:7651"));
  EXPECT_EQ(found.shards.size(), 2u);
  EXPECT_THAT(found.why_missing, IsEmpty());
  asked.clear();
  const Answers lost = ask_all({"127.0.0.1:7652", "127.0.0.1:1"}, fetch);
  EXPECT_THAT(asked, ElementsAre("127.0.0.1:7652", "127.0.0.1:1", "10.0.0.2:7653")) << "another host: by its own name";
  EXPECT_THAT(lost.why_missing.at(1), HasSubstr("no answer there"));
  ASSERT_EQ(lost.unanswered.size(), 1u);
  EXPECT_EQ(lost.unanswered[0].first, "127.0.0.1:1");
  EXPECT_EQ(outcome_of(picture_of(lost.shards, lost.why_missing, 5), lost).error().code, ExitCode::kUnreachable);
}

TEST(StatusAsk, AShardBeyondTheLastPortIsMissing) {
  const Fetch fetch = [](const std::string&) -> Result<nlohmann::json> {
    return nlohmann::json{{"shard", 0},
                          {"shard_count", 2},
                          {"address", "tcp://10.0.0.1:7600"},
                          {"other_shards", {{{"shard", 1}, {"address", "tcp://10.0.0.1:65500"}}}}};
  };
  const Answers answers = ask_all({"127.0.0.1:7700"}, fetch);
  ASSERT_TRUE(answers.why_missing.contains(1));
  EXPECT_THAT(answers.why_missing.at(1), HasSubstr("name its --http address"));
}

TEST(StatusAsk, HttpPortsLieAHundredAboveThoseForWorkers) {
  EXPECT_EQ(http_address_of("tcp://127.0.0.1:7600"), "127.0.0.1:7700");
  EXPECT_EQ(http_address_of("tcp://[::1]:7600"), "[::1]:7700");
  EXPECT_FALSE(http_address_of("tcp://127.0.0.1:65500").has_value());
  EXPECT_FALSE(http_address_of("ipc:///tmp/x").has_value());
}

TEST(StatusSaid, ForeignOrHostileStatus_IgnoredOrReadAsFarAsValid) {
  EXPECT_FALSE(monitoring::read_status(nlohmann::json{{"job", "demo"}, {"worker", 1}}).has_value()) << "a worker's";
  EXPECT_FALSE(monitoring::read_status(nlohmann::json::array()).has_value());
  EXPECT_FALSE(monitoring::read_status({{"shard", 2}, {"shard_count", 2}}).has_value());
  EXPECT_FALSE(monitoring::read_status({{"shard", 0}, {"shard_count", 1u << 30}}).has_value());
  const auto hostile = monitoring::read_status(
      {{"shard", 0},
       {"shard_count", 1},
       {"incarnation", -3},
       {"address", "\x1b[2J"},
       {"jobs", {{{"name", 5}, {"workers", 1u << 31}, {"members", {1, nullptr, {{"worker", "x"}}}}}, 7}},
       {"refusals", "many"}});
  ASSERT_TRUE(hostile.has_value());
  EXPECT_EQ(hostile->incarnation, 0u);
  EXPECT_EQ(hostile->address, "?[2J");
  ASSERT_EQ(hostile->jobs.size(), 2u);
  EXPECT_EQ(hostile->jobs[0].workers, monitoring::kStatusListMax);
  EXPECT_EQ(hostile->jobs[0].members.size(), 3u);
  const ClusterSnapshot picture = picture_of({{"a:1", *hostile}}, {}, 5);
  EXPECT_EQ(picture.jobs.size(), 1u);
  EXPECT_FALSE(report_text(picture, {}).empty());
  EXPECT_FALSE(report_json(picture, {}).dump().empty());
}

TEST(RefusalLog, TheOldestGoesAndOnePeersRepetitionsAreOneEntry) {
  server::RefusalLog log;
  const auto of = [](uint32_t worker) {
    return server::Refusal{
        .job = "job", .number = worker, .software = {}, .code = ErrorCode::kJobMismatch, .sentence = "no"};
  };
  for (uint32_t worker = 0; worker < server::RefusalLog::kMax; ++worker) log.note(of(worker), 1 + worker);
  log.note(of(0), 1'000);
  EXPECT_EQ(log.all().size(), server::RefusalLog::kMax);
  EXPECT_EQ(log.all()[0].count, 2u);
  EXPECT_EQ(log.all()[0].first, 1);
  EXPECT_EQ(log.all()[0].last, 1'000);
  log.note(of(7'000), 2'000);
  EXPECT_EQ(log.all().size(), server::RefusalLog::kMax);
  EXPECT_EQ(log.all().back().number, 2u) << "worker 1's was the oldest";
}

}  // namespace
}  // namespace millrace::cluster_status
