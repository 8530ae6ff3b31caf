#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "millrace/millrace.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"

/// The waits of a public session: their time limits, and the error of a limit that has passed.
namespace millrace::testing {
namespace {

using std::chrono::milliseconds;

/// Too short for an update that does not come, and short enough to wait for.
constexpr milliseconds kShort{20};
/// Limits that all mean not to wait.
constexpr milliseconds kNoTime[] = {milliseconds(0), milliseconds(-1), milliseconds::min()};

/// A session of one worker at a shard that does not answer contributions while it holds them.
class SessionWaits : public ::testing::Test {
 protected:
  void start(const SessionOptions& options = session_job_of(1)) {
    job_ = options;
    job_.resend_after = std::chrono::milliseconds(50);  // a held contribution is answered when it is sent again
    const auto holds = [this](FakeCluster&, uint32_t, const protocol::PeerId&, const protocol::Message& message) {
      return std::holds_alternative<protocol::Pull>(message.body) ||
             std::holds_alternative<protocol::Place>(message.body) ||
             (hold_ && std::holds_alternative<protocol::Contribution>(message.body));
    };
    cluster_ = std::make_unique<FakeCluster>(session_spec_of(job_, kSessionTwoTensors), 1, holds);
    job_.shards = cluster_->addresses();
    session_ = Session::connect(job_, job_, kSessionTwoTensors);
  }
  void release() {
    cluster_->run_there([&] { hold_ = false; });
  }
  /// Checks the sentence: it states the missing event, the limit, and the workers on which the job is blocked.
  void expect_timeout(const std::string& what, const std::function<void()>& call) {
    const std::string sentence = session_sentence_of(JobErrorCode::kTimeout, call);
    const std::string begin = what + " within " + std::to_string(kShort.count()) + " ms: ";
    EXPECT_EQ(sentence.substr(0, begin.size()), begin);
    EXPECT_GT(sentence.size(), begin.size()) << "the job's reason follows";
  }

  bool hold_ = true;
  SessionOptions job_;
  std::unique_ptr<FakeCluster> cluster_;
  std::unique_ptr<Session> session_;
  const std::vector<float> gradient_ = std::vector<float>(100, 1.0f);
  const std::vector<uint32_t> index_ = {7};
  const std::vector<float> value_ = {1.0f};
};

TEST_F(SessionWaits, APushThatRunsOutOfTimeTakesNothingAndMayBeRepeated) {
  start();
  std::vector<float> weights(100, 0.0f);
  session_->attach_weights(1, weights, 1, ApplyWhen::kOnAwait);
  ASSERT_EQ(session_->try_push(1, gradient_), std::optional<uint64_t>(0)) << "the first step is free";
  for (const milliseconds limit : {kNoTime[0], kNoTime[1], kNoTime[2], kShort}) {
    EXPECT_EQ(session_->try_push(1, gradient_, 1, limit), std::nullopt) << limit.count();
    EXPECT_EQ(session_->try_push_sparse(1, index_, value_, 1, limit), std::nullopt) << limit.count();
  }
  expect_timeout("the next step could not be pushed", [&] { session_->push(1, gradient_, 1, kShort); });
  expect_timeout("the next step could not be pushed", [&] { session_->push_sparse(1, index_, value_, 1, kShort); });
  EXPECT_FALSE(session_->status().waiting_for.empty());
  EXPECT_GT(session_->stats().time_blocked_s, 0) << "also of calls that ran out of time";
  EXPECT_EQ(session_->stats().tensors[1].steps_pushed, 1u);
  release();
  EXPECT_EQ(session_->try_push_sparse(1, index_, value_, 1, kSessionSoon), std::optional<uint64_t>(1));
  session_->await(1, 1, kSessionSoon);
  std::vector<float> expected(100, 1.0f);
  expected[7] = 2;
  EXPECT_EQ(weights, expected) << "the two pushes that were taken, and no other";
  session_->finish(kSessionSoon);
}

TEST_F(SessionWaits, TheReasonOfAShortWaitKnowsThePush) {
  SessionOptions job = session_job_of(1);
  job.layout.fuse_below = 30'000;
  job.liveness.heartbeat = milliseconds(1'000);  // longer than the wait
  start(job);
  session_->push(1, gradient_);
  const std::string sentence =
      session_sentence_of(JobErrorCode::kTimeout, [&] { session_->await(1, 0, milliseconds(300)); });
  EXPECT_NE(sentence.find("which has not been pushed for step 0"), std::string::npos) << sentence;
}

TEST_F(SessionWaits, AnAwaitAfterATimeoutDeliversTheUpdateOnce) {
  start();
  session_->push(1, gradient_);
  for (const milliseconds limit : {kNoTime[0], kNoTime[1], kNoTime[2], kShort})
    EXPECT_FALSE(session_->try_await(1, 0, limit).has_value()) << limit.count();
  EXPECT_FALSE(session_->ready(1, 0));
  expect_timeout("no update of step 0", [&] { session_->await(1, 0, kShort); });
  release();
  const auto update = session_->try_await(1, 0, kSessionSoon);
  ASSERT_TRUE(update.has_value());
  EXPECT_EQ(session_entries_of(*update).size(), 100u);
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session_->try_await(1, 0); });
  session_->finish(kSessionSoon);
}

TEST_F(SessionWaits, AFinishThatRunsOutOfTimeMayBeRepeated) {
  start();
  session_->push(1, gradient_);
  for (const milliseconds limit : {kNoTime[0], kNoTime[1], kNoTime[2], kShort})
    EXPECT_FALSE(session_->try_finish(limit)) << limit.count();
  expect_timeout("the job has not answered everything", [&] { session_->finish(kShort); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session_->try_push(1, gradient_); });
  release();
  EXPECT_TRUE(session_->try_finish(kSessionSoon));
  EXPECT_TRUE(session_->try_finish()) << "it has finished already";
  EXPECT_TRUE(session_->try_await(1, 0).has_value()) << "updates can still be awaited";
}

TEST_F(SessionWaits, APullThatRunsOutOfTimeIsEmpty) {
  SessionOptions job = session_job_of(1);
  job.store = Store{optimizer::Sgd{0.5}};
  start(job);
  std::vector<float> out(100, 0.0f);
  for (const milliseconds limit : {kNoTime[0], kNoTime[1], kNoTime[2], kShort}) {
    const PullOptions options{.timeout = limit};
    EXPECT_FALSE(session_->try_pull(1, out, options).has_value()) << limit.count();
    EXPECT_FALSE(session_->try_pull_range(1, 50, std::span(out).first(10), options).has_value()) << limit.count();
    EXPECT_FALSE(session_->try_pull_indices(1, index_, std::span(out).first(1), options).has_value()) << limit.count();
  }
  const PullOptions options{.timeout = kShort};
  expect_timeout("the weights were not there", [&] { session_->pull(1, out, options); });
  expect_timeout("the weights were not there", [&] { session_->pull_range(1, 9, std::span(out).first(1), options); });
  expect_timeout("the weights were not there",
                 [&] { session_->pull_indices(1, index_, std::span(out).first(1), options); });
  EXPECT_TRUE(session_->try_pull_indices(1, {}, {}, options).has_value()) << "of no weights all are there";
  EXPECT_EQ(out, std::vector<float>(100, 0.0f));
}

/// Without give_up these calls would never return.
TEST_F(SessionWaits, PullsAndFirstWeightsThatAreGivenUpAreEmpty) {
  SessionOptions job = session_job_of(1);
  job.store = Store{optimizer::Sgd{0.5}};
  job.store->begin = StoreBegin::kWorker;
  bool gives_up = false;
  std::thread::id asked_in;
  job.give_up = [&] {
    asked_in = std::this_thread::get_id();
    return gives_up;
  };
  start(job);
  gives_up = true;
  std::vector<float> out(100, 0.0f);
  const std::vector<float> large(20'000, 1.0f);
  const std::vector<std::span<const float>> first = {large, gradient_};
  const PullOptions options{.timeout = milliseconds::max()};
  const std::vector<std::function<bool()>> calls = {
      [&] { return session_->try_pull(1, out, options).has_value(); },
      [&] { return session_->try_pull_indices(1, index_, std::span(out).first(1), options).has_value(); },
      [&] { return session_->try_place_weights(first, milliseconds::max()); }};
  for (const auto& call : calls) {
    asked_in = {};
    EXPECT_FALSE(call());
    EXPECT_EQ(asked_in, std::this_thread::get_id());
  }
  const std::string sentence = session_sentence_of(JobErrorCode::kTimeout, [&] { session_->pull(1, out, options); });
  EXPECT_TRUE(sentence.starts_with("the weights were not there: ")) << sentence;
}

TEST_F(SessionWaits, FirstWeightsThatTheStoreDoesNotTakeInTimeAreAResult) {
  SessionOptions job = session_job_of(1);
  job.store = Store{optimizer::Sgd{0.5}};
  job.store->begin = StoreBegin::kWorker;
  start(job);
  const std::vector<float> large(20'000, 1.0f);
  const std::vector<std::span<const float>> first = {large, gradient_};
  for (const milliseconds limit : {kNoTime[0], kShort}) EXPECT_FALSE(session_->try_place_weights(first, limit));
  expect_timeout("the store has no first weights", [&] { session_->place_weights(first, kShort); });
}

TEST_F(SessionWaits, ALimitThatNoClockHoldsIsForEver) {
  start();
  session_->push(1, gradient_);
  std::thread waiter([&] {
    EXPECT_EQ(session_->try_push(1, gradient_, 1, milliseconds::max()), std::optional<uint64_t>(1));
    EXPECT_EQ(session_->push_sparse(1, index_, value_, 1, milliseconds::max()), 2u);
    EXPECT_TRUE(session_->try_await(1, 2, milliseconds::max()).has_value());
    EXPECT_TRUE(session_->try_finish(milliseconds::max()));
  });
  // Time enough for a wait that is over at once to be seen: nothing is pushed while the shard holds the first step.
  EXPECT_FALSE(session_->try_await(1, 0, kShort).has_value());
  EXPECT_EQ(session_->stats().tensors[1].steps_pushed, 1u);
  release();
  waiter.join();
}

TEST_F(SessionWaits, WhatElseGoesWrongIsThrownByBothForms) {
  start();
  session_sentence_of(JobErrorCode::kInvalidArgument,
                      [&] { (void)session_->try_push(1, std::span(gradient_).first(9)); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session_->try_push(9, gradient_, 1, kShort); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session_->try_await(1, 0, kShort); });
  std::vector<float> out(100);
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { (void)session_->try_pull(1, out, {.timeout = kShort}); });
  session_->push(1, gradient_);
  cluster_->run_there([&] { cluster_->say(0, 0, protocol::Abort{ErrorCode::kInternal, "the shard's own words"}); });
  for (const std::function<void()>& call :
       std::vector<std::function<void()>>{[&] { (void)session_->try_await(1, 0, kSessionSoon); },
                                          [&] { (void)session_->try_push(1, gradient_, 1, kSessionSoon); },
                                          [&] { (void)session_->try_push_sparse(1, index_, value_); },
                                          [&] { (void)session_->try_finish(kSessionSoon); }}) {
    const std::string sentence = session_sentence_of(JobErrorCode::kInternal, call);
    EXPECT_NE(sentence.find("the shard's own words"), std::string::npos) << sentence;
  }
}

TEST_F(SessionWaits, TheLargestLimitOfUnawaitedUpdatesIsNone) {
  SessionOptions options = session_job_of(1);
  options.consistency = Synchronous{1};
  options.updates_kept_max = std::numeric_limits<uint32_t>::max();
  hold_ = false;
  start(options);
  EXPECT_TRUE(session_->try_push_sparse(1, index_, value_));
}

}  // namespace
}  // namespace millrace::testing
