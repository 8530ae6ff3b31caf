#include "tests/server/scripted_cluster.h"
#include "tests/support/replaced_new.h"

/// Memory that ends anywhere in the core: the process goes on, other jobs go on, and no update is wrong.
namespace millrace::server {
namespace {

using millrace::testing::FailingAllocation;
using protocol::Abort;
using protocol::Refuse;
using protocol::Update;

constexpr uint64_t kAllocationsMax = 2'000;

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
  bool open(const std::string& name) {
    const std::vector<JobStatus> jobs = cluster.core().status(cluster.now).jobs;
    return std::ranges::any_of(jobs, [&](const JobStatus& job) { return job.name == name; });
  }
  ScriptedCluster cluster;
};

/// The update of step 0 where there is one, and a reason where the job was aborted.
void expect_nothing_wrong(const protocol::Message& message, uint64_t at) {
  if (const auto* abort = std::get_if<Abort>(&message.body)) {
    EXPECT_EQ(abort->code, ErrorCode::kLimitExceeded) << at;
  }
  if (!std::holds_alternative<Update>(message.body)) return;
  const auto stream = read_container<float>(message.payload.bytes, {.dimension = 64});
  ASSERT_TRUE(stream.has_value()) << at;
  const Stream<float> sparse = to_sparse<float>(stream->view());
  EXPECT_EQ(sparse.count(), 64u) << at;
  EXPECT_TRUE(std::ranges::all_of(sparse.values, [](float value) { return value == 3; })) << at;
}

/// The job has ended with a reason for its workers, or goes on: what is missing said again, its update is right.
void expect_ended_or_right(Starved& starved, uint64_t at) {
  ScriptedCluster& cluster = starved.cluster;
  cluster.pass(1'000);
  ASSERT_TRUE(starved.open("other")) << at;
  if (!starved.open("job")) {
    for (const uint32_t worker : {0u, 1u}) {
      for (const protocol::Message& message : cluster.take(worker)) expect_nothing_wrong(message, at);
    }
    return;
  }
  cluster.push(1, 0, std::vector<float>(64, 2));
  cluster.push(0, 0, std::vector<float>(64, 1));
  const auto got = cluster.gather(0, 0);
  EXPECT_GE(got.parts, 1u) << at;
  EXPECT_EQ(got.dense, std::vector<float>(64, 3)) << at;
}

void expect_contained(FailingAllocation::Then then) {
  bool came_to_an_end = false;
  uint64_t ended = 0;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    protocol::Message last = cluster.contribution(1, 0, 0, cluster.payload(std::vector<float>(64, 2)));
    Actions actions;
    {
      const FailingAllocation failing(at, then);
      cluster.core().on_message(ScriptedCluster::peer(1), std::move(last), cluster.now, actions);
      came_to_an_end = !failing.failed();
    }
    cluster.carry_out(0, actions);  // what it had to say before goes out
    expect_ended_or_right(starved, at);
    ended += starved.open("job") ? 0 : 1;
  }
  EXPECT_TRUE(came_to_an_end);
  EXPECT_GT(ended, 0u);
}

TEST(OutOfMemory, AContributionThatBreaksOffEndsItsJobAtMost) { expect_contained(FailingAllocation::Then::kGoesOn); }

TEST(OutOfMemory, MemoryThatStaysOutIsNoOtherMatter) { expect_contained(FailingAllocation::Then::kStaysOut); }

TEST(OutOfMemory, ADecisionThatBreaksOffEndsItsJobAtMost) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    cluster.hold_tasks = true;
    cluster.push(1, 0, std::vector<float>(64, 2));
    // Decode, reduce and encode: where their results come back, one allocation after another fails.
    uint64_t left = at;
    while (!cluster.held_tasks().empty()) {
      const std::shared_ptr<Task> task = cluster.take_held_task();
      task->run();
      Actions actions;
      {
        const FailingAllocation failing(left, FailingAllocation::Then::kGoesOn);
        cluster.core().on_task_done(task, cluster.now, actions);
        came_to_an_end = !failing.failed();
        left = failing.failed() ? kAllocationsMax : left - std::min(left, failing.taken());
      }
      cluster.carry_out(0, actions);
    }
    cluster.hold_tasks = false;
    expect_ended_or_right(starved, at);
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST(OutOfMemory, AHelloThatBreaksOffIsAnsweredAndMayComeAgain) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    ScriptedCluster cluster(ScriptedCluster::small_job(1));
    protocol::Message hello{{}, cluster.hello(0), {}};
    Actions actions;
    {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      cluster.core().on_message(ScriptedCluster::peer(0), std::move(hello), cluster.now, actions);
      came_to_an_end = !failing.failed();
    }
    if (!came_to_an_end) {
      ASSERT_FALSE(actions.to_peers.empty()) << at;
      if (const auto* refusal = std::get_if<Refuse>(&actions.to_peers.back().message.body)) {
        EXPECT_TRUE(refusal->retry) << at << refusal->sentence;
      }
    }
    cluster.pass(1'000);
    const protocol::Body again = cluster.join(0);
    const auto* refused = std::get_if<Refuse>(&again);
    EXPECT_FALSE(refused) << at << ": " << (refused ? refused->sentence : "");
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST(OutOfMemory, ATickThatBreaksOffIsMadeUpFor) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    Starved starved;
    ScriptedCluster& cluster = starved.cluster;
    cluster.now += 12 * kNsPerS;  // both workers of the job, and the neighbour, have been silent
    Actions actions;
    {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      cluster.core().on_tick(cluster.now, actions);
      came_to_an_end = !failing.failed();
    }
    cluster.pass(1'000);
    cluster.core().status(cluster.now);
  }
  EXPECT_TRUE(came_to_an_end);
}

}  // namespace
}  // namespace millrace::server
