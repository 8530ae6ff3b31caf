#include <gtest/gtest.h>

#include <map>
#include <ostream>

#include "protocol/container/container.h"
#include "tests/worker/core/returning_core.h"

/// R9e: The steps to which a worker contributes after a rejoin: each step that needs it, and none that a shard does not
/// take yet. The refusal of such a step ends the session.
namespace millrace::testing {
namespace {

using protocol::Contribution;

class RejoinedSteps : public ReturningCore {
 protected:
  /// Two tensors, each a bucket of one part on each shard: parts 0 and 1, and parts 2 and 3.
  void make_running_with_two_buckets() {
    config_.spec.tensors = toy_spec(2, {kDimension, kDimension}).tensors;
    config_.spec.fuse_below = 1;
    core_ = std::make_unique<WatchedCore>(config_, watch_);
    ASSERT_EQ(core_->layout().buckets.size(), 2u);
    ASSERT_EQ(core_->layout().parts.size(), 4u);
    core_->start(now_, actions_);
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core_->on_connected(shard, now_, actions_);
      welcome(shard);
    }
    ASSERT_EQ(core_->phase(), worker::Phase::kRunning);
  }
  uint32_t shard_of(uint32_t part) const { return core_->layout().parts[part].shard; }
  /// Settles the part with the shard's weights after n steps, all that it has decided.
  void settle_with_snapshot(uint32_t part, uint64_t n) {
    std::vector<float> weights(part_dimension(part), 1.0f);
    ByteBuffer bytes(weights.size() * sizeof(float));
    std::memcpy(bytes.data(), weights.data(), bytes.size());
    protocol::Snapshot run = snapshot_of(part, n);
    run.payload_hash = hash64(bytes);
    hear(shard_of(part), run, SharedBytes::from(std::move(bytes)));
    hear(shard_of(part), settle_of(part, n, Weights::kSnapshot));
  }
  /// Pushes an entry of the tensor, and does the work that follows.
  void push_to(uint32_t tensor) {
    const auto pushed = core_->push_sparse(tensor, {{5}}, {{1.0f}}, 1, now_);
    ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
    work_and_end_pass();
  }
  void work_and_end_pass() {
    while (core_->work(now_, actions_)) {
    }
    core_->end_pass(now_, actions_);
  }
  /// Both parts of the bucket hear that the step is decided with this worker.
  void hear_step(uint32_t bucket, uint64_t step) {
    for (uint32_t part = 2 * bucket; part < 2 * bucket + 2; ++part) {
      protocol::Update update = update_of(part, step);
      update.contributors = {{0, incarnation_}, {1, 1}};
      hear(shard_of(part), update, sum_of({}, part_dimension(part)));
    }
  }
  struct Sent {
    uint64_t step = 0;
    size_t entries = 0;
    bool operator==(const Sent&) const = default;
    friend void PrintTo(const Sent& sent, std::ostream* out) {
      *out << "step " << sent.step << " with " << sent.entries << " entries";
    }
  };
  /// The contributions sent to the part, in their order. The others stay for the next call.
  std::vector<Sent> sent_to(uint32_t part) {
    for (const auto& [shard, message] : take_sent<Contribution>()) {
      const auto& body = std::get<Contribution>(message.body);
      const auto payload = read_container(message.payload.bytes, {.dimension = part_dimension(body.part)});
      EXPECT_TRUE(payload.has_value()) << body.part;
      sent_[body.part].push_back({body.step, payload.has_value() ? payload->count() : 0});
    }
    return std::exchange(sent_[part], {});
  }

 private:
  std::map<uint32_t, std::vector<Sent>> sent_;  ///< by part
};

// Shard 1 was restarted, and recovered one step. Shard 0 still has the step that is in flight.
TEST_F(RejoinedSteps, AStepTooFarAheadForAShard_SentAfterTheUpdateBeforeIt) {
  make_running();
  for (uint64_t step = 0; step < 3; ++step) {
    push({5}, {1});
    for (uint32_t part = 0; part < 2; ++part) hear_update(part, step, {});
  }
  push({5}, {1});
  lose_place();
  enter(2);
  hear(0, settle_of(0, 4));
  hear_snapshot(1, 1, 1);
  protocol::Settle settle = settle_of(1, 1, Weights::kSnapshot);
  settle.on_log = false;
  settle.branch = 2;
  hear(1, settle);
  actions_.clear();
  make_synced();
  EXPECT_EQ(sent_to(0), (std::vector<Sent>{{3, 0}}));
  EXPECT_EQ(sent_to(1), (std::vector<Sent>{{1, 0}, {2, 0}})) << "the shard refuses steps beyond its next two";
  hear_update(1, 1, {});
  EXPECT_EQ(sent_to(1), (std::vector<Sent>{{3, 0}}));
}

// With a quorum of all, the steps before the first push wait for this worker too.
TEST_F(RejoinedSteps, StepsBeforeABucketsFirstPush_GetEmptyContributions) {
  config_.spec.mode = protocol::Mode::kBoundedStaleness;
  config_.spec.quorum = 2;
  config_.spec.staleness = 3;
  make_running_with_two_buckets();
  push_to(0);
  lose_place();
  enter(2);
  for (const uint32_t part : {0u, 1u}) settle_with_snapshot(part, 2);
  for (const uint32_t part : {2u, 3u}) settle_with_snapshot(part, 0);
  make_synced();
  actions_.clear();
  push_to(0);
  EXPECT_EQ(sent_to(0), (std::vector<Sent>{{2, 1}}));
  EXPECT_EQ(sent_to(2), std::vector<Sent>{});
  push_to(1);
  EXPECT_EQ(sent_to(2), (std::vector<Sent>{{0, 0}, {1, 0}, {2, 1}})) << "the push shares the step of the other bucket";
}

// The push of the second bucket is for a step that its shards do not take yet. The steps before it need this worker.
TEST_F(RejoinedSteps, StepsBeforeAPushThatWaits_GetEmptyContributions) {
  make_running_with_two_buckets();
  lose_place();
  enter(2);
  for (const uint32_t part : {0u, 1u}) settle_with_snapshot(part, 4);
  for (const uint32_t part : {2u, 3u}) settle_with_snapshot(part, 0);
  make_synced();
  push_to(0);
  actions_.clear();
  push_to(0);
  EXPECT_EQ(sent_to(0), (std::vector<Sent>{{4, 1}}));
  push_to(1);
  EXPECT_EQ(sent_to(2), (std::vector<Sent>{{0, 1}}));
  hear_step(1, 0);
  push_to(1);
  EXPECT_EQ(sent_to(2), (std::vector<Sent>{{1, 0}, {2, 0}})) << "its shards take no later step yet";
  hear_step(1, 1);
  work_and_end_pass();
  EXPECT_EQ(sent_to(2), (std::vector<Sent>{{3, 0}}));
  for (const uint64_t step : {2u, 3u}) hear_step(1, step);
  work_and_end_pass();
  EXPECT_EQ(sent_to(2), (std::vector<Sent>{{4, 1}})) << "the push";
}

}  // namespace
}  // namespace millrace::testing
