#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/cuda/device_queue.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"

/// The public session on a card: gradients in its memory, and the updates of pushes from the host's memory.
namespace millrace::testing {
namespace {

constexpr uint64_t kGpuSessionDimension = 100'003;

/// An array of the card that a stream of the caller's writes.
struct CardArray {
  explicit CardArray(std::span<const float> values)
      : queue(cuda::DeviceQueue::make(0).value()), memory(queue->allocate<float>(values.size())) {
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
};

TEST_F(SessionOnCard, UpdatesHaveTheBitsOfPushesFromTheHost) {
  for (const auto& selection :
       {Selection::top_k(0.01), Selection::threshold(1.5), Selection::top_k(0.02).dense_first(2)}) {
    for (const Codec& codec : {Codec(index::gap, value::qsgd(4)), Codec(index::raw)}) {
      const SessionOptions job = job_of(selection, codec);
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
  }
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
