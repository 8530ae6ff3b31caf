#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "millrace/millrace.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"

/// Weights that are attached to a public session after connect().
namespace millrace::testing {
namespace {

TEST(SessionWeights, AppliesMeansToAttachedWeightsOnArrivalAndOnAwait) {
  SessionOptions job = session_job_of(2);
  job.updates.combine = Combine::kMean;
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  job.shards = cluster.addresses();
  run_workers(job, kSessionTwoTensors, [&](uint32_t worker, Session& session) {
    std::vector<float> large(20'000, 1.0f);
    std::vector<float> small(100, 1.0f);
    session.attach_weights(0, large, -0.5f, ApplyWhen::kOnArrival);
    session.attach_weights(1, small, -0.5f, ApplyWhen::kOnAwait);
    std::vector<float> gradient(20'000, 0.0f);
    gradient[11] = worker == 0 ? 4.0f : 2.0f;
    session.push(0, gradient);
    session.push(1, std::vector<float>(100, 2.0f));
    EXPECT_TRUE(session.await(0, 0, kSessionSoon).applied);
    EXPECT_EQ(large[11], 1.0f - 0.5f * 3.0f);
    EXPECT_EQ(large[12], 1.0f);
    EXPECT_EQ(small[5], 1.0f) << "nothing before await";
    EXPECT_EQ(session.await(1, 0, kSessionSoon).pieces.front().denominator, 2.0);
    EXPECT_EQ(small[5], 0.0f);
    session.set_scale(1, 1.0f);
    session.push(0, gradient);
    session.push(1, std::vector<float>(100, 3.0f));
    session.await(1, 1, kSessionSoon);
    EXPECT_EQ(small[99], 3.0f);
    session.finish(kSessionSoon);
  });
}

TEST(SessionWeights, WeightsThatWouldNeverMoveAreNotAttached) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  std::vector<float> weights(100, 1.0f);
  const auto refusals = [&](float scale) {
    return std::vector<std::string>{
        session_sentence_of(JobErrorCode::kInvalidArgument,
                            [&] { session->attach_weights(1, weights, scale, ApplyWhen::kOnAwait); }),
        session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->set_scale(1, scale); })};
  };
  const auto expect_refused = [&](float scale, const std::string& words) {
    for (const std::string& sentence : refusals(scale)) EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
  };
  expect_refused(0, "the scale of the weights is 0");
  expect_refused(std::numeric_limits<float>::quiet_NaN(), "is not finite");
  const std::string unattached = session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->set_scale(1, 2); });
  EXPECT_NE(unattached.find("no weights are attached to tensor 'small'"), std::string::npos) << unattached;
  session->attach_weights(1, weights, 0.5f, ApplyWhen::kOnAwait);
  expect_refused(-0.0f, "the scale of the weights is 0");
  expect_refused(-std::numeric_limits<float>::infinity(), "is not finite");
  session->push(1, std::vector<float>(100, 2.0f));
  session->await(1, 0, kSessionSoon);
  EXPECT_EQ(weights, std::vector<float>(100, 2.0f)) << "the scale that was accepted";
  session->finish(kSessionSoon);
}

/// A session of one worker whose tensor "small" has weights under `schedule`.
struct Scheduled {
  Scheduled(Schedule schedule, ApplyWhen apply)
      : tensors({{.name = "small", .dimension = 100, .weights = Weights(weights, std::move(schedule), apply)}}),
        cluster(session_spec_of(session_job_of(1), tensors), 1) {
    SessionOptions job = session_job_of(1);
    job.shards = cluster.addresses();
    session = Session::connect(job, job, tensors);
  }

  std::vector<float> weights = std::vector<float>(100, 0.0f);
  std::vector<TensorOptions> tensors;
  FakeCluster cluster;
  std::unique_ptr<Session> session;
};

constexpr ApplyWhen kBothApply[] = {ApplyWhen::kOnArrival, ApplyWhen::kOnAwait};

TEST(SessionWeights, NonFiniteScaleOfASchedule_EndsTheSessionAndNamesTheStep) {
  const std::vector<float> gradient(100, 1.0f);
  for (const ApplyWhen apply : kBothApply) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Scheduled job([bad](uint64_t step, uint64_t, std::span<float>) { return step == 1 ? bad : 1.0f; }, apply);
      job.session->push(0, gradient);
      job.session->await(0, 0, kSessionSoon);
      job.session->push(0, gradient);
      for (const std::function<void()>& call : std::vector<std::function<void()>>{
               [&] { job.session->await(0, 1, kSessionSoon); }, [&] { job.session->push(0, gradient); },
               [&] { job.session->save(::testing::TempDir() + "millrace_session_weights_not_written"); },
               [&] { job.session->finish(kSessionSoon); }}) {
        const std::string sentence = session_sentence_of(JobErrorCode::kNonFinite, call);
        EXPECT_NE(sentence.find("tensor 'small': the scale of step 1 "), std::string::npos) << sentence;
      }
      EXPECT_EQ(job.weights, std::vector<float>(100, 1.0f)) << "step 0 and nothing else";
      job.cluster.wait_until([&] { return job.cluster.goodbyes.contains(0); });
    }
  }
}

TEST(SessionWeights, AnErrorThatACallbackThrowsOnTheSessionsThreadKeepsItsCode) {
  Scheduled job(
      [](uint64_t, uint64_t, std::span<float>) -> float {
        throw JobError(JobErrorCode::kUnsupported, "the schedule's own words");
      },
      ApplyWhen::kOnArrival);
  job.session->push(0, std::vector<float>(100, 1.0f));
  const std::string sentence =
      session_sentence_of(JobErrorCode::kUnsupported, [&] { job.session->await(0, 0, kSessionSoon); });
  EXPECT_NE(sentence.find("the schedule's own words"), std::string::npos) << sentence;
  // The other workers do not wait for dead_after.
  job.cluster.wait_until([&] { return job.cluster.goodbyes.contains(0); });
  EXPECT_EQ(job.cluster.goodbyes[0].reason, protocol::Goodbye::Reason::kFailed);
}

}  // namespace
}  // namespace millrace::testing
