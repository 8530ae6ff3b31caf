#include "server/store/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/random.h"
#include "tests/server/store/store_cluster.h"
#include "tests/support/oracles/optimizer_oracle.h"

namespace millrace::server {
namespace {

using millrace::testing::OptimizerOracle;
using protocol::Abort;
using protocol::Pull;
using protocol::Pulled;
using protocol::Refuse;
using protocol::StoreBegin;
using protocol::Update;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Store, TheWeightsAreTheOptimizersReplayOfTheUpdatesToTheBit) {
  for (const char* optimizer : {"sgd:0.1", "momentum:0.1:0.9", "adagrad:0.5", "adam:0.01"}) {
    protocol::JobSpec spec = store_job(3, optimizer, 9'000);
    spec.combine = protocol::Combine::kMean;
    spec.parts_per_shard = 3;
    spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = 0.1, .k = 0, .threshold_period = 2};
    spec.codec_down = {.index = IndexCodecId::kGap, .value = ValueCodecId::kQsgd};
    Stores cluster(spec, 2);
    cluster.join_all();
    ASSERT_EQ(cluster.layout().parts.size(), 6u);
    RandomSequence random(random_key(7, 0, 0));
    OptimizerOracle oracle(spec.store.optimizer, constant(0, 9'000));
    for (uint64_t step = 0; step < 6; ++step) {
      cluster.hold_tasks = true;
      for (const uint32_t worker : {0u, 1u, 2u}) cluster.push(worker, step, drawn(9'000, random));
      cluster.run_in_any_order(random);
      const auto update = cluster.gather(1, step);
      ASSERT_EQ(update.parts, 6u);
      cluster.hold_tasks = false;
      oracle.step(entries_of(update.dense), 3);
      ASSERT_TRUE(same_bits(cluster.weights(step + 1), oracle.weights())) << optimizer << ", step " << step;
      for (const uint32_t worker : {0u, 1u, 2u}) cluster.ack(worker, step + 1);
    }
  }
}

TEST(Store, StepsAheadAreAppliedInTheirOrderThoughTasksFinishInAny) {
  protocol::JobSpec spec = store_job(1, "momentum:1:0.5");
  spec.staleness = 3;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomSequence random(random_key(seed, 0, 0));
    Stores cluster(spec);
    cluster.join_all();
    OptimizerOracle oracle(spec.store.optimizer, constant(0));
    cluster.hold_tasks = true;
    for (uint64_t step = 0; step < 4; ++step) {
      const std::vector<float> gradient = drawn(64, random);
      cluster.push(0, step, gradient);
      oracle.step(entries_of(gradient), 1);
    }
    cluster.run_in_any_order(random);
    cluster.hold_tasks = false;
    EXPECT_TRUE(same_bits(cluster.weights(4), oracle.weights())) << seed;
  }
}

TEST(Store, APullWaitsForTheStepThatItAsksFor) {
  Stores cluster(store_job(2, "sgd:1"));
  cluster.join_all();
  EXPECT_EQ(cluster.pull(1, {.id = 1, .part = 0, .count = 64}).values, constant(0)) << "zeros before the first step";
  cluster.ask(1, {.id = 2, .part = 0, .at_least = 1, .count = 2});
  EXPECT_TRUE(cluster.answers(1).empty());
  cluster.push_all(0, constant(2));
  const std::vector<PulledAnswer> answers = cluster.answers(1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].body.id, 2u);
  EXPECT_EQ(answers[0].body.n, 1u);
  EXPECT_THAT(answers[0].values, ElementsAre(-4, -4));
}

TEST(Store, PullsOfRangesAndIndices) {
  Stores cluster(store_job(1, "sgd:1"));
  cluster.join_all();
  std::vector<float> gradient(64);
  for (size_t at = 0; at < 64; ++at) gradient[at] = -static_cast<float>(at);
  cluster.push(0, 0, gradient);
  EXPECT_THAT(cluster.pull(0, {.id = 1, .part = 0, .offset = 10, .count = 3}).values, ElementsAre(10, 11, 12));
  EXPECT_THAT(cluster.pull(0, {.id = 1, .part = 0, .offset = 63, .count = 1}).values, ElementsAre(63));
  EXPECT_THAT(cluster.pull(0, {.id = 1, .part = 0, .indices = 3}, bytes_of_indices({0, 7, 63})).values,
              ElementsAre(0, 7, 63));
  const PulledAnswer nothing = cluster.pull(0, {.id = 1, .part = 0});
  EXPECT_EQ(nothing.body.n, 1u);
  EXPECT_EQ(nothing.body.values, 0u);
  EXPECT_FALSE(nothing.body.code.has_value());
  EXPECT_EQ(cluster.counted(Metric::kPulls, "answered"), 4);
}

TEST(Store, PullsOfRunsEqualThoseOfTheirIndices) {
  constexpr uint32_t kDimension = 300;
  Stores cluster(store_job(1, "sgd:1", kDimension));
  cluster.join_all();
  std::vector<float> gradient(kDimension);
  for (size_t at = 0; at < kDimension; ++at) gradient[at] = -static_cast<float>(at) - 1;
  cluster.push(0, 0, gradient);
  RandomSequence random(random_key(3, 0, 0));
  for (const uint32_t run : {1U, 2U, 3U, 7U, 16U, 17U, 64U, kDimension}) {
    for (int tries = 0; tries < 20; ++tries) {
      std::vector<uint32_t> starts;
      std::vector<uint32_t> indices;
      const auto gap = [&] { return random.next_below(4) == 0 ? static_cast<uint32_t>(random.next_below(40)) : 0; };
      for (uint32_t start = gap(); start + run <= kDimension; start += run + gap()) {
        starts.push_back(start);
        for (uint32_t at = 0; at < run; ++at) indices.push_back(start + at);
      }
      if (starts.empty()) continue;
      const Pull one_by_one{.id = 1, .part = 0, .indices = static_cast<uint32_t>(indices.size())};
      const Pull by_run{.id = 2, .part = 0, .indices = static_cast<uint32_t>(starts.size()), .run = run};
      const std::vector<float> expected = cluster.pull(0, one_by_one, bytes_of_indices(indices)).values;
      ASSERT_EQ(expected.size(), indices.size());
      EXPECT_EQ(cluster.pull(0, by_run, bytes_of_indices(starts)).values, expected) << run;
    }
  }
}

TEST(Store, PullsThatCannotBeAreAnsweredWithTheReason) {
  Stores cluster(store_job(1, "sgd:1"));
  cluster.join_all();
  const auto refusal = [&](const Pull& pull, const SharedBytes& indices = {}) {
    const PulledAnswer answer = cluster.pull(0, pull, indices);
    EXPECT_EQ(answer.body.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(answer.body.id, 5u);
    EXPECT_TRUE(answer.values.empty());
    return answer.body.sentence;
  };
  EXPECT_THAT(refusal({.id = 5, .part = 3, .count = 1}), HasSubstr("part 3 of job 'job' is not on shard 0"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .offset = 60, .count = 5}), HasSubstr("60 to 65 of part 0, which has 64"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .offset = uint64_t{1} << 32, .count = 1}), HasSubstr("which has 64"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2}, bytes_of_indices({1, 64})), HasSubstr("index 64"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2}, bytes_of_indices({7, 7})), HasSubstr("index 7"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2}, bytes_of_indices({7, 6})), HasSubstr("index 6"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2, .run = 4}, bytes_of_indices({0, 61})), HasSubstr("index 61"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2, .run = 4}, bytes_of_indices({8, 11})), HasSubstr("index 11"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 2, .run = 4}, bytes_of_indices({8, 2})), HasSubstr("index 2"));
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 1, .run = 4}, bytes_of_indices({UINT32_MAX})),
              HasSubstr("index 4294967295"))
      << "its end is beyond 32 bits";
  EXPECT_THAT(refusal({.id = 5, .part = 0, .indices = 1, .run = 65}, bytes_of_indices({0})), HasSubstr("index 0"));
  EXPECT_EQ(cluster.counted(Metric::kPulls, "refused"), 11);
  Stores without(ScriptedCluster::small_job(1));
  without.join_all();
  EXPECT_THAT(without.pull(0, {.id = 5, .part = 0, .count = 1}).body.sentence, HasSubstr("has no store"));
}

TEST(Store, ManyPullsOfAWorkerWaitAndNoMore) {
  Stores cluster(store_job(2, "sgd:1"));
  cluster.join_all();
  for (uint64_t id = 1; id <= JobStore::kPullsMax; ++id) {
    cluster.ask(0, {.id = id, .part = 0, .at_least = 1, .count = 1});
    cluster.ask(0, {.id = id, .part = 0, .at_least = 1, .count = 2});  // again: in place of the first
  }
  EXPECT_TRUE(cluster.answers(0).empty());
  EXPECT_EQ(cluster.pull(0, {.id = 999, .part = 0, .count = 1}).body.code, ErrorCode::kUnavailable);
  EXPECT_EQ(cluster.pull(1, {.id = 1, .part = 0, .count = 1}).values, constant(0, 1)) << "another worker's go on";
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->pulls_waiting, JobStore::kPullsMax);
  cluster.push_all(0, constant(1));
  const std::vector<PulledAnswer> answers = cluster.answers(0);
  ASSERT_EQ(answers.size(), JobStore::kPullsMax);
  EXPECT_EQ(answers[0].values, constant(-2, 2));
}

TEST(Store, AMemberThatLeftHasNoWaitingPull) {
  Stores cluster(store_job(3, "sgd:1"));
  cluster.join_all();
  cluster.ask(2, {.id = 1, .part = 0, .at_least = 1, .count = 1});
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->pulls_waiting, 1u);
  cluster.send(ScriptedCluster::peer(2), 0,
               {cluster.header(2), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->pulls_waiting, 0u);
}

/// A store that begins with worker 0's weights.
struct Placed : Stores {
  explicit Placed(uint32_t workers, uint64_t dimension = 64) : Stores(job(workers, dimension)) { join_all(); }
  static protocol::JobSpec job(uint32_t workers, uint64_t dimension) {
    protocol::JobSpec spec = store_job(workers, "sgd:1", dimension);
    spec.store.begin = StoreBegin::kWorker;
    return spec;
  }
  void place(uint32_t worker, uint64_t offset, const std::vector<float>& values, uint64_t hash_change = 0) {
    const SharedBytes bytes = bytes_of(values);
    send(peer(worker), 0, {header(worker), protocol::Place{0, offset, hash64(bytes.bytes) ^ hash_change}, bytes});
  }
};

TEST(Store, NothingIsDecidedBeforeTheLowestWorkersWeightsAreThere) {
  Placed cluster(2);
  cluster.push_all(0, constant(1));
  cluster.ask(1, {.id = 3, .part = 0, .count = 64});
  EXPECT_TRUE(cluster.take_of<Update>(1).empty());
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].waiting_because,
            "step 0 of part 0 is blocked on the store: it has no first weights of worker 0");
  EXPECT_FALSE(cluster.core().status(cluster.now).jobs[0].store->ready);
  cluster.place(0, 0, constant(5, 40));
  EXPECT_TRUE(cluster.take(1).empty());
  cluster.place(0, 40, constant(7, 24));
  std::vector<protocol::Message> messages = cluster.take(1);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<Pulled>(messages[0].body));
  EXPECT_EQ(std::get<Pulled>(messages[0].body).n, 0u) << "before the first step";
  EXPECT_TRUE(std::holds_alternative<Update>(messages[1].body));
  std::vector<float> expected = constant(3, 40);
  expected.insert(expected.end(), 24, 5);
  EXPECT_EQ(cluster.weights(1), expected);
  cluster.place(0, 0, constant(9));
  EXPECT_EQ(cluster.weights(1), expected) << "late";
  EXPECT_EQ(cluster.counted(Metric::kDropped, "late_place"), 1);
}

TEST(Store, NothingIsDecidedBeforePlacedWeightsAreSavedOrCannotBe) {
  for (const bool fails : {false, true}) {
    Stores cluster(Placed::job(1, 64), 1, {}, kSaves);
    cluster.join_all();
    cluster.disk.holds = true;
    cluster.disk.fails = fails;
    cluster.push(0, 0, constant(1));
    const SharedBytes bytes = bytes_of(constant(5));
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Place{0, 0, hash64(bytes.bytes)}, bytes});
    EXPECT_TRUE(cluster.take_of<Update>(0).empty());
    EXPECT_THAT(cluster.core().status(cluster.now).jobs[0].waiting_because, HasSubstr("are being saved"));
    cluster.disk.holds = false;
    cluster.serve_disk();
    EXPECT_EQ(cluster.take_of<Update>(0).size(), 1u);
    EXPECT_EQ(cluster.weights(1), constant(4));
    EXPECT_EQ(cluster.disk.saves.size(), fails ? 0u : 1u);
    const auto survives_restart = [&cluster] {
      return cluster.core().status(cluster.now).jobs[0].store->survives_restart;
    };
    EXPECT_EQ(survives_restart(), !fails);
    ASSERT_EQ(cluster.table().set_drain(0, 1, protocol::DrainNote{1, ""}), true);
    cluster.pass(200);
    EXPECT_EQ(cluster.table().read_drain(0).value()->refusal.empty(), !fails);
    cluster.ack(0, 1);
    cluster.disk.fails = false;
    Actions actions;
    cluster.core().save_stores(cluster.now, actions);
    cluster.carry_out(0, actions);
    EXPECT_TRUE(survives_restart());
  }
}

TEST(Store, PullsWaitUntilPlacedWeightsAreSavedOrCannotBe) {
  for (const bool fails : {false, true}) {
    Stores cluster(Placed::job(1, 64), 1, {}, kSaves);
    cluster.join_all();
    cluster.disk.holds = true;
    cluster.disk.fails = fails;
    const SharedBytes bytes = bytes_of(constant(5));
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Place{0, 0, hash64(bytes.bytes)}, bytes});
    cluster.ask(0, {.id = 3, .part = 0});
    cluster.ask(0, {.id = 4, .part = 0, .count = 64});
    EXPECT_TRUE(cluster.answers(0).empty());
    EXPECT_TRUE(cluster.core().status(cluster.now).jobs[0].store->survives_restart) << "the worker has them";
    cluster.disk.holds = false;
    cluster.serve_disk();
    const std::vector<PulledAnswer> answers = cluster.answers(0);
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(answers[0].body.n, 0u);
    EXPECT_EQ(answers[1].values, constant(5));
  }
}

TEST(Store, NoPartIsDecidedBeforeThePlacedWeightsOfAllAreSaved) {
  protocol::JobSpec spec = Placed::job(1, 64);
  spec.parts_per_shard = 2;
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  const auto place = [&cluster](uint32_t part) {
    const SharedBytes bytes = bytes_of(constant(5, 32));
    cluster.send(ScriptedCluster::peer(0), 0,
                 {cluster.header(0), protocol::Place{part, 0, hash64(bytes.bytes)}, bytes});
  };
  cluster.push(0, 0, constant(1));
  place(0);
  EXPECT_TRUE(cluster.take_of<Update>(0).empty()) << "no worker would place them again";
  EXPECT_THAT(cluster.core().status(cluster.now).jobs[0].waiting_because, HasSubstr("has no first weights of worker"));
  place(1);
  EXPECT_EQ(cluster.take_of<Update>(0).size(), 2u);
  EXPECT_EQ(cluster.disk.saves.size(), 1u);
}

TEST(Store, WeightsThatAreNotPlacedInOrderWholeAndByTheLowestAreDropped) {
  Placed cluster(2);
  const auto is_ready = [&cluster] { return cluster.core().status(cluster.now).jobs[0].store->ready; };
  cluster.place(1, 0, constant(1));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "not_the_placer"), 1);
  cluster.place(0, 32, constant(1, 32));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "place_out_of_order"), 1);
  cluster.place(0, 0, constant(1, 32));
  cluster.place(0, 0, constant(2, 32));  // begins again
  cluster.place(0, 31, constant(1, 33));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "place_out_of_order"), 2);
  cluster.place(0, 32, constant(1, 33));
  EXPECT_EQ(cluster.counted(Metric::kDropped, "impossible_place"), 1) << "one too many";
  cluster.place(0, 32, constant(1, 32), 1);
  EXPECT_EQ(cluster.said("a run of weights changed on the way"), 1u);
  EXPECT_FALSE(is_ready());
  cluster.place(0, 32, constant(1, 32));
  EXPECT_FALSE(is_ready()) << "after a damaged run it begins again";
  std::vector<float> infinite = constant(4);
  infinite[63] = INFINITY;
  cluster.place(0, 0, infinite);
  EXPECT_EQ(cluster.said("NaN or infinity among first weights"), 1u);
  EXPECT_FALSE(is_ready());
  cluster.place(0, 0, constant(4));
  EXPECT_TRUE(is_ready());
  EXPECT_EQ(cluster.weights(0), constant(4));
}

TEST(Store, ADroppedRunOfWeightsIsReportedOnceToItsSender) {
  constexpr uint32_t kHalf = 1U << 19;
  Placed cluster(1, 2 * kHalf);
  ASSERT_EQ(cluster.layout().parts.size(), 1u);
  const auto notices = [&cluster] {
    size_t count = 0;
    for (const PulledAnswer& answer : cluster.answers(0)) {
      EXPECT_EQ(answer.body.id, 0u);
      EXPECT_EQ(answer.body.part, 0u);
      EXPECT_EQ(answer.body.code, ErrorCode::kUnavailable);
      ++count;
    }
    return count;
  };
  cluster.place(0, 0, constant(1, 32));
  EXPECT_EQ(notices(), 0u);
  cluster.place(0, 48, constant(1, 16));
  EXPECT_EQ(notices(), 1u) << "out of order";
  cluster.place(0, 48, constant(1, 16));
  EXPECT_EQ(notices(), 0u);
  cluster.place(0, 0, constant(2, kHalf), 1);
  EXPECT_EQ(notices(), 1u) << "its hash does not fit";
  cluster.hold_tasks = true;
  const std::vector<float> run = constant(3, kHalf);
  cluster.place(0, 0, run);
  const size_t copies = JobStore::kQueuedBytesMax / (run.size() * sizeof(float));
  for (size_t at = 0; at < copies; ++at) cluster.place(0, 0, run);
  EXPECT_EQ(notices(), 1u) << "no room";
  cluster.place(0, kHalf, run);
  EXPECT_EQ(notices(), 0u);
  cluster.hold_tasks = false;
  cluster.run_held_tasks();
  cluster.place(0, 0, constant(4, 2 * kHalf));
  EXPECT_EQ(notices(), 0u);
  EXPECT_EQ(cluster.weights(0), constant(4, 2 * kHalf));
}

TEST(Store, AnUnfinishedRunOfWeightsDoesNotMixWithALaterOne) {
  Placed cluster(1);
  cluster.hold_tasks = true;
  cluster.place(0, 0, constant(1, 32));
  cluster.place(0, 32, constant(1, 32));
  cluster.place(0, 0, constant(2, 32));
  cluster.run_held_tasks();
  EXPECT_FALSE(cluster.core().status(cluster.now).jobs[0].store->ready);
  cluster.place(0, 32, constant(2, 32));
  cluster.run_held_tasks();
  cluster.hold_tasks = false;
  EXPECT_EQ(cluster.weights(0), constant(2));
}

TEST(Store, WhenTheLowestLeavesHalfwayTheNextOneCounts) {
  Placed cluster(2);
  cluster.place(0, 0, constant(1, 32));
  cluster.send(ScriptedCluster::peer(0), 0,
               {cluster.header(0), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  cluster.place(1, 32, constant(2, 32));
  EXPECT_FALSE(cluster.core().status(cluster.now).jobs[0].store->ready) << "not half of each";
  cluster.place(1, 0, constant(2));
  EXPECT_TRUE(cluster.core().status(cluster.now).jobs[0].store->ready);
}

TEST(Store, DecisionsWaitForAStoreThatIsFarBehind) {
  protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores cluster(spec);
  cluster.join_all();
  cluster.hold_tasks = true;
  uint64_t step = 0;
  for (; step < 20; ++step) {
    cluster.push(0, step, constant(1));
    // All but the store's come to an end.
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t at = 0; at < cluster.held_tasks().size() && !moved; ++at) {
        if (cluster.held_tasks()[at].second->kind() == Task::Kind::kStore) continue;
        cluster.run_held_task(at);
        moved = true;
      }
    }
    if (cluster.take_of<Update>(0).empty()) break;
    cluster.ack(0, step + 1);
  }
  EXPECT_EQ(step, JobStore::kStepsBehindMax);
  cluster.run_held_tasks();
  EXPECT_EQ(cluster.take_of<Update>(0).size(), 1u) << "it continues once the store has caught up";
  cluster.hold_tasks = false;
  EXPECT_EQ(cluster.weights(5), constant(-5));
}

TEST(Store, WeightsThatOverflowEndTheJob) {
  Stores cluster(store_job(1, "sgd:1e30"));
  cluster.join_all();
  cluster.push(0, 0, constant(1e30F));
  const std::vector<Abort> aborts = cluster.take_of<Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kNonFinite);
  EXPECT_THAT(aborts[0].sentence, HasSubstr("the rate is too high"));
}

TEST(Store, ItsMemoryIsTheJobsAndRefusedWithTheFlagsName) {
  Stores cluster(store_job(1, "adam:0.1", 1'000));
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 0u);
  cluster.join_all();
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 12'000u) << "weights and two moments";
  cluster.finish_all();
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 0u);
  Limits limits;
  limits.job_memory_bytes_max = 23'999;
  Stores small(store_job(1, "adam:0.1", 1'000), 1, limits);
  const auto refusal = expect_body<Refuse>(small.join(0));
  EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refusal.sentence, HasSubstr("--job-memory-bytes-max"));
  Stores of_poor_key(store_job(1, "adam:0.1", 1'000));
  of_poor_key.job_quota = 23'999;
  EXPECT_THAT(expect_body<Refuse>(of_poor_key.join(0)).sentence, HasSubstr("quota of the key"));
  EXPECT_FALSE(of_poor_key.table().read_job(of_poor_key.spec().name).value()) << "a row would stay";
  of_poor_key.job_quota = 24'000;
  expect_body<protocol::Welcome>(of_poor_key.join(0));
  limits.job_memory_bytes_max = 24'000;
  limits.shard_memory_bytes_max = 11'999;
  Stores shard(store_job(1, "adam:0.1", 1'000), 1, limits);
  EXPECT_THAT(expect_body<Refuse>(shard.join(0)).sentence, HasSubstr("--shard-memory-bytes-max"));
}

TEST(Store, ARestoredPartAppliesTheUpdatesAfterIt) {
  const protocol::JobSpec spec = store_job(1, "momentum:1:0.5");
  const protocol::JobLayout layout = protocol::plan_layout(spec, 1);
  MemoryAccount account;
  JobStore store({spec, layout, 0, 1, account});
  Actions actions;
  store.open(1, kSaves, JobStore::StartKind::kFresh, 0, actions);
  const auto run = [&] {
    while (!actions.tasks.empty()) {
      const std::shared_ptr<Task> task = actions.tasks.front();
      actions.tasks.erase(actions.tasks.begin());
      task->run();
      store.on_task_done(static_cast<const StoreTask&>(*task), nullptr, actions);
    }
  };
  const Stores codec(spec);
  const auto update = [](uint64_t step) {
    Update body;
    body.step = step;
    body.decided_in = 3;
    body.contributors = {{0, 1}};
    body.weight_sum = 1;
    body.summary.log_digest = 100 + step;
    return body;
  };
  store.decided(update(0), codec.payload(constant(1)), actions);
  // Tasks under way belong to the log before.
  const std::vector<std::shared_ptr<Task>> before = std::exchange(actions.tasks, {});
  StoreArrays arrays;
  arrays.weights = constant(8);
  arrays.states[0] = constant(2);
  arrays.steps = 11;
  protocol::Summary summary;
  summary.log_digest = 77;
  store.restore(0, {7, summary}, arrays, actions);
  for (const std::shared_ptr<Task>& task : before) {
    task->run();
    store.on_task_done(static_cast<const StoreTask&>(*task), nullptr, actions);
  }
  EXPECT_EQ(store.arrays(0), arrays);
  EXPECT_EQ(store.position(0).n, 7u);
  EXPECT_TRUE(store.takes(0, 7));
  EXPECT_FALSE(store.takes(0, 7 + JobStore::kStepsBehindMax));
  store.decided(update(7), codec.payload(constant(1)), actions);
  store.decided(update(8), codec.payload(constant(1)), actions);
  run();
  EXPECT_EQ(store.position(0), (StorePosition{9, update(8).summary}));
  EXPECT_EQ(store.arrays(0).weights, constant(8 - 2 - 2)) << "v = 2 * 0.5 + 1, twice";
  EXPECT_EQ(store.arrays(0).steps, 13u);
  EXPECT_FALSE(store.failure().has_value());
}

}  // namespace
}  // namespace millrace::server
