#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "tests/server/scripted_cluster.h"

/// Memory of a job beside its contributions and updates: histograms, and the structure of parts and members.
namespace millrace::server {
namespace {

using protocol::Refuse;
using protocol::Welcome;
using ::testing::HasSubstr;

constexpr uint64_t kParts = 16;
constexpr uint64_t kPartEntries = 256;

/// A job of one worker and one bucket, whose sums are cut.
protocol::JobSpec reselecting_job() {
  protocol::JobSpec spec = ScriptedCluster::small_job(1, kParts * kPartEntries);
  spec.parts_per_shard = kParts;
  spec.reselect.reselect = protocol::Reselect::kTopK;
  spec.reselect.k = 10;
  return spec;
}

/// Returns entries of as many bins as there are entries, from one end of f32 to the other.
std::vector<float> entries_of_all_bins() {
  std::vector<float> values;
  for (uint32_t at = 0; at < kPartEntries; ++at) values.push_back(std::bit_cast<float>((127U + 127U * at) << 16));
  return values;
}

void push_part(ScriptedCluster& cluster, uint32_t part) {
  cluster.send(ScriptedCluster::peer(0), 0, cluster.contribution(0, part, 0, cluster.payload(entries_of_all_bins())));
}

uint64_t used(ScriptedCluster& cluster) { return cluster.core().status(cluster.now).memory_bytes; }

TEST(JobMemory, HistogramsOfABucketThatIsNotCompleteAreCharged) {
  ScriptedCluster cluster(reselecting_job());
  cluster.join_all();
  ASSERT_EQ(cluster.layout().parts.size(), kParts);
  const uint64_t before = used(cluster);
  for (uint32_t part = 0; part + 1 < kParts; ++part) push_part(cluster, part);
  constexpr uint64_t kStreamBytes = kPartEntries * 8;
  constexpr uint64_t kHistogramBytes = kPartEntries * sizeof(MagnitudeHistogram::Bin);
  // A part has the stream of its one contribution, its sum, and the histogram of that.
  EXPECT_GE(used(cluster) - before, (kParts - 1) * (kStreamBytes + kHistogramBytes));
  EXPECT_LT(used(cluster) - before, (kParts - 1) * (2 * kStreamBytes + 2 * kHistogramBytes)) << "once each";
  push_part(cluster, kParts - 1);
  EXPECT_EQ(cluster.gather(0, 0).entries, 10u);
  cluster.ack(0, 1);
  EXPECT_LT(used(cluster) - before, 2 * kParts * kHistogramBytes) << "the sum of the parts stays, for later thresholds";
}

TEST(JobMemory, HistogramsKeepTheJobsContributionsFromTheShard) {
  Limits limits;
  limits.job_memory_bytes_max = 60'000;  // eight parts fit beside their histograms, and ten would without
  ScriptedCluster cluster(reselecting_job(), 1, limits);
  cluster.join_all();
  for (uint32_t part = 0; part < 10; ++part) push_part(cluster, part);
  const std::vector<Refuse> refusals = cluster.take_of<Refuse>(0);
  ASSERT_FALSE(refusals.empty());
  EXPECT_THAT(refusals[0].sentence, HasSubstr("--job-memory-bytes-max"));
  EXPECT_TRUE(refusals[0].retry);
}

/// A job of many small parts.
protocol::JobSpec job_of_parts(uint32_t parts) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2, 4);
  for (uint32_t part = 1; part < parts; ++part)
    spec.tensors.push_back({.name = "w" + std::to_string(part), .dimension = 4});
  spec.fuse_below = 1;
  return spec;
}

TEST(JobMemory, RecordsOfPartsAreChargedWhileTheJobIsOpen) {
  ScriptedCluster cluster(job_of_parts(1'000));
  const uint64_t records = record_bytes(cluster.spec(), cluster.layout(), 0);
  EXPECT_GT(records, 1'000 * sizeof(PartRound));
  cluster.join_all();
  EXPECT_EQ(used(cluster), records);
  for (const uint32_t worker : {0u, 1u})
    cluster.send(ScriptedCluster::peer(worker), 0, {cluster.header(worker), protocol::Goodbye{}, {}});
  EXPECT_EQ(used(cluster), 0u);
  const protocol::JobSpec small = ScriptedCluster::small_job(2);
  EXPECT_EQ(record_bytes(small, protocol::plan_layout(small, 1), 0), 0u);
}

TEST(JobMemory, AJobWhoseRecordsDoNotFitLeavesNoRow) {
  for (const bool by_quota : {true, false}) {
    const protocol::JobSpec spec = job_of_parts(1'000);
    const uint64_t records = record_bytes(spec, protocol::plan_layout(spec, 1), 0);
    Limits limits;
    if (!by_quota) limits.shard_memory_bytes_max = records - 1;
    ScriptedCluster cluster(spec, 1, limits);
    if (by_quota) cluster.job_quota = 2 * records - 1;
    const auto refusal = expect_body<Refuse>(cluster.join(0));
    EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
    EXPECT_THAT(refusal.sentence, HasSubstr("records of parts and workers"));
    EXPECT_FALSE(cluster.table().read_job("job")->has_value());
  }
}

TEST(JobMemory, RecordsOfManyJobsTogetherFitTheShard) {
  protocol::JobSpec spec = job_of_parts(1'000);
  const uint64_t records = record_bytes(spec, protocol::plan_layout(spec, 1), 0);
  Limits limits;
  limits.shard_memory_bytes_max = 2 * records;
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  protocol::Hello other = cluster.hello(0);
  other.spec.name = "second";
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, other)));
  other.spec.name = "third";
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, other));
  EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refusal.sentence, HasSubstr("where jobs use " + std::to_string(2 * records)));
  EXPECT_FALSE(cluster.table().read_job("third")->has_value());
}

TEST(JobMemory, AFirstContributionWithoutRoomIsTheReasonInTheStatus) {
  Limits limits;
  limits.job_memory_bytes_max = 20'000;
  ScriptedCluster cluster(ScriptedCluster::small_job(1, 10'000), 1, limits);
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(10'000, 1));
  ASSERT_EQ(cluster.take_of<Refuse>(0).size(), 1u);
  const JobStatus status = cluster.core().status(cluster.now).jobs.at(0);
  EXPECT_EQ(status.waiting_for, "memory");
  EXPECT_EQ(status.waited_for, std::vector<uint32_t>{0});
  EXPECT_THAT(status.waiting_because, HasSubstr("the contribution of worker 0 is refused: the job uses"));
  EXPECT_THAT(status.waiting_because, HasSubstr("are over its limit of 20000 (--job-memory-bytes-max"));
}

TEST(JobMemory, AJobOfManyPartsJoinsWhereContributionsFillTheShard) {
  Limits limits;
  limits.shard_memory_bytes_max = 4 << 20;
  ScriptedCluster cluster(ScriptedCluster::small_job(2, 450'000), 1, limits);
  cluster.join_all();
  cluster.push(0, 0, std::vector<float>(450'000, 1));
  protocol::Hello other = cluster.hello(0);
  other.spec = job_of_parts(1'000);
  other.spec.name = "other";
  const protocol::JobLayout layout = protocol::plan_layout(other.spec, 1);
  other.layout_hash = protocol::layout_hash(layout);
  ASSERT_GT(used(cluster) + record_bytes(other.spec, layout, 0), limits.shard_memory_bytes_max);
  EXPECT_TRUE(std::holds_alternative<Welcome>(cluster.say_hello(0, other)));
}

TEST(JobMemory, EpochsInWhichStepsWereDecidedAreCharged) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  ScriptedCluster cluster(spec);
  cluster.join_all();
  const uint64_t before = used(cluster);
  cluster.push(0, 0, std::vector<float>(64, 1));
  cluster.push(1, 0, std::vector<float>(64, 1));
  for (const uint32_t worker : {0u, 1u}) cluster.ack(worker, 1);
  cluster.send(ScriptedCluster::peer(1), 0, {cluster.header(1), protocol::Goodbye{}, {}});
  EXPECT_EQ(used(cluster) - before, 2 * sizeof(uint64_t));
}

}  // namespace
}  // namespace millrace::server
