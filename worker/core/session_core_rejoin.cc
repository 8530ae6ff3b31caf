#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/container/container.h"
#include "protocol/messages/log_branch.h"
#include "worker/core/rejoin/contribution_outcome.h"
#include "worker/core/session_core_impl.h"

/// Sends this worker's state to shards that lost theirs (R8b) and to those that settle it (R9). Then resolves residual
/// and outstanding contributions (R9a to R9c).
namespace millrace::worker {
namespace {

// Of a part that is not settled: updates held in all, and the least limit on the bytes of their payloads.
constexpr size_t kSettlingUpdatesMax = 65'536;
constexpr uint64_t kSettlingBytesMin = 8 << 20;

uint64_t settling_bytes_max(const PartRun& part) {
  return std::max(kSettlingBytesMin, 2 * sizeof(float) * part.dimension());
}

}  // namespace

// A settlement counts in its own epoch only: weights of parts must not be of different logs.
void SessionCore::Impl::begin_settling(Actions& actions) {
  for (PartRun& part : parts) {
    part.settled = part.stranded = false;
    part.incoming.reset();
    part.waiting_settle.reset();
    part.early.clear();
    part.settling_bytes = 0;
  }
  forget_handovers();
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    links[shard].arriving.restart();
    if (links[shard].state == LinkState::kWelcomed) send_state(shard, actions);
  }
}

void SessionCore::Impl::send_state(uint32_t shard, Actions& actions) {
  links[shard].missed_answer = false;
  protocol::State state;
  state.synced = synced();
  // Shards have no steps of a job of path switch. They ask a joiner for its number of steps in case no other member is
  // left. Then it may be chosen, if all its parts are at one step.
  const uint64_t by_switch_n = synced() ? 0 : std::ranges::min_element(parts, {}, &PartRun::n)->n;
  for (const PartRun& part : parts) {
    state.stranded = state.stranded || part.stranded;
    if (by_switch()) {
      state.parts.push_back({part.layout.part, by_switch_n, by_switch_n == 0 ? 0U : 1U, part.branch, 0});
    } else {
      state.parts.push_back({part.layout.part, part.n, part.decided_in, part.branch, part.retained_from()});
    }
  }
  send(shard, std::move(state), {}, actions);
}

bool SessionCore::Impl::all_settled() const { return std::ranges::all_of(parts, &PartRun::settled); }

void SessionCore::Impl::repeat_joining(uint32_t shard, TimeNs now, Actions& actions) {
  if (all_settled()) return send(shard, protocol::Synced{}, {}, actions);
  // The answer to the last one may still arrive, or wait at the shard behind what does.
  const bool is_quiet = now - links[shard].answering_at >= TimeNs{config.spec.heartbeat.count()} * kNsPerMs;
  if (!is_quiet && !links[shard].missed_answer) return;
  const bool done_there =
      std::ranges::all_of(
          parts,
          [shard](const PartRun& part) { return part.settled || part.waiting_settle || part.layout.shard != shard; }) &&
      (!by_switch() || shard != 0 || handed_step);
  if (!done_there || std::ranges::any_of(parts, &PartRun::stranded)) send_state(shard, actions);
}

// Only a synced member's updates may make a log longer.
void SessionCore::Impl::on_fetch(uint32_t shard, const protocol::Fetch& fetch, Actions& actions) {
  if (fetch.part >= parts.size() || parts[fetch.part].layout.shard != shard || !synced()) {
    ++counters.dropped_unexpected;
    return;
  }
  const PartRun& part = parts[fetch.part];
  for (const RetainedUpdate& update : part.retained) {
    if (update.body.step >= fetch.first_step) send(shard, update.body, update.payload, actions);
  }
  send(shard,
       protocol::Fetched{fetch.part, steps_at_shard(part), by_switch() ? 0 : part.decided_in, part.summary_of_n()}, {},
       actions);
}

// Settling resolves contributions by the updates of their steps: these are always held. The others lead up to the
// snapshot, for a successor of the shard. The shard retains every dropped update until this worker acknowledges it, and
// serves it again when become_synced() asks.
void SessionCore::Impl::keep_for_settling(PartRun& part, protocol::Message&& message) {
  const auto& update = std::get<protocol::Update>(message.body);
  const uint64_t step = update.step;
  const uint64_t bytes = message.payload.bytes.size();
  const bool own =
      !asynchronous() && std::ranges::find(part.outstanding, step, &Outstanding::step) != part.outstanding.end();
  const bool fits = part.early.size() < kSettlingUpdatesMax && bytes <= settling_bytes_max(part) - part.settling_bytes;
  if (!update.merged.empty() || !joining() || part.settled || !(own || fits)) {
    ++counters.dropped_early;
    return;
  }
  if (!part.early.contains(step) && !own) part.settling_bytes += bytes;
  part.early.insert_or_assign(step, std::move(message));
}

void SessionCore::Impl::on_settle(uint32_t shard, const protocol::Settle& settle, TimeNs now, Actions& actions) {
  const bool fits = settle.part < parts.size() && parts[settle.part].layout.shard == shard && joining();
  if (!fits || parts[settle.part].settled) {
    ++counters.dropped_unexpected;
    return;
  }
  PartRun& part = parts[settle.part];
  if (settle.weights == protocol::Settle::Weights::kNone) {
    if (std::exchange(part.stranded, true)) return;
    for (uint32_t other = 0; other < links.size(); ++other) {
      if (links[other].state == LinkState::kWelcomed) send_state(other, actions);
    }
    return;
  }
  const bool own = settle.weights == protocol::Settle::Weights::kOwn;
  const bool has_snapshot = part.incoming && part.incoming->values.size() == snapshot_values(part);
  const uint64_t next = own || !has_snapshot ? part.n : part.incoming->n;
  links[shard].missed_answer |= !own && !has_snapshot;
  if ((own && !settle.on_log) || (!own && !has_snapshot) || next > settle.decided) {
    ++counters.dropped_unexpected;
    return;
  }
  if (by_switch() && own) {
    ++counters.dropped_unexpected;  // shards have no updates that would lead on from its own
    return;
  }
  if (by_switch() && !handed_step) {
    part.waiting_settle = settle;  // weights of a step that is not known yet
    return;
  }
  if (quarantine_pending) quarantine_residuals();
  if (quarantine_pending) {  // a slot is being filled at this moment: the next State brings the same answer
    links[shard].missed_answer = true;
    return;
  }
  const uint64_t n = part.n;
  const double carried = carried_in(part);
  resolve_against_log(part, settle, next);
  if (own) {
    part.incoming.reset();
  } else {
    take_snapshot(part, settle, actions);
  }
  account_after_settle(part, settle, n, carried);
  part.early.erase(part.early.begin(), part.early.lower_bound(part.n));
  part.branch = settle.branch;
  part.malformed = 0;
  part.settled = true;
  part.stranded = false;
  progress_at = now;
  links[shard].arriving.restart();
  if (all_settled()) send(shard, protocol::Synced{}, {}, actions);
}

void SessionCore::Impl::resolve_against_log(PartRun& part, const protocol::Settle& settle, uint64_t next) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  if (!settle.on_log) return drop_off_log(part, settle);
  if (by_switch() && membership_state == MembershipState::kLoaded) {
    // No process knows which of its entries were counted since the save.
    counters.lost_save_too_old += bucket.drop_quarantined(part.at);
    return;
  }
  if (by_switch()) return resolve_interrupted_step(part);
  if (membership_state == MembershipState::kEvicted) {
    return asynchronous() ? resolve_sequences(part, settle, next) : resolve_outstanding(part, settle, next);
  }
  if (counted_since(settle.counted, part.n)) {
    counters.lost_save_too_old += bucket.drop_quarantined(part.at);
  } else {
    const bool was_apart = bucket.is_loaded(part.at);
    bucket.accept_quarantined(part.at);
    if (was_apart) open_account(part);
  }
}

// Counts nothing that another log than the job's had carried. A worker without a state begins at the log's position.
// n and carried are the part's before it.
void SessionCore::Impl::account_after_settle(PartRun& part, const protocol::Settle& settle, uint64_t n,
                                             double carried) {
  if (!config.spec.audit) return;
  uint64_t& others_until = part.account.others_until;
  if (membership_state == MembershipState::kEvicted) {
    if (!settle.on_log) part.account.carried_before += carried_in(part) - carried;
    if (settle.on_log && n < others_until && carried_in(part) != carried) part.account.others = true;
    others_until = std::min(others_until, settle.decided);
    return;
  }
  others_until = settle.decided;
  if (!buckets[part.layout.bucket].bucket->has_opening_share(part.at)) open_account(part);
}

// Contributions that were counted in steps removed from the job's log are void.
void SessionCore::Impl::drop_off_log(PartRun& part, const protocol::Settle& settle) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  double& lost = membership.cut > synced_in ? counters.lost_cut : counters.lost_off_log;
  for (const Outstanding& out : part.outstanding) lost += bucket.ledger().lose(part.at, out.sent.view).magnitude;
  part.outstanding.clear();
  lost += bucket.drop_quarantined(part.at);
  const bool counted = settle.counted && settle.counted->counted_mask != 0;
  counters.entries_void += part.counted.drop_from(counted ? settle.counted->last_step + 1 : 0);
  part.retained.clear();
}

// R9c: contributions to steps that the new weights contain are resolved. Contributions to later decided steps wait for
// their update, under the incarnation that sent them. Those to open steps can never be counted any more.
void SessionCore::Impl::resolve_outstanding(PartRun& part, const protocol::Settle& settle, uint64_t next) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  for (Outstanding& out : std::exchange(part.outstanding, {})) {
    if (out.step < next) {
      resolve_decided(part, std::move(out), settle);
    } else if (out.step >= settle.decided) {
      bucket.return_to_quarantine(part.at, out.sent.copy());
    } else {
      make_empty(part, out);
      part.outstanding.push_back(std::move(out));
    }
  }
}

void SessionCore::Impl::resolve_decided(PartRun& part, Outstanding&& out, const protocol::Settle& settle) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  const auto update = part.early.find(out.step);
  if (update != part.early.end()) {
    const auto& body = std::get<protocol::Update>(update->second.body);
    const auto carried = read_shared_container(update->second.payload, {.dimension = part.dimension()});
    if (carried) {
      const bool counted =
          std::ranges::find(body.contributors, protocol::ContributorId{config.worker, out.incarnation}) !=
          body.contributors.end();
      if (!counted) {
        ++counters.not_counted;
        bucket.return_to_quarantine(part.at, out.sent.copy());
        return;
      }
      const bool all = body.whole_sum || carried->view.dense;
      was_applied(part, out.step, out, all ? nullptr : &*carried);
      if (!all) bucket.return_uncarried_to_quarantine(part.at, std::move(out.sent), *carried);
      return;
    }
    ++counters.dropped_malformed;
    part.early.erase(update);
  }
  const bool whole = protocol::update_is_whole(layout.buckets[part.layout.bucket], out.step);
  switch (contribution_outcome_of(settle.counted, out.incarnation, out.step, config.spec.staleness)) {
    case ContributionOutcome::kNotCounted:
      ++counters.not_counted;
      bucket.return_to_quarantine(part.at, out.sent.copy());
      return;
    case ContributionOutcome::kCounted:
      // An update that is not cut down carries all of it.
      if (whole) return was_applied(part, out.step, out, nullptr);
      [[fallthrough]];
    case ContributionOutcome::kUnknown: lose_unreturnable(part, out); return;
  }
}

void SessionCore::Impl::lose_unreturnable(PartRun& part, const Outstanding& out) {
  part.account.unknown = true;
  counters.unreturnable += buckets[part.layout.bucket].bucket->ledger().lose(part.at, out.sent.view).magnitude;
  if (config.observer != nullptr) config.observer->unreturnable(part.layout.part, wire_number(out), out.incarnation);
}

Status SessionCore::Impl::go_on_from_cut() {
  const uint64_t n = parts.front().n;
  if (by_switch() && !std::ranges::all_of(parts, [n](const PartRun& part) { return part.n == n; })) {
    return fail(
        ErrorCode::kUnavailable,
        "the job would continue from this worker's state, and its weights are of different steps: the worker that gave "
        "them was gone before it had given all of them");
  }
  for (PartRun& part : parts) {
    Bucket& bucket = *buckets[part.layout.bucket].bucket;
    // No step beyond this state exists: contributions to such steps return to the residual.
    for (const Outstanding& out : part.outstanding) bucket.return_to_quarantine(part.at, out.sent.copy());
    part.outstanding.clear();
    const bool was_apart = bucket.is_loaded(part.at);
    bucket.accept_quarantined(part.at);
    if (was_apart) open_account(part);
    part.account.others_until = std::min(part.account.others_until, part.n);
    part.summary = part.summary_of_n();
    part.retained.clear();
    part.branch = protocol::branch_of(membership, part.layout.shard);
  }
  if (by_switch()) switch_path->restart_at(n);
  return {};
}

}  // namespace millrace::worker
