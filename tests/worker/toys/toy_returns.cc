#include <algorithm>
#include <bit>
#include <tuple>

#include "protocol/messages/log_branch.h"
#include "tests/worker/toys/toy_shard.h"

/// R8, R9 and R10 at the toy shard: collecting, settling, cutting.
namespace millrace::testing {
namespace {

using protocol::MemberState;
using Weights = protocol::Settle::Weights;

bool beats(const protocol::State& a, const protocol::State& b) {
  const auto reach = [](const protocol::State::Part& part) { return std::tuple(part.branch, part.decided_in, part.n); };
  bool differs = false;
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (reach(a.parts[i]) < reach(b.parts[i])) return false;
    differs = differs || reach(a.parts[i]) != reach(b.parts[i]);
  }
  return differs;
}

}  // namespace

void ToyShard::crash() {
  incarnation = table_.membership.shards[number_].incarnation;
  connected_.clear();
  recovering_ = true;
  membership_ = {};
  for (Part& part : parts_) {
    part.open.clear();
    part.acks.clear();
  }
  states_.clear();
  joiners_.clear();
  ack_lives_.clear();
}

/// Answers may be lost with the connection: those of the joiner, of a giver of weights, and of a member that is asked
/// for updates.
void ToyShard::disconnect(uint32_t worker) {
  connected_.erase(worker);
  joiners_.clear();
  states_.erase(worker);
  fetching_ = false;
}

void ToyShard::poll(Out& out) {
  if (!recovering_ || fetching_) return;
  for (const uint32_t worker : connected_) {
    if (life_of(worker) != 0 && !states_.contains(worker)) out.emplace_back(worker, to(worker, protocol::Collect{}));
  }
}

void ToyShard::begin_recovery(Out& out) {
  fetching_ = false;
  states_.clear();
  for (Part& part : parts_) {
    part.open.clear();
    part.fetched.clear();
    part.fetched_from.clear();
  }
  poll(out);
}

void ToyShard::on_return_message(uint32_t worker, const protocol::Message& message, Out& out) {
  if (message.header.epoch != membership_.epoch) return;
  if (const auto* state = std::get_if<protocol::State>(&message.body)) return on_state(worker, *state, out);
  if (const auto* update = std::get_if<protocol::Update>(&message.body)) {
    if (fetching_) parts_[update->part].fetched[update->step] = message;
  } else if (const auto* fetched = std::get_if<protocol::Fetched>(&message.body)) {
    on_fetched(worker, *fetched, out);
  } else if (std::holds_alternative<protocol::Snapshot>(message.body)) {
    on_snapshot(worker, message, out);
  } else if (std::holds_alternative<protocol::Synced>(message.body)) {
    if (table_.make_synced(worker, message.header.incarnation, membership_.epoch)) adopt_membership(out);
  }
}

void ToyShard::on_state(uint32_t worker, const protocol::State& state, Out& out) {
  states_[worker] = state;
  if (recovering_) return fetch_when_all_answered(out);
  if (table_.member(worker) != nullptr && !state.synced) judge(worker, out);
  cut_when_nobody_can_go_on(out);
}

void ToyShard::fetch_when_all_answered(Out& out) {
  if (fetching_) return;
  bool any_synced = false;
  for (const protocol::Member& member : membership_.members) {
    if (!states_.contains(member.worker)) return;
    any_synced = any_synced || states_[member.worker].synced;
  }
  if (!any_synced) return cut_when_nobody_can_go_on(out);
  fetching_ = true;
  bool any_part = false;
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    if (!is_mine(part)) continue;
    any_part = true;
    uint64_t least = UINT64_MAX;
    parts_[part].furthest = 0;
    for (const auto& [worker, state] : states_) {
      if (!state.synced) continue;
      least = std::min(least, state.parts[part].n);
      parts_[part].furthest = std::max(parts_[part].furthest, state.parts[part].n);
    }
    for (const auto& [worker, state] : states_) {
      if (state.synced) out.emplace_back(worker, to(worker, protocol::Fetch{part, least}));
    }
  }
  if (!any_part) activate(out);
}

void ToyShard::on_fetched(uint32_t worker, const protocol::Fetched& fetched, Out& out) {
  if (!fetching_) return;
  Part& part = parts_[fetched.part];
  part.fetched_from.insert(worker);
  if (fetched.n == part.furthest && fetched.summary.workers != summary(fetched.part, fetched.n).workers)
    complaints.push_back("a summary that is not the log's");
  for (uint32_t each = 0; each < parts_.size(); ++each) {
    for (const auto& [member, state] : states_) {
      if (is_mine(each) && state.synced && !parts_[each].fetched_from.contains(member)) return;
    }
  }
  activate(out);
}

void ToyShard::activate(Out& out) {
  uint64_t parent = 0;
  for (const auto& [worker, state] : states_) {
    for (const protocol::State::Part& part : state.parts)
      if (state.synced && is_mine(part.part)) parent = std::max(parent, part.branch);
  }
  if (!table_.activate(number_, parent, membership_.epoch)) return adopt_membership(out);
  branch_ = table_.membership.branches;
  const std::map<uint32_t, protocol::State> states = states_;
  recovering_ = fetching_ = false;
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    if (!is_mine(part)) continue;
    restore(part);
    for (const auto& [worker, state] : states) {
      if (state.synced) parts_[part].acks[worker] = state.parts[part].n;
    }
  }
  adopt_membership(out);
}

void ToyShard::truncate(uint32_t part, uint64_t n) {
  std::map<uint64_t, ToyDecision>& log = parts_[part].log;
  for (auto at = log.lower_bound(n); at != log.end(); at = log.erase(at)) {
    if (voided) voided(part, at->second);
  }
}

void ToyShard::restore(uint32_t number) {
  Part& part = parts_[number];
  truncate(number, part.furthest);
  if (part.log.size() != part.furthest) complaints.push_back("a worker has a step that was never decided");
  part.first_kept = part.furthest;
  uint64_t least = UINT64_MAX;
  for (const auto& [worker, state] : states_)
    if (state.synced) least = std::min(least, state.parts[number].n);
  while (part.first_kept > 0 && part.fetched.contains(part.first_kept - 1)) {
    const protocol::Message& message = part.fetched[--part.first_kept];
    const auto& update = std::get<protocol::Update>(message.body);
    const ToyDecision& truth = part.log[part.first_kept];
    if (update.contributors != truth.update.contributors || update.decided_in != truth.update.decided_in ||
        !std::ranges::equal(message.payload.bytes, truth.payload.bytes))
      complaints.push_back("a kept update that is not the one decided");
  }
  if (part.first_kept > least) complaints.push_back("no worker keeps an update that a synced worker needs");
  part.fetched.clear();
}

void ToyShard::cut_when_nobody_can_go_on(Out& out) {
  for (const protocol::Member& member : membership_.members) {
    const auto state = states_.find(member.worker);
    if (state == states_.end() || state->second.synced || member.state == MemberState::kSynced) return;
    if (!recovering_ && !state->second.stranded) return;
  }
  const auto unbeaten = std::ranges::find_if(states_, [&](const auto& one) {
    return std::ranges::none_of(states_, [&](const auto& other) { return beats(other.second, one.second); });
  });
  if (unbeaten == states_.end()) return;
  table_.cut(unbeaten->first, unbeaten->second, membership_.epoch);
  adopt_membership(out);
}

std::optional<protocol::SummaryEntry> ToyShard::counted(uint32_t part, uint64_t n, uint32_t worker) const {
  std::optional<protocol::SummaryEntry> entry;
  for (const auto& [step, decision] : parts_[part].log) {
    const auto& all = decision.update.contributors;
    const auto who = std::ranges::find(all, worker, &protocol::ContributorId::worker);
    if (step >= n || who == all.end()) continue;
    if (!entry) entry = protocol::SummaryEntry{.worker = worker, .incarnation = who->incarnation};
    if (entry->incarnation != who->incarnation)
      entry->earlier_incarnations.emplace_back(entry->incarnation, entry->last_step);
    const uint64_t shift = entry->counted_mask == 0 ? 0 : step - entry->last_step;
    entry->counted_mask = (shift >= 64 ? 0 : entry->counted_mask << shift) | 1;
    entry->incarnation = who->incarnation;
    entry->last_step = step;
  }
  if (!entry) return entry;
  std::erase_if(entry->earlier_incarnations,
                [&](const auto& earlier) { return entry->last_step - earlier.second > 63; });
  return entry;
}

protocol::Summary ToyShard::summary(uint32_t part, uint64_t n) const {
  protocol::Summary all;
  for (uint32_t worker = 0; worker < table_.spec.workers; ++worker) {
    if (auto entry = counted(part, n, worker)) all.workers.push_back(std::move(*entry));
  }
  return all;
}

void ToyShard::judge(uint32_t worker, Out& out) {
  const protocol::State& state = states_[worker];
  std::vector<uint32_t> givers;
  for (const protocol::Member& member : membership_.members) {
    if (member.state == MemberState::kSynced && connected_.contains(member.worker)) givers.push_back(member.worker);
  }
  for (uint32_t number = 0; number < parts_.size(); ++number) {
    Joiner& joiner = joiners_[{worker, number}];
    if (!is_mine(number) || joiner.settled) continue;
    Part& part = parts_[number];
    joiner.stands = state.parts[number];
    const uint64_t n = joiner.stands.n;
    joiner.on_log = n <= part.log.size() && protocol::is_on_path(membership_, number_, joiner.stands.branch) &&
                    (n == 0 || part.log[n - 1].update.decided_in == joiner.stands.decided_in);
    const bool own = joiner.on_log && part.first_kept <= n;
    if (own && (givers.empty() || !prefers_snapshot || !prefers_snapshot())) {
      settle(worker, number, Weights::kOwn, out);
    } else if (!givers.empty()) {
      joiner.asked = true;
      const uint32_t giver = givers[n % givers.size()];
      out.emplace_back(giver, to(giver, protocol::SnapshotRequest{worker, life_of(worker), {number}}));
    } else if (table_.synced_members() == 0) {
      settle(worker, number, Weights::kNone, out);
    }
  }
}

void ToyShard::settle(uint32_t worker, uint32_t number, Weights weights, Out& out) {
  Joiner& joiner = joiners_[{worker, number}];
  protocol::Settle settle;
  settle.part = number;
  settle.decided = parts_[number].log.size();
  settle.branch = branch_;
  settle.on_log = joiner.on_log;
  settle.weights = weights;
  settle.counted = counted(number, settle.decided, worker);
  joiner.settled = weights != Weights::kNone;
  out.emplace_back(worker, to(worker, settle));
  for (const auto& [step, decision] : parts_[number].log) {
    if (joiner.settled && step >= joiner.stands.n) serve(worker, decision, out);
  }
}

void ToyShard::on_snapshot(uint32_t /*giver*/, const protocol::Message& message, Out& out) {
  const auto& run = std::get<protocol::Snapshot>(message.body);
  const auto found = joiners_.find({run.for_worker, run.part});
  if (found == joiners_.end() || !found->second.asked || found->second.settled) return;
  if (life_of(run.for_worker) != run.for_incarnation) return;
  Joiner& joiner = found->second;
  out.emplace_back(run.for_worker, to(run.for_worker, run, message.payload));
  const protocol::PartLayout& layout = table_.layout.parts[run.part];
  if (run.offset + message.payload.bytes.size() / sizeof(float) < layout.end - layout.begin) return;
  if (run.n > parts_[run.part].log.size()) complaints.push_back("weights of a step that was never decided");
  if (joiner.on_log && joiner.stands.n >= run.n) return settle(run.for_worker, run.part, Weights::kOwn, out);
  for (const auto& [step, decision] : parts_[run.part].log) {
    if (joiner.on_log && step >= joiner.stands.n && step < run.n) serve(run.for_worker, decision, out);
  }
  joiner.stands.n = run.n;
  settle(run.for_worker, run.part, Weights::kSnapshot, out);
}

}  // namespace millrace::testing
