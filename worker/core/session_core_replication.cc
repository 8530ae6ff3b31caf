#include <algorithm>
#include <string>
#include <utility>

#include "worker/core/session_core_impl.h"

/// Jobs with apply_after_acks (R18). A taken update is retained, acknowledged and settled as without the option. The
/// application gets it only once the shard reports that enough members have it. Code that uses n does not depend on
/// this.
namespace millrace::worker {

uint64_t SessionCore::Impl::delivered_steps(const PartRun& part) const {
  if (part.awaiting_acks.empty()) return part.n;
  const DeliveredUpdate& first = part.awaiting_acks.front().update;
  return first.replaces ? 0 : first.first_step;
}

uint64_t SessionCore::Impl::answers_handed(const BucketRun& run) const {
  uint64_t least = run.answered;
  for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part) {
    const auto& held = parts[part].awaiting_acks;
    const auto first = std::ranges::find_if(held, [](const AwaitingAcks& one) { return one.update.answers_push; });
    if (first != held.end()) least = std::min(least, first->update.push);
  }
  return least;
}

void SessionCore::Impl::hand_over(PartRun& part, DeliveredUpdate&& update, uint64_t needs, Actions& actions) {
  if (!applies_after_acks()) return actions.delivered.push_back(std::move(update));
  part.awaiting_acks.push_back(
      {std::move(update), part.awaiting_acks.empty() ? needs : std::max(needs, part.awaiting_acks.back().needs)});
  release(part, actions);
}

void SessionCore::Impl::release(PartRun& part, Actions& actions) {
  const BucketRun& run = buckets[part.layout.bucket];
  while (!part.awaiting_acks.empty() && part.awaiting_acks.front().needs <= part.replicated) {
    DeliveredUpdate update = std::move(part.awaiting_acks.front().update);
    part.awaiting_acks.pop_front();
    const auto first = parts.begin() + run.first_part;
    update.step_complete = !update.replaces && std::all_of(first, first + run.part_count, [&](const PartRun& one) {
      return delivered_steps(one) > update.step;
    });
    actions.delivered.push_back(std::move(update));
    ++changes;
  }
}

void SessionCore::Impl::on_replicated(uint32_t shard, const protocol::Message& message, Actions& actions) {
  if (message.header.epoch != membership.epoch || !synced()) {
    // A message of another epoch may be about another log. This epoch's messages repeat what holds in it.
    ++counters.dropped_stale;
    return;
  }
  for (const protocol::Ack::Entry& entry : std::get<protocol::Ack>(message.body).entries) {
    if (!applies_after_acks() || entry.part >= parts.size() || parts[entry.part].layout.shard != shard) {
      ++counters.dropped_unexpected;
      continue;
    }
    PartRun& part = parts[entry.part];
    if (entry.n <= part.replicated) continue;
    part.replicated = entry.n;
    ++changes;  // is_waited_for()
    release(part, actions);
  }
}

// Drops the shard's reports about steps that this worker lacks: they may be of an earlier log.
void SessionCore::Impl::forget_replicated() {
  for (PartRun& part : parts) part.replicated = std::min(part.replicated, part.n);
}

// Other weights replace those that the held updates are for: their pushes are answered, and nothing is applied.
void SessionCore::Impl::void_awaiting_acks(PartRun& part) {
  part.replicated = 0;
  std::erase_if(part.awaiting_acks, [](const AwaitingAcks& one) { return !one.update.answers_push; });
  for (AwaitingAcks& one : part.awaiting_acks) {
    one.update.sum = SharedStream::from(Stream::empty(part.dimension()));
    one.update.delivered_before = true;
  }
}

// The shard answers a repeated ack with the number of replicated steps. So a lost message delays by a heartbeat at
// most.
void SessionCore::Impl::request_replicated(uint32_t shard) {
  if (!applies_after_acks() || !synced()) return;
  for (const PartRun& part : parts) {
    const bool waits = !part.awaiting_acks.empty() || part.replicated < part.begins_at;
    if (part.layout.shard == shard && waits) links[shard].acks.push_back({part.layout.part, part.n});
  }
}

bool SessionCore::Impl::has_begun(const PartRun& part) const {
  if (!applies_after_acks()) return part.n >= part.decided_without;
  return delivered_steps(part) >= part.decided_without && part.replicated >= part.begins_at;
}

std::string SessionCore::Impl::awaiting_acks_text() const {
  const auto waits = std::ranges::find_if(parts, [](const PartRun& part) { return !part.awaiting_acks.empty(); });
  if (waits == parts.end()) return {};
  return shard_text(waits->layout.shard) + " has not said that " + std::to_string(config.spec.apply_after_acks) +
         " workers have the update of part " + std::to_string(waits->layout.part) + ", step " +
         std::to_string(waits->awaiting_acks.front().update.step) + " (apply_after_acks)";
}

}  // namespace millrace::worker
