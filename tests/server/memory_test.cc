#include <chrono>
#include <semaphore>

#include "server/process/store_thread.h"
#include "tests/server/process/fake_disk.h"
#include "tests/server/scripted_cluster.h"
#include "tests/support/replaced_new.h"

/// Memory that ends anywhere in the core: the process continues, other jobs continue, and no update is wrong.
namespace millrace::server {
namespace {

using millrace::testing::FailingAllocation;
using protocol::Abort;
using protocol::Goodbye;
using protocol::Refuse;
using protocol::Update;

constexpr uint64_t kMemoryAllocationsMax = 2'000;

/// Calls `run` with 0, 1, 2, ... for the number of the allocation that fails, until one returns false: none has failed.
void at_every_allocation(const std::function<bool(uint64_t at)>& run) {
  uint64_t at = 0;
  while (at < kMemoryAllocationsMax && run(at)) {
    if (::testing::Test::HasFatalFailure()) return;
    ++at;
  }
  EXPECT_GT(at, 0u) << "nothing was tried";
  EXPECT_LT(at, kMemoryAllocationsMax) << "it does not come to an end";
}

/// Runs `work` with that allocation failing. True: it was asked for.
bool fails_at(uint64_t at, FailingAllocation::Then then, const std::function<void()>& work) {
  const FailingAllocation failing(at, then);
  work();
  return failing.failed();
}

/// Job "job" of two workers, whose step 0 lacks one contribution; and job "other" beside it.
struct Starved {
  Starved() : cluster(ScriptedCluster::small_job(2)) {
    cluster.join_all();
    protocol::Hello other = cluster.hello(0);
    other.spec.name = "other";
    other.spec.workers = 1;
    cluster.send({"neighbour"}, 0, {{}, other, {}});
    cluster.push(0, 0, std::vector<float>(64, 1));
    cluster.take(0);
    cluster.take(1);
  }
  const JobStatus* open(const std::string& name) {
    status = cluster.core().status(cluster.now);
    const auto at = std::ranges::find(status.jobs, name, &JobStatus::name);
    return at == status.jobs.end() ? nullptr : &*at;
  }
  /// Runs a tick in which that allocation fails, and sends the actions that were requested before it. Returns true if
  /// the allocation was requested.
  bool tick_fails_at(uint64_t at) {
    Actions actions;
    const bool failed =
        fails_at(at, FailingAllocation::Then::kGoesOn, [&] { cluster.core().on_tick(cluster.now, actions); });
    cluster.carry_out(0, actions);
    return failed;
  }
  ScriptedCluster cluster;
  StatusReport status;
};

/// The update of step 0 where there is one, each entry the value; and a reason where the job was aborted. Returns
/// whether it was.
bool expect_nothing_wrong(const std::vector<protocol::Message>& messages, float expected, uint64_t at) {
  bool aborted = false;
  for (const protocol::Message& message : messages) {
    if (const auto* abort = std::get_if<Abort>(&message.body)) {
      EXPECT_EQ(abort->code, ErrorCode::kLimitExceeded) << at;
      aborted = true;
    }
    if (!std::holds_alternative<Update>(message.body)) continue;
    const auto stream = read_container(message.payload.bytes, {.dimension = 64});
    EXPECT_TRUE(stream.has_value()) << at;
    if (!stream) continue;
    const Stream sparse = to_sparse(stream->view());
    EXPECT_EQ(sparse.count(), 64u) << at;
    EXPECT_TRUE(std::ranges::all_of(sparse.values, [&](float value) { return value == expected; })) << at;
  }
  return aborted;
}

/// Checks that the job has ended for want of memory: both workers are notified, once in the count.
void expect_ended(Starved& starved, float expected, uint64_t at) {
  for (const uint32_t worker : {0u, 1u}) {
    EXPECT_TRUE(expect_nothing_wrong(starved.cluster.take(worker), expected, at)) << at << ": worker " << worker;
  }
  EXPECT_EQ(starved.cluster.counted(Metric::kJobsEnded, "limit_exceeded"), 1) << at;
}

/// Checks that the job has ended with a reason for its workers, or continues. In the latter case, its update is right
/// after missing messages are sent again.
void expect_ended_or_right(Starved& starved, uint64_t at) {
  ScriptedCluster& cluster = starved.cluster;
  cluster.pass(1'000);
  ASSERT_TRUE(starved.open("other")) << at;
  if (!starved.open("job")) return expect_ended(starved, 3, at);
  cluster.push(1, 0, std::vector<float>(64, 2));
  cluster.push(0, 0, std::vector<float>(64, 1));
  const auto got = cluster.gather(0, 0);
  EXPECT_GE(got.parts, 1u) << at;
  EXPECT_EQ(got.dense, std::vector<float>(64, 3)) << at;
  EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "limit_exceeded"), 0) << at;
}

void expect_contained(FailingAllocation::Then then) {
  uint64_t ended = 0;
  at_every_allocation([&](uint64_t at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    protocol::Message last = cluster.contribution(1, 0, 0, cluster.payload(std::vector<float>(64, 2)));
    Actions actions;
    const bool failed = fails_at(
        at, then, [&] { cluster.core().on_message(ScriptedCluster::peer(1), std::move(last), cluster.now, actions); });
    cluster.carry_out(0, actions);  // the actions that were requested before
    expect_ended_or_right(starved, at);
    ended += starved.open("job") ? 0 : 1;
    return failed;
  });
  EXPECT_GT(ended, 0u);
}

TEST(OutOfMemory, AContributionThatBreaksOffEndsItsJobAtMost) { expect_contained(FailingAllocation::Then::kGoesOn); }

TEST(OutOfMemory, MemoryThatStaysOutIsNoOtherMatter) { expect_contained(FailingAllocation::Then::kStaysOut); }

TEST(OutOfMemory, ADecisionThatBreaksOffEndsItsJobAtMost) {
  std::map<Task::Kind, uint64_t> broken_off;
  at_every_allocation([&](uint64_t at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    cluster.hold_tasks = true;
    cluster.push(1, 0, std::vector<float>(64, 2));
    // Decode, and the whole sum with its update: where their results return to the core, one allocation after another
    // fails.
    uint64_t left = at;
    bool failed = false;
    while (!cluster.held_tasks().empty()) {
      const std::shared_ptr<Task> task = cluster.take_held_task();
      task->run();
      Actions actions;
      {
        // Once it has failed there is memory again.
        const FailingAllocation failing(failed ? UINT64_MAX : left, FailingAllocation::Then::kGoesOn);
        cluster.core().on_task_done(task, cluster.now, actions);
        if (failing.failed()) ++broken_off[task->kind()];
        failed |= failing.failed();
        left -= std::min(left, failing.taken());
      }
      cluster.carry_out(0, actions);
    }
    cluster.hold_tasks = false;
    expect_ended_or_right(starved, at);
    return failed;
  });
  EXPECT_GT(broken_off[Task::Kind::kDecode], 0u);
  EXPECT_GT(broken_off[Task::Kind::kReduce], 0u);
}

/// Pushes 256 ones coded so for each of two workers, of one part, to a job of that limit. Returns the refusals, while
/// no contribution is decoded.
std::vector<Refuse> refused_of_two(const char* codec, uint64_t job_bytes) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2, 256);
  spec.codec_up = codec_from_text(codec).value();
  Limits limits;
  limits.job_memory_bytes_max = job_bytes;
  ScriptedCluster cluster(spec, 1, limits);
  cluster.join_all();
  cluster.hold_tasks = true;
  const auto used = [&] { return cluster.core().status(cluster.now).memory_bytes; };
  std::vector<Refuse> refusals;
  for (const uint32_t worker : {0u, 1u}) {
    const uint64_t before = used();
    cluster.push(worker, 0, std::vector<float>(256, 1));
    const std::vector<Refuse> of_worker = cluster.take_of<Refuse>(worker);
    if (of_worker.empty()) {
      EXPECT_GE(used() - before, 256 * kPairBytes) << codec;
    }
    refusals.insert(refusals.end(), of_worker.begin(), of_worker.end());
  }
  const uint64_t waiting = used();
  cluster.run_one_held_task();
  EXPECT_EQ(used(), waiting) << codec << ": decoding changes no charge";
  return refusals;
}

TEST(WaitingContributions, AreChargedTheirDecodedBytes) {
  const std::vector<Refuse> refusals = refused_of_two("run_length+sign_mean", 2 * 256 * kPairBytes);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_TRUE(refusals[0].retry);
  EXPECT_NE(refusals[0].sentence.find("--job-memory-bytes-max"), std::string::npos) << refusals[0].sentence;
}

TEST(WaitingContributions, RefuseNoneThatFitsBesideTheDecoded) {
  // Payloads of about 1.1 KB; only one of them lies beside decoded entries when the last one is decoded.
  EXPECT_TRUE(refused_of_two("gap+raw", 2 * 256 * kPairBytes + 1'200).empty());
}

TEST(OutOfMemory, AHelloThatBreaksOffIsAnsweredAndMayComeAgain) {
  at_every_allocation([&](uint64_t at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(1));
    protocol::Message hello{{}, cluster.hello(0), {}};
    Actions actions;
    const bool failed = fails_at(at, FailingAllocation::Then::kGoesOn, [&] {
      cluster.core().on_message(ScriptedCluster::peer(0), std::move(hello), cluster.now, actions);
    });
    EXPECT_FALSE(actions.to_peers.empty()) << at;
    if (actions.to_peers.empty()) return failed;
    if (const auto* refusal = std::get_if<Refuse>(&actions.to_peers.back().message.body)) {
      EXPECT_TRUE(refusal->retry) << at << refusal->sentence;
    }
    cluster.pass(1'000);
    const protocol::Body again = cluster.join(0);
    const auto* refused = std::get_if<Refuse>(&again);
    EXPECT_FALSE(refused) << at << ": " << (refused ? refused->sentence : "");
    return failed;
  });
}

TEST(OutOfMemory, AShardHelloThatBreaksOffIsAskedForAgain) {
  at_every_allocation([&](uint64_t at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(1), 2);
    Actions said;
    cluster.core(0).on_shard_reconnected(1, cluster.now, said);
    protocol::Message hello = said.to_shards.at(0).message;
    cluster.start_shard(1, 2);
    Actions actions;
    const bool failed = fails_at(at, FailingAllocation::Then::kGoesOn, [&] {
      cluster.core(1).on_message({"shard-0"}, std::move(hello), cluster.now, actions);
    });
    cluster.mute = {0};  // nothing else that shard 0 says by itself helps
    cluster.pass(500);
    cluster.carry_out(1, actions);
    cluster.mute = {};
    cluster.pass(1'500);
    EXPECT_TRUE(cluster.core(1).status(cluster.now).peers.at(0).heard) << at;
    return failed;
  });
}

TEST(OutOfMemory, AShardThatMovesWhileMemoryEndsIsConnectedToAndHearsThisOne) {
  at_every_allocation([&](uint64_t at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(1), 3);
    cluster.start_shard(1, 3, "elsewhere");
    cluster.start_shard(2, 3, "elsewhere");
    cluster.now += 50 * kNsPerMs;
    Actions actions;
    const bool failed =
        fails_at(at, FailingAllocation::Then::kGoesOn, [&] { cluster.core(0).on_tick(cluster.now, actions); });
    cluster.carry_out(0, actions);
    cluster.pass(2'000);
    for (const uint32_t shard : {1u, 2u}) {
      EXPECT_EQ(cluster.connected_to(0, shard), "tcp://elsewhere:" + std::to_string(shard)) << at;
      EXPECT_TRUE(cluster.core(shard).status(cluster.now).peers.at(0).heard) << at << ": shard " << shard;
      EXPECT_TRUE(cluster.core(0).status(cluster.now).peers.at(shard - 1).heard) << at << ": shard " << shard;
    }
    return failed;
  });
}

TEST(OutOfMemory, ASilentWorkerIsEvictedAndTheStepDecidedWithoutIt) {
  uint64_t went_on = 0;
  at_every_allocation([&](uint64_t at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    for (int second = 0; second < 9; ++second) {
      cluster.pass(1'000);
      cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
    }
    cluster.pass(950);
    cluster.take(0);
    cluster.now += 60 * kNsPerMs;  // worker 1 has been silent for dead_after_ms now
    const bool failed = starved.tick_fails_at(at);
    cluster.pass(1'000);
    EXPECT_TRUE(starved.open("other")) << at;
    EXPECT_LE(cluster.counted(Metric::kMembersRemoved, "silent"), 1) << at;
    const JobStatus* job = starved.open("job");
    const std::vector<protocol::Message> messages = cluster.take(0);
    if (!job) {
      EXPECT_TRUE(expect_nothing_wrong(messages, 1, at)) << at;
      EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "limit_exceeded"), 1) << at;
      return failed;
    }
    ++went_on;
    EXPECT_EQ(job->members.size(), 1u) << at;
    EXPECT_EQ(job->steps_decided, 1u) << at;
    EXPECT_FALSE(expect_nothing_wrong(messages, 1, at)) << at;
    EXPECT_TRUE(std::ranges::any_of(messages, [](const auto& one) { return std::holds_alternative<Update>(one.body); }))
        << at;
    return failed;
  });
  EXPECT_GT(went_on, 1u) << "where memory ends before the rounds are touched";
}

TEST(OutOfMemory, AnEndInTheTableReachesEveryWorkerAndCountsOnce) {
  at_every_allocation([&](uint64_t at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    protocol::JobRecord record = cluster.table().read_job("job").value().value();
    const uint64_t epoch = record.membership.epoch++;
    record.membership.finished = true;  // by another shard
    record.end_reason = "the weights that shard 1 held are lost";
    record.end_code = ErrorCode::kIo;
    EXPECT_EQ(cluster.table().compare_and_swap(epoch, record), true);
    cluster.now += 60 * kNsPerMs;
    const bool failed = starved.tick_fails_at(at);
    cluster.pass(200);
    EXPECT_FALSE(starved.open("job")) << at;
    EXPECT_TRUE(starved.open("other")) << at;
    for (const uint32_t worker : {0u, 1u}) {
      const std::vector<Abort> aborts = cluster.take_of<Abort>(worker);
      EXPECT_FALSE(aborts.empty()) << at;
      for (const Abort& abort : aborts) EXPECT_EQ(abort.code, ErrorCode::kIo) << at;
    }
    EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "ended"), 1) << at;
    EXPECT_EQ(cluster.said("is over"), 1u) << at;
    return failed;
  });
}

TEST(OutOfMemory, AnAbandonedJobEndsInTheTableAndCountsOnce) {
  at_every_allocation([&](uint64_t at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(1));
    cluster.join_all();
    cluster.pass(59'950);
    cluster.now += 60 * kNsPerMs;
    Actions actions;
    const bool failed =
        fails_at(at, FailingAllocation::Then::kGoesOn, [&] { cluster.core().on_tick(cluster.now, actions); });
    cluster.carry_out(0, actions);
    cluster.pass(200);
    EXPECT_TRUE(cluster.core().status(cluster.now).jobs.empty()) << at;
    EXPECT_TRUE(cluster.table().read_job(uint64_t{1}).value()->membership.finished) << at;
    // Counted as "ended" where memory ended between the table and the rest: the next poll finds that the job is over.
    EXPECT_EQ(cluster.counted_in_all(Metric::kJobsEnded), 1) << at;
    EXPECT_FALSE(cluster.take_of<Abort>(0).empty()) << at;
    return failed;
  });
}

TEST(OutOfMemory, EachRequestToTheDiskIsCarriedOutOnce) {
  at_every_allocation([](uint64_t at) {
    std::counting_semaphore<> answered(0);  // outlives the thread
    StoreThread thread("/saves", 0, std::make_unique<millrace::testing::FakeDisk>(), [&] { answered.release(); });
    std::vector<StoreRequest> requests;
    for (const uint64_t job : {1u, 2u, 3u}) {
      requests.push_back({StoreRequest::What::kLoad, job, "a name that takes memory of its own", {}});
    }
    const bool failed = fails_at(at, FailingAllocation::Then::kGoesOn, [&] {
      try {
        thread.submit(requests);
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(requests.size(), 3u) << at;
      }
    });
    thread.submit(requests);  // as the next pass does
    std::vector<StoreRequest> last = {{StoreRequest::What::kLoad, 4, "last", {}}};
    thread.submit(last);
    for (int count = 0; count < 4; ++count) EXPECT_TRUE(answered.try_acquire_for(std::chrono::seconds(10))) << at;
    std::vector<StoreThread::Answer> answers;
    thread.take_done(answers);
    std::vector<uint64_t> jobs;
    for (const StoreThread::Answer& answer : answers) jobs.push_back(answer.job);
    EXPECT_EQ(jobs, (std::vector<uint64_t>{1, 2, 3, 4})) << at;
    return failed;
  });
}

TEST(OutOfMemory, AShutdownEndsAllTheSame) {
  at_every_allocation([&](uint64_t at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(2));
    cluster.join_all();
    Actions actions;
    const bool failed =
        fails_at(at, FailingAllocation::Then::kGoesOn, [&] { cluster.core().begin_shutdown(cluster.now, actions); });
    cluster.carry_out(0, actions);
    cluster.pass(11'000);
    EXPECT_TRUE(cluster.core().stopped()) << at;
    EXPECT_FALSE(cluster.core().failure().has_value()) << at;
    EXPECT_TRUE(cluster.table().read_job(uint64_t{1}).value()->membership.finished) << at;
    EXPECT_EQ(cluster.counted(Metric::kJobsEnded, "shutdown"), 1) << at;
    for (const uint32_t worker : {0u, 1u}) EXPECT_FALSE(cluster.take_of<Goodbye>(worker).empty()) << at;
    return failed;
  });
}

}  // namespace
}  // namespace millrace::server
