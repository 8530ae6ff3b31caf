// Alone in its program: speeds of codecs are measured once a process.
#include <gtest/gtest.h>

#include "protocol/container/codec_speeds.h"
#include "tests/worker/session_options.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/config/job_config.h"
#include "worker/session/session_shell.h"

/// A job with codec auto: the thread that measures, and the time of it.
namespace millrace::worker {
namespace {

constexpr std::chrono::milliseconds kSessionCodecSoon{120'000};

TEST(SessionWithCodecAuto, HasTheSpeedsOfCodecsBeforeTheFirstStepAndNotFromItsOwnThread) {
  testing::SessionOptions job;
  job.name = "automatic";
  job.workers = 1;
  job.select = Selection::all();
  job.codec_up = Codec::automatic();
  job.connect_timeout = kSessionCodecSoon;
  job.shards = {"tcp://127.0.0.1:1"};
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = 1000}};
  auto spec = job_spec_of(job, job, tensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  testing::FakeCluster cluster(*spec, 1);
  job.shards = cluster.addresses();
  auto initial_state = load_initial_state(job, tensors, *spec);
  ASSERT_TRUE(initial_state.has_value()) << initial_state.error().message;
  SessionShell session(job, *spec, std::move(*initial_state));
  ASSERT_EQ(&speeds_so_far(), &fallback_speeds());
  ASSERT_TRUE(session.join().has_value());
  // The session's thread uses the existing speeds: otherwise the fallback would code the first step.
  EXPECT_NE(&speeds_so_far(), &fallback_speeds());
  const auto pushed = session.push(0, 1, kSessionCodecSoon,
                                   [](PushSlot& slot) { return slot.add_dense(std::vector<float>(1000, 1.0f), 1); });
  EXPECT_TRUE(pushed.has_value()) << pushed.error().error.message;
  EXPECT_TRUE(session.finish(kSessionCodecSoon).value_or(false));
}

}  // namespace
}  // namespace millrace::worker
