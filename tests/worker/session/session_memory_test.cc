#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/hash.h"
#include "tests/support/replaced_new.h"
#include "tests/worker/session/session_jobs.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/core/store_client.h"
#include "worker/session/session_shell.h"

/// Calls of a session whose caller's thread runs out of memory, at every allocation in turn: they do all or nothing.
namespace millrace::worker {
namespace {

using testing::FailingAllocation;
using testing::kSessionSoon;
using testing::kSessionTwoTensors;

constexpr uint64_t kCallAllocationsMax = 200;
constexpr std::chrono::milliseconds kNoWait{0};

std::unique_ptr<SessionShell> joined_shell(testing::SessionOptions job, testing::FakeCluster& cluster) {
  job.shards = cluster.addresses();
  auto spec = job_spec_of(job, job, kSessionTwoTensors);
  EXPECT_TRUE(spec.has_value());
  auto initial_state = load_initial_state(job, kSessionTwoTensors, *spec);
  EXPECT_TRUE(initial_state.has_value());
  auto shell = std::make_unique<SessionShell>(job, std::move(*spec), std::move(*initial_state));
  EXPECT_TRUE(shell->join().has_value());
  return shell;
}

/// Calls `call` with memory ending at every allocation in turn, until a call needs no more allocations.
///
/// call   returns whether it succeeded; may throw std::bad_alloc.
/// after  receives that result, with memory back.
void with_memory_ending_everywhere(const std::function<bool()>& call, const std::function<void(bool done)>& after) {
  uint64_t starved = 0;
  for (uint64_t at = 0; at < kCallAllocationsMax; ++at) {
    SCOPED_TRACE("allocation " + std::to_string(at));
    bool done = false;
    bool failed = false;
    {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      try {
        done = call();
      } catch (const std::bad_alloc&) {
        done = false;
      }
      failed = failing.failed();
    }
    after(done);
    if (!failed) {
      EXPECT_GT(starved, 0u) << "no allocation failed";
      return;
    }
    ++starved;
  }
  FAIL() << "the call allocates without end";
}

void expect_pushes_take_all_or_nothing(const testing::SessionOptions& job) {
  testing::FakeCluster cluster(testing::session_spec_of(job, kSessionTwoTensors), 1);
  const auto shell = joined_shell(job, cluster);
  const std::vector<uint32_t> indices = {70, 3, 3};  // unsorted, with a duplicate: it is sorted in memory of its own
  const std::vector<float> values = {1, 2, 4};
  uint64_t steps = 0;
  const auto push = [&] {
    const auto pushed =
        shell->push(1, 1, kSessionSoon, [&](PushSlot& slot) -> Status { return slot.add_sparse(indices, values, 1); });
    if (pushed) return true;
    EXPECT_EQ(pushed.error().error.code, ErrorCode::kLimitExceeded);
    EXPECT_EQ(pushed.error().origin, JobErrorOrigin::kWorker);
    return false;
  };
  with_memory_ending_everywhere(push, [&](bool done) {
    EXPECT_TRUE(done || push()) << "the call may be repeated";
    EXPECT_EQ(shell->stats().tensors[1].steps_pushed, steps + 1);
    auto update = shell->await(1, steps, kSessionSoon);
    ASSERT_TRUE(update.has_value() && update->has_value());
    EXPECT_EQ(testing::session_entries_of(**update), (std::map<uint64_t, float>{{3, 6.0f}, {70, 1.0f}}));
    ++steps;
  });
  EXPECT_EQ(shell->stats().audit.entered, job.guarantees.audit ? 7.0 * static_cast<double>(steps) : 0);
  EXPECT_TRUE(shell->finish(kSessionSoon).value_or(false)) << "no fill is left under way";
}

TEST(StarvedSession, APushTakesAllOfAGradientOrNothing) {
  testing::SessionOptions job = testing::session_job_of(1);
  expect_pushes_take_all_or_nothing(job);
  job.guarantees.audit = true;
  expect_pushes_take_all_or_nothing(job);
}

TEST(StarvedSession, AnAwaitHandsOutAllOfAnUpdateOrNothing) {
  const testing::SessionOptions job = testing::session_job_of(1);
  testing::FakeCluster cluster(testing::session_spec_of(job, kSessionTwoTensors), 1);
  const auto shell = joined_shell(job, cluster);
  const std::vector<uint32_t> indices = {3, 70};
  const std::vector<float> values = {6, 1};
  uint64_t step = 0;
  const auto push_and_hear = [&] {
    const auto pushed =
        shell->push(1, 1, kSessionSoon, [&](PushSlot& slot) -> Status { return slot.add_sparse(indices, values, 1); });
    ASSERT_TRUE(pushed.has_value() && pushed->has_value());
    step = **pushed;
    while (!shell->ready(1, step).value_or(true)) std::this_thread::yield();
  };
  std::optional<TensorUpdate> update;
  const auto await = [&] {
    auto got = shell->await(1, step, kSessionSoon);
    if (got && *got) update = std::move(**got);
    return update.has_value();
  };
  push_and_hear();
  with_memory_ending_everywhere(await, [&](bool done) {
    EXPECT_TRUE(done || await()) << "the call may be repeated";
    ASSERT_TRUE(update.has_value());
    EXPECT_EQ(testing::session_entries_of(*update), (std::map<uint64_t, float>{{3, 6.0f}, {70, 1.0f}}));
    update.reset();
    push_and_hear();
  });
}

/// A push that fills its slot while another thread calls finish() is sent, and its update arrives.
TEST(FinishedSession, APushUnderWayIsPartOfTheJob) {
  const testing::SessionOptions job = testing::session_job_of(1);
  testing::FakeCluster cluster(testing::session_spec_of(job, kSessionTwoTensors), 1);
  const auto shell = joined_shell(job, cluster);
  std::latch fills(1), goes_on(1);
  const auto fill = [&](PushSlot& slot) -> Status {
    fills.count_down();
    goes_on.wait();
    return slot.add_sparse(std::vector<uint32_t>{3}, std::vector<float>{6}, 1);
  };
  std::jthread pushes([&] {
    const auto pushed = shell->push(1, 1, kSessionSoon, fill);
    ASSERT_TRUE(pushed.has_value() && pushed->has_value());
    const auto update = shell->await(1, **pushed, kSessionSoon);
    ASSERT_TRUE(update.has_value() && update->has_value()) << "it was never sent";
    EXPECT_EQ(testing::session_entries_of(**update), (std::map<uint64_t, float>{{3, 6.0f}}));
  });
  fills.wait();
  std::jthread finishes([&] { EXPECT_TRUE(shell->finish(kSessionSoon).value_or(false)); });
  // Another tensor is refused as soon as finish() was called.
  const auto is_refused = [&] {
    const auto other = shell->push(0, 1, kNoWait, [](PushSlot&) -> Status { return fail(ErrorCode::kNonFinite, ""); });
    return !other && other.error().error.code == ErrorCode::kInvalidArgument;
  };
  while (!is_refused()) std::this_thread::yield();
  goes_on.count_down();
}

/// Shards that keep pulls to themselves until they are released, and answer them with `kPulledWeight` then.
class PullsHeld {
 public:
  static constexpr float kPulledWeight = 9;

  testing::FakeCluster::Script script() {
    return [this](testing::FakeCluster& cluster, uint32_t shard, const protocol::PeerId& from,
                  const protocol::Message& message) {
      const auto* pull = std::get_if<protocol::Pull>(&message.body);
      if (pull == nullptr) return false;
      if (hold_) {
        held_.push_back({shard, from, *pull});
      } else {
        answer(cluster, {shard, from, *pull});
      }
      return true;
    };
  }
  void release(testing::FakeCluster& cluster) {
    hold_ = false;
    for (const Held& one : held_) answer(cluster, one);
  }

 private:
  struct Held {
    uint32_t shard;
    protocol::PeerId from;
    protocol::Pull pull;
  };
  static void answer(testing::FakeCluster& cluster, const Held& held) {
    const size_t count = held.pull.indices != 0 ? held.pull.indices : held.pull.count;
    const std::vector<float> weights(count, kPulledWeight);
    ByteBuffer bytes(count * sizeof(float));
    std::memcpy(bytes.data(), weights.data(), bytes.size());
    protocol::Pulled body;
    body.id = held.pull.id;
    body.part = held.pull.part;
    body.values = static_cast<uint32_t>(count);
    body.payload_hash = hash64(bytes);
    cluster.reply(held.shard, held.from, body, SharedBytes::from(std::move(bytes)));
  }

  bool hold_ = true;
  std::vector<Held> held_;
};

TEST(StarvedSession, NothingIsWrittenForAPullThatHasReturned) {
  testing::SessionOptions job = testing::session_job_of(1);
  job.store = Store{optimizer::Sgd{0.5}};
  PullsHeld pulls;
  testing::FakeCluster cluster(testing::session_spec_of(job, kSessionTwoTensors), 1, pulls.script());
  const auto shell = joined_shell(job, cluster);
  const std::vector<uint32_t> indices = {3, 70};
  std::vector<std::unique_ptr<std::vector<float>>> arrays;
  const auto pull_range = [&] {
    const auto pulled = shell->pull(1, 0, *arrays.back(), {.timeout = kNoWait});
    EXPECT_TRUE(pulled.has_value() && !pulled->has_value());
    return true;
  };
  const auto pull_indices = [&] {
    const auto pulled =
        shell->pull_rows(1, 1, indices, std::span(*arrays.back()).first(indices.size()), {.timeout = kNoWait});
    EXPECT_TRUE(pulled.has_value() && !pulled->has_value());
    return true;
  };
  const auto next_array = [&] { arrays.push_back(std::make_unique<std::vector<float>>(100, 0.0f)); };
  for (const std::function<bool()>& pull : std::vector<std::function<bool()>>{pull_range, pull_indices}) {
    next_array();
    with_memory_ending_everywhere(pull, [&](bool) { next_array(); });
  }
  cluster.run_there([&] { pulls.release(cluster); });
  // Its answer comes after theirs, on the same connection.
  std::vector<float> last(100, 0.0f);
  const auto pulled = shell->pull(1, 0, last, {.timeout = kSessionSoon});
  ASSERT_TRUE(pulled.has_value() && pulled->has_value());
  EXPECT_EQ(last, std::vector<float>(100, PullsHeld::kPulledWeight));
  for (const auto& array : arrays) EXPECT_EQ(*array, std::vector<float>(100, 0.0f));
}

TEST(StarvedStoreClient, AsksForAllPiecesOfACallOrForNone) {
  std::unique_ptr<StoreClient> client;
  std::vector<StoreClient::Request> pieces;
  const auto anew = [&] {
    client = std::make_unique<StoreClient>(StoreClient::Config{});
    pieces.clear();
    pieces.resize(4);
    for (StoreClient::Request& piece : pieces) piece.indices = SharedBytes::from(ByteBuffer{1, 0, 0, 0, 2, 0, 0, 0});
  };
  anew();
  with_memory_ending_everywhere(
      [&] {
        EXPECT_EQ(client->ask_all(pieces), 1u);
        return true;
      },
      [&](bool done) {
        EXPECT_EQ(client->idle(), !done);
        for (uint64_t id = 1; done && id <= pieces.size(); ++id) client->cancel(id);
        EXPECT_TRUE(client->idle()) << "no other pieces";
        anew();
      });
}

}  // namespace
}  // namespace millrace::worker
