#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "worker/core/session_core_impl.h"

/// Weights on their way from a synced worker to one that joins (R9d): giving them here, putting the runs together
/// there.
namespace millrace::worker {
namespace {

constexpr size_t kCoreSnapshotsRunValues = protocol::kGivenRunBytes / sizeof(float);

}  // namespace

void SessionCore::Impl::give_weights(const GiveWeights& asked, std::span<const float> weights, Actions& actions) {
  const PartRun& part = parts[asked.part];
  MILLRACE_CHECK(weights.size() == part.layout.end - part.layout.begin, weights.size(), asked.part);
  // In another epoch the weights may be of another log.
  if (asked.epoch != membership.epoch || membership_state != MembershipState::kSynced || over()) return;
  ByteBuffer copy(weights.size_bytes());
  std::memcpy(copy.data(), weights.data(), weights.size_bytes());
  const SharedBytes whole = SharedBytes::from(std::move(copy));
  for (size_t at = 0; at < weights.size(); at += kCoreSnapshotsRunValues) {
    const size_t values = std::min(kCoreSnapshotsRunValues, weights.size() - at);
    protocol::Snapshot run;
    run.part = asked.part;
    run.for_worker = asked.for_worker;
    run.for_incarnation = asked.for_incarnation;
    run.n = steps_at_shard(part);
    run.decided_in = by_switch() ? 0 : part.decided_in;
    run.offset = at;
    const SharedBytes bytes{whole.owner, whole.bytes.subspan(at * sizeof(float), values * sizeof(float))};
    run.payload_hash = hash64(bytes.bytes);
    if (at + values == weights.size()) run.summary = part.summary_of_n();
    send(asked.shard, std::move(run), bytes, actions);
  }
}

void SessionCore::Impl::on_snapshot_request(uint32_t shard, const protocol::SnapshotRequest& request,
                                            Actions& actions) {
  if (!synced() || !config.has_weights) {
    ++counters.dropped_unexpected;
    return;
  }
  for (const uint32_t part : request.parts) {
    const bool is_handover = by_switch() && shard == 0 && part == handover_part();
    if (by_switch() && (is_handover || (part < parts.size() && parts[part].layout.shard == shard))) {
      give_later({shard, part, request.for_worker, request.for_incarnation, membership.epoch}, actions);
      continue;
    }
    if (part >= parts.size() || parts[part].layout.shard != shard) {
      ++counters.dropped_unexpected;
      continue;
    }
    actions.give_weights.push_back({shard, part, request.for_worker, request.for_incarnation, membership.epoch});
  }
}

void SessionCore::Impl::on_snapshot(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions) {
  const auto& run = std::get<protocol::Snapshot>(message.body);
  const ByteSpan bytes = message.payload.bytes;
  const bool mine = run.for_worker == config.worker && run.for_incarnation == incarnation && joining();
  if (mine && by_switch() && shard == 0 && run.part == handover_part())
    return on_handover_run(run, bytes, now, actions);
  if (!mine || run.part >= parts.size() || parts[run.part].layout.shard != shard || parts[run.part].settled) {
    ++counters.dropped_unexpected;
    return;
  }
  PartRun& part = parts[run.part];
  if (run.offset == 0) part.incoming = Incoming{{}, run.n, run.decided_in, {}};
  const size_t have = part.incoming ? part.incoming->values.size() : 0;
  const bool in_order = part.incoming && run.offset == have && run.n == part.incoming->n;
  const size_t values = bytes.size() / sizeof(float);
  const uint64_t wanted = snapshot_values(part);
  const bool whole = bytes.size() % sizeof(float) == 0 && values <= wanted - have && (values > 0) == (wanted > 0);
  if (!in_order || !whole || (values > 0 ? hash64(bytes) : 0) != run.payload_hash) {
    // The shard asks another member: State says that this part is still to be settled.
    ++counters.dropped_malformed;
    links[shard].missed_answer = true;
    part.incoming.reset();
    return;
  }
  part.incoming->values.resize(have + values);
  if (values > 0) std::memcpy(part.incoming->values.data() + have, bytes.data(), bytes.size());
  part.incoming->summary = run.summary;
  progress_at = now;
  links[shard].arriving.restart();
}

// The updates that came before the Settle and lead up to the snapshot are kept, like those that were applied.
void SessionCore::Impl::take_snapshot(PartRun& part, const protocol::Settle& settle, Actions& actions) {
  Incoming taken = std::move(*part.incoming);
  part.incoming.reset();
  if (by_switch()) taken.n = handed_step.value();
  uint64_t reached = part.n;
  if (!settle.on_log || taken.n < part.n) part.retained.clear();
  for (auto& [step, update] : part.early) {
    if (step >= taken.n) break;
    if (step != reached) part.retained.clear();
    part.retained.push_back({std::move(std::get<protocol::Update>(update.body)), update.payload});
    reached = step + 1;
  }
  if (reached != taken.n) part.retained.clear();
  part.n = taken.n;
  part.decided_in = taken.decided_in;
  part.summary = std::move(taken.summary);
  part.log_digest = part.summary.log_digest;
  if (config.observer != nullptr) config.observer->replaced(part.layout.bucket, part.layout.begin, part.layout.end);
  if (!config.has_weights) return;
  DeliveredUpdate weights;
  weights.bucket = part.layout.bucket;
  weights.part = part.layout.part;
  weights.step = weights.first_step = taken.n == 0 ? 0 : taken.n - 1;
  weights.push = part.answers;
  weights.answers_push = false;
  weights.begin = part.layout.begin;
  weights.sum = SharedStream::from(Stream{part.dimension(), true, {}, std::move(taken.values)});
  weights.replaces = true;
  weights.steps = taken.n;
  weights.decided_in = taken.decided_in;
  if (!settle.on_log) void_awaiting_acks(part);
  hand_over(part, std::move(weights), taken.n, actions);
}

}  // namespace millrace::worker
