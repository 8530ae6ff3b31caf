#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "millrace/millrace.h"
#include "monitoring/http/http_client.h"
#include "protocol/job/layout.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/core/rejoin/saved_state.h"
#include "worker/session/state_file.h"

/// The public session against toy shards over loopback sockets.
namespace millrace::testing {
namespace {
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Session, SumsSparseGradientsOfAllWorkersAndFinishes) {
  SessionOptions job = session_job_of(3);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  job.shards = cluster.addresses();
  run_workers(job, kSessionTwoTensors, [&](uint32_t worker, Session& session) {
    for (uint32_t i = 0; i < 20; ++i) {
      const std::vector<uint32_t> indices = {19'999, worker, 5'000, 5'000};  // unsorted, with a duplicate
      const std::vector<float> values = {1, 2, 0.5f, 0.25f};
      const uint64_t large = session.push_sparse(0, indices, values);
      const uint64_t small = session.push_sparse(1, std::vector<uint32_t>{7}, std::vector<float>{1});
      EXPECT_EQ(large, i);
      const auto got = session_entries_of(session.await(0, large, kSessionSoon));
      EXPECT_EQ(got, (std::map<uint64_t, float>{{0, 2}, {1, 2}, {2, 2}, {5'000, 2.25f}, {19'999, 3}}));
      EXPECT_EQ(session_entries_of(session.await(1, small, kSessionSoon)), (std::map<uint64_t, float>{{7, 3}}));
    }
    session.finish(kSessionSoon);
    const Stats stats = session.stats();
    EXPECT_EQ(stats.rounds, 20u * 2);
    EXPECT_GT(stats.bytes_up, 0u);
    EXPECT_GT(stats.bytes_down, 0u);
    EXPECT_EQ(stats.tensors[0].steps_applied, 20u);
  });
  // A goodbye that was handed to the socket is not yet one that was read.
  cluster.wait_until([&] { return cluster.goodbyes.size() == 3; });
  cluster.run_there([&] {
    for (const auto& [worker, goodbye] : cluster.goodbyes)
      EXPECT_EQ(goodbye.reason, protocol::Goodbye::Reason::kFinished);
    for (uint32_t shard = 0; shard < 2; ++shard) EXPECT_EQ(cluster.shard(shard).complaints, std::vector<std::string>());
  });
}

TEST(Session, ServesItsMetricsWhereItsOptionsSay) {
  SessionOptions job = session_job_of(1);
  job.http = "127.0.0.1:0";
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = 100}};
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, tensors);
  ASSERT_NE(session->http_port(), 0);
  const std::string address = "127.0.0.1:" + std::to_string(session->http_port());
  const auto page = [&](const std::string& path) {
    const auto reply = monitoring::http_get(address, path, static_cast<int>(kSessionSoon.count()));
    EXPECT_TRUE(reply.has_value()) << reply.error().message;
    return reply ? reply->body : std::string();
  };
  EXPECT_THAT(page("/metrics"), HasSubstr("millrace_worker_steps_total{job=\"session-test\"} 0\n"));
  session->await(0, session->push(0, std::vector<float>(100, 1.0f)), kSessionSoon);
  const std::string metrics = page("/metrics");
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_steps_total{job=\"session-test\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_step_seconds_count{job=\"session-test\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_dense_bytes_total{job=\"session-test\"} 400\n"));
  EXPECT_THAT(page("/status"), HasSubstr("\"rounds\":1"));
  EXPECT_THAT(page("/healthz"), HasSubstr("ok"));
  // The port is taken: said before anything of the job.
  job.http = address;
  EXPECT_THAT(session_sentence_of(JobErrorCode::kIo, [&] { Session::connect(job, job, tensors); }), HasSubstr(address));
  try {
    Session::connect(job, job, tensors);
    ADD_FAILURE() << "the port is taken";
  } catch (const JobError& error) {
    EXPECT_EQ(error.origin(), JobErrorOrigin::kWorker);
  }
  session->finish(kSessionSoon);
  EXPECT_THAT(page("/metrics"), HasSubstr("millrace_worker_steps_total{job=\"session-test\"} 1\n"));
  session.reset();
  EXPECT_FALSE(monitoring::http_get(address, "/healthz", 1'000).has_value());
}

TEST(Session, ProtectsItsHttpPort) {
  SessionOptions job = session_job_of(1);
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = 100}};
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto refusal = [&] {
    return session_sentence_of(JobErrorCode::kInvalidArgument, [&] { Session::connect(job, job, tensors); });
  };
  job.http = "0.0.0.0:0";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("WorkerConfig::http 0.0.0.0:0"), HasSubstr("http_token_file")));
  job.http = "127.0.0.1:0";
  job.http_tls = "one_file";
  EXPECT_THAT(refusal(), HasSubstr("http_tls: give two files"));
  job.http_tls.clear();
  job.http_token_file = ::testing::TempDir() + "session_http_token";
  std::ofstream(job.http_token_file) << "a-token-of-this-test\n";
  std::filesystem::permissions(job.http_token_file, std::filesystem::perms::owner_read);
  auto session = Session::connect(job, job, tensors);
  std::filesystem::remove(job.http_token_file);
  const std::string address = "127.0.0.1:" + std::to_string(session->http_port());
  EXPECT_EQ(monitoring::http_get(address, "/status", static_cast<int>(kSessionSoon.count()))->status, 401);
  EXPECT_EQ(monitoring::http_get(address, "/healthz", static_cast<int>(kSessionSoon.count()))->status, 200);
  session->finish(kSessionSoon);
}

TEST(Session, WithoutAnAddressNothingListens) {
  SessionOptions job = session_job_of(1);
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = 100}};
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, tensors);
  EXPECT_EQ(session->http_port(), 0);
  session->finish(kSessionSoon);
}

TEST(Session, TakesAddressesWithAndWithoutTcp) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  job.shards = {cluster.addresses()[0].substr(std::string_view("tcp://").size()), cluster.addresses()[1]};
  Session::connect(job, job, kSessionTwoTensors)->finish(kSessionSoon);
}

TEST(Session, TensorsThatShareABucketAreSentTogether) {
  SessionOptions job = session_job_of(1);
  const std::vector<TensorOptions> tensors = {
      {.name = "a", .dimension = 10}, {.name = "b", .dimension = 20}, {.name = "c", .dimension = 30}};
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, tensors);
  EXPECT_EQ(protocol::plan_layout(session_spec_of(job, tensors), 1).buckets.size(), 1u);
  session->push(0, std::vector<float>(10, 1.0f));
  session->push_sparse(2, std::vector<uint32_t>{29}, std::vector<float>{3});
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(0, std::vector<float>(10, 1.0f)); });
  EXPECT_FALSE(session->ready(0, 0));
  session_sentence_of(JobErrorCode::kTimeout, [&] { session->await(0, 0, milliseconds(1)); });
  session->push_sparse(1, std::vector<uint32_t>{}, std::vector<float>{});
  EXPECT_EQ(session_entries_of(session->await(0, 0, kSessionSoon)).size(), 10u);
  EXPECT_EQ(session_entries_of(session->await(1, 0, kSessionSoon)).size(), 0u);
  EXPECT_EQ(session_entries_of(session->await(2, 0, kSessionSoon)), (std::map<uint64_t, float>{{29, 3}}));
  session->finish(kSessionSoon);
}

TEST(Session, ThreadsPushTheirOwnTensorsWhileOthersAskAndSave) {
  SessionOptions job = session_job_of(2);
  job.consistency = Synchronous{2};
  job.select = Selection::top_k(0.5);
  const std::vector<TensorOptions> tensors = {{.name = "a", .dimension = 20'000}, {.name = "b", .dimension = 30'000}};
  const std::string path = ::testing::TempDir() + "millrace_threads_" + std::to_string(::getpid());
  FakeCluster cluster(session_spec_of(job, tensors), 2);
  job.shards = cluster.addresses();
  constexpr uint64_t kSteps = 40;
  run_workers(job, tensors, [&](uint32_t worker, Session& session) {
    std::vector<std::vector<float>> weights = {std::vector<float>(20'000, 0.0f), std::vector<float>(30'000, 0.0f)};
    std::atomic<int> pushing = 2;
    std::vector<std::thread> threads;
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      session.attach_weights(tensor, weights[tensor], 1.0f, ApplyWhen::kOnArrival);
      threads.emplace_back([&, tensor] {
        for (uint64_t step = 0; step < kSteps; ++step) {
          std::vector<float> gradient(tensors[tensor].dimension, 0.0f);
          gradient[step] = 1;
          gradient[1'000 + worker] = 0.5f;
          if (step % 2 == 0) {
            session.push(tensor, gradient);
          } else {
            session.push_sparse(tensor, std::vector<uint32_t>{1'000 + worker, static_cast<uint32_t>(step)},
                                std::vector<float>{0.5f, 1});
          }
        }
        session.await(tensor, kSteps - 1, kSessionSoon);
        --pushing;
      });
    }
    while (pushing > 0) {
      EXPECT_LE(session.stats().tensors[0].steps_applied, kSteps);
      session.save(path + std::to_string(worker));
    }
    for (std::thread& thread : threads) thread.join();
    session.finish(kSessionSoon);
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      for (uint64_t step = 0; step < kSteps; ++step) EXPECT_EQ(weights[tensor][step], 2.0f) << tensor << " " << step;
      EXPECT_EQ(weights[tensor][1'000], 20.0f);
      EXPECT_EQ(weights[tensor][1'001], 20.0f);
    }
    std::filesystem::remove(path + std::to_string(worker));
  });
}

TEST(Session, AResidualTakenWhileAnotherThreadPushesLosesAndDoublesNothing) {
  SessionOptions job = session_job_of(1);
  job.select = Selection::top_k(0.01);
  const std::vector<TensorOptions> tensors = {{.name = "a", .dimension = 20'000}};
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  constexpr uint64_t kSteps = 60;
  run_workers(job, tensors, [&](uint32_t, Session& session) {
    std::vector<float> weights(20'000, 0.0f);
    session.attach_weights(0, weights, 1.0f, ApplyWhen::kOnArrival);
    std::atomic<bool> pushing = true;
    std::thread pusher([&] {
      const std::vector<float> ones(20'000, 1.0f);
      for (uint64_t step = 0; step < kSteps; ++step) session.push(0, ones);
      session.await(0, kSteps - 1, kSessionSoon);
      pushing = false;
    });
    double taken = 0;
    const auto take = [&] {
      try {
        for (const float value : session.take_residual(0).values) taken += static_cast<double>(value);
      } catch (const JobError& error) {
        EXPECT_EQ(error.code(), JobErrorCode::kInvalidArgument) << error.what();
      }
    };
    while (pushing) take();
    pusher.join();
    take();
    double applied = 0;
    for (const float value : weights) applied += static_cast<double>(value);
    EXPECT_EQ(applied + taken, 20'000.0 * kSteps);
    session.finish(kSessionSoon);
  });
}

TEST(Session, Tensor_FoundByItsName) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  EXPECT_EQ(session->tensor("large"), 0u);
  EXPECT_EQ(session->tensor("small"), 1u);
  EXPECT_THAT(session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->tensor("none"); }),
              HasSubstr("no tensor 'none'"));
}

TEST(Session, TwoThreadsThatWaitToPushOneTensorDoNotFillItTogether) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  std::vector<float> weights(20'000, 0.0f);
  session->attach_weights(0, weights, 1.0f, ApplyWhen::kOnArrival);
  constexpr int kPushesEach = 100;
  // Many entries of one index: slow to take in, so that the two meet, and little to send.
  const std::vector<uint32_t> indices(50'000, 7);
  const std::vector<float> ones(indices.size(), 1.0f);
  std::atomic<uint64_t> pushed = 0;
  const auto push_all = [&] {
    for (int own = 0; own < kPushesEach;) {
      try {
        session->push_sparse(0, indices, ones);
        ++pushed;
        ++own;
      } catch (const JobError& error) {
        EXPECT_EQ(error.code(), JobErrorCode::kInvalidArgument) << error.what();
        EXPECT_NE(std::string(error.what()).find("another thread"), std::string::npos) << error.what();
      }
    }
  };
  std::thread other(push_all);
  push_all();
  other.join();
  session->await(0, pushed - 1, kSessionSoon);
  EXPECT_EQ(weights[7], static_cast<float>(pushed * ones.size()));
  session->finish(kSessionSoon);
}

TEST(Session, AConnectionLostWithAContributionOnItCountsItOnce) {
  SessionOptions job = session_job_of(1);
  job.liveness.heartbeat =
      std::chrono::milliseconds(3'000);  // no pause of the shard's thread may look like another lost connection
  int contributions = 0;
  FakeCluster cluster(
      session_spec_of(job, kSessionTwoTensors), 1,
      [&](FakeCluster& self, uint32_t shard, const protocol::PeerId&, const protocol::Message& message) {
        if (!std::holds_alternative<protocol::Contribution>(message.body)) return false;
        ++contributions;
        if (contributions == 2) {  // lost before the shard has seen it
          self.break_connections(shard);
          return true;
        }
        if (contributions == 5) {  // seen and decided, its update lost
          ToyShard::Out lost;
          self.shard(shard).on_message(message.header.worker, message, lost);
          self.break_connections(shard);
          return true;
        }
        return false;
      });
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  std::vector<float> weights(20'000, 0.0f);
  session->attach_weights(0, weights, 1.0f, ApplyWhen::kOnArrival);
  for (uint64_t step = 0; step < 8; ++step) {
    session->push_sparse(0, std::vector<uint32_t>{3}, std::vector<float>{1});
    session->await(0, step, kSessionSoon);
  }
  EXPECT_EQ(weights[3], 8.0f);
  session->finish(kSessionSoon);
  EXPECT_EQ(session->stats().reconnects, 2u);
  EXPECT_GE(session->stats().resends, 2u);
  cluster.run_there([&] { EXPECT_EQ(cluster.shard(0).complaints, std::vector<std::string>()); });
}

TEST(Session, AnUnreachableShardIsNamedWithHowLongItWasTried) {
  SessionOptions job = session_job_of(1);
  job.connect_timeout = std::chrono::milliseconds(300);
  protocol::TransportContext context;
  std::string closed;
  {
    auto listener = protocol::Listener::bind(context, "tcp://127.0.0.1:0");
    closed = (*listener)->address();
  }
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  // It comes first: on a busy machine the other one may not be reached in so short a time either.
  job.shards = {closed, cluster.addresses()[1]};
  const std::string sentence =
      session_sentence_of(JobErrorCode::kUnavailable, [&] { Session::connect(job, job, kSessionTwoTensors); });
  // The membership of the fake shards has an address that cannot be used: both are tried.
  EXPECT_NE(sentence.find("shard 0 ("), std::string::npos) << sentence;
  EXPECT_NE(sentence.find(closed), std::string::npos) << sentence;
  const std::string tried = "tried for ";
  ASSERT_NE(sentence.find(tried), std::string::npos) << sentence;
  EXPECT_GE(std::stod(sentence.substr(sentence.find(tried) + tried.size())), 0.3) << sentence;
}

TEST(Session, TheLongestPauseBetweenAttemptsIsTheOptions) {
  SessionOptions job = session_job_of(1);
  job.connect_timeout = std::chrono::milliseconds(3'000);
  job.reconnect_after_max = std::chrono::milliseconds(10);
  protocol::TransportContext context;
  {
    auto listener = protocol::Listener::bind(context, "tcp://127.0.0.1:0");
    job.shards = {(*listener)->address()};
  }
  const std::string sentence =
      session_sentence_of(JobErrorCode::kUnavailable, [&] { Session::connect(job, job, kSessionTwoTensors); });
  const std::string tried = "s, ";
  ASSERT_NE(sentence.find(tried), std::string::npos) << sentence;
  // The default pauses, 100 ms and doubling, leave room for 6 attempts; 10 ms for 300.
  EXPECT_GE(std::stoi(sentence.substr(sentence.find(tried) + tried.size())), 10) << sentence;
}

TEST(Session, AShardThatRefusesEndsTheAttemptWithItsSentence) {
  for (const auto& [refused_with, code] : {std::pair(ErrorCode::kVersionMismatch, JobErrorCode::kVersionMismatch),
                                           std::pair(ErrorCode::kJobMismatch, JobErrorCode::kJobMismatch),
                                           std::pair(ErrorCode::kIdentityInUse, JobErrorCode::kIdentityInUse),
                                           std::pair(ErrorCode::kShardLost, JobErrorCode::kShardLost)}) {
    SessionOptions job = session_job_of(1);
    FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1,
                        [&, wire = refused_with](FakeCluster& self, uint32_t shard, const protocol::PeerId& from,
                                                 const protocol::Message& message) {
                          if (!std::holds_alternative<protocol::Hello>(message.body)) return false;
                          self.reply(shard, from, protocol::Refuse{wire, "the shard's own words", false});
                          return true;
                        });
    job.shards = cluster.addresses();
    const std::string sentence = session_sentence_of(code, [&] { Session::connect(job, job, kSessionTwoTensors); });
    EXPECT_NE(sentence.find("the shard's own words"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(job.shards[0]), std::string::npos) << sentence;
  }
}

TEST(Session, ARefusalThatAllowsTryingAgainIsTriedAgain) {
  SessionOptions job = session_job_of(1);
  int hellos = 0;
  FakeCluster cluster(
      session_spec_of(job, kSessionTwoTensors), 1,
      [&](FakeCluster& self, uint32_t shard, const protocol::PeerId& from, const protocol::Message& message) {
        if (!std::holds_alternative<protocol::Hello>(message.body) || ++hellos > 2) return false;
        self.reply(shard, from, protocol::Refuse{ErrorCode::kUnavailable, "still starting", true});
        return true;
      });
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  session->finish(kSessionSoon);
  cluster.run_there([&] { EXPECT_GE(hellos, 3); });
}

TEST(Session, AStartTimeoutNamesTheMissingWorkers) {
  SessionOptions job = session_job_of(4);
  job.worker = 2;
  job.start_timeout = std::chrono::milliseconds(200);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  job.shards = cluster.addresses();
  const std::string sentence =
      session_sentence_of(JobErrorCode::kTimeout, [&] { Session::connect(job, job, kSessionTwoTensors); });
  EXPECT_NE(sentence.find("0, 1, 3"), std::string::npos) << sentence;
}

TEST(Session, ConnectRefusesShardsInTheWrongOrder) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 2);
  job.shards = {cluster.addresses()[1], cluster.addresses()[0]};
  const std::string sentence =
      session_sentence_of(JobErrorCode::kShardMapMismatch, [&] { Session::connect(job, job, kSessionTwoTensors); });
  EXPECT_NE(sentence.find("stands at place"), std::string::npos) << sentence;
}

TEST(Session, AnInvalidGradientIsRefusedAndAddsNothing) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  std::vector<float> gradient(100, 1.0f);
  gradient[99] = std::numeric_limits<float>::quiet_NaN();
  session_sentence_of(JobErrorCode::kNonFinite, [&] { session->push(1, gradient); });
  const float infinity = std::numeric_limits<float>::infinity();
  session_sentence_of(JobErrorCode::kNonFinite,
                      [&] { session->push_sparse(1, std::vector<uint32_t>{1, 2}, std::vector<float>{1, infinity}); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(1, std::vector<float>(99)); });
  session_sentence_of(JobErrorCode::kInvalidArgument,
                      [&] { session->push_sparse(1, std::vector<uint32_t>{1}, std::vector<float>{1, 2}); });
  const std::string range = session_sentence_of(JobErrorCode::kInvalidArgument, [&] {
    session->push_sparse(1, std::vector<uint32_t>{3, 100}, std::vector<float>{1, 2});
  });
  EXPECT_NE(range.find("index 100"), std::string::npos) << range;
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(9, gradient); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(1, std::vector<float>(100), 2.0); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->await(1, 0, kSessionSoon); });
  const uint64_t step = session->push_sparse(1, std::vector<uint32_t>{4}, std::vector<float>{1});
  EXPECT_EQ(session_entries_of(session->await(1, step, kSessionSoon)), (std::map<uint64_t, float>{{4, 1}}));
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->await(1, step, kSessionSoon); });
  session->finish(kSessionSoon);
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(1, std::vector<float>(100)); });
}

TEST(Session, NonFiniteEntriesAreDroppedAndCountedWhereConfigured) {
  SessionOptions job = session_job_of(1);
  job.contributions.non_finite = NonFinite::kDropAndCount;
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  const float infinity = std::numeric_limits<float>::infinity();
  session->push_sparse(1, std::vector<uint32_t>{1, 2, 3}, std::vector<float>{1, infinity, 3});
  EXPECT_EQ(session_entries_of(session->await(1, 0, kSessionSoon)), (std::map<uint64_t, float>{{1, 1}, {3, 3}}));
  EXPECT_EQ(session->stats().tensors[1].non_finite_dropped, 1u);
}

TEST(Session, ASessionKeepsUnawaitedUpdatesUpToTheLimit) {
  SessionOptions job = session_job_of(1);
  job.updates_kept_max = 3;
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  auto session = Session::connect(job, job, kSessionTwoTensors);
  for (int i = 0; i < 3; ++i) session->push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1});
  session->await(0, 2, kSessionSoon);
  session->push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1});
  session->await(0, 3, kSessionSoon);
  session->push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1});
  const std::string sentence = session_sentence_of(JobErrorCode::kLimitExceeded, [&] {
    for (int i = 0; i < 2; ++i) session->push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1});
  });
  EXPECT_NE(sentence.find("updates_kept_max"), std::string::npos) << sentence;
  EXPECT_EQ(session_entries_of(session->await(0, 0, kSessionSoon)), (std::map<uint64_t, float>{{1, 1}}));
}

TEST(Session, ADestroyedSessionSaysThatItLeaves) {
  SessionOptions job = session_job_of(1);
  FakeCluster cluster(session_spec_of(job, kSessionTwoTensors), 1);
  job.shards = cluster.addresses();
  Session::connect(job, job, kSessionTwoTensors).reset();
  cluster.wait_until([&] { return !cluster.goodbyes.empty(); });
  EXPECT_EQ(cluster.goodbyes[0].reason, protocol::Goodbye::Reason::kShutdown);
}

/// A session with one contribution in flight that a script keeps from being answered.
class SessionEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "millrace_session_ends_" + std::to_string(::getpid());
    job_ = session_job_of(1);
    job_.save_path = path_;
    job_.shard_silence = std::chrono::milliseconds(60'000);
    job_.log = [this](LogLevel, std::string_view line) { log_ += std::string(line) + "\n"; };
    cluster_ = std::make_unique<FakeCluster>(
        session_spec_of(job_, kSessionTwoTensors), 1,
        [](FakeCluster&, uint32_t, const protocol::PeerId&, const protocol::Message& message) {
          return std::holds_alternative<protocol::Contribution>(message.body);
        });
    job_.shards = cluster_->addresses();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void start() {
    session_ = Session::connect(job_, job_, kSessionTwoTensors);
    session_->push_sparse(0, std::vector<uint32_t>{5, 6}, std::vector<float>{1, 2});
  }
  /// Checks that the saved state holds the contributions in flight.
  void expect_saved() {
    const auto bytes = worker::read_file(path_);
    ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
    const auto state = worker::decode_saved_state(*bytes);
    ASSERT_TRUE(state.has_value()) << state.error().message;
    EXPECT_EQ(state->job_name, "session-test");
    EXPECT_EQ(state->incarnation, 1u);
    ASSERT_EQ(state->tensors.size(), 2u);
    EXPECT_EQ(state->tensors[0].name, "large");
    EXPECT_EQ(state->tensors[0].steps_pushed, 1u);
    EXPECT_TRUE(std::ranges::equal(state->tensors[0].residual.indices, std::vector<uint32_t>{5, 6}));
    EXPECT_TRUE(std::ranges::equal(state->tensors[0].residual.values, std::vector<float>{1, 2}));
    EXPECT_EQ(state->tensors[1].residual.count(), 0u);
    EXPECT_EQ(state->parts[0].n, 0u);
  }

  std::string path_;
  std::string log_;
  SessionOptions job_;
  std::unique_ptr<FakeCluster> cluster_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionEnds, WithTheShardsAbortAndASavedState) {
  start();
  cluster_->run_there([&] {
    for (const uint32_t worker : {0u}) {
      cluster_->say(0, worker, protocol::Abort{ErrorCode::kUnavailable, "too few workers are left"});
    }
  });
  const std::string sentence =
      session_sentence_of(JobErrorCode::kUnavailable, [&] { session_->await(0, 0, kSessionSoon); });
  EXPECT_NE(sentence.find("too few workers are left"), std::string::npos) << sentence;
  session_sentence_of(JobErrorCode::kUnavailable, [&] { session_->push(0, std::vector<float>(20'000)); });
  session_sentence_of(JobErrorCode::kUnavailable, [&] { session_->finish(kSessionSoon); });
  EXPECT_EQ(session_->stats().rounds, 0u);
  expect_saved();
  EXPECT_NE(log_.find("state saved"), std::string::npos) << log_;
}

TEST_F(SessionEnds, WhenAShardThatWasStartedAgainRefuses) {
  start();
  cluster_->run_there([&] {
    cluster_->shard(0).incarnation = 2;
    cluster_->shard(0).refuses = protocol::Refuse{ErrorCode::kShardLost, "the job has ended without this shard", false};
    cluster_->break_connections(0);
  });
  const std::string sentence =
      session_sentence_of(JobErrorCode::kShardLost, [&] { session_->await(0, 0, kSessionSoon); });
  EXPECT_NE(sentence.find("shard 0 (" + job_.shards[0] + ") refuses: the job has ended"), std::string::npos)
      << sentence;
  expect_saved();
}

TEST_F(SessionEnds, WhenAShardIsSilentForTooLong) {
  job_.shard_silence =
      std::chrono::milliseconds(3'000);  // more than a pause of the shard's thread before it falls silent
  start();
  cluster_->run_there([&] { cluster_->fall_silent(0); });
  const std::string sentence =
      session_sentence_of(JobErrorCode::kUnavailable, [&] { session_->await(0, 0, kSessionSoon); });
  EXPECT_NE(sentence.find("shard 0 (" + job_.shards[0] + ") has been silent"), std::string::npos) << sentence;
  expect_saved();
}

TEST_F(SessionEnds, WhenTheWorkerIsRemoved) {
  start();
  cluster_->run_there([&] {
    cluster_->table().remove(0);
    cluster_->adopt_views();
  });
  const std::string sentence =
      session_sentence_of(JobErrorCode::kNotAMember, [&] { session_->await(0, 0, kSessionSoon); });
  EXPECT_NE(sentence.find("worker 0 was removed"), std::string::npos) << sentence;
  expect_saved();
}

TEST_F(SessionEnds, WithAnErrorInsteadOfABlockedPush) {
  start();
  std::thread pusher([&] {
    session_sentence_of(JobErrorCode::kInternal,
                        [&] { session_->push_sparse(0, std::vector<uint32_t>{1}, std::vector<float>{1}); });
  });
  cluster_->run_there([&] { cluster_->say(0, 0, protocol::Abort{ErrorCode::kInternal, "end"}); });
  pusher.join();
}

TEST_F(SessionEnds, AndSavesOnDemandWhileItRuns) {
  start();
  session_->save(path_);
  expect_saved();
  const std::string nowhere = path_ + "/no/such/folder";
  const std::string sentence = session_sentence_of(JobErrorCode::kIo, [&] { session_->save(nowhere); });
  EXPECT_NE(sentence.find(nowhere), std::string::npos) << sentence;
}

}  // namespace
}  // namespace millrace::testing
