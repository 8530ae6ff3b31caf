#include <algorithm>

#include "tests/worker/toys/toy_cluster.h"

/// The faults of the toy cluster, and the test's account of them.
namespace millrace::testing {

void ToyCluster::maybe_fault() {
  if (!table_.membership.started) return;
  if (fault_random_.next_unit() < options_.remove_rate) remove_one();
  if (fault_random_.next_unit() < options_.shard_crash_rate) crash_shard();
  if (fault_random_.next_unit() < options_.save_rate) save_one();
  if (fault_random_.next_unit() < options_.worker_crash_rate) crash_worker();
}

void ToyCluster::remove_one() {
  const auto worker = static_cast<uint32_t>(fault_random_.next_below(workers()));
  const protocol::Member* member = table_.member(worker);
  if (member == nullptr || table_.membership.members.size() < 2) return;
  if (member->state == protocol::MemberState::kSynced && table_.synced_members() < 2) return;
  table_.remove(worker);
  ++faults_.removals;
}

void ToyCluster::crash_shard() {
  const auto shard = static_cast<uint32_t>(fault_random_.next_below(shards_.size()));
  ++table_.membership.shards[shard].incarnation;
  ++table_.membership.epoch;
  shards_[shard]->crash();
  adopted_[shard] = 0;
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    if (!wire(worker, shard).up) continue;
    wire(worker, shard) = {};
    with_core(worker, [&](auto& core, auto& actions) {
      core.on_disconnected(shard, {ErrorCode::kUnavailable, "the shard ended"}, now_, actions);
    });
  }
  ++faults_.shard_crashes;
}

void ToyCluster::save_one() {
  const auto worker = static_cast<uint32_t>(fault_random_.next_below(workers()));
  auto read = worker::decode_saved_state(worker::encode_saved_state(cores_[worker]->saved_state()));
  saved_[worker] = Saved{std::move(*read), weights_[worker]};
}

void ToyCluster::crash_worker() {
  const auto worker = static_cast<uint32_t>(fault_random_.next_below(workers()));
  if (table_.member(worker) == nullptr) return;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    wire(worker, shard) = {};
    shards_[shard]->disconnect(worker);
  }
  Ended ended{worker, std::move(cores_[worker]), std::move(lives_[worker]), nullptr};
  ++nonces_[worker];
  lives_[worker].clear();
  worker::CoreConfig config = config_of(worker);
  config.returns = true;
  for (auto& weights : weights_[worker]) std::ranges::fill(weights, 0.0f);
  if (saved_[worker]) {
    config.saved = saved_[worker]->state;
    weights_[worker] = saved_[worker]->weights;
  }
  cores_[worker] = std::make_unique<WatchedCore>(std::move(config));
  ended.next = cores_[worker].get();
  ended_.push_back(std::move(ended));
  with_core(worker, [&](auto& core, auto& actions) { core.start(now_, actions); });
  ++faults_.worker_crashes;
}

/// Makes a step void. A worker that still holds its contribution has the values there, or in its ledger. For the other
/// workers they were applied, and are not any more.
void ToyCluster::void_step(uint32_t part, const ToyDecision& decision) {
  ++faults_.steps_voided;
  const protocol::PartLayout& layout = table_.layout.parts[part];
  const auto holds = [&](const WatchedCore& core, uint64_t incarnation) {
    const auto is_it = [&](const auto& out) {
      return out.part == part && out.step == decision.update.step && out.incarnation == incarnation;
    };
    return std::ranges::any_of(core.outstanding(layout.bucket), is_it) ||
           std::ranges::any_of(core.unreturnable(), is_it);
  };
  for (const protocol::ContributorId& who : decision.update.contributors) {
    bool held = holds(*cores_[who.worker], who.incarnation);
    for (const Ended& ended : ended_)
      held = held || (ended.worker == who.worker && holds(*ended.core, who.incarnation));
    if (held) continue;
    const Stream& stream = decision.streams.at(who.worker);
    for (size_t i = 0; i < stream.values.size(); ++i) {
      const uint64_t index = layout.begin + (stream.dense ? i : stream.indices[i]);
      if (decision.carried.contains(index)) voided_[layout.bucket][index] += static_cast<double>(stream.values[i]);
    }
  }
}

void ToyCluster::deliver_to_weights(uint32_t worker, const worker::DeliveredUpdate& update) {
  std::vector<float>& weights = weights_[worker][update.part];
  const StreamView& sum = update.sum.view;
  for (size_t i = 0; i < sum.values.size(); ++i) {
    float& weight = weights[sum.dense ? i : sum.indices[i]];
    weight = update.replaces ? sum.values[i] : weight + sum.values[i];
  }
}

std::vector<float> ToyCluster::weights_of_log(uint32_t part, uint64_t steps) const {
  const protocol::PartLayout& layout = table_.layout.parts[part];
  std::vector<float> weights(layout.end - layout.begin, 0.0f);
  for (const auto& [step, decision] : shards_[layout.shard]->log(part)) {
    if (step >= steps) break;
    for (const auto& [index, value] : decision.carried) weights[index - layout.begin] += static_cast<float>(value);
  }
  return weights;
}

double ToyCluster::least_loss(uint32_t bucket) const {
  const protocol::BucketLayout& layout = table_.layout.buckets[bucket];
  double least = 0;
  std::vector<std::vector<double>> by_worker(workers(), std::vector<double>(layout.dimension, 0.0));
  for (const Ended& ended : ended_) {
    // Of all processes so far: one that ended before it was settled hands the same save on.
    std::vector<double>& lost = by_worker[ended.worker];
    const std::vector<double> ledger = ended.core->ledger(bucket);
    for (size_t i = 0; i < lost.size(); ++i) {
      lost[i] += ended.core->entered(bucket)[i] + ended.core->opening_residual(bucket)[i] - ledger[i] -
                 ended.next->opening_residual(bucket)[i];
    }
    add_carried_of_unreturnable(*ended.core, ended.worker, bucket, lost);
    for (uint32_t part = layout.first_part; part < layout.first_part + layout.part_count; ++part) {
      for (const auto& [step, decision] : shards_[table_.layout.parts[part].shard]->log(part)) {
        const auto& all = decision.update.contributors;
        const auto who = std::ranges::find(all, ended.worker, &protocol::ContributorId::worker);
        if (who == all.end() || !ended.incarnations.contains(who->incarnation)) continue;
        const Stream& stream = decision.streams.at(ended.worker);
        for (size_t i = 0; i < stream.values.size(); ++i) {
          const uint64_t index = table_.layout.parts[part].begin + (stream.dense ? i : stream.indices[i]);
          if (decision.carried.contains(index)) lost[index] -= static_cast<double>(stream.values[i]);
        }
      }
    }
    least = std::min(least, std::ranges::min(lost));
  }
  return least;
}

uint32_t ToyCluster::cores_ended() const {
  return static_cast<uint32_t>(
      std::ranges::count_if(cores_, [](const auto& core) { return core->phase() == worker::Phase::kEnded; }));
}

bool ToyCluster::at_rest() const {
  for (const Wire& line : wires_) {
    if (!line.up_queue.empty() || !line.down_queue.empty()) return false;
  }
  for (const auto& core : cores_) {
    if (core->phase() != worker::Phase::kRunning || core->in_flight()) return false;
    for (uint32_t bucket = 0; bucket < table_.layout.buckets.size(); ++bucket)
      if (!core->outstanding(bucket).empty()) return false;
    for (uint32_t part = 0; part < table_.layout.parts.size(); ++part) {
      if (core->part_steps_applied(part) != shards_[table_.layout.parts[part].shard]->log(part).size()) return false;
    }
  }
  return std::ranges::none_of(shards_, [](const auto& shard) { return shard->recovering(); });
}

}  // namespace millrace::testing
