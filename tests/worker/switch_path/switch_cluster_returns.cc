#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "kernels/base/hash.h"
#include "tests/worker/switch_path/switch_cluster.h"

/// Removal and joining of a worker: the actions of the table and the shards.
namespace millrace::testing {

void SwitchCluster::remove(uint32_t worker, Hears hears) {
  ++membership_.epoch;
  std::erase_if(membership_.members, [worker](const protocol::Member& member) { return member.worker == worker; });
  for (uint32_t other = 0; other < workers(); ++other) {
    if (other != worker || hears == Hears::kNow) raise_for(other);
  }
}

void SwitchCluster::admit(uint32_t worker, Process process) {
  Node& node = *nodes_[worker];
  if (process == Process::kNew) {
    node.alive = true;
    gone_.push_back(std::move(node.core));
    start_core(worker);
  } else {
    raise_for(worker);  // if it has not heard that it was removed
  }
  ++membership_.epoch;
  node.incarnation = 1 + 10 * membership_.epoch;
  const protocol::Member member{worker, node.incarnation, node.nonce, protocol::MemberState::kJoining};
  membership_.members.insert(std::ranges::lower_bound(membership_.members, worker, {}, &protocol::Member::worker),
                             member);
  for (uint32_t other = 0; other < workers(); ++other) {
    if (other != worker) raise_for(other);
  }
  if (process == Process::kNew) return join(worker);
  welcome(worker);
}

void SwitchCluster::begin_job_anew() {
  membership_ = first_view_;
  words_.clear();
  if (options_.has_fallback) start_aggregator(kShardPort);
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    Node& node = *nodes_[worker];
    gone_.push_back(std::move(node.core));
    start_core(worker);
    node.incarnation = 1;
    node.alive = true;
    node.sent.clear();
    node.delivered.clear();
    node.log.clear();
    membership_.members[worker].nonce = node.nonce;
  }
  join_all();
}

bool SwitchCluster::is_synced(uint32_t worker) const {
  const auto found = std::ranges::find(membership_.members, worker, &protocol::Member::worker);
  return found != membership_.members.end() && found->state == protocol::MemberState::kSynced;
}

void SwitchCluster::on_message_to_shard(uint32_t worker, const worker::SendAction& send) {
  const protocol::Message& message = send.message;
  const auto member = std::ranges::find(membership_.members, worker, &protocol::Member::worker);
  if (member == membership_.members.end() || member->incarnation != message.header.incarnation) return;
  if (message.header.epoch != membership_.epoch) return;
  const bool joins = member->state == protocol::MemberState::kJoining;
  if (joins && std::holds_alternative<protocol::State>(message.body)) ask_for_all(worker, send.shard);
  if (!joins && std::holds_alternative<protocol::Snapshot>(message.body)) pass_on(send);
  if (joins && std::holds_alternative<protocol::Synced>(message.body)) {
    // Once for an epoch. Queued as a message, so that no core gets a view in the middle of a call.
    words_.push_back({worker, message.header.incarnation, message.header.epoch, send.shard, protocol::Synced{}, {}});
  }
}

void SwitchCluster::ask_for_all(uint32_t joiner, uint32_t shard) {
  const protocol::JobLayout& layout = core(joiner).layout();
  std::vector<uint32_t> wanted;
  for (const protocol::PartLayout& part : layout.parts) {
    if (part.shard == shard) wanted.push_back(part.part);
  }
  if (shard == 0) wanted.push_back(static_cast<uint32_t>(layout.parts.size()));
  for (const uint32_t part : wanted) {
    std::vector<uint32_t> givers;
    for (const protocol::Member& member : membership_.members) {
      if (member.state == protocol::MemberState::kSynced) givers.push_back(member.worker);
    }
    if (givers.empty()) return;
    const uint32_t giver = givers[random_.next_below(givers.size())];
    protocol::SnapshotRequest request{joiner, nodes_[joiner]->incarnation, {part}};
    words_.push_back({giver, nodes_[giver]->incarnation, membership_.epoch, shard, request, {}});
  }
}

void SwitchCluster::pass_on(const worker::SendAction& send) {
  const auto& run = std::get<protocol::Snapshot>(send.message.body);
  const uint32_t joiner = run.for_worker;
  if (nodes_[joiner]->incarnation != run.for_incarnation) return;
  EXPECT_EQ(run.n, 0u) << "shards have no steps";
  EXPECT_EQ(hash64(send.message.payload.bytes), run.payload_hash);
  words_.push_back({joiner, run.for_incarnation, membership_.epoch, send.shard, run, send.message.payload});
  const protocol::JobLayout& layout = core(joiner).layout();
  if (run.part == layout.parts.size()) return;
  const protocol::PartLayout& part = layout.parts[run.part];
  if (run.offset + send.message.payload.bytes.size() / sizeof(float) < part.end - part.begin) return;
  protocol::Settle settle;
  settle.part = run.part;
  settle.on_log = true;
  settle.weights = protocol::Settle::Weights::kSnapshot;
  words_.push_back({joiner, run.for_incarnation, membership_.epoch, send.shard, settle, {}});
}

/// One of them gets there: in order from each shard to each worker, in any order else.
bool SwitchCluster::pass_a_word() {
  if (!passes_on || words_.empty()) return false;
  const Word& drawn = words_[random_.next_below(words_.size())];
  const auto first = std::ranges::find_if(
      words_, [&](const Word& word) { return word.worker == drawn.worker && word.shard == drawn.shard; });
  const Word word = std::move(*first);
  words_.erase(first);
  const auto member = std::ranges::find(membership_.members, word.worker, &protocol::Member::worker);
  const bool is_now =
      member != membership_.members.end() && member->incarnation == word.incarnation && word.epoch == membership_.epoch;
  if (std::holds_alternative<protocol::Synced>(word.body)) {
    if (!is_now) return true;
    raise([&](protocol::Membership& membership) {
      std::ranges::find(membership.members, word.worker, &protocol::Member::worker)->state =
          protocol::MemberState::kSynced;
    });
    return true;
  }
  if (nodes_[word.worker]->alive) hear_word(word);
  return true;
}

}  // namespace millrace::testing
