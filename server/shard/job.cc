#include "server/shard/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "protocol/job/enum_words.h"
#include "protocol/messages/handshake.h"

namespace millrace::server {
namespace {

/// Lists of workers for people and heartbeats end here: longer ones have no readers.
constexpr size_t kListedMax = 64;

/// Bytes of an unfinished message keep a member for this multiple of `dead_after`. A longer wait would cost the others
/// more than its rejoin.
constexpr TimeNs kUnfinishedMax = 30;

int64_t milliseconds(TimeNs ns) { return ns / kNsPerMs; }

}  // namespace

Job::Job(Setup setup)
    : setup_(std::move(setup)),
      spec_hash_(protocol::job_spec_hash(setup_.spec)),
      layout_hash_(protocol::layout_hash(setup_.layout)),
      members_(setup_.shard, setup_.shard_incarnation,
               setup_.spec.path == protocol::Path::kSwitch ? Members::Nonces::kShown : Members::Nonces::kHidden,
               setup_.queued_bytes),
      rounds_(JobRounds::Setup{setup_.spec, setup_.layout, members_, setup_.gate, setup_.limits, setup_.shard_memory,
                               setup_.refusals, setup_.shard, setup_.shard_count, setup_.codec_costs}),
      settlement_(Settlement::Setup{setup_.spec, setup_.layout, members_, rounds_, setup_.shard}) {
  if (setup_.spec.path == protocol::Path::kSwitch && setup_.shard == SwitchHealth::kShard)
    switch_health_.emplace(setup_.spec.name);
}

std::vector<protocol::PeerId> Job::adopt(protocol::Membership membership, TimeNs now, Actions& actions) {
  const bool first = opened_ == 0;
  if (first) opened_ = now;
  const uint32_t left_before = members_.membership().left;
  cut_refused_.reset();
  const bool is_void = membership.cut > members_.membership().epoch || (first && setup_.start == Start::kSuccessor);
  Members::Adopted adopted = members_.adopt(std::move(membership), now);
  if (first) left_at_first_ = members_.membership().left;
  if (members_.membership().left > left_before) {
    for (const protocol::Member& gone : adopted.gone) may_have_finished_.insert(gone.worker);
  }
  // Drops the rounds before the members learn their steps. A worker that a cut made synced would wait for void steps.
  if (is_void && !recovery_) rounds_.drop();
  for (size_t at = 0; at < adopted.gone_peers.size(); ++at) {
    const protocol::Member& gone = adopted.gone_connected[at];
    protocol::MembershipChange change{
        members_.view_of(members_.membership(), gone.worker, gone.incarnation, adopted.gone_peers[at])};
    actions.to_peers.push_back(
        {adopted.gone_peers[at], {members_.header(gone.worker, gone.incarnation), std::move(change), {}}});
  }
  if (members_.membership().started) {
    if (started_ == 0) started_ = now;
    announce_membership(adopted.before, actions);
    membership_unannounced_ = false;
  } else {
    membership_unannounced_ = true;
  }
  if (is_void && !recovery_) {
    recovery_.emplace(Recovery::Setup{setup_.spec, setup_.layout, members_, rounds_.retained_account(), setup_.shard,
                                      setup_.limits.message_bytes_max},
                      now);
    recovering_since_ = now;
    actions.metrics.push_back({Metric::kRecoveries, setup_.spec.name, "begun", 1});
  }
  settlement_.begin_epoch();
  if (switch_health_) switch_health_->begin_epoch();
  if (recovery_) {
    recovery_->begin_epoch(now, actions);
  } else {
    rounds_.on_membership(adopted.before, now, actions);
  }
  return std::move(adopted.gone_peers);
}

void Job::flush_membership(Actions& actions) {
  if (membership_unannounced_) announce_membership({}, actions);
  membership_unannounced_ = false;
}

void Job::announce_membership(const std::vector<protocol::Member>& before, Actions& actions) const {
  for (const protocol::Member& member : members_.all()) {
    const bool was_synced = std::ranges::find(before, member) != before.end();
    members_.send(member, was_synced ? protocol::MembershipChange{members_.membership()} : change_for(member), actions);
  }
}

protocol::MembershipChange Job::change_for(const protocol::Member& member) const {
  protocol::MembershipChange change{members_.membership()};
  const bool is_news = member.state == protocol::MemberState::kSynced && rounds_.steps_decided_max() > 0;
  if (!is_news || recovery_) return change;
  for (const PartRound& part : rounds_.parts()) change.decided.push_back(part.decided());
  return change;
}

protocol::Welcome Job::welcome(const protocol::Hello& hello, const std::string& software) const {
  protocol::Welcome welcome;
  welcome.version = protocol::negotiate(hello, {}).value().version;
  welcome.capabilities = hello.capabilities & protocol::kTakesMerged;
  welcome.software = software;
  welcome.membership = members_.membership();
  welcome.heartbeat_ms = protocol::wire_ms(setup_.spec.heartbeat);
  welcome.dead_after_ms = protocol::wire_ms(setup_.spec.dead_after);
  welcome.message_bytes_max = setup_.limits.message_bytes_max;
  return welcome;
}

protocol::Heartbeat Job::heartbeat_answer(const protocol::Member& to, uint64_t sequence) const {
  protocol::Heartbeat answer;
  answer.sequence = sequence;
  answer.steps_applied = rounds_.steps_sent(to.worker);
  if (!members_.membership().started) {
    answer.waited_for = not_joined();
  } else if (recovery_) {
    answer.waited_for = recovery_->waited_for();
  } else if (const std::optional<Waiting> waiting = rounds_.waiting()) {
    answer.waited_for = waiting->workers;
  }
  if (answer.waited_for.size() > kListedMax) answer.waited_for.resize(kListedMax);
  answer.decided = rounds_.unacknowledged(to.worker, answer.steps_applied);
  return answer;
}

std::vector<uint32_t> Job::not_joined() const {
  std::vector<uint32_t> missing;
  for (uint32_t worker = 0; worker < setup_.spec.workers && missing.size() < kListedMax; ++worker) {
    if (!find_member(members_.membership(), worker)) missing.push_back(worker);
  }
  return missing;
}

void Job::on_return_message(const protocol::Member& from, protocol::Message message, TimeNs now, Actions& actions) {
  const auto drop = [&](std::string_view reason) {
    actions.metrics.push_back({Metric::kDropped, setup_.spec.name, reason, 1});
  };
  if (const auto* state = std::get_if<protocol::State>(&message.body)) return on_state(from, *state, now, actions);
  if (const auto* snapshot = std::get_if<protocol::Snapshot>(&message.body)) {
    if (recovery_) return drop("recovering");
    return settlement_.on_snapshot(from, *snapshot, std::move(message.payload), now, actions);
  }
  if (!recovery_) return drop("unexpected_message");
  if (const auto* update = std::get_if<protocol::Update>(&message.body)) {
    recovery_->on_update(from, *update, message.payload, now, actions);
  } else if (const auto* fetched = std::get_if<protocol::Fetched>(&message.body)) {
    recovery_->on_fetched(from, *fetched, now, actions);
  }
}

void Job::on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions) {
  const auto drop = [&](std::string_view reason) {
    actions.metrics.push_back({Metric::kDropped, setup_.spec.name, reason, 1});
  };
  if (!makes_sense(state, setup_.layout, members_.membership())) return drop("malformed_state");
  if (recovery_) return recovery_->on_state(from, state, now, actions);
  if (from.state != protocol::MemberState::kJoining) return drop("unasked_state");
  settlement_.on_state(from, state, now, actions);
}

void Job::on_arriving(uint32_t worker, uint64_t bytes, TimeNs now) {
  members_.heard_bytes(worker, bytes, kUnfinishedMax * setup_.spec.dead_after.count() * kNsPerMs, now);
  if (recovery_) {
    recovery_->on_arriving(worker, bytes, now);
  } else {
    settlement_.on_arriving(worker, bytes, now);
  }
}

void Job::on_welcomed(const protocol::Member& member, TimeNs now, Actions& actions) {
  if (recovery_) {
    recovery_->greet(member.worker, now, actions);
  } else {
    settlement_.on_welcomed(member.worker, now, actions);
  }
}

void Job::on_tick(TimeNs now, Actions& actions) {
  rounds_.on_tick(now, actions);
  if (recovery_) {
    recovery_->on_tick(now, actions);
  } else {
    settlement_.on_tick(now, actions);
  }
}

std::optional<TimeNs> Job::deadline() const {
  const std::optional<TimeNs> rounds = rounds_.deadline();
  const std::optional<TimeNs> returns = recovery_ ? recovery_->deadline() : settlement_.deadline();
  return rounds && returns ? std::min(*rounds, *returns) : rounds ? rounds : returns;
}

Job::TableChange Job::table_change(TimeNs now) {
  TableChange table_change;
  if (!members_.membership().started || rounds_.failure()) return table_change;
  if (recovery_ && recovery_->stage() == Recovery::Stage::kReady) {
    table_change.kind = TableChange::Kind::kActivate;
    table_change.parent = recovery_->parent();
    table_change.reach = recovery_->reach();
  } else if (recovery_ && recovery_->stage() == Recovery::Stage::kCut) {
    return cut_or_end(recovery_->choice());
  } else if (recovery_) {
    Recovery::Removals removals = recovery_->removals(now);
    table_change.leaving = removals.why;
    table_change.members = std::move(removals.members);
  } else if (std::optional<SwitchHealth::Change> change =
                 switch_health_ ? switch_health_->wanted(members_.membership(), members_.synced()) : std::nullopt) {
    table_change.kind = TableChange::Kind::kPath;
    table_change.path = change->path;
    table_change.because = std::move(change->because);
  } else if (std::optional<CutChoice> choice = settlement_.cut()) {
    return cut_or_end(std::move(*choice));
  } else {
    table_change.leaving = Leaving::kBehind;
    table_change.members = rounds_.behind(now);
  }
  if (!table_change.members.empty()) table_change.kind = TableChange::Kind::kRemove;
  return table_change;
}

/// R10b: Cuts the log where a member may begin it again, and ends the job where none may. A process that joined the
/// running job, and did not ask to return, has no state of the job. Alone it would train from nothing, and its model
/// would pass for the job's result.
Job::TableChange Job::cut_or_end(CutChoice choice) const {
  TableChange table_change;
  table_change.kind = members_.any_may_carry_on() ? TableChange::Kind::kCut : TableChange::Kind::kEnd;
  if (table_change.kind == TableChange::Kind::kCut) {
    table_change.choice = std::move(choice);
    return table_change;
  }
  std::vector<uint32_t> joined;
  for (const protocol::Member& member : members_.all()) joined.push_back(member.worker);
  table_change.because = fmt::format(
      "job '{}': all workers that had its weights are gone. These workers joined later and have no state of their own "
      "(--state): {}. Start all workers again",
      setup_.spec.name, fmt::join(joined, ", "));
  return table_change;
}

void Job::activated(uint64_t branch, TimeNs now) {
  rounds_.restore(recovery_->take(), branch, now);
  recovery_->for_each_synced(
      [this](uint32_t worker, const protocol::State& state) { rounds_.restore_acknowledged(worker, state); });
  recovery_.reset();
}

bool Job::may_wait_for_steps(TimeNs now) {
  const protocol::Membership& membership = members_.membership();
  // A lower bound of the absent workers that have finished: a finish may be of a worker whose number has a new process.
  const auto absent = static_cast<uint32_t>(std::ranges::count_if(
      may_have_finished_, [&](uint32_t worker) { return find_member(membership, worker) == nullptr; }));
  const auto present = static_cast<uint32_t>(may_have_finished_.size()) - absent;
  const uint32_t finishes = membership.left - left_at_first_;
  const uint32_t finished = left_at_first_ + std::min(finishes - std::min(finishes, present), absent);
  if (membership.members.size() + finished >= setup_.spec.workers) return false;
  if (!cut_refused_) cut_refused_ = now;
  return now - *cut_refused_ < TimeNs{setup_.limits.abandon_ms} * kNsPerMs;
}

void Job::on_switch_report(const protocol::Member& from, const protocol::Heartbeat& said, TimeNs now,
                           Actions& actions) {
  if (!switch_health_ || from.state != protocol::MemberState::kSynced) return;
  switch_health_->on_report(from, said.switch_state, members_.membership(), actions);
  switch_health_->on_progress(from, said.switch_wait, said.switch_steps, now);
}

void Job::path_changed(std::string because, TimeNs now) { switch_health_->changed(std::move(because), now); }

void Job::extend_deadlines(TimeNs paused) {
  members_.extend_deadlines(paused);
  rounds_.extend_deadlines(paused);
  if (recovery_) recovery_->extend_deadlines(paused);
  if (cut_refused_) *cut_refused_ += paused;
}

std::vector<protocol::Member> Job::silent(TimeNs now) const {
  const protocol::Membership& membership = members_.membership();
  if (recovery_ || (membership.started && membership.members.size() <= 1)) return {};
  return members_.silent(now, setup_.spec.dead_after.count() * kNsPerMs);
}

std::optional<std::string> Job::abandoned(TimeNs now) const {
  const TimeNs silence = std::max(TimeNs{setup_.limits.abandon_ms}, TimeNs{setup_.spec.dead_after.count()}) * kNsPerMs;
  if (!members_.all().empty() && members_.silent(now, silence).size() == members_.all().size()) {
    return fmt::format("job '{}': no worker has been heard for long", setup_.spec.name);
  }
  if (!recovery_ || recovery_->without_majority(now) < silence) return std::nullopt;
  return fmt::format(
      "job '{}': shard {} was restarted without its rounds, and for {} ms no majority of its {} workers has reported "
      "their state: the shard cannot continue without the updates that its workers received",
      setup_.spec.name, setup_.shard, milliseconds(silence), members_.all().size());
}

void Job::add_members(JobStatus& status, TimeNs now) const {
  for (const protocol::Member& member : members_.all()) {
    const Members::Link* link = members_.link(member.worker);
    MemberStatus& entry = status.members.emplace_back();
    entry.worker = member.worker;
    entry.incarnation = member.incarnation;
    entry.joining = member.state == protocol::MemberState::kJoining;
    entry.connected = link && link->peer;
    entry.finishing = link && link->finishing;
    entry.silent_ms = link ? milliseconds(now - link->heard) : 0;
    entry.steps_applied = rounds_.steps_applied(member.worker);
    const JobRounds::Received received = rounds_.received_of(member);
    entry.contribution_bytes = received.contribution_bytes;
    entry.dense_bytes = received.dense_bytes;
    entry.steps_behind = status.steps_decided - std::min(status.steps_decided, entry.steps_applied);
  }
}

void Job::add_wait(JobStatus& status, TimeNs now) const {
  TimeNs since = now;
  for (const protocol::Member& member : members_.all()) {
    const Members::Link* link = members_.link(member.worker);
    if (link && link->peer) continue;
    status.waited_for.push_back(member.worker);
    if (link) since = std::min(since, link->heard);
  }
  if (!members_.membership().started) {
    status.waiting_for = wait_name(Wait::kJoin);
    status.waited_for = not_joined();
    status.waiting_ms = milliseconds(now - opened_);
    status.waiting_because = fmt::format("the job starts when all {} workers have joined; missing: {}",
                                         setup_.spec.workers, fmt::join(status.waited_for, ", "));
  } else if (recovery_) {
    status.waiting_for = wait_name(Wait::kRecovery);
    status.waited_for = recovery_->waited_for();
    status.waiting_ms = milliseconds(now - recovering_since_);
    status.waiting_because =
        fmt::format("shard {} was restarted without this job's rounds and recovers them; it is blocked on worker {}",
                    setup_.shard, fmt::join(status.waited_for, ", "));
  } else if (!status.waited_for.empty()) {
    status.waiting_for = wait_name(Wait::kHello);
    status.waiting_ms = milliseconds(now - since);
    status.waiting_because =
        fmt::format("worker {} has joined the job but not connected to this shard", fmt::join(status.waited_for, ", "));
  } else if (const std::optional<Waiting> waiting = rounds_.waiting()) {
    status.waiting_for = wait_name(waiting->wait);
    status.waited_for = waiting->workers;
    status.waiting_shards = waiting->shards;
    status.waiting_ms = milliseconds(now - waiting->since);
    status.waiting_because = waiting->because;
    status.waiting_step = waiting->at;
    if (waiting->wait == Wait::kDeadline) status.decided_in_ms = milliseconds(std::max<TimeNs>(0, waiting->due - now));
  } else {
    add_joining(status, now);
  }
}

void Job::add_joining(JobStatus& status, TimeNs now) const {
  const Settlement::Waiting joining = settlement_.waiting();
  if (joining.joiners.empty()) return;
  status.waiting_for = wait_name(Wait::kWeights);
  status.waited_for = joining.givers;
  status.waiting_ms = milliseconds(now - joining.since);
  status.waiting_because =
      joining.givers.empty()
          ? fmt::format("worker {} joins: no synced worker that has weights is connected to this shard",
                        fmt::join(joining.joiners, ", "))
          : fmt::format("worker {} joins with the weights of worker {}", fmt::join(joining.joiners, ", "),
                        fmt::join(joining.givers, ", "));
}

void Job::add_path(JobStatus& status, TimeNs now) const {
  if (setup_.spec.path != protocol::Path::kSwitch) return;
  const protocol::Membership& membership = members_.membership();
  SwitchPathStatus& path = status.switch_path.emplace();
  path.decided_by = protocol::enum_word(membership.path);
  path.switch_address = setup_.spec.switch_path.address;
  path.switch_job = setup_.spec.switch_path.job;
  if (!membership.shards.empty()) path.datagrams = membership.shards.front().datagrams;
  if (switch_health_) switch_health_->add_status(path, membership, now);
}

JobStatus Job::status(TimeNs now) const {
  const protocol::Membership& membership = members_.membership();
  JobStatus status;
  status.name = setup_.spec.name;
  status.job = membership.job;
  status.epoch = membership.epoch;
  status.started = membership.started;
  status.mode = protocol::enum_word(setup_.spec.mode);
  status.workers = setup_.spec.workers;
  status.quorum = setup_.spec.quorum;
  status.deadline_ms = protocol::wire_ms(setup_.spec.deadline);
  status.heartbeat_ms = protocol::wire_ms(setup_.spec.heartbeat);
  status.dead_after_ms = protocol::wire_ms(setup_.spec.dead_after);
  status.parts = static_cast<uint32_t>(rounds_.parts().size());
  status.steps_decided = rounds_.steps_decided();
  status.steps_decided_max = rounds_.steps_decided_max();
  status.moved_ms = started_ == 0 ? 0 : milliseconds(now - std::max(started_, rounds_.decided_at()));
  status.retained_updates = rounds_.retained_updates();
  status.retained_bytes = rounds_.retained_bytes();
  status.memory_bytes = rounds_.account().used_bytes();
  status.memory_bytes_max = setup_.limits.job_memory_bytes_max;
  if (rounds_.store()) status.store = rounds_.store()->status();
  status.audit = rounds_.audit();
  status.codecs = rounds_.codecs(kListedMax);
  for (const Disagreement& one : rounds_.digest_watch().all()) {
    if (status.disagreements.size() == kListedMax) break;
    status.disagreements.push_back({one.worker, one.part, one.steps, milliseconds(now - one.since)});
  }
  add_path(status, now);
  status.recovering = recovering();
  status.branch = rounds_.branch();
  add_members(status, now);
  add_wait(status, now);
  return status;
}

}  // namespace millrace::server
