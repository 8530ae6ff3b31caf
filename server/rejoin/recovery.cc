#include "server/rejoin/recovery.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/container/container.h"
#include "protocol/messages/log_branch.h"

namespace millrace::server {
namespace {

/// No log is longer: beyond it steps could not be counted on.
constexpr uint64_t kStepsMax = uint64_t{1} << 48;

/// Invalid answers of one source: one may be damaged on the way, more are not chance.
constexpr uint32_t kWrongMax = 2;

/// Answers in a row without any of the updates: more than chance, or than a full queue at the worker.
constexpr uint32_t kEmptyMax = 4;

bool decodes(const SharedBytes& payload, const protocol::PartLayout& part) {
  DecodeTask::Input input;
  input.hash = container_identity(payload.bytes).value_or(0);
  input.payload = payload;
  input.dimension = part.end - part.begin;
  DecodeTask task(std::move(input));
  task.run();
  return task.result().has_value();
}

/// Returns whether the summary is one as of n steps, the last of them decided in that epoch. The frame checks order and
/// bounds.
bool is_summary_of(const protocol::Summary& summary, uint64_t n, uint64_t decided_in, protocol::Mode mode) {
  if (summary.epochs.empty() || summary.epochs.back().first != decided_in) return false;
  if (summary.epochs.back().second >= n) return false;
  return std::ranges::all_of(summary.workers, [n, mode](const protocol::SummaryEntry& one) {
    const bool asynchronous = mode == protocol::Mode::kAsynchronous;
    if (asynchronous != (one.sequence != 0)) return false;
    const auto below = [&](const auto& earlier) { return earlier.second <= (asynchronous ? n : one.last_step); };
    return one.last_step < n && std::ranges::all_of(one.earlier_incarnations, below);
  });
}

}  // namespace

bool makes_sense(const protocol::State& state, const protocol::JobLayout& layout,
                 const protocol::Membership& membership) {
  if (state.parts.size() != layout.parts.size()) return false;
  std::set<std::pair<uint32_t, uint64_t>> branches;  // by shard
  for (uint32_t number = 0; number < state.parts.size(); ++number) {
    const protocol::State::Part& part = state.parts[number];
    if (part.part != number || part.n >= kStepsMax || part.decided_in > membership.epoch ||
        part.retained_from > part.n || (part.n == 0) != (part.decided_in == 0)) {
      return false;
    }
    if (part.branch != 0) branches.emplace(layout.parts[number].shard, part.branch);
  }
  return std::ranges::all_of(branches, [&membership](const auto& known) {
    return std::ranges::any_of(membership.activations, [&known](const protocol::Activation& one) {
      return one.shard == known.first && one.branch == known.second;
    });
  });
}

void Recovery::count(Metric metric, std::string_view label, Actions& actions) const {
  actions.metrics.push_back({metric, setup_.spec.name, label, 1});
}

void Recovery::begin_epoch(TimeNs now, Actions& actions) {
  stage_ = Stage::kCollecting;
  answers_.clear();
  parts_.clear();
  stuck_.clear();
  std::map<uint32_t, Ask> asks;
  for (const protocol::Member& member : setup_.members.all()) {
    const auto before = asks_.find(member.worker);
    const bool still = before != asks_.end() && before->second.incarnation == member.incarnation;
    asks[member.worker] = Ask{member.incarnation, still ? before->second.since : now, 0, {}};
  }
  asks_ = std::move(asks);
  ask(now, actions);
}

void Recovery::greet(uint32_t worker, TimeNs now, Actions& actions) {
  const auto at = asks_.find(worker);
  if (at != asks_.end()) at->second.asked = 0;
  for (PartFetch& part : parts_) {
    for (Source& source : part.sources) {
      if (source.worker == worker) source.asked = 0;
    }
  }
  ask(now, actions);
}

void Recovery::ask(TimeNs now, Actions& actions) {
  next_ask_ = now + heartbeat();
  ask_members(now, actions);
  if (stage_ == Stage::kFetching) ask_sources(now, actions);
}

void Recovery::ask_members(TimeNs now, Actions& actions) {
  for (const protocol::Member& member : setup_.members.all()) {
    const auto at = asks_.find(member.worker);
    const Members::Link* link = setup_.members.link(member.worker);
    if (at == asks_.end() || !link || !link->peer) continue;
    if (at->second.asked == 0 || at->second.asked + heartbeat() <= now) {
      setup_.members.send(member, protocol::Collect{}, actions);
      at->second.asked = now;
    }
    next_ask_ = std::min(next_ask_, at->second.asked + heartbeat());
  }
}

uint64_t Recovery::first_missing(const PartFetch& part, const Source& source) const {
  uint64_t step = source.first;
  while (step < source.below && part.got.contains(step)) ++step;
  return step;
}

bool Recovery::lacks(const PartFetch& part, const Source& source) const {
  const bool gives_summary = &source == &part.sources.front();
  return first_missing(part, source) < source.below || (gives_summary && !part.summary);
}

void Recovery::ask_sources(TimeNs now, Actions& actions) {
  for (PartFetch& part : parts_) {
    for (Source& source : part.sources) {
      if (!lacks(part, source)) continue;
      if (source.asked == 0 || std::max(source.asked, source.moved) + heartbeat() <= now) {
        const protocol::Member* member = find_member(setup_.members.membership(), source.worker);
        MILLRACE_CHECK(member != nullptr, source.worker);
        setup_.members.send(*member, protocol::Fetch{part.layout->part, first_missing(part, source)}, actions);
        source.asked = now;
      }
      next_ask_ = std::min(next_ask_, std::max(source.asked, source.moved) + heartbeat());
    }
  }
}

void Recovery::on_arriving(uint32_t worker, uint64_t bytes, TimeNs now) {
  const uint64_t most = std::max(setup_.message_bytes_max, protocol::ArrivingBytes::kMost);
  const auto at = asks_.find(worker);
  if (at != asks_.end() && at->second.arriving.delay(bytes, most)) at->second.since = now;
  for (PartFetch& part : parts_) {
    for (Source& source : part.sources) {
      if (source.worker == worker && source.asked != 0 && source.arriving.delay(bytes, most))
        source.since = source.moved = now;
    }
  }
}

void Recovery::on_tick(TimeNs now, Actions& actions) {
  if (now >= next_ask_) ask(now, actions);
}

void Recovery::on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions) {
  const auto [answer, first] = answers_.try_emplace(from.worker);
  // Once all have answered, the answers behind the fetches must not change. A member that repeats an answer has missed
  // nothing.
  if (!first && stage_ != Stage::kCollecting) return;
  asks_.erase(from.worker);
  answer->second.state = state;
  answer->second.synced = state.synced && from.state == protocol::MemberState::kSynced;
  answer->second.charge = MemoryCharge(setup_.kept, state.parts.size() * sizeof(protocol::State::Part));
  if (majority()) majority_at_ = now;
  if (asks_.empty() && answers_.size() == setup_.members.all().size()) plan(now, actions);
}

void Recovery::plan(TimeNs now, Actions& actions) {
  const auto is_synced = [](const auto& answer) { return answer.second.synced; };
  if (std::ranges::none_of(answers_, is_synced)) {
    if (!cut_states().empty()) stage_ = Stage::kCut;  // else a worker that has weights may rejoin
    return;
  }
  stage_ = Stage::kFetching;
  for (const protocol::PartLayout& layout : setup_.layout.parts) {
    if (layout.shard != setup_.shard) continue;
    PartFetch& part = parts_.emplace_back();
    part.layout = &layout;
    part.first = UINT64_MAX;
    part.wanted = UINT64_MAX;
    const bool stored = setup_.spec.has_store();
    for_each_synced([&](uint32_t, const protocol::State& state) {
      const protocol::State::Part& theirs = state.parts[layout.part];
      part.first = std::min(part.first, theirs.n);
      part.wanted = std::min(part.wanted, stored ? theirs.retained_from : theirs.n);
      if (theirs.n < part.decided) return;
      part.decided = theirs.n;
      part.decided_in = theirs.decided_in;
    });
    if (part.decided == 0) {
      part.summary.emplace();  // of a log without steps
    } else {
      choose_sources(part, now);
    }
  }
  advance_stage();
  ask(now, actions);
}

/// Chooses the members to fetch from. The furthest member that retains the most gives the summary and its updates.
/// Earlier updates that others need are requested from members that retain them. If no member does, the others rejoin
/// (R9).
void Recovery::choose_sources(PartFetch& part, TimeNs now) {
  part.sources.clear();
  part.from = part.decided;
  uint64_t from = part.decided + 1;  // the first source need not keep anything
  uint64_t below = part.decided;
  while (from > part.wanted) {
    const protocol::State::Part* best = nullptr;
    uint32_t holder = 0;
    for_each_synced([&](uint32_t worker, const protocol::State& state) {
      const protocol::State::Part& theirs = state.parts[part.layout->part];
      const bool fits = theirs.n >= below && theirs.retained_from < from && !part.wrong.contains(worker);
      if (!fits || (best && theirs.retained_from >= best->retained_from)) return;
      best = &theirs;
      holder = worker;
    });
    if (!best) break;
    from = std::max(best->retained_from, part.wanted);
    part.sources.push_back({.worker = holder, .first = from, .below = below, .since = now});
    below = from;
  }
  part.from = below;
  std::erase_if(part.got, [&part](const auto& one) { return one.first < part.from; });
  if (part.sources.empty()) {
    for (const uint32_t worker : part.wrong) stuck_.emplace(worker, Leaving::kWrong);
    return;
  }
  if (below <= part.first) return;
  for_each_synced([&](uint32_t worker, const protocol::State& state) {
    if (state.parts[part.layout->part].n < below) stuck_.emplace(worker, Leaving::kBehind);
  });
}

void Recovery::on_update(const protocol::Member& from, const protocol::Update& body, const SharedBytes& payload,
                         TimeNs now, Actions& actions) {
  const auto part = std::ranges::find_if(parts_, [&](const PartFetch& one) { return one.layout->part == body.part; });
  if (stage_ != Stage::kFetching || part == parts_.end()) return count(Metric::kDropped, "unasked_update", actions);
  const auto source = std::ranges::find_if(part->sources, [&](const Source& one) {
    return one.worker == from.worker && one.first <= body.step && body.step < one.below;
  });
  if (source == part->sources.end() || part->got.contains(body.step)) {
    return count(Metric::kDropped, "unasked_update", actions);
  }
  const bool whole = decodes(payload, *part->layout) && !body.contributors.empty() &&
                     is_summary_of(body.summary, body.step + 1, body.decided_in, setup_.spec.mode);
  if (!whole) {
    count(Metric::kDropped, "damaged_update", actions);
    return wrong(*part, *source, now, actions);
  }
  source->empty = 0;
  note_progress(from.worker, now);
  PartRound::RetainedUpdate kept{body, payload, {}};
  kept.charge = MemoryCharge(setup_.kept, kept.bytes());
  part->got.emplace(body.step, std::move(kept));
  advance_stage();
}

void Recovery::on_fetched(const protocol::Member& from, const protocol::Fetched& body, TimeNs now, Actions& actions) {
  const auto part = std::ranges::find_if(parts_, [&](const PartFetch& one) { return one.layout->part == body.part; });
  if (stage_ != Stage::kFetching || part == parts_.end()) return count(Metric::kDropped, "unasked_fetched", actions);
  const auto source = std::ranges::find(part->sources, from.worker, &Source::worker);
  if (source == part->sources.end()) return count(Metric::kDropped, "unasked_fetched", actions);
  if (source == part->sources.begin() && !part->summary) {
    const bool whole = body.n == part->decided && body.decided_in == part->decided_in &&
                       is_summary_of(body.summary, body.n, body.decided_in, setup_.spec.mode);
    if (!whole) {
      count(Metric::kDropped, "damaged_update", actions);
      return wrong(*part, *source, now, actions);
    }
    part->summary = body.summary;
    note_progress(from.worker, now);
  }
  // That was the last one. The missing updates were lost on the way: they are requested again a heartbeat after the
  // last time. A member that repeats Fetched alone does not retain the updates. Answers to one request count once.
  const bool incomplete = !std::exchange(source->gave, false) && lacks(*part, *source);
  if (incomplete && std::exchange(source->counted, source->asked) != source->asked && ++source->empty >= kEmptyMax) {
    pass_over(*part, source->worker, now);
    return ask(now, actions);
  }
  advance_stage();
}

void Recovery::note_progress(uint32_t worker, TimeNs now) {
  for (PartFetch& part : parts_) {
    for (Source& source : part.sources) {
      if (source.worker != worker) continue;
      source.since = now;
      source.arriving.restart();
      source.gave = true;
    }
  }
}

void Recovery::wrong(PartFetch& part, Source& source, TimeNs now, Actions& actions) {
  source.asked = 0;
  source.gave = true;  // the Fetched of this answer does not count as another one
  if (++source.wrong >= kWrongMax) pass_over(part, source.worker, now);
  ask(now, actions);
}

void Recovery::pass_over(PartFetch& part, uint32_t worker, TimeNs now) {
  part.wrong.insert(worker);
  choose_sources(part, now);
  advance_stage();
}

void Recovery::advance_stage() {
  const bool complete = std::ranges::all_of(parts_, [](const PartFetch& part) { return part.complete(); });
  stage_ = !stuck_.empty() ? Stage::kStuck : complete ? Stage::kReady : Stage::kFetching;
}

Recovery::Removals Recovery::removals(TimeNs now) const {
  Removals removals;
  const auto add = [&](uint32_t worker) {
    const protocol::Member* member = find_member(setup_.members.membership(), worker);
    if (member && std::ranges::find(removals.members, *member) == removals.members.end())
      removals.members.push_back(*member);
  };
  if (!stuck_.empty()) {
    removals.why = stuck_.begin()->second;
    for (const auto& [worker, why] : stuck_) {
      if (why == removals.why) add(worker);
    }
    return removals;
  }
  if (!majority()) return removals;
  const TimeNs timeout = setup_.spec.dead_after.count() * kNsPerMs;
  for (const auto& [worker, unanswered] : asks_) {
    if (unanswered.since + timeout <= now) add(worker);
  }
  for (const PartFetch& part : parts_) {
    for (const Source& source : part.sources) {
      if (source.asked != 0 && source.since + timeout <= now && lacks(part, source)) add(source.worker);
    }
  }
  return removals;
}

TimeNs Recovery::without_majority(TimeNs now) const { return majority() ? 0 : now - majority_at_; }

uint64_t Recovery::parent() const {
  uint64_t parent = 0;
  if (parts_.empty()) return protocol::branch_of(setup_.members.membership(), setup_.shard);
  for_each_synced([&](uint32_t, const protocol::State& state) {
    for (const PartFetch& part : parts_) parent = std::max(parent, state.parts[part.layout->part].branch);
  });
  return parent;
}

protocol::LogReach Recovery::reach() const {
  if (parts_.empty()) return {UINT64_MAX, UINT64_MAX};
  protocol::LogReach reach{UINT64_MAX, 0};
  for (const PartFetch& part : parts_) {
    reach = {std::min(reach.steps, part.decided), std::max(reach.decided_in, part.decided_in)};
  }
  return reach;
}

std::map<uint32_t, protocol::State> Recovery::cut_states() const {
  std::map<uint32_t, protocol::State> states;
  for (const auto& [worker, answer] : answers_) {
    if (setup_.members.has_weights_of(setup_.spec, worker, answer.state)) states.emplace(worker, answer.state);
  }
  return states;
}

CutChoice Recovery::choice() const { return choose_for_cut(cut_states(), setup_.layout, setup_.members.membership()); }

std::vector<PartRound::Restored> Recovery::take() {
  MILLRACE_CHECK(stage_ == Stage::kReady, static_cast<int>(stage_));
  std::vector<PartRound::Restored> restored;
  for (PartFetch& part : parts_) {
    PartRound::Restored& one = restored.emplace_back();
    one.decided = part.decided;
    one.summary = std::move(*part.summary);
    for (auto& [step, kept] : part.got) one.retained.push_back(std::move(kept));
  }
  parts_.clear();
  return restored;
}

std::vector<uint32_t> Recovery::waited_for() const {
  std::set<uint32_t> workers;
  for (const auto& [worker, unanswered] : asks_) workers.insert(worker);
  for (const PartFetch& part : parts_) {
    if (part.complete()) continue;
    for (const Source& source : part.sources) workers.insert(source.worker);
  }
  return {workers.begin(), workers.end()};
}

void Recovery::extend_deadlines(TimeNs paused) {
  majority_at_ += paused;
  for (auto& [worker, unanswered] : asks_) unanswered.since += paused;
  for (PartFetch& part : parts_) {
    for (Source& source : part.sources) source.since += paused;
  }
}

}  // namespace millrace::server
