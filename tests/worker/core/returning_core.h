#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "tests/worker/core/scripted_core.h"

namespace millrace::testing {

/// ScriptedCore with weights, and what shards say to a worker that was removed or comes late.
class ReturningCore : public ScriptedCore {
 protected:
  using Entries = std::vector<std::pair<uint32_t, float>>;
  using Weights = protocol::Settle::Weights;

  ReturningCore() { config_.has_weights = true; }

  /// Removes this worker from the table, and notifies it through shard 1.
  void lose_place() {
    remove_from_view();
    hear(1, protocol::MembershipChange{membership_});
  }
  /// Begins an epoch in which this worker is a member under that incarnation; both shards announce it.
  void enter(uint64_t incarnation, protocol::MemberState state = protocol::MemberState::kJoining) {
    remove_from_view();
    membership_.members.insert(membership_.members.begin(), {0, incarnation, kNonce, state});
    incarnation_ = incarnation;
    for (uint32_t shard = 0; shard < 2; ++shard) welcome(shard);
  }
  /// A worker that comes when the job runs.
  void make_joining(uint64_t incarnation) {
    make();
    membership_.members[0] = {0, incarnation, kNonce, protocol::MemberState::kJoining};
    incarnation_ = incarnation;
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core_->on_connected(shard, now_, actions_);
      welcome(shard);
    }
    ASSERT_EQ(core_->phase(), worker::Phase::kRejoining);
  }
  void make_synced() {
    ++membership_.epoch;
    membership_.members[0].state = protocol::MemberState::kSynced;
    for (uint32_t shard = 0; shard < 2; ++shard) hear(shard, protocol::MembershipChange{membership_});
  }

  static protocol::Settle settle_of(uint32_t part, uint64_t decided, Weights weights = Weights::kOwn) {
    protocol::Settle settle;
    settle.part = part;
    settle.decided = decided;
    settle.on_log = weights != Weights::kNone;
    settle.weights = weights;
    return settle;
  }
  /// Its entry of a summary: counted under `incarnation` at the step, and nothing else within reach.
  static protocol::SummaryEntry counted_at(uint64_t incarnation, uint64_t step) {
    protocol::SummaryEntry entry;
    entry.incarnation = incarnation;
    entry.last_step = step;
    entry.counted_mask = 1;
    return entry;
  }
  /// The part's weights after n steps, all of one value, in runs of at most `values`.
  void hear_snapshot(uint32_t part, uint64_t n, float value, uint64_t values = uint64_t{1} << 20) {
    const uint64_t dimension = part_dimension(part);
    for (uint64_t at = 0; at < dimension; at += values) hear_run(part, n, value, at, std::min(values, dimension - at));
  }
  void hear_run(uint32_t part, uint64_t n, float value, uint64_t offset, uint64_t values) {
    const std::vector<float> weights(values, value);
    ByteBuffer bytes(values * sizeof(float));
    std::memcpy(bytes.data(), weights.data(), bytes.size());
    protocol::Snapshot run = snapshot_of(part, n);
    run.offset = offset;
    run.payload_hash = hash64(bytes);
    hear(part, run, SharedBytes::from(std::move(bytes)));
  }

  /// A place in the log without weights, of a job whose shards have them.
  void hear_place(uint32_t part, uint64_t n) { hear(part, snapshot_of(part, n)); }

  std::vector<uint32_t> shards_of(const std::vector<std::pair<uint32_t, protocol::Message>>& sent) {
    std::vector<uint32_t> shards;
    for (const auto& [shard, message] : sent) shards.push_back(shard);
    return shards;
  }
  /// Where the worker says to stand, in its last State.
  protocol::State last_state() {
    const auto states = take_sent<protocol::State>();
    EXPECT_FALSE(states.empty());
    return states.empty() ? protocol::State{} : std::get<protocol::State>(states.back().second.body);
  }
  double unaccounted(uint32_t index) const { return core_->handed_over(0)[index]; }
  protocol::Snapshot snapshot_of(uint32_t part, uint64_t n) const {
    protocol::Snapshot snapshot;
    snapshot.part = part;
    snapshot.for_worker = 0;
    snapshot.for_incarnation = incarnation_;
    snapshot.n = n;
    snapshot.decided_in = 3;
    return snapshot;
  }

 private:
  void remove_from_view() {
    ++membership_.epoch;
    std::erase_if(membership_.members, [](const protocol::Member& member) { return member.worker == 0; });
  }
};

}  // namespace millrace::testing
