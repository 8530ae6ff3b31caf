#include "server/rejoin/settlement.h"

#include <algorithm>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/arriving_bytes.h"
#include "protocol/base/limits.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/handover_frame.h"
#include "protocol/messages/log_branch.h"

namespace millrace::server {
namespace {

using protocol::Settle;

// Every shard takes a run (Limits::received_bytes_max()).
static_assert(protocol::kSnapshotRunBytes <= protocol::FrameLimits().envelope_bytes_max);

/// Number of heartbeats without a run, or bytes of one, after which a giver is passed over.
constexpr int64_t kGiverHeartbeats = 2;

/// Bytes of a giver delay that for at most this time. They may be contributions, while the request was lost.
constexpr TimeNs kArrivingMax = 60 * kNsPerS;

/// Rest after a part, as a multiple of the time that the part took, but at most a fraction of a heartbeat. Transfers
/// share links and processors with the other members' rounds, and so slow them down for a tenth of the time only.
constexpr int64_t kRest = 9;
constexpr int64_t kRestHeartbeatPart = 4;

/// The next part is asked for once less than this waits to be sent to the joiner. Else its link would carry the copies
/// of all parts before anything else, and a full queue would drop some.
constexpr uint64_t kQueuedMax = 1 << 20;
constexpr TimeNs kQueueLookEvery = 20 * kNsPerMs;

std::string_view settlement_name_of(Settle::Weights weights) {
  switch (weights) {
    case Settle::Weights::kOwn: return "own";
    case Settle::Weights::kSnapshot: return "snapshot";
    case Settle::Weights::kNone: return "none";
  }
  return "";
}

}  // namespace

void Settlement::count(Metric metric, std::string_view label, double value, Actions& actions) const {
  actions.metrics.push_back({metric, setup_.spec.name, label, value});
}

const protocol::Member& Settlement::member(uint32_t worker) const {
  const protocol::Member* found = find_member(setup_.members.membership(), worker);
  MILLRACE_CHECK(found != nullptr, worker);  // begin_epoch() comes with every change of the members
  return *found;
}

bool Settlement::is_on_log(const Joiner& joiner, const PartRound& part) const {
  const protocol::State::Part& mine = joiner.state.parts[part.layout().part];
  if (!protocol::is_on_path(setup_.members.membership(), setup_.shard, mine.branch)) return false;
  return by_switch() || part.is_in_log(mine.n, mine.decided_in);  // steps by the switch no shard has seen
}

std::optional<uint32_t> Settlement::handover_part() const {
  if (!by_switch() || setup_.shard != 0) return std::nullopt;
  return static_cast<uint32_t>(setup_.layout.parts.size());
}

bool Settlement::may_use_own_weights(const Joiner& joiner, const PartRound& part) const {
  if (by_switch()) return false;  // no shard retains the updates that follow them
  const bool begins = joiner.state.parts[part.layout().part].n == 0;
  return is_on_log(joiner, part) && !(begins && setup_.spec.initial_weights == protocol::InitialWeights::kFirst);
}

void Settlement::on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions) {
  const auto [at, first] = joiners_.try_emplace(from.worker);
  Joiner& joiner = at->second;
  if (first) joiner.since = now;
  const Members::Link* link = setup_.members.link(from.worker);
  if (first && link) joiner.peer = link->peer;
  joiner.incarnation = from.incarnation;
  joiner.state = state;
  joiner.charge = MemoryCharge(setup_.rounds.retained_account(), state.parts.size() * sizeof(protocol::State::Part));
  // The joiner repeats its state until it is settled. A repetition that may have crossed the answer is not answered.
  // Once all parts are given, one that still lacks a part is.
  const bool is_served = !joiner.wanting.empty() || setup_.members.queued_bytes(from.worker) > kQueuedMax;
  const TimeNs lately = is_served ? INT64_MIN : now - heartbeat() / 2;
  // One pass over the queue: a search in it for each part would cost the square of the parts.
  std::vector<bool> is_wanted(setup_.layout.parts.size() + 1);
  for (const uint32_t part : joiner.wanting) is_wanted.at(part) = true;
  const auto is_notified = [&](uint32_t part) {
    const auto told = joiner.told.find(part);
    return is_wanted.at(part) || (told != joiner.told.end() && told->second > lately);
  };
  if (const auto handover = handover_part(); handover && !is_notified(*handover)) joiner.wanting.push_back(*handover);
  for (const PartRound& part : setup_.rounds.parts()) {
    if (!is_notified(part.layout().part)) judge(from, joiner, part, now, actions);
  }
  ask_givers(now, actions);
}

void Settlement::judge(const protocol::Member& who, Joiner& joiner, const PartRound& part, TimeNs now,
                       Actions& actions) {
  const uint32_t number = part.layout().part;
  if (!may_use_own_weights(joiner, part) || !part.retains_from(joiner.state.parts[number].n)) {
    if (!needs_no_weights(who)) return joiner.wanting.push_back(number);
    joiner.told[number] = now;
    return settle_by_store(who, joiner, part, actions);
  }
  settle(who, joiner, part, Settle::Weights::kOwn, actions);
  // Once: when it is synced, it asks for those that it lacks.
  if (!joiner.told.contains(number))
    setup_.rounds.serve_between(who, part, joiner.state.parts[number].n, part.decided(), actions);
  joiner.told[number] = now;
}

bool Settlement::needs_no_weights(const protocol::Member& who) const {
  const Members::Link* link = setup_.members.link(who.worker);
  return setup_.spec.has_store() && link != nullptr && link->weights == Members::Weights::kNone;
}

// The updates that its own state lacks show which of its sent entries were carried; the snapshot is the position alone.
void Settlement::settle_by_store(const protocol::Member& who, Joiner& joiner, const PartRound& part,
                                 Actions& actions) const {
  const uint32_t number = part.layout().part;
  const protocol::State::Part& own = joiner.state.parts[number];
  if (is_on_log(joiner, part)) setup_.rounds.serve_between(who, part, own.n, part.decided(), actions);
  protocol::Snapshot place;
  place.part = number;
  place.for_worker = who.worker;
  place.for_incarnation = who.incarnation;
  place.n = part.decided();
  place.summary = part.summary();
  place.decided_in = place.summary.epochs.empty() ? 0 : place.summary.epochs.back().first;
  setup_.members.send(who, std::move(place), actions);
  settle(who, joiner, part, Settle::Weights::kSnapshot, actions);
}

void Settlement::settle(const protocol::Member& who, Joiner& joiner, const PartRound& part, Settle::Weights weights,
                        Actions& actions) const {
  const uint32_t number = part.layout().part;
  Settle body;
  body.part = number;
  body.decided = part.decided();
  body.branch = setup_.rounds.branch();
  body.on_log = is_on_log(joiner, part);
  body.weights = weights;
  if (const protocol::SummaryEntry* counted = part.counted_of(who.worker)) body.counted = *counted;
  setup_.members.send(who, std::move(body), actions);
  if (weights != Settle::Weights::kNone) setup_.rounds.settle(number, who.worker);
  count(Metric::kSettled, settlement_name_of(weights), 1, actions);
}

std::optional<uint32_t> Settlement::giver_for(Joiner& joiner, uint32_t worker) const {
  std::optional<uint32_t> best;
  size_t least = SIZE_MAX;
  bool any = false;
  for (const protocol::Member& one : setup_.members.synced()) {
    const Members::Link* link = setup_.members.link(one.worker);
    if (one.worker == worker || !link || !link->peer || link->weights == Members::Weights::kNone) continue;
    any = true;
    if (joiner.passed_over.contains(one.worker)) continue;
    const auto gives = static_cast<size_t>(std::ranges::count_if(
        joiners_, [&](const auto& each) { return each.second.transfer && each.second.transfer->giver == one.worker; }));
    if (gives >= least) continue;
    least = gives;
    best = one.worker;
  }
  // All have been tried: once more, each of them.
  if (any && !best) joiner.passed_over.clear();
  return any && !best ? giver_for(joiner, worker) : best;
}

void Settlement::ask_givers(TimeNs now, Actions& actions) {
  for (auto& [worker, joiner] : joiners_) {
    if (joiner.transfer || joiner.wanting.empty() || now < joiner.rests_until) continue;
    joiner.rests_until = 0;
    const protocol::Member& who = member(worker);
    if (setup_.members.synced().empty()) {
      for (const uint32_t part : joiner.wanting) {
        if (part == handover_part()) continue;
        settle(who, joiner, setup_.rounds.part(part), Settle::Weights::kNone, actions);
        joiner.told[part] = now;
      }
      joiner.wanting.clear();
      continue;
    }
    const std::optional<uint32_t> giver = giver_for(joiner, worker);
    if (!giver) continue;
    Transfer next{.part = joiner.wanting.front(), .giver = *giver, .asked = now, .moved = now, .heard = now};
    // The rest of its runs may still come: a worker does not begin again while they leave.
    const bool continues = joiner.late && joiner.late->giver == next.giver && joiner.late->part == next.part;
    if (!continues && setup_.members.queued_bytes(worker) > kQueuedMax) {
      joiner.rests_until = now + kQueueLookEvery;
      continue;
    }
    if (continues) {
      next = *joiner.late;
      next.moved = next.heard = now;
    }
    joiner.late.reset();
    joiner.transfer = next;
    setup_.members.send(member(*giver), protocol::SnapshotRequest{worker, joiner.incarnation, {joiner.wanting.front()}},
                        actions);
  }
}

void Settlement::give_up(Joiner& joiner) const {
  joiner.passed_over.insert(joiner.transfer->giver);
  joiner.transfer.reset();
}

bool Settlement::fits(const Joiner& joiner, const protocol::Snapshot& body, const SharedBytes& payload) const {
  const PartRound& part = setup_.rounds.part(body.part);
  const Transfer& transfer = *joiner.transfer;
  const uint64_t bytes = payload.bytes.size();
  const bool continues = body.offset == 0 || (transfer.n == body.n && transfer.offset == body.offset);
  return continues && bytes != 0 && bytes % sizeof(float) == 0 && bytes <= protocol::kSnapshotRunBytes &&
         bytes / sizeof(float) <= part.dimension() - std::min(body.offset, part.dimension()) &&
         hash64(payload.bytes) == body.payload_hash && part.is_in_log(body.n, body.decided_in) &&
         part.retains_from(body.n);
}

void Settlement::on_snapshot(const protocol::Member& from, const protocol::Snapshot& body, SharedBytes payload,
                             TimeNs now, Actions& actions) {
  const auto joiner = joiners_.find(body.for_worker);
  const bool asked = joiner != joiners_.end() && joiner->second.incarnation == body.for_incarnation &&
                     joiner->second.transfer && joiner->second.transfer->giver == from.worker &&
                     joiner->second.transfer->part == body.part;
  // The rest of a snapshot that was given up comes on when another one is asked for already.
  if (!asked || (!joiner->second.transfer->n && body.offset != 0)) {
    return count(Metric::kDropped, "unasked_snapshot", 1, actions);
  }
  if (body.part == handover_part()) {
    hand_over(member(body.for_worker), joiner->second, body, std::move(payload), now, actions);
  } else if (!fits(joiner->second, body, payload)) {
    count(Metric::kDropped, "damaged_snapshot", 1, actions);
    give_up(joiner->second);
  } else {
    hand_on(member(body.for_worker), joiner->second, body, std::move(payload), now, actions);
  }
  ask_givers(now, actions);
}

void Settlement::hand_on(const protocol::Member& who, Joiner& joiner, const protocol::Snapshot& body,
                         SharedBytes payload, TimeNs now, Actions& actions) {
  const PartRound& part = setup_.rounds.part(body.part);
  const uint64_t own = joiner.state.parts[body.part].n;
  const bool on_log = is_on_log(joiner, part);
  Transfer& transfer = *joiner.transfer;
  const auto done = [&] {
    joiner.wanting.pop_front();
    // A job that has not begun has no rounds to slow down.
    if (part.decided() > 0)
      joiner.rests_until = now + std::min(kRest * (now - transfer.asked), heartbeat() / kRestHeartbeatPart);
    joiner.rests_from = transfer.giver;
    joiner.transfer.reset();
    joiner.told[body.part] = now;
  };
  // R9d: It is not behind the giver: its own may be the only copy of a step.
  if (own >= body.n && may_use_own_weights(joiner, part)) {
    done();
    settle(who, joiner, part, Settle::Weights::kOwn, actions);
    return setup_.rounds.serve_between(who, part, own, part.decided(), actions);
  }
  count(Metric::kSnapshotBytes, "", static_cast<double>(payload.bytes.size()), actions);
  transfer.n = body.n;
  transfer.offset = body.offset + payload.bytes.size() / sizeof(float);
  transfer.moved = transfer.heard = now;
  setup_.members.send(who, body, std::move(payload), actions);
  if (transfer.offset < part.dimension()) return;
  done();
  if (on_log) setup_.rounds.serve_between(who, part, own, body.n, actions);
  settle(who, joiner, part, Settle::Weights::kSnapshot, actions);
  setup_.rounds.serve_between(who, part, body.n, part.decided(), actions);
}

/// Passes on the workers' handover. The shard does not interpret it: it only checks that it is whole, and no longer
/// than announced.
void Settlement::hand_over(const protocol::Member& who, Joiner& joiner, const protocol::Snapshot& body,
                           SharedBytes payload, TimeNs now, Actions& actions) {
  Transfer& transfer = *joiner.transfer;
  const ByteSpan bytes = payload.bytes;
  if (body.offset == 0) {
    ByteReader head(bytes);
    const bool known = head.get<uint64_t>() == protocol::kHandoverMagic;
    transfer.bytes = known ? head.get<uint64_t>().value_or(0) : 0;
    transfer.offset = 0;
  }
  const uint64_t had = transfer.offset * sizeof(float);
  const bool fits = body.offset == transfer.offset && !bytes.empty() && bytes.size() % sizeof(float) == 0 &&
                    bytes.size() <= protocol::kSnapshotRunBytes && transfer.bytes <= protocol::kHandoverBytesMax &&
                    had + bytes.size() <= transfer.bytes && hash64(bytes) == body.payload_hash;
  if (!fits) {
    count(Metric::kDropped, "damaged_snapshot", 1, actions);
    return give_up(joiner);
  }
  count(Metric::kSnapshotBytes, "", static_cast<double>(bytes.size()), actions);
  transfer.n = 0;
  transfer.offset += bytes.size() / sizeof(float);
  transfer.moved = transfer.heard = now;
  const bool is_last = transfer.offset * sizeof(float) == transfer.bytes;
  setup_.members.send(who, body, std::move(payload), actions);
  if (!is_last) return;
  joiner.wanting.pop_front();
  joiner.transfer.reset();
  joiner.told[body.part] = now;
}

void Settlement::on_welcomed(uint32_t worker, TimeNs now, Actions& actions) {
  // The State behind the Welcome begins again.
  const auto at = joiners_.find(worker);
  if (at != joiners_.end() && at->second.peer != setup_.members.link(worker)->peer) joiners_.erase(at);
  for (auto& [joins, joiner] : joiners_) {
    if (!joiner.transfer || joiner.transfer->giver != worker) continue;
    joiner.late = joiner.transfer;
    give_up(joiner);  // one that connects again and again must not keep the others from giving
  }
  ask_givers(now, actions);
}

void Settlement::on_arriving(uint32_t worker, uint64_t bytes, TimeNs now) {
  if (bytes < protocol::ArrivingBytes::kLeast) return;
  for (auto& [joins, joiner] : joiners_) {
    const bool gives = joiner.transfer && joiner.transfer->giver == worker;
    if (gives && now < joiner.transfer->moved + kArrivingMax) joiner.transfer->heard = now;
  }
}

void Settlement::on_tick(TimeNs now, Actions& actions) {
  bool tried = false;
  for (auto& [worker, joiner] : joiners_) {
    tried = tried || rests(joiner);
    if (!joiner.transfer || joiner.transfer->heard + kGiverHeartbeats * heartbeat() > now) continue;
    joiner.late = joiner.transfer;
    give_up(joiner);
    tried = true;
  }
  if (tried) ask_givers(now, actions);
}

bool Settlement::rests(const Joiner& joiner) {
  return !joiner.transfer && !joiner.wanting.empty() && joiner.rests_until > 0;
}

std::optional<TimeNs> Settlement::deadline() const {
  std::optional<TimeNs> first;
  for (const auto& [worker, joiner] : joiners_) {
    if (!joiner.transfer && !rests(joiner)) continue;
    const TimeNs at = joiner.transfer ? joiner.transfer->heard + kGiverHeartbeats * heartbeat() : joiner.rests_until;
    if (!first || at < *first) first = at;
  }
  return first;
}

std::optional<CutChoice> Settlement::cut() const {
  const Members& members = setup_.members;
  if (members.all().empty() || !members.synced().empty()) return std::nullopt;
  std::map<uint32_t, protocol::State> states;
  for (const protocol::Member& one : members.all()) {
    const auto joiner = joiners_.find(one.worker);
    if (joiner == joiners_.end() || !joiner->second.state.stranded) return std::nullopt;
    if (members.has_weights_of(setup_.spec, one.worker, joiner->second.state))
      states.emplace(one.worker, joiner->second.state);
  }
  if (states.empty()) return std::nullopt;  // a worker that has them may rejoin
  return choose_for_cut(states, setup_.layout, members.membership());
}

Settlement::Waiting Settlement::waiting() const {
  Waiting waiting;
  std::set<uint32_t> givers;
  for (const auto& [worker, joiner] : joiners_) {
    if (joiner.wanting.empty()) continue;
    waiting.since = waiting.joiners.empty() ? joiner.since : std::min(waiting.since, joiner.since);
    waiting.joiners.push_back(worker);
    if (joiner.transfer) givers.insert(joiner.transfer->giver);
    if (rests(joiner) && joiner.rests_from) givers.insert(*joiner.rests_from);
  }
  waiting.givers.assign(givers.begin(), givers.end());
  return waiting;
}

}  // namespace millrace::server
