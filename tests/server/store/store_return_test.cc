#include <cstring>
#include <functional>

#include "tests/server/returning_cluster.h"
#include "tests/server/store/store_cluster.h"

/// Shards with a store that start from nothing in a job that runs: their last save, and the updates that workers keep.
namespace millrace::server {
namespace {

using protocol::Fetch;
using protocol::Pull;
using protocol::Pulled;
using protocol::Update;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<float> store_return_constant(float value) { return std::vector<float>(64, value); }

/// Two workers that forget updates when notified, and a shard that keeps saves. With sgd of rate 1, a step of both with
/// the value v takes 2 v from every weight.
struct StoreReturns : ::testing::Test {
  explicit StoreReturns(protocol::JobSpec spec = job(), Limits limits = {})
      : cluster(std::move(spec), 1, limits, kSaves) {
    cluster.join_all_with_weights();
  }
  static protocol::JobSpec job() {
    protocol::JobSpec spec = ReturningCluster::job(2, 2);
    spec.store.optimizer = optimizer_from_text("sgd:1").value();
    return spec;
  }
  void step(float value) {
    cluster.step({0, 1}, value);
    for (const uint32_t worker : {0u, 1u}) {
      cluster.ack(worker, cluster.holds(worker).n);
      forget(worker);
    }
  }
  /// Drops the updates that no member needs any more, as the last update announces.
  void forget(uint32_t worker) {
    for (uint32_t part = 0; part < 2; ++part) {
      auto& kept = cluster.holds(worker, part).kept;
      if (kept.empty()) continue;
      const uint64_t stable = std::get<Update>(kept.rbegin()->second.body).stable;
      std::erase_if(kept, [stable](const auto& one) { return one.first < stable; });
    }
  }
  uint64_t retained_from(uint32_t worker) { return cluster.state_of(worker).parts[0].retained_from; }
  void save() {
    Actions actions;
    cluster.core().save_stores(cluster.now, actions);
    cluster.carry_out(0, actions);
  }
  /// Replaces the shard's process. Both workers report their positions, and give the updates that are requested.
  /// Returns the requests.
  std::vector<Fetch> restart(const std::function<void()>& before_the_states = {}) {
    cluster.start_shard(0, 1);
    for (const uint32_t worker : {0u, 1u}) cluster.welcome_with_weights(worker);
    if (before_the_states) before_the_states();
    for (const uint32_t worker : {0u, 1u}) cluster.say_state(worker, true);
    std::vector<Fetch> asked;
    for (const uint32_t worker : {0u, 1u}) {
      for (const Fetch& fetch : ReturningCluster::of<Fetch>(cluster.give_all(worker))) asked.push_back(fetch);
    }
    for (const uint32_t worker : {0u, 1u}) cluster.deliver_all(worker);
    return asked;
  }
  /// The weights of part 0 or 1, all of which are equal; NaN: they are not there.
  float weight(uint32_t part = 0) {
    cluster.take(0);
    cluster.say(0, Pull{.id = 1, .part = part, .count = 64});
    for (const protocol::Message& message : cluster.take(0)) {
      const auto* pulled = std::get_if<Pulled>(&message.body);
      if (!pulled || pulled->values != 64) continue;
      EXPECT_EQ(pulled->n, cluster.holds(0, part).n);
      std::vector<float> values(64);
      if (!values.empty()) std::memcpy(values.data(), message.payload.bytes.data(), message.payload.bytes.size());
      EXPECT_EQ(values, store_return_constant(values[0]));
      return values[0];
    }
    return NAN;
  }
  JobStatus status() { return cluster.core().status(cluster.now).jobs.at(0); }
  ReturningCluster cluster;
};

TEST_F(StoreReturns, AllMembersRetainUpdatesThatTheLastSaveLacks) {
  for (int step_number = 0; step_number < 3; ++step_number) step(1);
  EXPECT_EQ(retained_from(0), 0u) << "nothing is saved";
  EXPECT_EQ(status().retained_updates, 6u);
  save();
  EXPECT_EQ(status().retained_updates, 0u) << "all workers have them, and the save too";
  step(1);
  step(1);
  EXPECT_EQ(retained_from(1), 3u);
  EXPECT_EQ(status().retained_updates, 4u);
  cluster.disk.fails = true;
  save();
  step(1);
  EXPECT_EQ(retained_from(1), 3u) << "a successor will find the save before";
}

TEST_F(StoreReturns, WithoutAPlaceForSavesNothingIsKeptLonger) {
  ReturningCluster without(job());
  without.join_all_with_weights();
  without.step({0, 1}, 1);
  for (const uint32_t worker : {0u, 1u}) without.ack(worker, 1);
  EXPECT_EQ(without.core().status(without.now).jobs.at(0).retained_updates, 0u);
}

TEST_F(StoreReturns, AKilledShardRecoversFromItsSaveAndLaterUpdates) {
  step(1);
  step(2);
  save();
  step(4);
  step(8);
  const std::vector<Fetch> asked = restart();
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].first_step, 2u) << "no other process needs it";
  EXPECT_EQ(weight(), -30);
  EXPECT_EQ(weight(1), -30);
  EXPECT_EQ(cluster.counted(Metric::kRecoveries, "activated"), 1);
  step(16);
  EXPECT_EQ(weight(), -62);
  EXPECT_EQ(retained_from(0), 2u) << "the save is the same";
  // And again, before another save and after it.
  restart();
  EXPECT_EQ(weight(), -62);
  save();
  step(32);
  EXPECT_EQ(retained_from(0), 5u);
  restart();
  EXPECT_EQ(weight(), -126);
}

TEST_F(StoreReturns, WithoutASaveTheWholeLogIsReplayed) {
  step(1);
  step(2);
  EXPECT_EQ(restart()[0].first_step, 0u);
  EXPECT_EQ(weight(), -6);
  step(4);
  EXPECT_EQ(retained_from(1), 0u) << "the next successor does the same";
  restart();
  EXPECT_EQ(weight(1), -14);
}

TEST_F(StoreReturns, UpdatesAreRetainedWhileASuccessorReadsItsSave) {
  step(1);
  save();
  step(2);
  cluster.disk.holds = true;
  restart();
  EXPECT_THAT(status().store->survives_restart, false);
  for (const uint32_t worker : {0u, 1u}) cluster.ack(worker, 2);
  step(100);  // waits for the store
  EXPECT_EQ(cluster.holds(0).n, 2u);
  EXPECT_THAT(status().waiting_because, HasSubstr("it reads its save"));
  cluster.disk.holds = false;
  cluster.serve_disk();
  for (const uint32_t worker : {0u, 1u}) cluster.deliver_all(worker);
  EXPECT_EQ(cluster.holds(0).n, 3u);
  EXPECT_EQ(weight(), -206);
}

TEST_F(StoreReturns, ASaveThatIsAskedForBeforeTheWeightsAreThereIsMadeOnceTheyAre) {
  step(1);
  save();
  step(2);
  cluster.disk.holds = true;
  restart();
  save();
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 2);
  EXPECT_EQ(status().retained_updates, 0u);
}

TEST_F(StoreReturns, AJobEndsIfItsSaveIsOlderThanAllRetainedUpdates) {
  step(1);
  save();
  step(2);
  step(4);
  for (const uint32_t worker : {0u, 1u}) {
    for (const uint32_t part : {0u, 1u}) cluster.holds(worker, part).kept.erase(1);
  }
  cluster.take(1);
  restart();
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 0u);
  EXPECT_EQ(cluster.said("no save of this job is on its log as far back as the workers keep updates"), 1u);
}

TEST_F(StoreReturns, AJoinerWithoutWeightsReceivesOnlyItsLogPosition) {
  step(1);
  step(2);
  save();
  cluster.say(1, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
  cluster.deliver_all(0);
  cluster.forget(1);
  cluster.step({0}, 4);
  protocol::Hello hello = cluster.returning(1, 77);
  hello.has_weights = false;
  ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.say_hello(1, hello)));
  cluster.deliver_all(0);
  cluster.take(1);
  cluster.say_state(1, false);
  const auto got = cluster.take(1);
  uint32_t places = 0;
  for (size_t at = 0; at < got.size(); ++at) {
    const auto* place = std::get_if<protocol::Snapshot>(&got[at].body);
    if (place == nullptr) continue;
    ++places;
    EXPECT_EQ(place->n, 3u);
    EXPECT_EQ(place->decided_in, cluster.holds(0, place->part).decided_in);
    EXPECT_EQ(place->summary, cluster.holds(0, place->part).summary);
    EXPECT_TRUE(got[at].payload.bytes.empty());
    ASSERT_LT(at + 1, got.size());
    const auto& settle = std::get<protocol::Settle>(got[at + 1].body);
    EXPECT_EQ(settle.weights, protocol::Settle::Weights::kSnapshot);
    EXPECT_EQ(settle.decided, 3u);
    cluster.holds(1, place->part).n = 3;
  }
  EXPECT_EQ(places, 2u);
  EXPECT_TRUE(ReturningCluster::of<protocol::SnapshotRequest>(cluster.take(0)).empty()) << "no worker is asked";
  cluster.say(1, protocol::Synced{});
  cluster.ack(1, 3);
  step(8);
  EXPECT_EQ(weight(), -2 - 4 - 4 - 16);
}

TEST_F(StoreReturns, TheShardSavesOnceAJoinerHasAcknowledgedTheSavedUpdates) {
  step(1);
  cluster.say(1, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
  cluster.deliver_all(0);
  cluster.forget(1);
  ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.say_hello(1, cluster.returning(1, 77))));
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 0);
  // It begins where the shard can serve it from: at the first step, which is kept for the store.
  cluster.deliver_all(0);
  cluster.take(1);
  cluster.say_state(1, false);
  cluster.deliver_all(1);
  EXPECT_EQ(cluster.holds(1).n, 1u) << "no snapshot is needed";
  cluster.say(1, protocol::Synced{});
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 0);
  cluster.ack(1, 1);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1) << "when it has acknowledged the updates of the save";
}

// Found by the model: the save has a step that only the shard has seen. It dies, the step is void, and so is the save.
TEST_F(StoreReturns, ASaveCountsOnceAllMembersHaveAcknowledgedItsSteps) {
  step(1);
  save();
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1);
  for (const uint32_t worker : {0u, 1u}) cluster.push(worker, 1, store_return_constant(50));
  for (const uint32_t worker : {0u, 1u}) cluster.take(worker);  // the update is lost
  EXPECT_EQ(status().steps_decided, 2u);
  save();
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1);
  restart();
  EXPECT_EQ(cluster.holds(0).n, 1u);
  EXPECT_EQ(weight(), -2) << "of the save before";
  step(4);
  EXPECT_EQ(weight(), -10);
  cluster.step({0, 1}, 8);
  save();
  EXPECT_EQ(retained_from(0), 1u);
  cluster.ack(0, 3);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1) << "of one of them";
  cluster.ack(1, 3);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 2);
  EXPECT_EQ(status().retained_updates, 0u);
}

/// Little memory: a few dozen steps are too many to retain.
struct ForgetfulReturns : StoreReturns {
  ForgetfulReturns() : StoreReturns(job(), limits()) {}
  static Limits limits() {
    Limits small;
    small.job_memory_bytes_max = 256 << 10;
    return small;
  }
};

TEST_F(ForgetfulReturns, ASaveAfterForgottenUpdatesIsFollowedByAnother) {
  uint64_t steps = 0;
  const auto steps_more = [&](uint64_t count) {
    for (uint64_t at = 0; at < count; ++at, ++steps) step(1);
  };
  cluster.disk.fails = true;
  while (status().store->survives_restart && steps < 1'000) steps_more(1);
  ASSERT_FALSE(status().store->survives_restart);
  cluster.disk.fails = false;
  cluster.disk.holds = true;
  save();
  for (int part = 0; part < 2; ++part) serve_one_write(cluster);  // both are copied then
  ASSERT_EQ(cluster.disk.asked.front().second.what, StoreRequest::What::kAppend);
  const uint64_t copied = steps;
  steps_more(3);
  ASSERT_GT(retained_from(0), copied) << "updates after the copies are forgotten";
  serve_one_write(cluster);
  ASSERT_EQ(cluster.disk.asked.front().second.what, StoreRequest::What::kEnd);
  serve_one_write(cluster);
  EXPECT_FALSE(status().store->survives_restart) << "no process has the updates after the save";
  ASSERT_EQ(cluster.disk.asked.size(), 1u);
  EXPECT_EQ(cluster.disk.asked.front().second.what, StoreRequest::What::kBegin);
  steps_more(2);
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_TRUE(status().store->survives_restart);
  steps_more(1);
  restart();
  EXPECT_EQ(weight(), -2 * static_cast<float>(steps));
  EXPECT_EQ(weight(1), -2 * static_cast<float>(steps));
}

/// The store begins with worker 0's weights.
struct PlacedReturns : StoreReturns {
  PlacedReturns() : StoreReturns(placed_job()) {}
  static protocol::JobSpec placed_job() {
    protocol::JobSpec spec = job();
    spec.store.begin = protocol::StoreBegin::kWorker;
    return spec;
  }
  void place(float value) {
    const SharedBytes bytes = bytes_of(constant(value));
    for (const uint32_t part : {0u, 1u}) cluster.say(0, protocol::Place{part, 0, hash64(bytes.bytes)}, 0, bytes);
  }
};

TEST_F(PlacedReturns, ASuccessorOfAKilledShardWaitsForUnsavedWeights) {
  cluster.disk.holds = true;
  place(5);
  cluster.say(0, Pull{.id = 7, .part = 0});
  EXPECT_THAT(ReturningCluster::of<Pulled>(cluster.take(0)), IsEmpty()) << "the worker still has to place them";
  cluster.disk.asked.clear();
  cluster.disk.unfinished.clear();
  cluster.disk.holds = false;
  restart();
  place(5);
  step(1);
  EXPECT_EQ(weight(), 3);
  EXPECT_EQ(weight(1), 3);
}

TEST_F(PlacedReturns, AShardThatRecoversTakesNoFirstWeights) {
  cluster.hold_tasks = true;
  restart([this] { place(4); });
  EXPECT_EQ(cluster.counted(Metric::kDropped, "place_while_recovering"), 2);
  cluster.take(0);
  cluster.hold_tasks = false;
  cluster.run_held_tasks();
  std::vector<uint32_t> parts;
  for (const Pulled& notice : cluster.take_of<Pulled>(0)) {
    EXPECT_EQ(notice.id, 0u);
    parts.push_back(notice.part);
  }
  EXPECT_THAT(parts, ElementsAre(0, 1)) << "there is room for both parts now";
  place(5);
  step(1);
  EXPECT_EQ(weight(), 3);
  EXPECT_EQ(weight(1), 3);
}

TEST_F(StoreReturns, ASaveOnALogBranchThatNoWorkerKnowsIsLoaded) {
  step(1);
  restart();
  save();
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1);
  for (const uint32_t worker : {0u, 1u}) {
    for (const uint32_t part : {0u, 1u}) cluster.holds(worker, part).kept.clear();
  }
  restart();
  EXPECT_EQ(weight(), -2);
}

}  // namespace
}  // namespace millrace::server
