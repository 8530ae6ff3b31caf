#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/random.h"
#include "kernels/codec/codec.h"
#include "protocol/base/limits.h"
#include "server/process/port_guard.h"
#include "tests/server/scripted_cluster.h"

namespace millrace::server {
namespace {

using protocol::Refuse;
using protocol::Welcome;
using ::testing::HasSubstr;

protocol::JobSpec limits_job(uint32_t workers = 2, uint64_t dimension = 64) {
  return ScriptedCluster::small_job(workers, dimension);
}

void expect_limit(const protocol::Body& answer, const std::string& flag) {
  const auto refusal = expect_body<Refuse>(answer);
  EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refusal.sentence, HasSubstr(flag));
}

TEST(Limits, WorkersTensorsPartsAndDeathAreBoundedByName) {
  Limits limits;
  limits.workers_max = 1;
  ScriptedCluster workers(limits_job(2), 1, limits);
  expect_limit(workers.join(0), "--workers-max");

  limits = Limits{};
  limits.tensors_max = 0;
  ScriptedCluster tensors(limits_job(2), 1, limits);
  expect_limit(tensors.join(0), "--tensors-max");

  limits = Limits{};
  limits.parts_max = 1;
  protocol::JobSpec spec = limits_job(2, 1'000'000);
  spec.parts_per_shard = 4;
  ScriptedCluster parts(spec, 1, limits);
  expect_limit(parts.join(0), "--parts-max");

  limits = Limits{};
  limits.dead_after_ms_min = 60'000;
  ScriptedCluster death(limits_job(2), 1, limits);
  expect_limit(death.join(0), "--dead-after-min");
}

TEST(Limits, JobsAreBounded) {
  Limits limits;
  limits.jobs_max = 1;
  ScriptedCluster cluster(limits_job(), 1, limits);
  cluster.join_all();
  protocol::Hello other = cluster.hello(0);
  other.spec.name = "another";
  expect_limit(cluster.say_hello(0, other), "--jobs-max");
}

TEST(Limits, HugePartsPerShardIsRefusedBeforeItIsPlanned) {
  ScriptedCluster cluster(limits_job());
  protocol::Hello hello = cluster.hello(0);
  hello.spec.parts_per_shard = UINT32_MAX;
  hello.spec.tensors[0].dimension = kDimensionMax;
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, hello));
  EXPECT_TRUE(refusal.code == ErrorCode::kLimitExceeded || refusal.code == ErrorCode::kInvalidArgument);
}

TEST(Limits, MessageOverTheLimitIsRefusedWithTheFlag) {
  Limits limits;
  limits.message_bytes_max = 100;
  ScriptedCluster cluster(limits_job(), 1, limits);
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(64, 1));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("--message-bytes-max"));
  EXPECT_FALSE(refusals[0].retry);
}

TEST(Limits, AFullJobRefusesStepsAheadAndTakesTheNeededOnes) {
  Limits limits;
  limits.job_memory_bytes_max = 6'500;  // two contributions of the step to decide fit, no step ahead
  protocol::JobSpec spec = limits_job(2, 256);
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  const std::vector<float> ones(256, 1);
  cluster.push(0, 0, ones);
  EXPECT_TRUE(cluster.take_of<Refuse>(0).empty());
  cluster.push(0, 1, ones);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("--job-memory-bytes-max"));
  cluster.push(1, 0, ones);
  EXPECT_EQ(cluster.gather(0, 0).parts, 1u) << "later contributions do not keep out those that the step needs";
}

TEST(Limits, AJobHasNoMoreMemoryThanTheQuotaOfItsCreator) {
  ScriptedCluster cluster(limits_job(2, 256));
  cluster.job_quota = 1'000;  // less than one contribution
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(256, 1));
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("over its limit of 1000"));
}

TEST(Limits, FullJobDoesNotMakeAnotherJobWait) {
  Limits limits;
  limits.shard_memory_bytes_max = 20'000;
  ScriptedCluster cluster(limits_job(2, 1'024), 1, limits);
  cluster.join_all();
  protocol::Hello second = cluster.hello(0);
  second.spec = limits_job(1, 256);
  second.spec.name = "second";
  second.layout_hash = protocol::layout_hash(protocol::plan_layout(second.spec, 1));
  ASSERT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(7, [&] {
    protocol::Hello hello = second;
    hello.spec.workers = 8;
    hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
    return hello;
  }())));
  cluster.push(0, 0, std::vector<float>(1'024, 1));  // 8 KiB coded and as much decoded: over the fair share
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("--shard-memory-bytes-max"));
  cluster.send(ScriptedCluster::peer(7), 0, cluster.contribution(7, 0, 0, cluster.payload(std::vector<float>(256, 1))));
  EXPECT_TRUE(cluster.take_of<Refuse>(7).empty()) << "the other job has its share";
}

TEST(Limits, ContributionReadInPlace_ChargedOnceWhileItIsOpen) {
  const uint64_t dimension = 20'000;
  ScriptedCluster cluster(limits_job(2, dimension));
  cluster.join_all();
  const std::vector<float> ones(dimension, 1);
  const auto used = [&] { return cluster.core().status(cluster.now).memory_bytes; };
  const uint64_t before = used();
  const SharedBytes payload = cluster.payload(ones);
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 0, payload));
  EXPECT_EQ(used() - before, payload.bytes.size()) << "the payload, and no copy of it";
  EXPECT_GT(payload.owner.use_count(), 1);
  // A payload whose bytes lie at an odd address is copied, and the original released.
  ByteBuffer moved(payload.bytes.size() + 1);
  std::copy(payload.bytes.begin(), payload.bytes.end(), moved.begin() + 1);
  SharedBytes odd = SharedBytes::from(std::move(moved));
  odd.bytes = odd.bytes.subspan(1);
  cluster.push(1, 0, ones);
  EXPECT_EQ(cluster.gather(0, 0).dense, std::vector<float>(dimension, 2));
  EXPECT_EQ(payload.owner.use_count(), 1) << "decided";
  const uint64_t decided = used();
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 1, odd));
  EXPECT_EQ(odd.owner.use_count(), 1);
  EXPECT_EQ(used() - decided, dimension * 8);
}

SharedBytes coded_as(const char* codec, const std::vector<float>& dense) {
  Stream stream{dense.size(), true, {}, {}};
  stream.values.assign(dense.begin(), dense.end());
  const Stream sparse = to_sparse(stream.view());
  auto coded = encode_container(sparse.view(), {}, EncodeOptions{codec_from_text(codec).value(), {}, 0});
  EXPECT_TRUE(coded) << coded.error().message;
  return SharedBytes::from(std::move(coded->bytes));
}

TEST(Limits, AnIndexCodecThatIsNotTheJobsAndNotExactIsRefused) {
  ScriptedCluster cluster(limits_job(2));
  cluster.join_all();
  const std::vector<float> ones(64, 1);
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->lossless()) continue;
    const std::string text = std::string(codec->name()) + "+raw";
    cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 0, coded_as(text.c_str(), ones)));
    const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
    ASSERT_EQ(refusals.size(), 1u) << text;
    EXPECT_EQ(refusals[0].code, ErrorCode::kInvalidArgument) << text;
    EXPECT_FALSE(refusals[0].retry) << text;
    EXPECT_THAT(refusals[0].sentence, HasSubstr(std::string(codec->name())));
  }
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, 0, 0, coded_as("bitmap+raw", ones)));
  cluster.push(1, 0, ones);
  EXPECT_EQ(cluster.gather(0, 0).dense, std::vector<float>(64, 2)) << "any exact one is as good as the job's";
}

TEST(Limits, ConflictSetsOfAFilterTakeMemoryOfTheirJob) {
  constexpr uint64_t kDimension = 4'096;
  protocol::JobSpec spec = limits_job(2, kDimension);
  spec.codec_up = codec_from_text("bloom_p2:0.001+raw").value();
  std::vector<float> few(kDimension, 0.0F);
  std::fill_n(few.begin(), 256, 1.0F);  // about 2 KB coded and as much decoded; 80 KB of conflict sets
  Limits limits;
  limits.job_memory_bytes_max = 40'000;
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  cluster.push(0, 0, few);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].sentence, HasSubstr("--job-memory-bytes-max"));

  limits.job_memory_bytes_max = 1 << 20;
  ScriptedCluster roomy(spec, 1, limits);
  roomy.join_all();
  const auto used = [&] { return roomy.core().status(roomy.now).memory_bytes; };
  const uint64_t before = used();
  roomy.hold_tasks = true;
  roomy.push(0, 0, few);
  EXPECT_GT(used() - before, 40'000u);
  roomy.run_held_tasks();
  EXPECT_LT(used() - before, 10'000u) << "decoded";
}

TEST(Limits, MemoryThatCanNeverSufficeEndsTheJobWithTheFlags) {
  Limits limits;
  limits.job_memory_bytes_max = 4'500;  // one decoded contribution and a payload, not two
  limits.abandon_ms = 5'000;
  protocol::JobSpec spec = limits_job(2, 256);
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  const std::vector<float> ones(256, 1);
  cluster.push(0, 0, ones);
  for (int second = 0; second < 7; ++second) {
    cluster.push(1, 0, ones);
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
    cluster.pass(1'000);
  }
  const std::vector<protocol::Abort> aborts = cluster.take_of<protocol::Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(aborts[0].sentence, HasSubstr("--job-memory-bytes-max"));
}

TEST(Limits, ASuspendedShardEndsNoJobForMemoryAndEvictsNoMember) {
  Limits limits;
  limits.job_memory_bytes_max = 4'500;
  limits.abandon_ms = 5'000;
  ScriptedCluster starved(limits_job(2, 256), 1, limits);
  starved.join_all();
  const std::vector<float> ones(256, 1);
  starved.push(0, 0, ones);
  starved.push(1, 0, ones);
  ASSERT_EQ(starved.take_of<Refuse>(1).size(), 1u);
  starved.now += 60 * kNsPerS;
  starved.tick();
  EXPECT_EQ(starved.core().status(starved.now).jobs.size(), 1u);

  limits.job_memory_bytes_max = 10'000;
  ScriptedCluster blocked(limits_job(2, 256), 1, limits);
  blocked.join_all();
  std::vector<float> few(256, 0.0f);
  std::fill_n(few.begin(), 32, 1.0f);
  for (uint64_t step = 0; step < 8; ++step) {
    for (const uint32_t worker : {0u, 1u}) blocked.push(worker, step, few);
  }
  ASSERT_EQ(blocked.counted(Metric::kRounds), 7) << "the next one waits for acknowledgements";
  blocked.ack(0, 7);
  blocked.now += 60 * kNsPerS;
  blocked.tick();
  EXPECT_EQ(blocked.counted(Metric::kMembersRemoved, "behind"), 0);
}

/// Peer 7 opens another job, which takes memory of the same shard. Returns whether it is welcome.
bool opens_second_job(ScriptedCluster& cluster) {
  protocol::Hello second = cluster.hello(7);
  second.spec = limits_job(8, 256);
  second.spec.name = "second";
  second.layout_hash = protocol::layout_hash(protocol::plan_layout(second.spec, 1));
  return std::holds_alternative<Welcome>(cluster.say_hello(7, second));
}

TEST(Limits, StepThatOnceHadNoRoomIsNotEndedBecauseAWorkerIsSlow) {
  Limits limits;
  limits.shard_memory_bytes_max = 30'000;
  limits.abandon_ms = 5'000;
  ScriptedCluster cluster(limits_job(2, 1'024), 1, limits);
  cluster.join_all();
  ASSERT_TRUE(opens_second_job(cluster));
  const std::vector<float> ones(1'024, 1);  // 8 KiB coded and as much decoded: over half of the shard's
  cluster.push(0, 0, ones);
  ASSERT_EQ(cluster.take_of<Refuse>(0).size(), 1u);
  cluster.send(ScriptedCluster::peer(7), 0, {cluster.header(7), protocol::Goodbye{}, {}});
  cluster.push(0, 0, ones);
  ASSERT_TRUE(cluster.take_of<Refuse>(0).empty()) << "the other job has made room";
  for (int second_passed = 0; second_passed < 8; ++second_passed) {
    for (const uint32_t worker : {0u, 1u}) {
      cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Heartbeat{}, {}});
    }
    cluster.pass(1'000);
  }
  cluster.push(1, 0, ones);  // computed for longer than --abandon-after
  EXPECT_EQ(cluster.gather(1, 0).parts, 1u);
}

TEST(Limits, ARefusedContributionOfAnEvictedMemberEndsNoJob) {
  Limits limits;
  limits.shard_memory_bytes_max = 30'000;
  limits.abandon_ms = 5'000;
  protocol::JobSpec spec = limits_job(2, 1'024);
  spec.heartbeat = std::chrono::milliseconds(200);
  spec.dead_after = std::chrono::milliseconds(2'000);
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  ASSERT_TRUE(opens_second_job(cluster));
  const std::vector<float> ones(1'024, 1);
  cluster.push(1, 0, ones);
  ASSERT_EQ(cluster.take_of<Refuse>(1).size(), 1u);
  cluster.send(ScriptedCluster::peer(7), 0, {cluster.header(7), protocol::Goodbye{}, {}});
  for (int second_passed = 0; second_passed < 8; ++second_passed) {
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
    cluster.pass(1'000);
  }
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "silent"), 1) << "worker 1 is dead";
  cluster.push(0, 0, ones);  // computed for longer than --abandon-after
  EXPECT_EQ(cluster.gather(0, 0).parts, 1u);
}

TEST(Limits, RunsOfWeightsPassAnyLimitOnMessages) {
  Options options;
  options.limits.message_bytes_max = 64 << 10;
  EXPECT_GE(transport_options(options, std::nullopt).limits.payload_bytes_max, protocol::kSnapshotRunBytes);
  options.limits.message_bytes_max = uint64_t{1} << 30;
  EXPECT_GE(transport_options(options, std::nullopt).limits.payload_bytes_max, options.limits.message_bytes_max);
}

TEST(Limits, AnUpdateThatNoShardCanReceiveIsReported) {
  Limits limits;
  limits.message_bytes_max = 3 << 20;
  constexpr size_t kPushed = 300'000;  // 2.4 MB of each worker; the sum has 4.8 MB
  ScriptedCluster cluster(limits_job(2, 4'000'000), 1, limits);
  cluster.join_all();
  for (uint64_t step = 0; step < 2; ++step) {
    for (const uint32_t worker : {0u, 1u}) {
      std::vector<float> gradient(4'000'000, 0.0f);
      std::fill_n(gradient.begin() + static_cast<ptrdiff_t>(worker * kPushed), kPushed, 1.0f);
      cluster.push(worker, step, gradient);
    }
    EXPECT_EQ(cluster.gather(0, step).parts, 1u) << "the job continues";
    cluster.take(1);
  }
  EXPECT_EQ(cluster.said("(--message-bytes-max)"), 1u) << "once a job";
}

/// Pushes nothing in step after step, without acks, until decisions are held back; returns the pushes.
uint64_t push_nothing_until_held_back(ScriptedCluster& cluster, uint64_t pushes_max,
                                      const std::function<void()>& next) {
  const std::vector<float> nothing(64, 0.0f);
  uint64_t pushes = 0;
  while (pushes < pushes_max && cluster.core().status(cluster.now).jobs.at(0).steps_decided == pushes) {
    next();
    cluster.push(0, pushes++, nothing);
    cluster.take(0);
  }
  return pushes;
}

TEST(Limits, EmptyUpdatesTakeMemoryOfTheirJob) {
  Limits limits;
  limits.job_memory_bytes_max = 1 << 20;
  ScriptedCluster cluster(limits_job(1), 1, limits);
  cluster.join_all();
  EXPECT_LT(push_nothing_until_held_back(cluster, 10'000, [] {}), 10'000u);
  const JobStatus job = cluster.core().status(cluster.now).jobs.at(0);
  EXPECT_EQ(job.waiting_for, "memory");
  EXPECT_LE(job.retained_updates * sizeof(PartRound::RetainedUpdate), limits.job_memory_bytes_max);
}

TEST(Limits, TheEpochsInAnUpdatesSummaryTakeMemoryOfTheJob) {
  Limits limits;
  limits.job_memory_bytes_max = 256 << 10;
  ScriptedCluster cluster(limits_job(2), 1, limits);
  cluster.join_all();
  uint64_t incarnation = 1;
  // A worker that joins and leaves again and again, as the table has it.
  const auto change_members = [&] {
    ASSERT_TRUE(change_job(cluster.table(), cluster.view_of(0).job, [&](protocol::JobRecord& record) -> Result<Change> {
                  std::vector<protocol::Member>& members = record.membership.members;
                  if (members.size() > 1) {
                    members.pop_back();
                  } else {
                    members.push_back({1, ++incarnation, 77, protocol::MemberState::kJoining});
                  }
                  return Change::kChanged;
                }).has_value());
    cluster.pass(60);
  };
  const uint64_t pushes = push_nothing_until_held_back(cluster, 300, change_members);
  EXPECT_LT(pushes, 300u) << "the summary of the last update has as many epochs";
  EXPECT_GT(pushes, 30u);
  EXPECT_GT(cluster.core().status(cluster.now).jobs.at(0).retained_bytes, limits.job_memory_bytes_max / 2);
}

TEST(Limits, OneAckIsAnsweredByABoundedNumberOfUpdates) {
  constexpr uint64_t kSteps = 17'000;
  constexpr uint64_t kServedMax = 16'384;
  ScriptedCluster cluster(limits_job(1));
  cluster.join_all();
  ASSERT_EQ(push_nothing_until_held_back(cluster, kSteps, [] {}), kSteps);
  const auto served = [&](uint64_t n) {
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Ack{{{0, n, true}}}, {}});
    return cluster.take_of<protocol::Update>(0);
  };
  const std::vector<protocol::Update> first = served(0);
  ASSERT_EQ(first.size(), kServedMax);
  EXPECT_EQ(first.back().step, kServedMax - 1);
  const std::vector<protocol::Update> rest = served(kServedMax);
  ASSERT_EQ(rest.size(), kSteps - kServedMax);
  EXPECT_EQ(rest.back().step, kSteps - 1);
}

TEST(Limits, DecisionsAreHeldBackUntilKeptUpdatesAreAcknowledged) {
  Limits limits;
  limits.job_memory_bytes_max = 10'000;
  ScriptedCluster cluster(limits_job(2, 256), 1, limits);
  cluster.join_all();
  std::vector<float> few(256, 0.0f);
  std::fill_n(few.begin(), 32, 1.0f);  // 320 bytes coded
  for (uint64_t step = 0; step < 8; ++step) {
    cluster.push(0, step, few);
    cluster.push(1, step, few);
  }
  EXPECT_EQ(cluster.counted(Metric::kRounds), 7) << "seven kept updates fill half of the memory";
  const JobStatus status = cluster.core().status(cluster.now).jobs.at(0);
  EXPECT_THAT(status.waiting_because, HasSubstr("acknowledges"));
  cluster.ack(0, 7);
  EXPECT_EQ(cluster.counted(Metric::kRounds), 7) << "worker 1 may still ask for them";
  cluster.ack(1, 7);
  EXPECT_EQ(cluster.counted(Metric::kRounds), 8);
}

struct Hostile : ::testing::Test {
  Hostile() : cluster(ScriptedCluster::small_job(2)) { cluster.join_all(); }
  protocol::Message honest() { return cluster.contribution(0, 0, 0, cluster.payload(std::vector<float>(64, 1))); }
  void expect_unharmed() {
    cluster.take(0);
    cluster.push(0, 0, std::vector<float>(64, 1));
    cluster.push(1, 0, std::vector<float>(64, 2));
    EXPECT_EQ(cluster.gather(0, 0).dense, std::vector<float>(64, 3));
  }
  ScriptedCluster cluster;
};

TEST_F(Hostile, MessageOfAnotherIdentityThanTheConnectionsIsDropped) {
  protocol::Message message = honest();
  message.header.worker = 1;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  message = honest();
  message.header.incarnation = 2;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  message = honest();
  message.header.job = 17;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "other_identity"), 3);
  EXPECT_EQ(cluster.counted(Metric::kContributions), 0);
  expect_unharmed();
}

TEST_F(Hostile, AConnectionWithoutHelloIsAskedForOne) {
  cluster.send(ScriptedCluster::peer(5), 0, honest());
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(5);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry);
  expect_unharmed();
}

TEST_F(Hostile, EpochThatTheTableDoesNotKnowIsDropped) {
  protocol::Message message = honest();
  message.header.epoch = UINT64_MAX;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unknown_epoch"), 1);
  expect_unharmed();
}

TEST_F(Hostile, MessagesOfUnknownEpochsReadTheTableNoMoreOftenThanThePoll) {
  cluster.pass(60);  // the poll knows all changes
  const int64_t before = cluster.table().calls;
  for (uint32_t at = 0; at < 1'000; ++at) {
    protocol::Message message = honest();
    message.header.epoch = (uint64_t{1} << 40) + at;
    cluster.send(ScriptedCluster::peer(0), 0, message);
  }
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unknown_epoch"), 1'000);
  EXPECT_LE(cluster.table().calls - before, 1);
  cluster.now += 50 * kNsPerMs;
  protocol::Message message = honest();
  message.header.epoch = UINT64_MAX;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  EXPECT_EQ(cluster.table().calls - before, 2) << "the table is asked again";
  expect_unharmed();
}

TEST_F(Hostile, AMemberThatLeavesManyTimesHasOneLineInTheAuditLog) {
  cluster.fail_table_writes(true);
  for (const auto reason : {protocol::Goodbye::Reason::kFinished, protocol::Goodbye::Reason::kFailed}) {
    for (int at = 0; at < 3; ++at) {
      cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Goodbye{reason, "again"}, {}});
    }
  }
  ASSERT_EQ(cluster.audited.size(), 3u) << "two joins before it";
  EXPECT_EQ(cluster.audited.back().what, AuditEvent::What::kLeave);
  EXPECT_EQ(cluster.audited.back().code, "finished");
  EXPECT_EQ(cluster.said("worker 0 has finished") + cluster.said("worker 0 leaves"), 1u);
}

TEST_F(Hostile, WrongShardNumberIsDropped) {
  protocol::Message message = honest();
  message.header.shard = 3;
  cluster.send(ScriptedCluster::peer(0), 0, message);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "wrong_shard"), 1);
  expect_unharmed();
}

TEST_F(Hostile, AnswersOfAShardSentToAShardAreDropped) {
  for (const protocol::Body& body :
       {protocol::Body(protocol::Welcome{}), protocol::Body(protocol::Update{}),
        protocol::Body(protocol::StepDecided{}), protocol::Body(protocol::Abort{}),
        protocol::Body(protocol::MembershipChange{}), protocol::Body(protocol::Refuse{})}) {
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), body, {}});
  }
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unexpected_message"), 6);
  expect_unharmed();
}

TEST_F(Hostile, WeightsThatAreNoNumbersOrNotPositiveAreRefused) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double weight : {0.0, -0.0, -1.0, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    protocol::Message message = honest();
    std::get<protocol::Contribution>(message.body).weight = weight;
    cluster.send(ScriptedCluster::peer(0), 0, message);
    const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
    ASSERT_EQ(refusals.size(), 1u) << weight;
    EXPECT_TRUE(refusals[0].about_contribution);
    EXPECT_FALSE(refusals[0].retry) << "the same weight would be refused again";
    EXPECT_EQ(refusals[0].code, std::isfinite(weight) ? ErrorCode::kInvalidArgument : ErrorCode::kNonFinite) << weight;
    EXPECT_THAT(refusals[0].sentence, HasSubstr("weight"));
  }
  expect_unharmed();
}

TEST_F(Hostile, EveryDamagedPayloadIsRefusedAndLeavesTheRoundAsItWas) {
  const protocol::Message good = honest();
  RandomSequence random(RandomKey::from(21));
  for (int round = 0; round < 300; ++round) {
    ByteBuffer bytes(good.payload.bytes.begin(), good.payload.bytes.end());
    if (round % 2 == 0) bytes.resize(random.next_below(bytes.size()));
    for (uint64_t flips = round % 2; flips > 0 && !bytes.empty(); --flips) {
      bytes[random.next_below(bytes.size())] ^= static_cast<uint8_t>(1 + random.next_below(255));
    }
    protocol::Message bad = good;
    bad.payload = SharedBytes::from(std::move(bytes));
    std::get<protocol::Contribution>(bad.body).payload_hash = container_identity(bad.payload.bytes).value_or(0);
    cluster.send(ScriptedCluster::peer(0), 0, bad);
    ASSERT_EQ(cluster.take_of<Refuse>(0).size(), 1u) << round;
  }
  expect_unharmed();
}

TEST_F(Hostile, RandomMessagesNeverStopTheShard) {
  RandomSequence random(RandomKey::from(22));
  const protocol::Message good = honest();
  const auto number = [&]() -> uint64_t {
    return random.next_below(4) == 0 ? random.next_u64() : random.next_below(4);
  };
  for (int round = 0; round < 5'000; ++round) {
    protocol::Message message = good;
    message.header = {number(), number(), static_cast<uint32_t>(number()), number(), static_cast<uint32_t>(number()),
                      number()};
    if (round % 2 == 0) message.header = cluster.header(0);
    switch (random.next_below(7)) {
      case 0: message.body = protocol::Contribution{static_cast<uint32_t>(number()), number(), number()}; break;
      case 1: message.body = protocol::Ack{{{static_cast<uint32_t>(number()), number(), number() % 2 == 1}}}; break;
      case 2:
        message.body = protocol::Heartbeat{
            number(), number(), {}, {}, number() % 2 == 1, {{static_cast<uint32_t>(number()), number(), number()}}};
        break;
      case 3: message.body = protocol::ThresholdHistogram{static_cast<uint32_t>(number()), number()}; break;
      case 4: message.body = protocol::ShardHello{}; break;
      case 5: message.body = protocol::Hello{}; break;
      default: message.body = protocol::Duplicate{};
    }
    cluster.send(random.next_below(2) == 0 ? ScriptedCluster::peer(0) : protocol::PeerId{"x"}, 0, message);
  }
  cluster.take(0);
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 1u);
}

}  // namespace
}  // namespace millrace::server
