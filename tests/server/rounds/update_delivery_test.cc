#include "server/rounds/update_delivery.h"

#include "protocol/messages/log_digest.h"
#include "tests/server/returning_cluster.h"

/// Mode asynchronous: steps that were decided while a worker was busy reach it as one update.
namespace millrace::server {
namespace {

using protocol::Update;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Pace = Delivery::Pace;
using Steps = Delivery::Steps;

TEST(DeliveryTest, SendsAtOnceWhereEachStepGoesByItself) {
  Delivery delivery;
  delivery.restart(0, 3);
  EXPECT_EQ(delivery.next(0, 3, Pace::kEach), std::nullopt);
  EXPECT_EQ(delivery.next(0, 5, Pace::kEach), (Steps{3, 5}));
  delivery.sent(0, 5, Pace::kEach);
  EXPECT_EQ(delivery.next(0, 6, Pace::kEach), (Steps{5, 6})) << "the delivery blocks on nothing";
  EXPECT_EQ(delivery.sent_to(0), 5u);
}

TEST(DeliveryTest, TwoMessagesAreUnderWayAtMost) {
  Delivery delivery;
  delivery.restart(0, 0);
  delivery.sent(0, 1, Pace::kMerged);
  delivery.sent(0, 4, Pace::kMerged);
  EXPECT_EQ(delivery.next(0, 9, Pace::kMerged), std::nullopt);
  delivery.acknowledged(0, 0);
  EXPECT_EQ(delivery.next(0, 9, Pace::kMerged), std::nullopt);
  delivery.acknowledged(0, 1);
  EXPECT_EQ(delivery.next(0, 9, Pace::kMerged), (Steps{4, 9}));
  EXPECT_EQ(delivery.next(0, 9, Pace::kEach), (Steps{4, 9}));
}

TEST(DeliveryTest, WorkersThatLackTheSameStepsShareOneSum) {
  Delivery delivery;
  for (const uint32_t worker : {0u, 1u, 2u}) delivery.restart(worker, 4);
  EXPECT_TRUE(delivery.wait_for_sum(0, {4, 9}, 77, {}));
  EXPECT_FALSE(delivery.wait_for_sum(1, {4, 9}, 78, {}));
  EXPECT_TRUE(delivery.wait_for_sum(2, {4, 8}, 79, {}));
  EXPECT_EQ(delivery.next(0, 12, Pace::kMerged), std::nullopt) << "it waits";
  EXPECT_THAT(delivery.take_waiting({4, 9}, 1).workers, IsEmpty()) << "of another time";
  const Delivery::Waiting waiting = delivery.take_waiting({4, 9}, 77);
  EXPECT_THAT(waiting.workers, ElementsAre(0, 1));
  EXPECT_EQ(waiting.begun_by, 0u);
  EXPECT_THAT(delivery.take_waiting({4, 9}, 77).workers, IsEmpty());
}

TEST(DeliveryTest, PartOfASumReceivedMeanwhile_NotSentAgainAndNoOtherRequested) {
  Delivery delivery;
  delivery.restart(0, 4);
  EXPECT_TRUE(delivery.wait_for_sum(0, {4, 9}, 77, {}));
  delivery.acknowledged(0, 6);
  EXPECT_EQ(delivery.next(0, 12, Pace::kMerged), std::nullopt);
  delivery.restart(0, 5);
  EXPECT_EQ(delivery.next(0, 12, Pace::kMerged), std::nullopt) << "however often it asks";
  EXPECT_EQ(delivery.next(0, 12, Pace::kEach), (Steps{5, 12}));
  const Delivery::Waiting waiting = delivery.take_waiting({4, 9}, 77);
  EXPECT_THAT(waiting.workers, IsEmpty());
  EXPECT_EQ(waiting.begun_by, 0u);
  EXPECT_EQ(delivery.next(0, 12, Pace::kMerged), (Steps{5, 12}));
  EXPECT_TRUE(delivery.wait_for_sum(0, {5, 12}, 80, {}));
  delivery.clear();
  EXPECT_EQ(delivery.take_waiting({5, 12}, 80).begun_by, std::nullopt);
}

TEST(DeliveryTest, BytesBesideAPayloadCountAllListsOfItsUpdate) {
  PartRound::RetainedUpdate kept;
  const uint64_t fixed = kept.bytes_beside_payload();
  kept.payload = SharedBytes::from(ByteBuffer(1000));
  EXPECT_EQ(kept.bytes_beside_payload(), fixed);
  kept.body.contributors.resize(3);
  kept.body.summary.workers.resize(2);
  kept.body.summary.workers[1].earlier_incarnations.resize(5);
  kept.body.summary.epochs.resize(7);
  EXPECT_EQ(kept.bytes_beside_payload() - fixed,
            3 * sizeof(protocol::ContributorId) + 2 * sizeof(protocol::SummaryEntry) + (5 + 7) * 16);
}

/// All have weights. All take merged updates, except one worker where a test selects it.
struct Merging : ::testing::Test {
  static protocol::JobSpec job(uint32_t workers) {
    protocol::JobSpec spec = ReturningCluster::job(workers);
    spec.mode = protocol::Mode::kAsynchronous;
    spec.staleness = 8;
    return spec;
  }
  void start(const protocol::JobSpec& spec, uint32_t without = UINT32_MAX) {
    ASSERT_TRUE(protocol::validate(spec).has_value()) << protocol::validate(spec).error().message;
    jobs = std::make_unique<ReturningCluster>(spec);
    for (uint32_t worker = 0; worker < spec.workers; ++worker) {
      protocol::Hello hello = jobs->hello(worker);
      hello.has_weights = true;
      hello.capabilities = worker == without ? 0 : protocol::kTakesMerged;
      const protocol::Body answer = jobs->say_hello(worker, hello);
      ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(answer));
      EXPECT_EQ(std::get<protocol::Welcome>(answer).capabilities, hello.capabilities);
    }
    jobs->tick();
    for (uint32_t worker = 0; worker < spec.workers; ++worker) jobs->deliver_all(worker);
  }
  void push(uint32_t worker, std::vector<float> values = std::vector<float>(64, 1)) {
    jobs->push(worker, pushed_[worker]++, values);
  }
  /// "first-last" of the updates that have come since the last call, in their order.
  std::vector<std::string> came(uint32_t worker) {
    std::vector<std::string> spans;
    last_.clear();
    for (protocol::Message& message : jobs->take(worker)) {
      const auto* update = std::get_if<Update>(&message.body);
      if (!update) continue;
      spans.push_back(std::to_string(update->first_step()) + "-" + std::to_string(update->step));
      last_.push_back(std::move(message));
    }
    return spans;
  }
  const Update& last() const { return std::get<Update>(last_.back().body); }
  std::vector<float> last_sum() const {
    const auto stream = read_container(last_.back().payload.bytes, {.dimension = 64});
    EXPECT_TRUE(stream.has_value());
    std::vector<float> sum(64, 0);
    const Stream sparse = to_sparse(stream->view());
    for (size_t at = 0; at < sparse.indices.size(); ++at) sum[sparse.indices[at]] = sparse.values[at];
    return sum;
  }
  std::unique_ptr<ReturningCluster> jobs;
  std::map<uint32_t, uint64_t> pushed_;
  std::vector<protocol::Message> last_;
};

TEST_F(Merging, AJobThatEndsWithFewerWorkersIsSentStepByStep) {
  protocol::JobSpec spec = job(2);
  spec.workers_min = 2;
  start(spec);
  for (int at = 0; at < 4; ++at) push(1);
  EXPECT_THAT(came(0), SizeIs(4)) << "its shard's death must not make workers leave";
}

TEST_F(Merging, StepsDecidedBehindTwoMessagesArriveAsOneSum) {
  start(job(2));
  std::vector<float> values(64, 0);
  for (size_t at = 0; at < 6; ++at) {
    values.assign(64, 0);
    values[at / 2] = 1 + static_cast<float>(at);
    push(1, values);
  }
  EXPECT_THAT(came(0), ElementsAre("0-0", "1-1"));
  const uint64_t before = last().summary.log_digest;
  jobs->ack(0, 1);
  EXPECT_THAT(came(0), ElementsAre("2-5"));
  EXPECT_THAT(last().contributors, IsEmpty());
  ASSERT_THAT(last().merged, SizeIs(4));
  for (uint64_t at = 0; at < 4; ++at) {
    EXPECT_EQ(last().merged[at].contributor, (protocol::ContributorId{1, 1, at + 2}));
    EXPECT_EQ(last().merged[at].weight, 1);
  }
  EXPECT_EQ(last().summary.workers.at(0).sequence, 6u) << "as of the last step";
  EXPECT_EQ(last().weight_sum, 4);
  std::vector<float> expected(64, 0);
  expected[1] = 3 + 4;
  expected[2] = 5 + 6;
  EXPECT_EQ(last_sum(), expected);
  EXPECT_EQ(protocol::extend_log_digest(before, last(), {}), last().summary.log_digest);
  EXPECT_EQ(jobs->counted(Metric::kMergedUpdates), 1);
  EXPECT_EQ(jobs->counted(Metric::kMergedSteps), 4);
  jobs->ack(0, 6);
  push(1);
  EXPECT_THAT(came(0), ElementsAre("6-6")) << "one step by itself";
}

TEST_F(Merging, OneWorkerThatDoesNotTakeThemIsEnoughForNone) {
  start(job(2), /*without=*/1);
  for (int at = 0; at < 4; ++at) push(1);
  EXPECT_THAT(came(0), ElementsAre("0-0", "1-1", "2-2", "3-3"));
  EXPECT_THAT(came(1), ElementsAre("0-0", "1-1", "2-2", "3-3"));
}

TEST_F(Merging, ValuesThatWereRoundedAreNotSummed) {
  protocol::JobSpec spec = job(2);
  spec.codec_down.value = ValueCodecId::kQsgd;
  spec.codec_down.qsgd_bits = 8;
  spec.codec_down.qsgd_scale_max = true;
  start(spec);
  for (int at = 0; at < 4; ++at) push(1);
  EXPECT_THAT(came(0), SizeIs(4));
}

TEST_F(Merging, SmallUpdatesAreMergedThoughTheirSumIsNoSmaller) {
  start(job(2));
  for (size_t at = 0; at < 4; ++at) {
    std::vector<float> values(64, 0);
    values[at] = 1;
    push(1, values);
  }
  EXPECT_THAT(came(0), ElementsAre("0-0", "1-1"));
  jobs->ack(0, 1);
  EXPECT_THAT(came(0), ElementsAre("2-3")) << "small ones: messages are saved";
}

TEST_F(Merging, AWorkerThatAsksAgainIsSentAllStepsItLacks) {
  start(job(2));
  for (int at = 0; at < 5; ++at) push(1);
  came(0);
  protocol::Ack ask;
  ask.entries = {{0, 1, true}};
  jobs->say(0, ask);
  EXPECT_THAT(came(0), ElementsAre("1-4"));
  EXPECT_EQ(jobs->counted(Metric::kServedAgain), 4);
}

TEST_F(Merging, HoweverOftenAWorkerAsksOneSumAtATimeIsWorkedOutForIt) {
  start(job(2));
  for (int at = 0; at < 6; ++at) push(1);
  came(0);
  jobs->hold_tasks = true;
  for (const uint64_t n : {0, 1, 2, 3}) {
    protocol::Ack ask;
    ask.entries = {{0, n, true}};
    jobs->say(0, ask);
  }
  EXPECT_THAT(jobs->held_tasks(), SizeIs(1));
  jobs->hold_tasks = false;
  jobs->run_held_tasks();
  EXPECT_THAT(came(0), ElementsAre("3-5")) << "its last request";
}

TEST_F(Merging, AnAcknowledgementThatWasLostComesWithTheDigests) {
  start(job(2));
  for (int at = 0; at < 5; ++at) push(1);
  EXPECT_THAT(came(0), ElementsAre("0-0", "1-1"));
  protocol::Heartbeat heartbeat;
  heartbeat.digests = {{0, 2, last().summary.log_digest}};
  jobs->say(0, heartbeat);
  EXPECT_THAT(came(0), ElementsAre("2-4"));
}

TEST_F(Merging, AHeartbeatReportsOnlyTheStepsThatWereSent) {
  start(job(2));
  for (int at = 0; at < 5; ++at) push(1);
  came(0);
  jobs->say(0, protocol::Heartbeat{});
  const auto answers = jobs->take_of<protocol::Heartbeat>(0);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].steps_applied, 2u) << "two are on the way, the others wait here";
}

TEST_F(Merging, StepsDroppedDuringTheirSumAreNotSent) {
  start(job(2));
  for (int at = 0; at < 5; ++at) push(1);
  for (const uint32_t worker : {0u, 1u}) came(worker);
  jobs->ack(0, 2);
  EXPECT_THAT(came(0), ElementsAre("2-4"));
  jobs->ack(0, 4);
  jobs->hold_tasks = true;
  protocol::Ack late;  // it was overtaken
  late.entries = {{0, 0, true}};
  jobs->say(0, late);
  jobs->ack(1, 3);
  jobs->hold_tasks = false;
  jobs->run_held_tasks();
  EXPECT_THAT(came(0), ElementsAre("3-4"));
}

TEST_F(Merging, AShardThatIsShutDownSendsWhatWaits) {
  start(job(2));
  for (int at = 0; at < 4; ++at) push(1);
  EXPECT_THAT(came(0), ElementsAre("0-0", "1-1"));
  jobs->shut_down();
  EXPECT_THAT(came(0), ElementsAre("2-2", "3-3"));
}

TEST_F(Merging, NewEpoch_UnacknowledgedUpdatesSentAgainAndOldSumsForgotten) {
  start(job(3));
  jobs->hold_tasks = true;
  for (int at = 0; at < 5; ++at) push(1);
  while (!jobs->held_tasks().empty() && jobs->held_tasks().front().second->kind() != Task::Kind::kMerge)
    jobs->run_one_held_task();
  came(0);
  jobs->ack(0, 1);
  jobs->run_held_tasks_until(Task::Kind::kMerge);
  ASSERT_THAT(jobs->held_tasks(), SizeIs(1));
  jobs->hold_tasks = false;
  jobs->say(2, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, "gone"});
  const auto after = came(0);
  EXPECT_THAT(after, ElementsAre("1-4")) << "once, though two sums were made";
}

TEST_F(Merging, AfterARestartAMemberInsideASumIsEvictedAsBehind) {
  start(job(3));
  for (int at = 0; at < 6; ++at) push(1);
  // Worker 0 takes everything, the last steps as one; worker 2 is a step into that.
  jobs->ack(0, 1);
  came(0);
  auto& furthest = jobs->holds(0);
  furthest.n = 6;
  furthest.decided_in = last().decided_in;
  furthest.summary = last().summary;
  furthest.kept.clear();
  for (const uint32_t worker : {1u, 2u}) {
    auto messages = jobs->take(worker);
    for (auto& message : messages) {
      const auto* update = std::get_if<Update>(&message.body);
      if (!update || update->step > 1) continue;
      auto& mine = jobs->holds(worker);
      mine.n = update->step + 1;
      mine.decided_in = update->decided_in;
      mine.summary = update->summary;
      mine.kept[update->step] = message;
    }
  }
  jobs->start_shard(0, 1);
  jobs->tick();
  for (const uint32_t worker : {0u, 1u, 2u}) {
    protocol::Hello hello = jobs->hello(worker);
    hello.has_weights = true;
    hello.capabilities = protocol::kTakesMerged;
    jobs->say_hello(worker, hello);
  }
  for (const uint32_t worker : {0u, 1u, 2u}) jobs->say_state(worker, true);
  for (int turn = 0; turn < 3; ++turn) {
    for (const uint32_t worker : {0u, 1u, 2u}) jobs->give_all(worker);
    jobs->pass(100);
    jobs->say_state(0, true);  // the two are gone, which is a new epoch
  }
  EXPECT_EQ(jobs->counted(Metric::kRecoveries, "activated"), 1);
  EXPECT_EQ(jobs->counted(Metric::kMembersRemoved, "behind"), 2) << "they lack updates that no process keeps";
  EXPECT_EQ(jobs->core().status(jobs->now).jobs.at(0).steps_decided, 6u) << "nothing that was taken is void";
}

}  // namespace
}  // namespace millrace::server
