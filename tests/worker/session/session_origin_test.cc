#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/millrace.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"

/// An error of a session says whether this worker's options and files are its cause, or the job.
namespace millrace::testing {
namespace {

std::optional<JobErrorOrigin> origin_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const JobError& error) {
    return error.origin();
  }
  return std::nullopt;
}

class SessionOrigin : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.shards = {"tcp://127.0.0.1:1"};
    job_.connect_timeout = std::chrono::milliseconds(50);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::optional<JobErrorOrigin> origin() const {
    return origin_of([this] { Session::connect(job_, job_, kSessionTwoTensors); });
  }

  const std::string path_ = ::testing::TempDir() + "millrace_session_origin_" + std::to_string(::getpid());
  SessionOptions job_ = session_job_of(1);
};

TEST_F(SessionOrigin, ADamagedSavedStateIsThisWorkers) {
  job_.load_path = path_;
  for (const char* content : {"", "MLRSAVE3", "something else"}) {
    std::ofstream(path_) << content;
    EXPECT_EQ(origin(), JobErrorOrigin::kWorker) << "'" << content << "'";
  }
}

TEST_F(SessionOrigin, AnOptionThatCannotBeIsThisWorkers) {
  job_.select = Selection::top_k(2.0);
  EXPECT_EQ(origin(), JobErrorOrigin::kWorker);
  EXPECT_EQ(origin_of([this] { Session::check(job_, job_, kSessionTwoTensors); }), JobErrorOrigin::kWorker);
}

TEST_F(SessionOrigin, AShardAddressThatCannotBeIsThisWorkers) {
  using Addresses = std::vector<std::string>;
  for (const Addresses& valid : {Addresses{"127.0.0.1:1"}, Addresses{"tcp://localhost:1", "[::1]:1"}}) {
    job_.shards = valid;
    Session::check(job_, job_, kSessionTwoTensors);
  }
  for (const Addresses& wrong : {Addresses{"127.0.0.1"}, Addresses{"127.0.0.1:0"}, Addresses{"ipc://shard:1"},
                                 Addresses{"a:1,b:2"}, Addresses{"127.0.0.1:1", "tcp://127.0.0.1:1"}}) {
    job_.shards = wrong;
    EXPECT_EQ(origin(), JobErrorOrigin::kWorker) << wrong.back();
    const std::string sentence =
        session_sentence_of(JobErrorCode::kInvalidArgument, [this] { Session::check(job_, job_, kSessionTwoTensors); });
    EXPECT_EQ(sentence.substr(0, 8), "shards: ") << sentence;
  }
}

TEST_F(SessionOrigin, APlaceWhereNoStateCanBeSavedIsThisWorkers) {
  job_.save_path = ::testing::TempDir();
  EXPECT_EQ(origin(), JobErrorOrigin::kWorker) << "found out before a server is asked";
}

TEST_F(SessionOrigin, AServerThatIsNotThereIsTheJobs) { EXPECT_EQ(origin(), JobErrorOrigin::kJob); }

/// A session of one worker at a shard that holds contributions, and refuses pulls.
class SessionOriginConnected : public SessionOrigin {
 protected:
  void SetUp() override {
    SessionOrigin::SetUp();
    job_ = session_job_of(1);
    job_.store = Store{optimizer::Sgd{0.5}};
    job_.updates_kept_max = 1;
    const auto script = [](FakeCluster& cluster, uint32_t shard, const protocol::PeerId& from,
                           const protocol::Message& message) {
      if (const auto* pull = std::get_if<protocol::Pull>(&message.body)) {
        protocol::Pulled refused;
        refused.id = pull->id;
        refused.part = pull->part;
        refused.code = ErrorCode::kInvalidArgument;
        refused.sentence = "the shard's own words";
        cluster.reply(shard, from, refused);
        return true;
      }
      return std::holds_alternative<protocol::Contribution>(message.body);
    };
    cluster_ = std::make_unique<FakeCluster>(session_spec_of(job_, kSessionTwoTensors), 1, script);
    job_.shards = cluster_->addresses();
    session_ = Session::connect(job_, job_, kSessionTwoTensors);
  }

  std::unique_ptr<FakeCluster> cluster_;
  std::unique_ptr<Session> session_;
  std::vector<float> array_ = std::vector<float>(100, 1.0f);
};

TEST_F(SessionOriginConnected, ArgumentsThatCannotBeAreThisWorkers) {
  const std::span<float> short_of_it = std::span(array_).first(9);
  const std::vector<uint32_t> indices = {100};
  const std::vector<float> value = {1};
  const std::vector<float> not_finite = {std::numeric_limits<float>::quiet_NaN()};
  const std::vector<std::span<const float>> first = {array_};
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"push, size", [&] { session_->push(1, short_of_it); }},
      {"push, tensor", [&] { (void)session_->try_push(2, array_); }},
      {"push, weight", [&] { session_->push(1, array_, 2); }},
      {"push_sparse, index", [&] { session_->push_sparse(1, indices, value); }},
      {"push_sparse, NaN", [&] { session_->push_sparse(1, std::vector<uint32_t>{1}, not_finite); }},
      {"ready", [&] { session_->ready(2, 0); }},
      {"await, tensor", [&] { session_->await(2, 0); }},
      {"await, step", [&] { (void)session_->try_await(1, 0); }},
      {"attach_weights, size", [&] { session_->attach_weights(1, short_of_it, 1, ApplyWhen::kOnAwait); }},
      {"attach_weights, scale", [&] { session_->attach_weights(1, array_, 0, ApplyWhen::kOnAwait); }},
      {"set_scale", [&] { session_->set_scale(1, 1); }},
      {"steps_applied", [&] { session_->steps_applied(2); }},
      {"take_residual", [&] { session_->take_residual(2); }},
      {"pull, size", [&] { session_->pull(1, short_of_it); }},
      {"pull_range", [&] { session_->pull_range(1, 95, short_of_it); }},
      {"pull_indices", [&] { session_->pull_indices(1, indices, std::span(array_).first(1)); }},
      {"place_weights", [&] { session_->place_weights(first); }},
      {"tensor", [&] { session_->tensor("none"); }},
  };
  for (const auto& [name, call] : calls) EXPECT_EQ(origin_of(call), JobErrorOrigin::kWorker) << name;
  session_->push(1, array_);
  EXPECT_EQ(origin_of([&] { session_->take_residual(1); }), JobErrorOrigin::kWorker) << "while a step is in flight";
}

TEST_F(SessionOriginConnected, ShardRefusalsAndTimeoutsHaveOriginJob) {
  constexpr std::chrono::milliseconds kShort{20};
  EXPECT_EQ(origin_of([&] { session_->pull(1, array_); }), JobErrorOrigin::kJob) << "refused by the shard";
  session_->push(1, array_);
  EXPECT_EQ(origin_of([&] { session_->push(1, array_, 1, kShort); }), JobErrorOrigin::kJob);
  EXPECT_EQ(origin_of([&] { session_->await(1, 0, kShort); }), JobErrorOrigin::kJob);
  EXPECT_EQ(origin_of([&] { session_->finish(kShort); }), JobErrorOrigin::kJob);
}

TEST_F(SessionOriginConnected, TheEndOfTheSessionIsTheJobsForEveryCall) {
  session_->push(1, array_);
  cluster_->run_there([&] { cluster_->say(0, 0, protocol::Abort{ErrorCode::kInvalidArgument, "no such job"}); });
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { session_->await(1, 0, kSessionSoon); }, [&] { session_->ready(1, 0); },
           [&] { session_->push(1, array_); }, [&] { session_->take_residual(1); }, [&] { session_->pull(1, array_); },
           [&] { session_->finish(kSessionSoon); }}) {
    EXPECT_EQ(origin_of(call), JobErrorOrigin::kJob);
  }
}

TEST(SessionOriginOfCallbacks, AnEndThatACallbackCausesIsThisWorkers) {
  for (const ApplyWhen apply : {ApplyWhen::kOnArrival, ApplyWhen::kOnAwait}) {
    std::vector<float> weights(100, 1.0f);
    const auto no_number = [](uint64_t, uint64_t, std::span<float>) { return std::numeric_limits<float>::quiet_NaN(); };
    const std::vector<TensorOptions> tensors = {
        {.name = "w", .dimension = 100, .weights = Weights(weights, no_number, apply)}};
    SessionOptions job = session_job_of(1);
    FakeCluster cluster(session_spec_of(job, tensors), 1);
    job.shards = cluster.addresses();
    const auto session = Session::connect(job, job, tensors);
    session->push(0, weights);
    EXPECT_EQ(origin_of([&] { session->await(0, 0, kSessionSoon); }), JobErrorOrigin::kWorker);
    EXPECT_EQ(origin_of([&] { session->push(0, weights); }), JobErrorOrigin::kWorker);
  }
}

}  // namespace
}  // namespace millrace::testing
