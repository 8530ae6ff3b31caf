#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "millrace/millrace.h"
#include "tests/worker/session_options.h"
#include "tests/worker/temporary_folder.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/config/job_config.h"

/// Momentum and clipping behind the public session, with its threads.
namespace millrace::testing {
namespace {

constexpr std::chrono::milliseconds kEnteringSessionSoon{120'000};
constexpr uint32_t kEnteringSessionWorkers = 4;
constexpr uint64_t kEnteringSessionSteps = 8;
const std::vector<TensorOptions> kEnteringSessionTensors = {{.name = "large", .dimension = 20'000},
                                                            {.name = "small", .dimension = 100, .priority = 1}};

float only_value(const TensorUpdate& update, uint64_t index) {
  float value = 0;
  for (const UpdatePiece& piece : update.pieces) {
    for (size_t i = 0; i < piece.values.size(); ++i) {
      if (piece.begin + (piece.dense ? i : piece.indices[i]) == index) value = piece.values[i];
    }
  }
  return value;
}

/// One worker: a thread a tensor, and one that asks and saves meanwhile. The norm over both tensors is 5, it may be
/// 2.5.
void run_worker(const SessionOptions& job, const std::string& path) {
  auto session = Session::connect(job, job, kEnteringSessionTensors);
  std::atomic<bool> done = false;
  std::thread asks([&] {
    while (!done.load()) {
      EXPECT_EQ(session->stats().tensors.size(), 2u);
      session->save(path);
    }
  });
  const auto push_and_await = [&](size_t tensor, uint64_t index, float value) {
    float velocity = 0;
    std::vector<float> gradient(kEnteringSessionTensors[tensor].dimension, 0.0f);
    gradient[index] = value;
    for (uint64_t step = 0; step < kEnteringSessionSteps; ++step) {
      const uint64_t pushed = step % 2 == 0 ? session->push(tensor, gradient)
                                            : session->push_sparse(tensor, std::vector<uint32_t>{uint32_t(index)},
                                                                   std::vector<float>{value});
      velocity = velocity / 2 + value / 2;
      EXPECT_EQ(only_value(session->await(tensor, pushed, kEnteringSessionSoon), index),
                kEnteringSessionWorkers * velocity)
          << step;
    }
  };
  std::thread large([&] { push_and_await(0, 19'999, 3); });
  push_and_await(1, 7, 4);
  large.join();
  done = true;
  asks.join();
  session->finish(kEnteringSessionSoon);
}

TEST(SessionWithMomentum, EntersTheClippedGradientsOfTensorsThatThreadsPushAlone) {
  SessionOptions job;
  job.name = "entering";
  job.workers = kEnteringSessionWorkers;
  job.select = Selection::all();
  job.momentum = Momentum::correction(0.5);
  job.contributions.clip = 5;
  job.liveness.heartbeat = std::chrono::milliseconds(100);
  job.connect_timeout = kEnteringSessionSoon;
  job.shards = {"tcp://127.0.0.1:1"};
  const auto spec = worker::job_spec_of(job, job, kEnteringSessionTensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  FakeCluster cluster(*spec, 2);
  job.shards = cluster.addresses();
  const TemporaryFolder folder;
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < kEnteringSessionWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      SessionOptions own = job;
      own.worker = worker;
      try {
        run_worker(own, (folder.path() / ("state" + std::to_string(worker))).string());
      } catch (const JobError& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace millrace::testing
