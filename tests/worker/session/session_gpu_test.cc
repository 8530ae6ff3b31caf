#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/queue/device_queue.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"

/// The public session on a card: gradients in its memory, and the updates of pushes from the host's memory.
namespace millrace::testing {
namespace {

constexpr uint64_t kGpuSessionDimension = 100'003;

/// An array of the card that a stream of the caller's writes.
struct CardArray {
  explicit CardArray(std::span<const float> values, int device = 0)
      : queue(cuda::DeviceQueue::make(device).value()), memory(queue->allocate<float>(values.size())) {
    [[maybe_unused]] const auto here = queue->on_its_device();
    queue->upload(memory.data(), values);
  }
  DeviceSpan span(int device) const { return {memory.data(), memory.size(), device, queue->stream()}; }

  std::unique_ptr<cuda::DeviceQueue> queue;
  cuda::DeviceMemory<float> memory;
};

class SessionOnCard : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }

  static SessionOptions job_of(const Selection& selection, const Codec& codec) {
    SessionOptions job = session_job_of(1);
    job.select = selection;
    job.codec_up = codec;
    return job;
  }

  /// Returns the updates of a job, and its residual at the end.
  template <typename Push>
  static std::vector<std::map<uint64_t, float>> updates_of(SessionOptions job, const Push& push,
                                                           SparseEntries& residual) {
    const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kGpuSessionDimension}};
    FakeCluster cluster(session_spec_of(job, tensors), 2);
    job.shards = cluster.addresses();
    const auto session = Session::connect(job, job, tensors);
    std::vector<std::map<uint64_t, float>> updates;
    for (uint64_t step = 0; step < 5; ++step) {
      const auto gradient = values_of(Pattern::kGaussian, kGpuSessionDimension, step);
      updates.push_back(session_entries_of(session->await(0, push(*session, gradient), kSessionSoon)));
    }
    EXPECT_GE(session->stats().tensors[0].residual_norm, 0);
    residual = session->take_residual(0);
    session->finish(kSessionSoon);
    return updates;
  }

  /// Compares updates and residuals of pushes from the card's memory with those of pushes from the host's.
  static void expect_updates_of_the_host(const SessionOptions& job) {
    SparseEntries of_host, of_card;
    const auto wanted = updates_of(
        job, [](Session& session, const std::vector<float>& gradient) { return session.push(0, gradient); }, of_host);
    const auto found = updates_of(
        job,
        [](Session& session, const std::vector<float>& gradient) {
          const CardArray array(gradient);
          return session.push(0, array.span(DeviceSpan::kOfPointer));
        },
        of_card);
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(of_card.indices, of_host.indices);
    EXPECT_EQ(of_card.values, of_host.values);
  }
};

TEST_F(SessionOnCard, UpdatesHaveTheBitsOfPushesFromTheHost) {
  for (const auto& selection :
       {Selection::top_k(0.01), Selection::threshold(1.5), Selection::top_k(0.02).dense_first(2)}) {
    for (const Codec& codec : {Codec(index::gap, value::qsgd(4)), Codec(index::raw)}) {
      expect_updates_of_the_host(job_of(selection, codec));
    }
  }
}

TEST_F(SessionOnCard, DenseCodesHaveTheBitsOfPushesFromTheHost) {
  for (const ValueCode& code : {value::qsgd(4), value::qsgd(3, QsgdScale::kL2Norm, 100), value::f16, value::bf16,
                                value::onebit(), value::terngrad()}) {
    expect_updates_of_the_host(job_of(Selection::all(), Codec(index::gap, code)));
  }
}

TEST_F(SessionOnCard, MomentumAndClippingHaveTheBitsOfPushesFromTheHost) {
  for (const Momentum& momentum : {Momentum::none(), Momentum::correction(0.9), Momentum::nesterov(0.9)}) {
    for (const Selection& selection : {Selection::top_k(0.01), Selection::all()}) {
      SessionOptions job = job_of(selection, Codec(index::gap, value::qsgd(4)));
      job.momentum = momentum;
      job.contributions.clip = 100;  // the gradients' norms are about 316
      expect_updates_of_the_host(job);
    }
  }
}

/// Tensors on two cards and one of the host's memory have the updates of a session of the host's.
TEST_F(SessionOnCard, TensorsOfTwoCardsAndTheHostShareASession) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one CUDA device on this machine";
  constexpr size_t kTensors = 3;
  std::vector<TensorOptions> tensors;
  for (size_t at = 0; at < kTensors; ++at) {
    tensors.push_back({.name = "w" + std::to_string(at), .dimension = kGpuSessionDimension + at});
  }
  std::vector<std::vector<std::map<uint64_t, float>>> updates(2);
  for (const bool on_cards : {false, true}) {
    SessionOptions job = job_of(Selection::top_k(0.01), Codec(index::gap, value::qsgd(4)));
    job.layout.fuse_below = 0;
    FakeCluster cluster(session_spec_of(job, tensors), 2);
    job.shards = cluster.addresses();
    const auto session = Session::connect(job, job, tensors);
    for (uint64_t step = 0; step < 4; ++step) {
      for (size_t at = 0; at < kTensors; ++at) {
        const auto gradient = values_of(Pattern::kGaussian, tensors[at].dimension, 10 * step + at);
        if (!on_cards || at == 2) {
          session->push(at, gradient);
          continue;
        }
        const CardArray array(gradient, static_cast<int>(at));
        session->push(at, array.span(DeviceSpan::kOfPointer));
      }
      for (size_t at = 0; at < kTensors; ++at) {
        updates[on_cards ? 1 : 0].push_back(session_entries_of(session->await(at, step, kSessionSoon)));
      }
    }
    session->finish(kSessionSoon);
  }
  EXPECT_EQ(updates[1], updates[0]);
}

TEST_F(SessionOnCard, WeightsThereHaveTheBitsOfTheHosts) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kGpuSessionDimension}};
  const std::vector<float> begin = values_of(Pattern::kGaussian, kGpuSessionDimension, 77);
  std::vector<std::vector<float>> ends;
  for (const bool on_card : {false, true}) {
    SessionOptions job = job_of(Selection::top_k(0.02).dense_first(1), Codec(index::gap, value::qsgd(4)));
    FakeCluster cluster(session_spec_of(job, tensors), 2);
    job.shards = cluster.addresses();
    const auto session = Session::connect(job, job, tensors);
    std::vector<float> weights = begin;
    const CardArray there(begin);
    if (on_card) {
      session->attach_weights(0, DeviceArray(there.memory.data(), begin.size(), 0, there.queue->stream()), -0.1f);
    } else {
      session->attach_weights(0, weights, -0.1f, ApplyWhen::kOnAwait);
    }
    for (uint64_t step = 0; step < 4; ++step) {
      const auto gradient = values_of(Pattern::kGaussian, kGpuSessionDimension, step);
      session->await(0, session->push(0, gradient), kSessionSoon);
    }
    session->finish(kSessionSoon);
    if (on_card) there.queue->download(std::span(weights), static_cast<const float*>(there.memory.data()));
    ends.push_back(weights);
  }
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_NE(ends[0], begin);
}

/// The gradient's stream writes it while push() is called: it must wait for that stream.
TEST_F(SessionOnCard, PushWaitsForTheStreamOfTheGradient) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kGpuSessionDimension}};
  SessionOptions job = job_of(Selection::top_k(0.01), Codec(index::gap));
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const auto queue = cuda::DeviceQueue::make(0).value();
  constexpr uint64_t kMuch = uint64_t{1} << 28;
  auto much = queue->allocate<float>(kMuch);
  auto gradient = queue->allocate<float>(kGpuSessionDimension);
  const std::vector<float> ones(kGpuSessionDimension, 1.0f);
  queue->upload(gradient.data(), std::span(ones));
  ASSERT_TRUE(queue->finish().has_value());
  for (uint64_t step = 0; step < 3; ++step) {
    for (int at = 0; at < 40; ++at) queue->clear(much.data(), kMuch * sizeof(float));  // milliseconds of work
    queue->clear(gradient.data(), kGpuSessionDimension * sizeof(float));
    const auto update = session->await(
        0, session->push(0, DeviceSpan(gradient.data(), kGpuSessionDimension, 0, queue->stream())), kSessionSoon);
    EXPECT_TRUE(session_entries_of(update).empty()) << "the ones were read that the stream overwrites";
    queue->upload(gradient.data(), std::span(ones));
  }
  session->finish(kSessionSoon);
}

TEST_F(SessionOnCard, StreamsThatAreNoneAreRefusedAndTheResidualStays) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kGpuSessionDimension}};
  SessionOptions job = job_of(Selection::top_k(0.01), Codec(index::gap));
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const auto gradient = values_of(Pattern::kGaussian, kGpuSessionDimension, 1);
  const CardArray array(gradient);
  session->await(0, session->push(0, array.span(0)), kSessionSoon);
  const double norm = session->stats().tensors[0].residual_norm;
  void* const of_each_thread = std::bit_cast<void*>(uintptr_t{2});  // cudaStreamPerThread
  const std::string why = session_sentence_of(JobErrorCode::kInvalidArgument, [&] {
    session->push(0, DeviceSpan(array.memory.data(), array.memory.size(), 0, of_each_thread));
  });
  EXPECT_NE(why.find("cudaStreamPerThread"), std::string::npos) << why;
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] {
    session->attach_weights(0, DeviceArray(array.memory.data(), array.memory.size(), 0, of_each_thread), 1);
  });
  EXPECT_EQ(session->stats().tensors[0].residual_norm, norm);
  EXPECT_GT(norm, 0);
  session->await(0, session->push(0, array.span(0)), kSessionSoon);
  session->finish(kSessionSoon);
}

/// Only the selected entries leave the card, no error of their code returns, and the card's memory is the residual and
/// some scratch.
TEST_F(SessionOnCard, StatsReportBusTransfersAndDeviceMemory) {
  constexpr uint64_t kDimension = uint64_t{1} << 24;
  const std::vector<TensorOptions> tensors = {{.name = "a", .dimension = kDimension},
                                              {.name = "b", .dimension = kDimension}};
  SessionOptions job = job_of(Selection::top_k(0.001), Codec(index::gap, value::qsgd(4)));
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const CardArray array(values_of(Pattern::kGaussian, kDimension, 1));
  constexpr uint64_t kSteps = 3;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (size_t tensor = 0; tensor < 2; ++tensor) session->push(tensor, array.span(0));
    for (size_t tensor = 0; tensor < 2; ++tensor) session->await(tensor, step, kSessionSoon);
  }
  const Stats stats = session->stats();
  const uint64_t entries = stats.tensors[0].entries_sent + stats.tensors[1].entries_sent;
  EXPECT_GE(entries, 2 * kSteps * 16'000);
  EXPECT_GE(stats.bytes_from_devices, 8 * entries);
  EXPECT_LE(stats.bytes_from_devices, 8 * entries + 2 * kSteps * 1'000)
      << "counters of the kernels, beside the entries";
  EXPECT_LE(stats.bytes_to_devices, 2 * kSteps * 1'000);
  const uint64_t residuals = 2 * kDimension * sizeof(float);
  EXPECT_GE(stats.device_memory_bytes, residuals);
  EXPECT_LE(stats.device_memory_bytes, 2 * residuals + (uint64_t{64} << 20));
  session->finish(kSessionSoon);
}

TEST_F(SessionOnCard, MemoryOfAnotherDeviceIsRefused) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kGpuSessionDimension}};
  SessionOptions job = job_of(Selection::top_k(0.01), Codec(index::gap));
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const std::vector<float> gradient(kGpuSessionDimension, 1.0f);
  const CardArray array(gradient);
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] { session->push(0, array.span(7)); });
  session_sentence_of(JobErrorCode::kInvalidArgument, [&] {
    session->push(0, DeviceSpan(gradient.data(), gradient.size(), DeviceSpan::kOfPointer, nullptr));
  });
  session->await(0, session->push(0, array.span(0)), kSessionSoon);
  session->finish(kSessionSoon);
}

}  // namespace
}  // namespace millrace::testing
