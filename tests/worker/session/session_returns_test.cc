#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <thread>

#include "kernels/base/hash.h"
#include "millrace/millrace.h"
#include "protocol/container/container.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/core/rejoin/saved_state.h"
#include "worker/session/state_file.h"

/// Sessions whose weights were given to connect(): they give them to others, take others' over, save and load them.
namespace millrace::testing {
namespace {

using std::chrono::milliseconds;
constexpr uint64_t kLarge = 20'000;
constexpr uint64_t kSmall = 100;

SessionOptions session_returns_job_of(uint32_t workers) {
  SessionOptions job = session_job_of(workers);
  job.name = "returns-test";
  job.layout.parts_per_shard = 2;
  return job;
}

/// Three tensors: one of its own, two that share a bucket.
struct Model {
  std::vector<float> large = std::vector<float>(kLarge, 1.0f);
  std::vector<float> small = std::vector<float>(kSmall, 2.0f);
  std::vector<float> tiny = std::vector<float>(kSmall, 3.0f);
  ApplyWhen when = ApplyWhen::kOnAwait;

  std::vector<TensorOptions> tensors() {
    std::vector<TensorOptions> all(3);
    std::vector<float>* weights[] = {&large, &small, &tiny};
    const char* names[] = {"large", "small", "tiny"};
    for (size_t i = 0; i < 3; ++i) {
      all[i].name = names[i];
      all[i].dimension = weights[i]->size();
      all[i].weights = Weights(*weights[i], 1, when);
    }
    return all;
  }
  /// Adds `value` to every weight, through the job.
  static void push(Session& session, float value) {
    session.push(0, std::vector<float>(kLarge, value));
    session.push(1, std::vector<float>(kSmall, value));
    session.push(2, std::vector<float>(kSmall, value));
  }
  static void await(Session& session, uint64_t step) {
    for (size_t tensor = 0; tensor < 3; ++tensor) session.await(tensor, step, kSessionSoon);
  }
};

std::vector<float> floats_of(ByteSpan bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Snapshots that came to a shard, by part: values and n.
using Snapshots = std::map<uint32_t, std::pair<uint64_t, std::vector<float>>>;

FakeCluster::Script collect_snapshots(Snapshots& into) {
  return [&into](FakeCluster&, uint32_t, const protocol::PeerId&, const protocol::Message& message) {
    const auto* run = std::get_if<protocol::Snapshot>(&message.body);
    if (run == nullptr) return false;
    EXPECT_EQ(run->payload_hash, hash64(message.payload.bytes));
    auto& [n, values] = into[run->part];
    EXPECT_EQ(run->offset, values.size());
    n = run->n;
    for (const float value : floats_of(message.payload.bytes)) values.push_back(value);
    return true;
  };
}

TEST(SessionReturns, WeightsAreGivenAsTheyWillBeWhenAllThatArrivedIsInThem) {
  for (const ApplyWhen when : {ApplyWhen::kOnAwait, ApplyWhen::kOnArrival}) {
    SessionOptions job = session_returns_job_of(1);
    job.consistency = Synchronous{1};
    Model model{.when = when};
    Snapshots snapshots;
    FakeCluster cluster(session_spec_of(job, model.tensors()), 1, collect_snapshots(snapshots));
    job.shards = cluster.addresses();
    auto session = Session::connect(job, job, model.tensors());
    const size_t parts = cluster.table().layout.parts.size();
    Model::push(*session, 0.5f);
    Model::push(*session, 0.25f);
    for (size_t tensor = 0; tensor < 3; ++tensor) session->await(tensor, 0, kSessionSoon);
    // The second step has arrived, and is not awaited.
    cluster.wait_until([&] {
      bool all = true;
      for (uint32_t part = 0; part < parts; ++part) all = all && cluster.shard(0).acknowledged(part, 0) == 2;
      return all;
    });
    EXPECT_EQ(session->steps_applied(0), when == ApplyWhen::kOnAwait ? 1u : 2u);
    EXPECT_EQ(model.large[7], when == ApplyWhen::kOnAwait ? 1.5f : 1.75f);
    cluster.run_there([&] {
      protocol::SnapshotRequest request{.for_worker = 1, .for_incarnation = 4, .parts = {}};
      for (uint32_t part = 0; part < parts; ++part) request.parts.push_back(part);
      cluster.say(0, 0, request);
    });
    cluster.wait_until([&] {
      size_t values = 0;
      for (const auto& [part, snapshot] : snapshots) values += snapshot.second.size();
      return values == kLarge + 2 * kSmall;
    });
    for (const auto& [part, snapshot] : snapshots) {
      const protocol::PartLayout& layout = cluster.table().layout.parts[part];
      EXPECT_EQ(snapshot.first, 2u);
      ASSERT_EQ(snapshot.second.size(), layout.end - layout.begin);
      for (uint64_t i = layout.begin; i < layout.end; ++i) {
        const bool lone = cluster.table().layout.buckets[layout.bucket].members.size() == 1;
        const float begun = lone ? 1.0f : i < kSmall ? 2.0f : 3.0f;
        ASSERT_EQ(snapshot.second[i - layout.begin], begun + 0.75f) << "part " << part << ", index " << i;
      }
    }
    session->finish(kSessionSoon);
  }
}

TEST(SessionReturns, WeightsAreReadAndSavedWhileTheirCallerTrains) {
  for (const ApplyWhen when : {ApplyWhen::kOnAwait, ApplyWhen::kOnArrival}) {
    SessionOptions job = session_returns_job_of(1);
    job.consistency = Synchronous{2};
    job.updates_kept_max = 64;
    Model model{.when = when};
    model.small = std::vector<float>(kSmall, 1.0f);
    model.tiny = model.small;
    uint64_t asked = 0;
    uint64_t given = 0;
    FakeCluster cluster(
        session_spec_of(job, model.tensors()), 1,
        [&](FakeCluster& self, uint32_t shard, const protocol::PeerId&, const protocol::Message& message) {
          if (const auto* run = std::get_if<protocol::Snapshot>(&message.body)) {
            ++given;
            const std::vector<float> values = floats_of(message.payload.bytes);
            EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(1 + run->n)));
            return true;
          }
          if (const auto* pushed = std::get_if<protocol::Contribution>(&message.body)) {
            self.say(shard, 0,
                     protocol::SnapshotRequest{.for_worker = 1, .for_incarnation = 1, .parts = {pushed->part}});
            ++asked;
          }
          return false;
        });
    job.shards = cluster.addresses();
    const std::string path = ::testing::TempDir() + "millrace_read_while_trained_" + std::to_string(::getpid());
    auto session = Session::connect(job, job, model.tensors());
    constexpr uint64_t kSteps = 60;
    std::atomic<bool> training = true;
    std::thread saver([&] {
      while (training) {
        session->save(path);
        const auto state = worker::decode_saved_state(*worker::read_file(path));
        ASSERT_TRUE(state.has_value()) << state.error().message;
        // One cut: the weights of every part are those of its own step.
        const protocol::JobLayout& layout = cluster.table().layout;
        for (const auto& part : state->parts) {
          const protocol::PartLayout& range = layout.parts[part.part];
          for (const protocol::BucketMember& member : layout.buckets[range.bucket].members) {
            const auto& weights = state->tensors[member.tensor].weights;
            const uint64_t begin = std::max(range.begin, member.offset);
            const uint64_t end = std::min(range.end, member.offset + weights.size());
            for (uint64_t i = begin; i < end; ++i)
              ASSERT_EQ(weights[i - member.offset], static_cast<float>(1 + part.n)) << i;
          }
        }
      }
    });
    for (uint64_t step = 0; step < kSteps; ++step) {
      Model::push(*session, 1);
      if (step >= 2) Model::await(*session, step - 2);
    }
    training = false;
    saver.join();
    for (uint64_t step = kSteps - 2; step < kSteps; ++step) Model::await(*session, step);
    EXPECT_EQ(model.large, std::vector<float>(kLarge, 1.0f + kSteps));
    EXPECT_EQ(model.tiny, std::vector<float>(kSmall, 1.0f + kSteps));
    session->finish(kSessionSoon);
    cluster.run_there([&] { EXPECT_GT(given, 0u) << "of " << asked; });
    std::filesystem::remove(path);
  }
}

/// A job of two workers that runs already; its one shard has one part, and worker 1's weights, which worker 0 takes
/// over. The shard's words are written by hand: a snapshot, the updates from its step on, and every step with the
/// contribution of worker 0.
class SessionJoins : public ::testing::Test {
 protected:
  static constexpr uint64_t kOthersNonce = 9'000;

  void begin(ApplyWhen when) {
    when_ = when;
    weights_.assign(kLarge, -7.0f);
    job_ = session_returns_job_of(2);
    job_.layout.parts_per_shard = 1;
    cluster_ = std::make_unique<FakeCluster>(
        session_spec_of(job_, tensors()), 1,
        [this](FakeCluster& there, uint32_t, const protocol::PeerId&, const protocol::Message& message) {
          there_ = &there;
          return on_message(message);
        });
    job_.shards = cluster_->addresses();
  }
  std::vector<TensorOptions> tensors() {
    return {{.name = "w", .dimension = kLarge, .weights = Weights(weights_, 1, when_)}};
  }

  // The cluster's thread.
  bool on_message(const protocol::Message& message) {
    protocol::Membership& membership = there_->table().membership;
    if (const auto* hello = std::get_if<protocol::Hello>(&message.body)) {
      EXPECT_TRUE(hello->has_weights);
      nonce_ = hello->nonce;
      membership.started = true;
      set_members(1, protocol::MemberState::kJoining);
      protocol::Welcome welcome;
      welcome.membership = membership;
      there_->say(0, 0, welcome);
    } else if (std::holds_alternative<protocol::State>(message.body)) {
      if (answers_) give_snapshot();
    } else if (std::holds_alternative<protocol::Synced>(message.body)) {
      if (membership.members[0].state == protocol::MemberState::kSynced) return true;
      set_members(there_->worker_life, protocol::MemberState::kSynced);
      there_->say(0, 0, protocol::MembershipChange{membership});
    } else if (const auto* ack = std::get_if<protocol::Ack>(&message.body)) {
      acknowledged_ = ack->entries.back().n;
      for (uint64_t step = acknowledged_; ack->entries.back().again && step < decided_; ++step) say_update(step);
    } else if (const auto* contribution = std::get_if<protocol::Contribution>(&message.body)) {
      EXPECT_EQ(contribution->step, decided_);
      if (answers_) say_update(decided_++);
    } else {
      return false;
    }
    return true;
  }
  void set_members(uint64_t incarnation, protocol::MemberState state) {
    protocol::Membership& membership = there_->table().membership;
    there_->worker_life = incarnation;
    membership.members = {{0, incarnation, nonce_, state}, {1, 1, kOthersNonce, protocol::MemberState::kSynced}};
    ++membership.epoch;
  }
  void give_snapshot() {
    ByteBuffer bytes(kLarge * sizeof(float));
    const std::vector<float> values(kLarge, snapshot_);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    const SharedBytes payload = SharedBytes::from(std::move(bytes));
    protocol::Snapshot run;
    run.for_incarnation = there_->worker_life;
    run.n = decided_ - 1;
    run.decided_in = 1;
    run.payload_hash = hash64(payload.bytes);
    there_->say(0, 0, run, payload);
    protocol::Settle settle;
    settle.decided = decided_;
    settle.weights = protocol::Settle::Weights::kSnapshot;
    there_->say(0, 0, settle);
  }
  /// Adds 1 everywhere.
  void say_update(uint64_t step) {
    protocol::Update update;
    update.step = step;
    update.decided_in = there_->table().membership.epoch;
    update.contributors = {{0, there_->worker_life}, {1, 1}};
    const Stream ones{kLarge, true, {}, Buffer<float>(kLarge, 1.0f)};
    auto container = encode_container(ones.view(), StreamView{}, EncodeOptions{});
    there_->say(0, 0, update, SharedBytes::from(std::move(container->bytes)));
  }
  void wait_until_acknowledged(uint64_t n) {
    cluster_->wait_until([&] { return acknowledged_ >= n; });
  }

  ApplyWhen when_ = ApplyWhen::kOnAwait;
  std::vector<float> weights_ = std::vector<float>(kLarge);
  SessionOptions job_;
  std::unique_ptr<FakeCluster> cluster_;
  // The cluster's thread:
  FakeCluster* there_ = nullptr;
  uint64_t nonce_ = 0;
  float snapshot_ = 100;  ///< every weight after decided_ - 1 steps
  bool answers_ = true;
  uint64_t decided_ = 41;
  uint64_t acknowledged_ = 0;
};

TEST_F(SessionJoins, AndHasTheOthersWeightsWhenConnectReturns) {
  for (const ApplyWhen when : {ApplyWhen::kOnAwait, ApplyWhen::kOnArrival}) {
    decided_ = 41;
    acknowledged_ = 0;
    begin(when);
    auto session = Session::connect(job_, job_, tensors());
    EXPECT_GE(session->steps_applied(0), 40u);
    EXPECT_GE(weights_[5], 100.0f);
    EXPECT_FALSE(session->status().returning);
    wait_until_acknowledged(41);
    const std::vector<float> one(kLarge, 1.0f);
    const uint64_t push = session->push(0, one);
    EXPECT_EQ(push, 0u);
    const TensorUpdate update = session->await(0, push, kSessionSoon);
    EXPECT_TRUE(update.replaced);
    EXPECT_TRUE(update.applied);
    EXPECT_EQ(weights_, std::vector<float>(kLarge, 102.0f));
    EXPECT_EQ(session->steps_applied(0), 42u);
    session->push(0, one);
    EXPECT_FALSE(session->await(0, 1, kSessionSoon).replaced);
    EXPECT_EQ(weights_, std::vector<float>(kLarge, 103.0f));
    session.reset();
    cluster_.reset();
  }
}

TEST_F(SessionJoins, WeightsThatReplaceItsOwnWaitForTheCaller) {
  for (const ApplyWhen when : {ApplyWhen::kOnAwait, ApplyWhen::kOnArrival}) {
    decided_ = 41;
    acknowledged_ = 0;
    snapshot_ = 100;
    begin(when);
    auto session = Session::connect(job_, job_, tensors());
    wait_until_acknowledged(41);
    const std::vector<float> one(kLarge, 1.0f);
    session->push(0, one);
    session->await(0, 0, kSessionSoon);
    EXPECT_EQ(weights_, std::vector<float>(kLarge, 102.0f));
    // It is removed and let in again while its caller works with the array; meanwhile the job is at step 60.
    cluster_->run_there([&] {
      decided_ = 60;
      snapshot_ = 500;
      set_members(2, protocol::MemberState::kJoining);
      cluster_->say(0, 0, protocol::MembershipChange{cluster_->table().membership});
    });
    wait_until_acknowledged(60);
    EXPECT_EQ(weights_, std::vector<float>(kLarge, 102.0f)) << "not behind its back";
    const auto path = ::testing::TempDir() + "millrace_replaced_" + std::to_string(::getpid());
    session->save(path);
    EXPECT_EQ(worker::decode_saved_state(*worker::read_file(path))->tensors[0].weights.front(), 501.0f);
    std::filesystem::remove(path);
    EXPECT_EQ(session->status().returns, 1u);
    session->push(0, one);
    EXPECT_GE(weights_[9], 501.0f);
    EXPECT_TRUE(session->await(0, 1, kSessionSoon).replaced);
    EXPECT_EQ(weights_, std::vector<float>(kLarge, 502.0f));
    EXPECT_EQ(session->steps_applied(0), 61u);
    EXPECT_EQ(session->stats().returns, 1u);
    session.reset();
    cluster_.reset();
  }
}

TEST_F(SessionJoins, NothingCanBePushedAfterAFinishThatRanOutOfTimeWhileItReturns) {
  begin(ApplyWhen::kOnAwait);
  auto session = Session::connect(job_, job_, tensors());
  wait_until_acknowledged(41);
  const std::vector<float> one(kLarge, 1.0f);
  cluster_->run_there([&] { answers_ = false; });
  session->push(0, one);
  cluster_->run_there([&] {
    set_members(2, protocol::MemberState::kJoining);
    cluster_->say(0, 0, protocol::MembershipChange{cluster_->table().membership});
  });
  while (!session->status().returning) std::this_thread::yield();
  EXPECT_FALSE(session->try_finish(milliseconds(0)));
  const std::string sentence =
      session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session->try_push(0, one); });
  EXPECT_NE(sentence.find("finished"), std::string::npos) << sentence;
}

/// One worker trains two steps and saves; the tests load the file.
class SessionLoads : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "millrace_session_loads_" + std::to_string(::getpid());
    Model model;
    job_ = session_returns_job_of(1);
    job_.select = Selection::top_k(0.5);
    cluster_ = std::make_unique<FakeCluster>(session_spec_of(job_, model.tensors()), 1);
    job_.shards = cluster_->addresses();
    auto session = Session::connect(job_, job_, model.tensors());
    Model::push(*session, 0.5f);
    Model::await(*session, 0);
    Model::push(*session, 0.5f);
    for (size_t tensor = 0; tensor < 3; ++tensor) {
      while (!session->ready(tensor, 1)) std::this_thread::yield();
    }
    session->save(path_);
    Model::await(*session, 1);
    saved_ = model;
    session->finish(kSessionSoon);
    cluster_ = std::make_unique<FakeCluster>(session_spec_of(job_, model.tensors()), 1);
    job_.shards = cluster_->addresses();
    job_.load_path = path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string refusal(Model& model) {
    return session_sentence_of(JobErrorCode::kJobMismatch, [&] { Session::connect(job_, job_, model.tensors()); });
  }

  std::string path_;
  SessionOptions job_;
  Model saved_;
  std::unique_ptr<FakeCluster> cluster_;
};

TEST_F(SessionLoads, ASavedFileRestoresArrivedUpdatesAndTheResidual) {
  Model model;
  model.large.assign(kLarge, 0.0f);
  auto session = Session::connect(job_, job_, model.tensors());
  EXPECT_EQ(model.large, saved_.large);
  EXPECT_EQ(model.small, saved_.small);
  EXPECT_EQ(model.tiny, saved_.tiny);
  // The file's job has ended; this one begins at its first step, and with the residual of that one.
  EXPECT_EQ(session->steps_applied(0), 0u);
  double kept = 0;
  for (const float value : session->take_residual(0).values) kept += static_cast<double>(value);
  double applied = 0;
  for (const float value : saved_.large) applied += static_cast<double>(value) - 1;
  EXPECT_EQ(kept + applied, static_cast<double>(kLarge)) << "two pushes of 0.5 everywhere";
  EXPECT_GT(kept, 0);
  session->finish(kSessionSoon);
}

TEST_F(SessionLoads, NothingFromAFileOfAnotherJobWorkerOrShape) {
  Model model;
  const std::vector<float> before = model.large;
  job_.name = "another";
  EXPECT_NE(refusal(model).find("is of job 'returns-test', this is job 'another'"), std::string::npos);
  job_.name = "returns-test";
  job_.workers = 2;
  job_.worker = 1;
  EXPECT_NE(refusal(model).find("worker 0 in it, 1 in this job"), std::string::npos);
  job_.worker = 0;
  job_.workers = 1;
  model.tiny.resize(99);
  EXPECT_NE(refusal(model).find("dimension of tensor 'tiny' 100 in it, 99 in this job"), std::string::npos);
  EXPECT_EQ(model.large, before) << "nothing is written before all of it fits";
}

TEST_F(SessionLoads, NoWeightsFromAFileThatHasNone) {
  Model model;
  {
    std::vector<TensorOptions> bare = model.tensors();
    for (TensorOptions& tensor : bare) tensor.weights.reset();
    job_.load_path = "";
    Session::connect(job_, job_, bare)->save(path_);
    job_.load_path = path_;
  }
  EXPECT_NE(refusal(model).find("has no weights of tensor 'large'"), std::string::npos);
}

TEST_F(SessionLoads, NoFileWithWeightsThatNoArrayTakes) {
  Model model;
  std::vector<TensorOptions> tensors = model.tensors();
  tensors[1].weights.reset();
  const std::vector<float> before = model.large;
  const std::string sentence =
      session_sentence_of(JobErrorCode::kJobMismatch, [&] { Session::connect(job_, job_, tensors); });
  EXPECT_NE(sentence.find("has weights of tensor 'small', and this session has no array"), std::string::npos)
      << sentence;
  EXPECT_EQ(model.large, before) << "nothing is written before all of it fits";
}

TEST_F(SessionLoads, NoWeightsThatWouldNeverMove) {
  Model model;
  std::vector<TensorOptions> tensors = model.tensors();
  tensors[0].weights = Weights(model.large, 0);
  const std::string sentence =
      session_sentence_of(JobErrorCode::kInvalidArgument, [&] { Session::connect(job_, job_, tensors); });
  EXPECT_NE(sentence.find("tensor 'large': the scale of the weights is 0"), std::string::npos) << sentence;
}

TEST_F(SessionLoads, AMissingFileOnlyWhereThisProcessMayBeTheFirst) {
  Model model;
  job_.load_path = path_ + ".missing";
  const std::string sentence =
      session_sentence_of(JobErrorCode::kIo, [&] { Session::connect(job_, job_, model.tensors()); });
  EXPECT_NE(sentence.find(job_.load_path), std::string::npos) << sentence;
  job_.returns = true;
  Session::connect(job_, job_, model.tensors())->finish(kSessionSoon);
  job_.load_path = ::testing::TempDir();  // there, and no file
  session_sentence_of(JobErrorCode::kIo, [&] { Session::connect(job_, job_, model.tensors()); });
}

TEST(SessionReturns, WhatCannotBeIsRefusedBeforeAShardIsAsked) {
  Model model;
  SessionOptions job = session_returns_job_of(1);
  job.shards = {"tcp://127.0.0.1:1"};
  const auto refused = [&](const std::vector<TensorOptions>& tensors, const std::string& words) {
    const std::string sentence =
        session_sentence_of(JobErrorCode::kInvalidArgument, [&] { Session::connect(job, job, tensors); });
    EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
  };
  auto tensors = model.tensors();
  tensors[0].weights.reset();
  job.returns = true;
  refused(tensors, "returns: ");
  job.returns = false;
  job.updates.initial_weights = InitialWeights::kFirst;
  refused(tensors, "initial_weights = first: ");
  job.updates.initial_weights = InitialWeights::kOwn;
  job.consistency = Partial{StepDecision::quorum(1)};
  tensors = model.tensors();
  tensors[0].weights = Weights(model.large, 1, ApplyWhen::kOnArrival);
  refused(tensors, "mode synchronous only");
}

TEST(SessionReturns, WeightsThatWouldNeverMoveAreRefusedByConnectAndByCheck) {
  Model model;
  SessionOptions job = session_returns_job_of(1);
  job.shards = {"tcp://127.0.0.1:1"};
  const auto refused = [&](const std::vector<TensorOptions>& tensors, const std::string& words) {
    for (const std::string& sentence :
         {session_sentence_of(JobErrorCode::kInvalidArgument, [&] { Session::connect(job, job, tensors); }),
          session_sentence_of(JobErrorCode::kInvalidArgument, [&] { Session::check(job, job, tensors); })}) {
      EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
    }
  };
  auto tensors = model.tensors();
  tensors[1].weights = Weights(std::span(model.small).first(99), 1);
  refused(tensors, "tensor 'small': 99 weights for a dimension of 100");
  for (const float scale : {0.0f, -0.0f}) {
    tensors = model.tensors();
    tensors[2].weights = Weights(model.tiny, scale);
    refused(tensors, "tensor 'tiny': the scale of the weights is 0");
  }
  for (const float scale : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    tensors[2].weights = Weights(model.tiny, scale);
    refused(tensors, "tensor 'tiny': the scale of the weights is not finite");
  }
  tensors = model.tensors();
  tensors[0].weights = Weights(model.large, [](uint64_t, uint64_t, std::span<float>) { return 0.0f; });
  EXPECT_NO_THROW(Session::check(job, job, tensors)) << "a schedule may be 0";
}

TEST(SessionReturns, WeightsThatWereGivenToConnectStayAndTheirScaleIsASchedule) {
  SessionOptions job = session_returns_job_of(1);
  Model model;
  std::vector<TensorOptions> tensors = model.tensors();
  tensors[0].weights =
      Weights(model.large, [](uint64_t step, uint64_t, std::span<float>) { return step == 0 ? 2.0f : 0.5f; });
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, tensors);
  std::vector<float> others(kLarge);
  for (const std::string& sentence :
       {session_sentence_of(JobErrorCode::kInvalidArgument,
                            [&] { session->attach_weights(0, others, 1, ApplyWhen::kOnAwait); }),
        session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->set_scale(0, 2); })}) {
    EXPECT_NE(sentence.find("a schedule (Weights)"), std::string::npos) << sentence;
  }
  for (uint64_t step = 0; step < 3; ++step) {
    Model::push(*session, 1);
    Model::await(*session, step);
  }
  EXPECT_EQ(model.large, std::vector<float>(kLarge, 1 + 2 + 0.5f + 0.5f));
  EXPECT_EQ(model.small, std::vector<float>(kSmall, 5.0f));
  session->finish(kSessionSoon);
}

}  // namespace
}  // namespace millrace::testing
