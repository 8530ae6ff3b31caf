#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/messages/log_digest.h"
#include "server/store/job_store.h"
#include "tests/server/store/store_cluster.h"

namespace millrace::server {
namespace {

using protocol::StoreBegin;
using protocol::Update;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kJob = 7;

/// A store of one part, sgd with rate 1, and the log that it finds. The log has steps of epoch 2, each of which adds -1
/// to every weight.
struct StoreRecovering : ::testing::Test {
  explicit StoreRecovering(protocol::JobSpec spec = store_job(1, "sgd:1"))
      : spec_(std::move(spec)), layout_(protocol::plan_layout(spec_, 1)), codec_(spec_) {}

  static Update body(uint64_t step) {
    Update update;
    update.step = step;
    update.contributors = {{0, 1}};
    update.weight_sum = 1;
    return update;
  }
  /// Returns the digest of the log after `steps` steps.
  uint64_t digest(uint64_t steps) const {
    uint64_t digest = protocol::kLogDigestStart;
    const SharedBytes payload = codec_.payload(constant(1));
    for (uint64_t step = 0; step < steps; ++step) digest = extend_log_digest(digest, body(step), payload.bytes);
    return digest;
  }
  StorePosition position(uint64_t steps) const {
    StorePosition position{steps, {}};
    position.summary.log_digest = digest(steps);
    return position;
  }
  /// Sets a log of `decided` steps of which the last `kept` are kept.
  void log(uint64_t decided, uint64_t kept) {
    PartRound::Restored restored;
    restored.decided = decided;
    restored.summary.log_digest = digest(decided);
    for (uint64_t step = decided - kept; step < decided; ++step) {
      PartRound::RetainedUpdate& update = restored.retained.emplace_back();
      update.body = body(step);
      update.body.summary.log_digest = digest(step + 1);
      update.payload = codec_.payload(constant(1));
    }
    rounds_ = std::make_unique<PartRound>(layout_.parts[0], spec_);
    rounds_->restore(std::move(restored), 0);
  }
  void open(JobStore::StartKind begin, JobStore::Saves saves = kSaves) {
    store_ = std::make_unique<JobStore>(JobStore::Setup{spec_, layout_, 0, 1, account_});
    store_->open(kJob, saves, begin, 0, actions_);
  }
  void recover() {
    store_->recover([this](uint32_t) -> const PartRound& { return *rounds_; }, actions_);
    run();
  }
  void run() {
    while (!actions_.tasks.empty()) {
      const std::shared_ptr<Task> task = actions_.tasks.front();
      actions_.tasks.erase(actions_.tasks.begin());
      task->run();
      store_->on_task_done(static_cast<const StoreTask&>(*task), nullptr, actions_);
    }
  }
  StoreFile save_of(uint64_t n, float value, uint64_t job = kJob) const {
    StoreFile file;
    file.header = {.job = job,
                   .name = "job",
                   .shard = 0,
                   .shard_count = 1,
                   .layout_hash = protocol::layout_hash(layout_),
                   .parts = 1,
                   .spec = spec_};
    StorePart& part = file.parts.emplace_back();
    part.position = position(n);
    part.arrays.weights = constant(value);
    part.arrays.steps = n;
    return file;
  }
  /// A successor finds that save, or none, and the log.
  void come_back(Result<StoreFile> save) {
    open(JobStore::StartKind::kSuccessor);
    store_->drop();
    recover();
    ASSERT_EQ(actions_.store_requests.size(), 1u);
    EXPECT_EQ(actions_.store_requests[0].what, StoreRequest::What::kLoad);
    store_->on_loaded(std::move(save), actions_);
    recover();
  }
  void expect_at(uint64_t n, float value) {
    ASSERT_FALSE(store_->failure().has_value()) << store_->failure()->message;
    EXPECT_FALSE(store_->is_dropped());
    EXPECT_EQ(store_->position(0).n, n);
    EXPECT_EQ(store_->arrays(0).weights, constant(value));
    EXPECT_TRUE(store_->takes(0, n));
  }

  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  Stores codec_;
  MemoryAccount account_;
  Actions actions_;
  std::unique_ptr<PartRound> rounds_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(StoreRecovering, TheSaveAndTheUpdatesAfterItAreTheWeights) {
  log(9, 4);
  come_back(save_of(6, 100));
  expect_at(9, 97);
  EXPECT_EQ(store_->position(0), position(9));
  EXPECT_EQ(store_->arrays(0).steps, 9u);
  store_->decided(body(9), codec_.payload(constant(1)), actions_);
  run();
  expect_at(10, 96);
}

TEST_F(StoreRecovering, UpdatesAfterTheSaveAreNeededUntilTheNextOne) {
  open(JobStore::StartKind::kFresh);
  run();
  EXPECT_EQ(store_->needs_from(0), 0u) << "from the zeros on";
  store_->restore(0, position(6), save_of(6, 100).parts[0].arrays, actions_);
  log(9, 4);
  come_back(save_of(6, 100));
  EXPECT_EQ(store_->needs_from(0), 6u);
  EXPECT_EQ(store_->status().saved_steps, 6u) << "of the process before";
  EXPECT_TRUE(store_->status().survives_restart);
  store_->drop();
  EXPECT_EQ(store_->needs_from(0), 0u) << "all that is kept, until it knows";
  open(JobStore::StartKind::kFresh, {});
  EXPECT_EQ(store_->needs_from(0), UINT64_MAX) << "without saves nothing helps";
  EXPECT_FALSE(store_->status().survives_restart);
}

TEST_F(StoreRecovering, ManyUpdatesThatAreKeptAreReasonToSaveAndTooManyAreForgotten) {
  constexpr uint64_t kMost = JobStore::kRetainedBytesMin;
  open(JobStore::StartKind::kFresh);
  store_->decided(body(0), codec_.payload(constant(1)), actions_);
  run();
  store_->acknowledged(0, 1, 0);
  store_->on_retained(kMost / 2, kMost, actions_);
  EXPECT_TRUE(actions_.store_requests.empty());
  store_->on_retained(kMost / 2 + 1, kMost, actions_);
  EXPECT_EQ(actions_.store_requests.size(), 1u);
  store_->on_retained(kMost, kMost, actions_);
  EXPECT_EQ(store_->needs_from(0), 0u);
  store_->on_retained(kMost + 1, kMost, actions_);
  EXPECT_EQ(store_->needs_from(0), UINT64_MAX);
  EXPECT_FALSE(store_->status().survives_restart);
  store_->on_written(fail(ErrorCode::kIo, "no space"), actions_);
  store_->on_retained(kMost + 1, kMost, actions_);
  EXPECT_EQ(actions_.store_requests.size(), 1u) << "a disk that fails is not asked at every step";
  store_->on_tick(0, actions_);
  ASSERT_EQ(store_->deadline(), JobStore::kRetryAfter);
  store_->on_tick(JobStore::kRetryAfter - 1, actions_);
  EXPECT_EQ(actions_.store_requests.size(), 1u);
  store_->on_tick(JobStore::kRetryAfter, actions_);
  EXPECT_EQ(actions_.store_requests.size(), 2u);
  while (store_->is_saving()) {
    store_->on_written({}, actions_);
    run();
  }
  EXPECT_EQ(store_->needs_from(0), 1u);
  EXPECT_TRUE(store_->status().survives_restart);
  EXPECT_EQ(store_->deadline(), std::nullopt);
  // What others let it keep may be less.
  store_->on_retained(101, 100, actions_);
  EXPECT_EQ(store_->needs_from(0), UINT64_MAX);
  EXPECT_EQ(store_->status().saved_steps, 1u);
  store_->drop();
  EXPECT_EQ(store_->status().saved_steps, 0u) << "the save may be off the log that follows";
}

TEST_F(StoreRecovering, ASaveAtTheEndOfTheLogNeedsNoUpdates) {
  log(9, 0);
  come_back(save_of(9, 100));
  expect_at(9, 100);
}

TEST_F(StoreRecovering, ASaveNeverMakesTheLogLonger) {
  log(9, 9);
  come_back(save_of(10, 100));
  expect_at(9, -9);
}

TEST_F(StoreRecovering, ASaveThatIsNotOnTheLogGivesNoWeights) {
  log(9, 9);
  StoreFile other = save_of(6, 100);
  ++other.parts[0].position.summary.log_digest;
  come_back(other);
  expect_at(9, -9);
  log(9, 3);
  actions_.clear();
  come_back(other);
  EXPECT_TRUE(store_->failure().has_value());
  log(9, 9);
  actions_.clear();
  come_back(save_of(6, 100, kJob - 1));
  expect_at(9, -9);
}

TEST_F(StoreRecovering, WhereNothingReachesTheJobEndsAndSaysWhatWouldHaveHelped) {
  log(9, 2);
  come_back(save_of(6, 100));
  ASSERT_TRUE(store_->failure().has_value());
  EXPECT_EQ(store_->failure()->code, ErrorCode::kIo);
  EXPECT_THAT(store_->failure()->message, HasSubstr("--store-save-every"));
}

TEST_F(StoreRecovering, WithoutSavesTheBeginningIsReplayedWhereItIsKept) {
  log(3, 3);
  open(JobStore::StartKind::kSuccessor, {});
  store_->drop();
  recover();
  EXPECT_TRUE(actions_.store_requests.empty());
  expect_at(3, -3);
  log(3, 2);
  open(JobStore::StartKind::kSuccessor, {});
  store_->drop();
  recover();
  EXPECT_THAT(store_->failure()->message, HasSubstr("--store-dir"));
}

TEST_F(StoreRecovering, ASaveThatCannotBeReadIsAsNone) {
  log(3, 3);
  come_back(fail(ErrorCode::kIo, "gone"));
  expect_at(3, -3);
}

TEST_F(StoreRecovering, ASaveThatCannotBeUsedIsNamedWhereTheWeightsAreLost) {
  StoreFile of_another_shard = save_of(6, 100);
  of_another_shard.header.shard_count = 2;
  const std::pair<Result<StoreFile>, std::string> unusable[] = {
      {fail(ErrorCode::kMalformed, "the save is damaged: a checksum does not fit"), "a checksum does not fit"},
      {of_another_shard, "it is of shard 0 of 2"}};
  for (const auto& [save, why] : unusable) {
    log(9, 9);
    actions_.clear();
    come_back(save);
    expect_at(9, -9);
    ASSERT_FALSE(actions_.log.empty());
    EXPECT_THAT(actions_.log[0].text, AllOf(HasSubstr("its save is not used"), HasSubstr(why)));
    log(9, 3);
    actions_.clear();
    come_back(save);
    ASSERT_TRUE(store_->failure().has_value());
    EXPECT_EQ(store_->failure()->code, ErrorCode::kIo);
    EXPECT_THAT(store_->failure()->message, AllOf(HasSubstr("part 0 are lost"), HasSubstr(why)));
  }
}

TEST_F(StoreRecovering, AShardThatLivesThroughACutKeepsItsWeightsIfTheyAreOnTheLog) {
  open(JobStore::StartKind::kFresh);
  run();
  store_->restore(0, position(6), save_of(6, 100).parts[0].arrays, actions_);
  run();
  log(8, 2);
  store_->drop();
  EXPECT_FALSE(store_->takes(0, 6));
  recover();
  expect_at(8, 98);
  ASSERT_EQ(actions_.store_requests.size(), 1u);
  EXPECT_EQ(actions_.store_requests[0].what, StoreRequest::What::kBegin) << "the save on the disk may be off the log";
  log(7, 7);  // and one that goes back behind them does not
  store_->drop();
  recover();
  EXPECT_TRUE(store_->is_dropped()) << "it reads its save first";
  store_->on_loaded(save_of(6, 50), actions_);
  recover();
  expect_at(7, 49);
}

TEST_F(StoreRecovering, TasksOfAnEarlierLogDoNotChangeTheWeights) {
  open(JobStore::StartKind::kFresh, {});
  run();
  store_->decided(body(0), codec_.payload(constant(50)), actions_);
  const std::vector<std::shared_ptr<Task>> running = std::exchange(actions_.tasks, {});
  store_->drop();
  log(1, 1);
  recover();
  for (const std::shared_ptr<Task>& task : running) {
    task->run();
    store_->on_task_done(static_cast<const StoreTask&>(*task), nullptr, actions_);
  }
  expect_at(1, -1);
}

TEST_F(StoreRecovering, AnswersForASaveThatWasGivenUpAreNotThoseOfTheNext) {
  open(JobStore::StartKind::kFresh);
  Update first = body(0);
  first.summary.log_digest = digest(1);
  store_->decided(first, codec_.payload(constant(1)), actions_);
  run();
  log(1, 1);
  store_->save(actions_);
  ASSERT_EQ(actions_.store_requests.size(), 1u);
  store_->drop();
  recover();  // saves: the save on the disk may be off the log
  ASSERT_EQ(actions_.store_requests.size(), 2u);
  store_->on_written({}, actions_);
  run();
  EXPECT_EQ(actions_.store_requests.size(), 2u) << "of the first one's beginning";
  store_->on_written({}, actions_);
  run();
  EXPECT_EQ(actions_.store_requests.size(), 3u);
}

struct RecoveringPlaced : StoreRecovering {
  RecoveringPlaced() : StoreRecovering(job()) {
    protocol::Membership one;
    one.members.emplace_back();
    members_.adopt(one, 0);
  }
  static protocol::JobSpec job() {
    protocol::JobSpec spec = store_job(1, "sgd:1");
    spec.store.begin = StoreBegin::kWorker;
    return spec;
  }
  void place(float value) {
    const SharedBytes bytes = bytes_of(constant(value));
    store_->on_place(members_.all().front(), {0, 0, hash64(bytes.bytes)}, bytes, members_, actions_);
  }
  Members members_{0, 1, Members::Nonces::kHidden};
};

TEST_F(RecoveringPlaced, APlaceDuringRecoveryDoesNotTakeThePlaceOfTheFill) {
  open(JobStore::StartKind::kSuccessor, {});
  log(0, 0);
  store_->drop();
  place(5);
  recover();
  EXPECT_FALSE(store_->takes(0, 0));
  place(6);
  run();
  expect_at(0, 6);
}

TEST_F(RecoveringPlaced, APlaceDuringRecoveryDoesNotHideTheSave) {
  open(JobStore::StartKind::kSuccessor);
  log(0, 0);
  store_->drop();
  recover();
  place(5);
  store_->on_loaded(save_of(0, 100), actions_);
  recover();
  expect_at(0, 100);
}

TEST_F(RecoveringPlaced, APlaceAfterACutDoesNotChangeTheWeights) {
  open(JobStore::StartKind::kFresh, {});
  place(5);
  run();
  expect_at(0, 5);
  log(0, 0);
  store_->drop();
  place(9);
  recover();
  expect_at(0, 5);
}

TEST_F(RecoveringPlaced, FirstWeightsThatWereNeverThereAreStillWaitedFor) {
  open(JobStore::StartKind::kFresh, {});
  run();
  log(0, 0);
  store_->drop();
  recover();
  EXPECT_FALSE(store_->failure().has_value());
  EXPECT_FALSE(store_->takes(0, 0));
}

TEST_F(RecoveringPlaced, FirstWeightsComeFromTheSaveThatWasMadeOfThem) {
  log(2, 2);
  come_back(save_of(0, 100));
  expect_at(2, 98);
}

struct RecoveringSaved : StoreRecovering {
  RecoveringSaved() : StoreRecovering(job()) {}
  static protocol::JobSpec job() {
    protocol::JobSpec spec = store_job(1, "sgd:1");
    spec.store.begin = StoreBegin::kSaved;
    return spec;
  }
};

TEST_F(RecoveringSaved, TheSaveThatAJobBeganFromGivesItsFirstWeights) {
  log(2, 2);
  come_back(save_of(500, 100, kJob - 1));
  expect_at(2, 98);
}

}  // namespace
}  // namespace millrace::server
