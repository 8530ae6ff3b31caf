#include "tests/server/returning_cluster.h"

/// A shard that recovers, and members that do not deliver the updates that they reported: R8c, R8d.
namespace millrace::server {
namespace {

using protocol::Collect;
using protocol::Fetch;
using protocol::Fetched;
using protocol::Update;
using ::testing::IsEmpty;

struct Holders : ::testing::Test {
  explicit Holders(uint32_t workers) : cluster(ReturningCluster::job(workers), 1) { cluster.join_all_with_weights(); }
  /// The shard is another process; the workers have said Hello to it and reported their states.
  void restart(const std::vector<uint32_t>& workers) {
    cluster.start_shard(0, 1);
    for (const uint32_t worker : workers) cluster.welcome_with_weights(worker);
    for (const uint32_t worker : workers) cluster.say_state(worker, true);
  }
  JobStatus status() { return cluster.core().status(cluster.now).jobs.at(0); }
  /// Answers each Fetch as a worker whose updates are all lost.
  void give_fetched_alone(uint32_t worker) {
    const ReturningCluster::Holds& holds = cluster.holds(worker);
    for (const Fetch& fetch : ReturningCluster::of<Fetch>(cluster.deliver_all(worker)))
      cluster.say(worker, Fetched{fetch.part, holds.n, holds.decided_in, holds.summary});
  }
  ReturningCluster cluster;
};

struct TwoHolders : Holders {
  TwoHolders() : Holders(2) {}
};

struct ThreeHolders : Holders {
  ThreeHolders() : Holders(3) {}
};

TEST_F(ThreeHolders, AHolderThatDeliversNothingIsPassedOver) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1, 2});
  ReturningCluster::Holds& last = cluster.holds(2);
  last.n = 1;
  last.kept.erase(1);
  restart({0, 1, 2});
  int heartbeats = 0;
  for (; heartbeats < 10 && status().recovering; ++heartbeats) {
    give_fetched_alone(0);
    cluster.give_all(1);
    cluster.live({0, 1, 2}, 200);
  }
  EXPECT_FALSE(status().recovering) << "worker 1 has the update, too";
  EXPECT_LE(heartbeats, 5) << "the summary, and four empty answers";
  EXPECT_EQ(cluster.membership().members.size(), 3u);
}

TEST_F(ThreeHolders, AFetchedOfABusyHolderIsNotHeldAgainstIt) {
  for (int step = 0; step < 4; ++step) cluster.step({0, 1, 2});
  cluster.lose_steps(2);
  restart({0, 1, 2});
  const ReturningCluster::Holds& first = cluster.holds(0);
  for (uint64_t step = 0; step < 4; ++step) {
    for (int request = 0; request < 3; ++request) {
      give_fetched_alone(0);
      cluster.live({0, 1, 2}, 200);
    }
    EXPECT_THAT(cluster.take_of<Fetch>(1), IsEmpty()) << "worker 0 gives an update after three empty answers";
    cluster.say(0, first.kept.at(step).body, 0, first.kept.at(step).payload);
    for (int times = 0; times < 9 && step < 3; ++times)
      cluster.say(0, Fetched{0, first.n, first.decided_in, first.summary});
  }
  EXPECT_FALSE(status().recovering);
  EXPECT_EQ(cluster.membership().members.size(), 3u);
}

TEST_F(TwoHolders, TheOnlyHolderIsEvictedIfItDeliversNothing) {
  for (int step = 0; step < 2; ++step) cluster.step({0, 1});
  ReturningCluster::Holds& last = cluster.holds(1);
  last.n = 1;
  last.kept.erase(1);
  last.summary = std::get<Update>(last.kept.at(0).body).summary;
  restart({0, 1});
  for (int passed_ms = 0; passed_ms < 2'400 && status().recovering; passed_ms += 200) {
    give_fetched_alone(0);
    if (!ReturningCluster::of<Collect>(cluster.give_all(1)).empty()) cluster.say_state(1, true);
    cluster.live({0, 1}, 200);
  }
  EXPECT_FALSE(status().recovering);
  EXPECT_EQ(find_member(cluster.membership(), 0), nullptr);
  EXPECT_EQ(cluster.counted(Metric::kMembersRemoved, "wrong"), 1);
  EXPECT_EQ(status().steps_decided, 1u);
}

}  // namespace
}  // namespace millrace::server
