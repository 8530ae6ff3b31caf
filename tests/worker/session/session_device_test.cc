#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/queue/host_queue.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/worker/core/residual/forwarding_residual.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/core/residual/queue_residual.h"
#include "worker/session/queue_weights.h"
#include "worker/session/session_shell.h"

/// Gradients in a device's memory: the same updates as from the host's memory, and the errors of machines without one.
namespace millrace::testing {
namespace {
using std::chrono::milliseconds;

constexpr uint64_t kSessionDeviceDimension = 6'007;

const worker::MakeDeviceResidual kSessionOnHostQueue =
    [](const SelectionSpec& spec, uint64_t dimension) -> Result<std::unique_ptr<worker::DeviceResidual>> {
  return std::make_unique<worker::QueueResidual<cuda::HostQueue>>(std::make_unique<cuda::HostQueue>(), spec, dimension);
};

SessionOptions device_job_of() {
  SessionOptions job = session_job_of(1);
  job.select = Selection::top_k(0.02);
  job.codec_up = Codec(index::gap, value::qsgd(4));
  return job;
}

/// A session over two shards that has joined its job.
class JoinedSession {
 public:
  JoinedSession(const SessionOptions& of, const std::vector<TensorOptions>& tensors)
      : job_(of), spec_(session_spec_of(job_, tensors)), cluster_(spec_, 2) {
    job_.shards = cluster_.addresses();
    session_.emplace(job_, spec_, worker::load_initial_state(job_, tensors, spec_).value());
    EXPECT_TRUE(session_->join().has_value());
  }
  worker::SessionShell& session() { return *session_; }

 private:
  SessionOptions job_;
  protocol::JobSpec spec_;
  FakeCluster cluster_;
  std::optional<worker::SessionShell> session_;
};

/// Runs a job; returns the values of all its updates and the saved state. fill: of the step's slot.
template <typename Fill>
std::vector<std::map<uint64_t, float>> updates_of(const SessionOptions& job, const Fill& fill, Stream& residual) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  JoinedSession joined(job, tensors);
  worker::SessionShell& session = joined.session();
  std::vector<std::map<uint64_t, float>> updates;
  for (uint64_t step = 0; step < 4; ++step) {
    const auto gradient = values_of(Pattern::kGaussian, kSessionDeviceDimension, step);
    const auto pushed = session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return fill(slot, gradient); });
    EXPECT_TRUE(pushed.has_value() && pushed->has_value());
    const auto update = session.await(0, step, kSessionSoon);
    EXPECT_TRUE(update.has_value() && update->has_value());
    if (update && *update) updates.push_back(session_entries_of(**update));
  }
  residual = session.take_residual(0).value_or(Stream{});
  EXPECT_TRUE(session.finish(kSessionSoon).value_or(false));
  return updates;
}

/// Compares the updates and the residuals of pushes from a device's memory with those of pushes from the host's.
void expect_updates_of_the_host(const SessionOptions& job) {
  Stream of_host, of_device;
  const auto wanted = updates_of(
      job, [](worker::PushSlot& slot, const std::vector<float>& gradient) { return slot.add_dense(gradient, 1); },
      of_host);
  const auto found = updates_of(
      job,
      [](worker::PushSlot& slot, const std::vector<float>& gradient) {
        return slot.add_device({gradient.data(), gradient.size(), 0}, 1, kSessionOnHostQueue);
      },
      of_device);
  ASSERT_EQ(wanted.size(), 4u);
  EXPECT_EQ(found, wanted);
  EXPECT_GT(of_host.count(), kSessionDeviceDimension / 2);
  EXPECT_EQ(listed(of_device.indices), listed(of_host.indices));
  EXPECT_EQ(std::vector<float>(of_device.values.begin(), of_device.values.end()),
            std::vector<float>(of_host.values.begin(), of_host.values.end()));
}

TEST(SessionOnDevice, UpdatesHaveTheBitsOfPushesFromTheHost) { expect_updates_of_the_host(device_job_of()); }

TEST(SessionOnDevice, DenseCodesHaveTheBitsOfPushesFromTheHost) {
  SessionOptions job = device_job_of();
  job.select = Selection::all();
  job.layout.fuse_below = 0;
  for (const ValueCode& code : {value::qsgd(4), value::f16, value::onebit()}) {
    job.codec_up = Codec(index::gap, code);
    expect_updates_of_the_host(job);
  }
}

constexpr int kOfHost = -1;

/// Runs a job with a tensor at each place, a device or the host; returns the values of all its updates.
std::vector<std::map<uint64_t, float>> updates_at(const std::vector<int>& places) {
  std::vector<TensorOptions> tensors;
  for (size_t at = 0; at < places.size(); ++at) {
    tensors.push_back({.name = "w" + std::to_string(at), .dimension = kSessionDeviceDimension + at});
  }
  SessionOptions job = device_job_of();
  job.layout.fuse_below = 0;
  JoinedSession joined(job, tensors);
  worker::SessionShell& session = joined.session();
  std::vector<std::map<uint64_t, float>> updates;
  for (uint64_t step = 0; step < 4; ++step) {
    for (uint32_t tensor = 0; tensor < places.size(); ++tensor) {
      const auto gradient = values_of(Pattern::kGaussian, tensors[tensor].dimension, 10 * step + tensor);
      const auto push = [&](int place) {
        return session.push(tensor, 1, kSessionSoon, [&](worker::PushSlot& slot) {
          if (place == kOfHost) return slot.add_dense(gradient, 1);
          const auto make = [&](const SelectionSpec& select,
                                uint64_t dimension) -> Result<std::unique_ptr<worker::DeviceResidual>> {
            return std::make_unique<worker::QueueResidual<cuda::HostQueue>>(std::make_unique<cuda::HostQueue>(place),
                                                                            select, dimension);
          };
          return slot.add_device({gradient.data(), gradient.size(), place}, 1, make);
        });
      };
      // A tensor's gradients come from one device: the refused one changes nothing.
      if (step > 0 && places[tensor] != kOfHost) {
        const auto other = push(places[tensor] + 1);
        EXPECT_FALSE(other.has_value());
        if (!other) {
          EXPECT_THAT(other.error().error.message, ::testing::HasSubstr("this gradient on device"));
        }
      }
      const auto pushed = push(places[tensor]);
      EXPECT_TRUE(pushed.has_value() && pushed->has_value());
    }
    for (uint32_t tensor = 0; tensor < places.size(); ++tensor) {
      const auto update = session.await(tensor, step, kSessionSoon);
      EXPECT_TRUE(update.has_value() && update->has_value());
      if (update && *update) updates.push_back(session_entries_of(**update));
    }
  }
  EXPECT_TRUE(session.finish(kSessionSoon).value_or(false));
  return updates;
}

/// A worker may push tensors from two devices' memory and another one from the host's.
TEST(SessionOnDevice, TensorsOfTwoDevicesAndTheHostShareASession) {
  const auto wanted = updates_at({kOfHost, kOfHost, kOfHost});
  const auto found = updates_at({0, 1, kOfHost});
  ASSERT_EQ(wanted.size(), 12u);
  EXPECT_EQ(found, wanted);
}

/// Updates added to weights in a device's memory: the bits of weights in the host's.
TEST(SessionOnDevice, WeightsThereHaveTheBitsOfTheHosts) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  std::vector<std::vector<float>> ends;
  for (const bool on_device : {false, true}) {
    for (const char* const select : {"topk", "dense"}) {
      SessionOptions job = device_job_of();
      if (std::string(select) == "dense") job.select = Selection::top_k(0.02).dense_first(2);
      JoinedSession joined(job, tensors);
      worker::SessionShell& session = joined.session();
      auto weights = values_of(Pattern::kGaussian, kSessionDeviceDimension, 77);
      if (on_device) {
        const auto make = [&]() -> Result<std::unique_ptr<worker::DeviceWeights>> {
          auto queue = std::make_unique<cuda::HostQueue>();
          queue->let_allocations_fail_after(2);  // those of make(): updates are added without memory
          return worker::QueueWeights<cuda::HostQueue>::make(std::move(queue), weights.data(), weights.size(), nullptr);
        };
        EXPECT_EQ(session.attach_device_weights(0, 7, -0.1f, make).error().error.code, ErrorCode::kInvalidArgument);
        ASSERT_TRUE(session.attach_device_weights(0, weights.size(), -0.1f, make).has_value());
      } else {
        ASSERT_TRUE(session.attach_weights(0, weights, -0.1f, ApplyWhen::kOnAwait).has_value());
      }
      for (uint64_t step = 0; step < 4; ++step) {
        const auto gradient = values_of(Pattern::kGaussian, kSessionDeviceDimension, step);
        ASSERT_TRUE(
            session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return slot.add_dense(gradient, 1); })
                .has_value());
        const auto update = session.await(0, step, kSessionSoon);
        ASSERT_TRUE(update.has_value() && update->has_value());
        EXPECT_TRUE((*update)->applied);
      }
      EXPECT_EQ(session.steps_applied(0).value_or(0), 4u);
      EXPECT_TRUE(session.finish(kSessionSoon).value_or(false));
      ends.push_back(weights);
    }
  }
  EXPECT_EQ(ends[2], ends[0]);
  EXPECT_EQ(ends[3], ends[1]);
  EXPECT_NE(ends[0], values_of(Pattern::kGaussian, kSessionDeviceDimension, 77));
}

TEST(SessionOnDevice, WeightsWithoutMemoryThereAreRefusedAndCanBeAttachedLater) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  JoinedSession joined(device_job_of(), tensors);
  std::vector<float> weights(kSessionDeviceDimension);
  for (const uint64_t allocations : {0, 1, 2}) {
    const worker::CallStatus done = joined.session().attach_device_weights(0, weights.size(), 1, [&] {
      auto queue = std::make_unique<cuda::HostQueue>();
      queue->let_allocations_fail_after(allocations);
      return worker::QueueWeights<cuda::HostQueue>::make(std::move(queue), weights.data(), weights.size(), nullptr);
    });
    EXPECT_EQ(done.has_value(), allocations == 2);
    if (!done) {
      EXPECT_EQ(done.error().error.code, ErrorCode::kLimitExceeded);
    }
  }
}

/// Weights that note their calls, and whether the calls came from the thread that made the weights.
class WatchedWeights final : public worker::DeviceWeights {
 public:
  struct Log {
    std::vector<std::pair<std::string, bool>> calls;
    Status answer;  ///< of waits
  };
  WatchedWeights(std::unique_ptr<worker::DeviceWeights> works, Log& log) : works_(std::move(works)), log_(log) {}
  static Result<std::unique_ptr<worker::DeviceWeights>> make(std::span<float> weights, Log& log) {
    auto works = worker::QueueWeights<cuda::HostQueue>::make(std::make_unique<cuda::HostQueue>(), weights.data(),
                                                             weights.size(), nullptr);
    return std::make_unique<WatchedWeights>(std::move(*works), log);
  }

  Status await_callers_work() const override {
    note("wait");
    return log_.answer;
  }
  Status add(uint64_t begin, const StreamView& stream, float factor) override {
    note("add");
    return works_->add(begin, stream, factor);
  }
  Status write(uint64_t begin, std::span<const float> values) override { return works_->write(begin, values); }
  Status read(uint64_t begin, std::span<float> out) override {
    note("read");
    return works_->read(begin, out);
  }

 private:
  void note(const std::string& call) const { log_.calls.emplace_back(call, std::this_thread::get_id() == maker_); }

  std::unique_ptr<worker::DeviceWeights> works_;
  Log& log_;
  std::thread::id maker_ = std::this_thread::get_id();
};

/// The session's thread sends heartbeats, and the stream of the weights may work for long.
TEST(SessionOnDevice, CallersThreadWaitsForTheStreamOfWeights) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  std::vector<float> weights(kSessionDeviceDimension);
  WatchedWeights::Log log;
  JoinedSession joined(device_job_of(), tensors);
  worker::SessionShell& session = joined.session();
  const auto make = [&] { return WatchedWeights::make(weights, log); };
  ASSERT_TRUE(session.attach_device_weights(0, weights.size(), -0.1f, make).has_value());
  const std::vector<float> gradient(kSessionDeviceDimension, 1.0f);
  const auto push = [&] {
    return session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return slot.add_dense(gradient, 1); });
  };
  ASSERT_TRUE(push().has_value());
  EXPECT_TRUE(log.calls.empty()) << "nothing is added by a push";
  // A captured stream, say: the update still waits, and the session continues.
  log.answer = fail(ErrorCode::kInvalidArgument, "the stream is being captured");
  EXPECT_EQ(session.await(0, 0, kSessionSoon).error().error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::exchange(log.calls, {}), (std::vector<std::pair<std::string, bool>>{{"wait", true}}));
  log.answer = {};
  EXPECT_TRUE(session.await(0, 0, kSessionSoon).has_value());
  ASSERT_GE(log.calls.size(), 2u);
  EXPECT_EQ(log.calls.front(), (std::pair<std::string, bool>("wait", true)));
  EXPECT_EQ(log.calls.back(), (std::pair<std::string, bool>("add", true)));
  EXPECT_EQ(session.steps_applied(0).value_or(0), 1u);
  log.calls.clear();
  const std::string path = ::testing::TempDir() + "millrace_watched_weights_" + std::to_string(::getpid());
  EXPECT_TRUE(session.save(path).has_value());
  std::filesystem::remove(path);
  ASSERT_GE(log.calls.size(), 2u);
  EXPECT_EQ(log.calls.front(), (std::pair<std::string, bool>("wait", true)));
  EXPECT_EQ(log.calls.back(), (std::pair<std::string, bool>("read", false)));
  log.answer = fail(ErrorCode::kInternal, "the device has failed");
  EXPECT_FALSE(session.save(path).has_value());
  EXPECT_EQ(push().error().error.code, ErrorCode::kInternal);
}

/// Only a session that ends with an error writes save_path: then no caller waits for the stream.
TEST(SessionOnDevice, SaveAtAnErrorWaitsForTheStreamAndFinishDoesNot) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  const std::string path = ::testing::TempDir() + "millrace_saved_at_the_end_" + std::to_string(::getpid());
  SessionOptions job = device_job_of();
  job.save_path = path;
  const std::vector<float> gradient(kSessionDeviceDimension, 1.0f);
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    std::vector<float> weights(kSessionDeviceDimension);
    WatchedWeights::Log log;
    JoinedSession joined(job, tensors);
    worker::SessionShell& session = joined.session();
    const auto make = [&] { return WatchedWeights::make(weights, log); };
    ASSERT_TRUE(session.attach_device_weights(0, weights.size(), -0.1f, make).has_value());
    const auto pushed =
        session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return slot.add_dense(gradient, 1); });
    ASSERT_TRUE(pushed.has_value());
    ASSERT_TRUE(session.await(0, 0, kSessionSoon).has_value());
    log.calls.clear();
    if (fails) {
      EXPECT_FALSE(
          session.await_callers_work(0, [] { return Status(fail(ErrorCode::kInternal, "failed")); }).has_value());
      ASSERT_GE(log.calls.size(), 2u);
      EXPECT_EQ(log.calls.front(), (std::pair<std::string, bool>("wait", false)));
      EXPECT_EQ(log.calls.back(), (std::pair<std::string, bool>("read", false)));
    } else {
      EXPECT_TRUE(session.finish(kSessionSoon).value_or(false));
      EXPECT_TRUE(log.calls.empty());
    }
    EXPECT_EQ(std::filesystem::remove(path), fails);
  }
}

/// A device's residual that fails at its second gradient, as one whose memory has an error.
class FailsLater final : public ForwardingResidual {
 public:
  FailsLater(const SelectionSpec& spec, uint64_t dimension)
      : ForwardingResidual(kSessionOnHostQueue(spec, dimension).value()) {}
  static Result<std::unique_ptr<worker::DeviceResidual>> make(const SelectionSpec& spec, uint64_t dimension) {
    return std::make_unique<FailsLater>(spec, dimension);
  }
  Result<uint64_t> add(const worker::DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (std::exchange(used_, true)) return std::unexpected(failed().error());
    return ForwardingResidual::add(gradient, weight, rule);
  }
  Status add(const StreamView&, uint64_t) override { return failed(); }
  Result<Stream> copy() const override {
    if (!status_) return std::unexpected(status_.error());
    return ForwardingResidual::copy();
  }
  Status status() const override { return status_; }

  using ForwardingResidual::copy;

 private:
  Status failed() {
    status_ = fail(ErrorCode::kInternal, "the device has failed");
    return status_;
  }
  Status status_;
  bool used_ = false;
};

/// The residual is lost: the worker must not go on as if it had it.
TEST(SessionOnDevice, FailedDeviceEndsTheSessionWithItsError) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  for (const std::string call : {"push", "restore"}) {
    SCOPED_TRACE(call);
    JoinedSession joined(device_job_of(), tensors);
    worker::SessionShell& session = joined.session();
    const auto gradient = values_of(Pattern::kGaussian, kSessionDeviceDimension, 1);
    const auto push = [&] {
      return session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) {
        return slot.add_device({gradient.data(), gradient.size(), 0}, 1, FailsLater::make);
      });
    };
    ASSERT_TRUE(push().has_value());
    ASSERT_TRUE(session.await(0, 0, kSessionSoon).has_value());
    if (call == "push") {
      const auto failed = push();
      ASSERT_FALSE(failed.has_value());
      EXPECT_EQ(failed.error().error.code, ErrorCode::kInternal);
    } else {
      const auto failed = session.restore(0, {{3}, {1.0f}}, {});
      ASSERT_FALSE(failed.has_value());
      EXPECT_EQ(failed.error().error.code, ErrorCode::kInternal);
    }
    // Every later call has the error, and its cause is in this worker.
    const auto later =
        session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return slot.add_dense(gradient, 1); });
    ASSERT_FALSE(later.has_value());
    EXPECT_THAT(later.error().error.message, ::testing::HasSubstr("tensor 'w': the device has failed"));
    EXPECT_EQ(later.error().origin, JobErrorOrigin::kWorker);
    EXPECT_FALSE(session.finish(kSessionSoon).has_value());
  }
}

/// push() waits for the caller's stream by this call. A failed device has lost the residual. Other errors have changed
/// nothing.
TEST(SessionOnDevice, FailedWaitForTheStreamEndsTheSessionIfTheDeviceFailed) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  JoinedSession joined(device_job_of(), tensors);
  worker::SessionShell& session = joined.session();
  const std::vector<float> gradient(kSessionDeviceDimension, 1.0f);
  const auto wait_with = [&](ErrorCode code) {
    const worker::CallStatus waited =
        session.await_callers_work(0, [&]() -> Status { return fail(code, "cuda: the work of another stream"); });
    EXPECT_FALSE(waited.has_value());
    if (!waited) {
      EXPECT_EQ(waited.error().error.code, code);
    }
    return session.push(0, 1, kSessionSoon, [&](worker::PushSlot& slot) { return slot.add_dense(gradient, 1); });
  };
  EXPECT_TRUE(session.await_callers_work(0, [] { return Status(); }).has_value());
  EXPECT_FALSE(session.await_callers_work(7, [] { return Status(); }).has_value()) << "there is one tensor";
  uint64_t step = 0;
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kUnavailable, ErrorCode::kLimitExceeded}) {
    EXPECT_TRUE(wait_with(code).has_value());
    EXPECT_TRUE(session.await(0, step++, kSessionSoon).has_value());
  }
  const auto later = wait_with(ErrorCode::kInternal);
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().error.code, ErrorCode::kInternal);
}

/// The library works without a card, and without a driver.
TEST(SessionOnDevice, MemoryThatIsNoDevicesIsRefusedAndTheHostsIsStillTaken) {
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = kSessionDeviceDimension}};
  SessionOptions job = device_job_of();
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const std::vector<float> gradient(kSessionDeviceDimension, 1.0f);
  for (const int device : {0, 1'000, -1}) {
    try {
      session->push(0, DeviceSpan(gradient.data(), gradient.size(), device, nullptr));
      ADD_FAILURE() << "memory of the host was taken for a device's";
    } catch (const JobError& error) {
      EXPECT_THAT(error.code(), ::testing::AnyOf(JobErrorCode::kUnsupported, JobErrorCode::kUnavailable,
                                                 JobErrorCode::kInvalidArgument));
      EXPECT_THAT(error.what(), ::testing::ContainsRegex("CUDA|cuda"));
    }
  }
  std::vector<float> weights(kSessionDeviceDimension);
  EXPECT_THROW(session->attach_weights(0, DeviceArray(weights.data(), weights.size(), 0, nullptr), 1), JobError);
  session->await(0, session->push(0, gradient), kSessionSoon);
  session->finish(kSessionSoon);
}

TEST(SessionOnDevice, TensorsThatTravelTogetherAreNamed) {
  const std::vector<TensorOptions> tensors = {{.name = "a", .dimension = 10}, {.name = "b", .dimension = 20}};
  SessionOptions job = device_job_of();
  FakeCluster cluster(session_spec_of(job, tensors), 1);
  job.shards = cluster.addresses();
  const auto session = Session::connect(job, job, tensors);
  const std::vector<float> gradient(10, 1.0f);
  const std::string why = session_sentence_of(
      JobErrorCode::kUnsupported, [&] { session->push(0, DeviceSpan(gradient.data(), gradient.size(), 0, nullptr)); });
  EXPECT_THAT(why, ::testing::HasSubstr("fused"));
}

}  // namespace
}  // namespace millrace::testing
