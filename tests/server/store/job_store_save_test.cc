#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/store/store_cluster.h"
#include "tests/support/oracles/optimizer_oracle.h"

namespace millrace::server {
namespace {

using millrace::testing::OptimizerOracle;
using protocol::Abort;
using protocol::Refuse;
using protocol::StoreBegin;
using protocol::Update;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns the saved file of the job of a cluster with one shard.
StoreFile saved(const Stores& cluster, const std::string& name = "job") {
  const Result<StoreFile> file = cluster.disk.load(0, name);
  EXPECT_TRUE(file.has_value());
  return file.value_or(StoreFile{});
}

bool is_saved(const Stores& cluster) { return cluster.disk.saves.contains({0, "job"}); }

void save_now(Stores& cluster) {
  Actions actions;
  cluster.core().save_stores(cluster.now, actions);
  cluster.carry_out(0, actions);
}

/// The job of that specification, and the disk of another cluster.
struct Reopened : Stores {
  Reopened(protocol::JobSpec spec, const Stores& before, uint32_t shards = 1)
      : Stores(std::move(spec), shards, {}, kSaves) {
    disk.saves = before.disk.saves;
  }
};

protocol::JobSpec that_begins(protocol::JobSpec spec, StoreBegin begin) {
  spec.store.begin = begin;
  return spec;
}

TEST(StoreSave, AFinishedJobIsSavedAndTheNextOfItsNameContinues) {
  for (const char* optimizer : {"sgd:0.1", "momentum:0.1:0.9", "adagrad:0.5", "adam:0.01"}) {
    protocol::JobSpec spec = store_job(2, optimizer, 100);
    spec.parts_per_shard = 2;
    RandomSequence random(random_key(3, 0, 0));
    OptimizerOracle oracle(spec.store.optimizer, constant(0, 100));
    const auto steps = [&](Stores& cluster, uint64_t count) {
      cluster.join_all();
      for (uint64_t step = 0; step < count; ++step) {
        cluster.step_all(step, drawn(100, random));
        oracle.step(entries_of(cluster.gather(0, step).dense), 1);
      }
    };
    Stores first(spec, 1, {}, kSaves);
    steps(first, 5);
    EXPECT_FALSE(is_saved(first));
    first.finish_all();
    ASSERT_TRUE(is_saved(first));
    EXPECT_EQ(first.counted(Metric::kStoreSaves, "written"), 1);
    Reopened second(that_begins(spec, StoreBegin::kSaved), first);
    steps(second, 3);
    EXPECT_TRUE(same_bits(second.weights(3), oracle.weights())) << optimizer << ": state and all";
  }
}

TEST(StoreSave, TheFileSaysWhereEachPartIsOnTheLog) {
  protocol::JobSpec spec = store_job(1, "adam:0.5", 100);
  spec.parts_per_shard = 2;
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1, 100));
  cluster.step_all(1, constant(1, 100));
  const std::vector<Update> updates = cluster.take_of<Update>(0);
  cluster.finish_all();
  const StoreFile file = saved(cluster);
  EXPECT_EQ(file.header.name, "job");
  EXPECT_EQ(file.header.spec, spec);
  EXPECT_EQ(file.header.layout_hash, protocol::layout_hash(cluster.layout()));
  ASSERT_EQ(file.parts.size(), 2u);
  for (const StorePart& part : file.parts) {
    EXPECT_EQ(part.position.n, 2u);
    EXPECT_EQ(part.arrays.steps, 2u);
    const auto last =
        std::ranges::find_if(updates, [&](const Update& one) { return one.part == part.part && one.step == 1; });
    ASSERT_NE(last, updates.end());
    EXPECT_EQ(part.position.summary, last->summary);
  }
}

TEST(StoreSave, AJobDoesNotBeginWithTheSaveOfAnotherOne) {
  const protocol::JobSpec spec = store_job(1, "sgd:0.5");
  Stores first(spec, 1, {}, kSaves);
  first.join_all();
  first.step_all(0, constant(1));
  first.finish_all();
  const auto reason = [&first](protocol::JobSpec other) {
    Reopened second(that_begins(std::move(other), StoreBegin::kSaved), first);
    second.take(0);
    protocol::Header header;
    second.send(ScriptedCluster::peer(0), 0, {header, second.hello(0), {}});
    const std::vector<Abort> aborts = second.take_of<Abort>(0);
    EXPECT_EQ(aborts.size(), 1u);
    return aborts.empty() ? std::string() : aborts[0].sentence;
  };
  EXPECT_THAT(reason(store_job(1, "sgd:0.25")), HasSubstr("store: rate 0.5 here, 0.25 there"));
  EXPECT_THAT(reason(store_job(1, "adam:0.5")), HasSubstr("store: sgd here, adam there"));
  EXPECT_THAT(reason(store_job(1, "sgd:0.5", 65)), HasSubstr("dimension 64 here, 65 there"));
  protocol::JobSpec parts = spec;
  parts.parts_per_shard = 2;
  EXPECT_THAT(reason(parts), HasSubstr("cut into other parts"));
  protocol::JobSpec named = spec;
  named.name = "other";
  EXPECT_THAT(reason(named), HasSubstr("job 'other' is to begin with saved weights: no such save"));
}

TEST(StoreSave, ADamagedSaveIsADamagedFileOfTheShardToTheMembers) {
  const protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores first(spec, 1, {}, kSaves);
  first.join_all();
  first.step_all(0, constant(1));
  first.finish_all();
  Reopened second(that_begins(spec, StoreBegin::kSaved), first);
  second.disk.saves.at({0, "job"}).back() ^= 1;
  second.send(ScriptedCluster::peer(0), 0, {protocol::Header{}, second.hello(0), {}});
  const std::vector<Abort> aborts = second.take_of<Abort>(0);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, ErrorCode::kIo) << "not a malformed message";
  EXPECT_THAT(aborts[0].sentence, HasSubstr("a checksum does not fit"));
}

TEST(StoreSave, AShardWithoutPartsSavesNothingAndNeedsNoSave) {
  const protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores first(spec, 2, {}, kSaves);
  ASSERT_EQ(first.layout().parts.size(), 1u);
  first.join_all();
  first.step_all(0, constant(1));
  for (const uint32_t shard : {0u, 1u}) {
    first.send(ScriptedCluster::peer(0), shard,
               {first.header(0, shard), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  }
  EXPECT_EQ(first.disk.saves.size(), 1u);
  Reopened second(that_begins(spec, StoreBegin::kSaved), first, 2);
  second.join_all();
  EXPECT_EQ(second.weights(0), constant(-1));
}

TEST(StoreSave, WithoutAFolderAJobThatBeginsWithASaveIsRefused) {
  Stores cluster(that_begins(store_job(1, "sgd:1"), StoreBegin::kSaved));
  const auto refusal = expect_body<Refuse>(cluster.join(0));
  EXPECT_EQ(refusal.code, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal.sentence, HasSubstr("--store-dir"));
  EXPECT_FALSE(refusal.retry);
}

TEST(StoreSave, NothingIsDecidedBeforeTheSaveIsRead) {
  const protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores first(spec, 1, {}, kSaves);
  first.join_all();
  first.step_all(0, constant(3));
  first.finish_all();
  Reopened second(that_begins(spec, StoreBegin::kSaved), first);
  second.disk.holds = true;
  second.join_all();
  second.push(0, 0, constant(1));
  EXPECT_TRUE(second.take_of<Update>(0).empty());
  EXPECT_THAT(second.core().status(second.now).jobs[0].waiting_because, HasSubstr("it reads its save"));
  second.disk.holds = false;
  second.serve_disk();
  EXPECT_EQ(second.take_of<Update>(0).size(), 1u);
  EXPECT_EQ(second.weights(1), constant(-4));
}

TEST(StoreSave, ASaveOnDemandDoesNotStopTheJob) {
  protocol::JobSpec spec = store_job(1, "sgd:1", 100);
  spec.parts_per_shard = 2;
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1, 100));
  cluster.disk.holds = true;
  save_now(cluster);
  ASSERT_EQ(cluster.disk.asked.size(), 1u) << "one piece after the other";
  cluster.step_all(1, constant(1, 100));
  cluster.disk.holds = false;
  cluster.serve_disk();
  const StoreFile file = saved(cluster);
  for (const StorePart& part : file.parts) {
    EXPECT_EQ(part.arrays.weights, constant(-static_cast<float>(part.position.n), 50)) << "each part at its own n";
  }
  EXPECT_EQ(cluster.weights(2), constant(-2, 100));
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->saves_written, 1u);
  EXPECT_EQ(cluster.said("its store is saved"), 1u);
}

TEST(StoreSave, OneThatIsAskedForDuringAnotherComesAfterIt) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.holds = true;
  save_now(cluster);
  cluster.step_all(1, constant(1));
  save_now(cluster);
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_EQ(saved(cluster).parts[0].position.n, 2u);
  const uint64_t written = cluster.core().status(cluster.now).jobs[0].store->saves_written;
  save_now(cluster);
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->saves_written, written) << "nothing has changed";
}

TEST(StoreSave, AFailingDiskKeepsTheEarlierSaveAndTheJobContinues) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  save_now(cluster);
  cluster.step_all(1, constant(1));
  cluster.disk.fails = true;
  save_now(cluster);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u);
  EXPECT_EQ(cluster.said("its store could not be saved: no space left on this disk"), 1u);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "failed"), 1);
  const StoreStatus status = *cluster.core().status(cluster.now).jobs[0].store;
  EXPECT_EQ(status.last_failure, "no space left on this disk");
  EXPECT_EQ(status.saved_steps, 1u);
  cluster.step_all(2, constant(1));
  cluster.disk.fails = false;
  save_now(cluster);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 3u);
  EXPECT_EQ(cluster.core().status(cluster.now).jobs[0].store->last_failure, "");
}

TEST(StoreSave, EverySoOftenWhereSomethingHasChanged) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, {true, 300 * kNsPerMs});
  cluster.join_all();
  const auto heard = [&](int64_t milliseconds) {
    for (; milliseconds > 0; milliseconds -= 100) {
      cluster.pass(100);
      cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
    }
  };
  cluster.step_all(0, constant(1));
  heard(200);
  EXPECT_FALSE(is_saved(cluster));
  heard(200);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u);
  heard(1'000);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "written"), 1) << "nothing has changed";
  cluster.step_all(1, constant(1));
  heard(400);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 2u);
}

TEST(StoreSave, TheLastSaveIncludesDecidedUpdatesNotYetApplied) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.hold_tasks = true;
  cluster.push(0, 0, constant(1));
  cluster.run_held_tasks_until(Task::Kind::kStore);
  ASSERT_EQ(cluster.take_of<Update>(0).size(), 1u);
  cluster.finish_all();
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 0u);
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 256u) << "its weights are still there";
  EXPECT_FALSE(is_saved(cluster));
  cluster.run_held_tasks();
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 0u);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u);
  EXPECT_EQ(saved(cluster).parts[0].arrays.weights, constant(-1));
}

TEST(StoreSave, AJobDoesNotBeginWhileTheOneBeforeOfItsNameIsBeingSaved) {
  const protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.holds = true;
  cluster.finish_all();
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, cluster.hello(0)));
  EXPECT_TRUE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("is being saved"));
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.join(0)));
}

TEST(StoreSave, AFailedLastSaveIsTriedAgain) {
  const protocol::JobSpec spec = store_job(1, "sgd:1");
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.fails = true;
  cluster.finish_all();
  cluster.pass(11'000);
  EXPECT_EQ(cluster.counted(Metric::kStoreSaves, "failed"), 2) << "every ten seconds";
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 256u);
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, cluster.hello(0)));
  EXPECT_TRUE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("a try has failed: no space left on this disk"));
  cluster.disk.fails = false;
  cluster.pass(11'000);
  ASSERT_TRUE(is_saved(cluster));
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u);
  EXPECT_EQ(cluster.core().status(cluster.now).memory_bytes, 0u);
  EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.join(0)));
}

TEST(StoreSave, TheLastSaveDoesNotWaitForTheRetryOfAnEarlierOne) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.fails = true;
  save_now(cluster);
  cluster.disk.fails = false;
  cluster.finish_all();
  EXPECT_TRUE(is_saved(cluster));
}

TEST(StoreSave, AShutdownGivesUpALastSaveThatFails) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.fails = true;
  cluster.shut_down();
  cluster.pass(5'000);
  EXPECT_FALSE(cluster.core().stopped()) << "the drain time is not over";
  cluster.pass(6'000);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_EQ(cluster.said("job 'job' (1) is over, and its last save has failed: no space left on this disk"), 1u);
}

TEST(StoreSave, AnEndedStoreTakesMemoryUntilItIsSaved) {
  Limits limits;
  limits.shard_memory_bytes_max = 384;  // one store and a half
  protocol::JobSpec spec = store_job(1, "sgd:1");
  spec.store.begin = StoreBegin::kWorker;
  Stores cluster(spec, 1, limits, kSaves);
  cluster.join_all();
  cluster.disk.holds = true;
  const SharedBytes weights = bytes_of(constant(1));
  cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Place{0, 0, hash64(weights.bytes)}, weights});
  cluster.finish_all();
  protocol::Hello other = cluster.hello(0);
  other.spec.name = "other";
  const auto refusal = expect_body<Refuse>(cluster.say_hello(0, other));
  EXPECT_EQ(refusal.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(refusal.retry);
  EXPECT_THAT(refusal.sentence, HasSubstr("the last saves of ended jobs will free 256"));
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.say_hello(0, other)));
}

TEST(StoreSave, AShardThatShutsDownSavesFirst) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.holds = true;
  cluster.shut_down();
  cluster.pass(20'000);
  EXPECT_FALSE(cluster.core().stopped());
  cluster.disk.holds = false;
  cluster.serve_disk();
  cluster.pass(100);
  EXPECT_TRUE(cluster.core().stopped());
  EXPECT_EQ(saved(cluster).parts[0].arrays.weights, constant(-1));
}

TEST(StoreSave, AShardWhoseNumberASpareHasTakenFinishesNoSave) {
  protocol::JobSpec spec = store_job(2, "sgd:1");
  Stores cluster(spec, 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  save_now(cluster);
  ASSERT_EQ(saved(cluster).parts[0].position.n, 1u);
  cluster.push(0, 1, constant(1));
  cluster.push(1, 1, constant(1));  // decided, and acknowledged by no worker
  save_now(cluster);
  ASSERT_EQ(cluster.table().take_over_shard(0, 1, "tcp://spare:9", ""), 2u);
  cluster.pass(1'000);
  ASSERT_TRUE(cluster.core().stopped());
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u) << "the save of the spare's place stays";
}

TEST(StoreSave, WeightsThatWereNeverThereAreNotSaved) {
  Stores cluster(that_begins(store_job(1, "sgd:1"), StoreBegin::kWorker), 1, {}, kSaves);
  cluster.join_all();
  save_now(cluster);
  cluster.finish_all();
  EXPECT_FALSE(is_saved(cluster));
  EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.join(0))) << "and no worker waits for it";
}

TEST(StoreSave, AJobThatDecidedNoStepLeavesTheSaveBefore) {
  const protocol::JobSpec spec = store_job(1, "adam:0.5");
  Stores first(spec, 1, {}, kSaves);
  first.join_all();
  first.step_all(0, constant(1));
  first.finish_all();
  const auto before = first.disk.saves;
  for (const StoreBegin begin : {StoreBegin::kZeros, StoreBegin::kSaved}) {
    Stores second(that_begins(spec, begin), 1, {}, {true, 300 * kNsPerMs});
    second.disk.saves = before;
    second.join_all();
    save_now(second);
    second.pass(400);
    EXPECT_TRUE(second.core().status(second.now).jobs[0].store->survives_restart);
    second.finish_all();
    EXPECT_EQ(second.core().status(second.now).memory_bytes, 0u) << "no save is awaited";
    EXPECT_EQ(second.disk.saves, before);
    EXPECT_EQ(second.counted(Metric::kStoreSaves, "written"), 0);
  }
}

TEST(StoreSave, AStoreThatHasDivergedIsNotSaved) {
  Stores cluster(store_job(1, "sgd:1e30"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  save_now(cluster);
  cluster.step_all(1, constant(1e30F));
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 0u);
  EXPECT_EQ(saved(cluster).parts[0].position.n, 1u);
}

TEST(StoreSave, AShardGivesUpTheSaveOfAStoreThatDiverges) {
  Stores cluster(store_job(1, "sgd:1e30"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.holds = true;
  save_now(cluster);
  serve_one_write(cluster);
  ASSERT_EQ(cluster.disk.asked.size(), 1u);
  ASSERT_EQ(cluster.disk.asked.front().second.what, StoreRequest::What::kAppend);
  cluster.step_all(1, constant(1e30F));
  EXPECT_EQ(cluster.core().status(cluster.now).jobs.size(), 0u);
  ASSERT_EQ(cluster.disk.asked.size(), 2u);
  EXPECT_EQ(cluster.disk.asked.back().second.what, StoreRequest::What::kGiveUp);
  cluster.disk.holds = false;
  cluster.serve_disk();
  EXPECT_TRUE(cluster.disk.unfinished.empty());
  EXPECT_FALSE(is_saved(cluster));
}

TEST(StoreSave, AShardGivesUpItsSaveWhereASpareHasItsNumber) {
  Stores cluster(store_job(1, "sgd:1"), 1, {}, kSaves);
  cluster.join_all();
  cluster.step_all(0, constant(1));
  cluster.disk.holds = true;
  save_now(cluster);
  ASSERT_EQ(cluster.table().take_over_shard(0, 1, "tcp://spare:9", ""), 2u);
  cluster.pass(1'000);
  ASSERT_TRUE(cluster.core().stopped());
  ASSERT_EQ(cluster.disk.asked.size(), 2u);
  EXPECT_EQ(cluster.disk.asked.back().second.what, StoreRequest::What::kGiveUp);
}

}  // namespace
}  // namespace millrace::server
