#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "protocol/job/enum_words.h"
#include "protocol/table/job_end.h"
#include "server/shard/shard_core.h"

/// Reads and writes the membership table: memberships, the shard map, and silence.
namespace millrace::server {
namespace {

/// Gap between two calls beyond which this process did not run (suspended, starved): no member counts as silent then.
constexpr TimeNs kPause = kNsPerS;

/// Interval between log lines about a table that fails: it is tried at every poll and by every Hello.
constexpr TimeNs kTableReportInterval = 10 * kNsPerS;

/// Time for which a process that left its number tries to write the spare's address to the records of its jobs.
constexpr TimeNs kHandOverMax = kNsPerS;

std::string_view shard_table_name_of(Leaving leaving) {
  switch (leaving) {
    case Leaving::kFinished: return "";
    case Leaving::kFailed: return "failed";
    case Leaving::kSilent: return "silent";
    case Leaving::kWrong: return "wrong";
    case Leaving::kBehind: return "behind";
  }
  return "";
}

std::string why_removed(Leaving leaving, const protocol::JobSpec& spec) {
  if (leaving == Leaving::kSilent) return fmt::format("has been silent for {} ms", spec.dead_after.count());
  if (leaving == Leaving::kWrong) return "sends no update for a step that it reports as retained";
  return "is behind by more updates than are retained";
}

/// Returns the reason of the end of a job that members have left.
std::string too_few_left(const protocol::JobSpec& spec, std::span<const uint32_t> removed, Leaving leaving,
                         const protocol::Membership& left) {
  return fmt::format(
      "{} of job '{}' {}; the {} left are fewer than workers_min ({})",
      removed.size() == 1 ? fmt::format("worker {}", removed.front()) : fmt::format("{} workers", removed.size()),
      spec.name,
      leaving == Leaving::kSilent  ? "went silent"
      : leaving == Leaving::kWrong ? "had to be removed"
                                   : "left",
      left.members.size(), spec.workers_min);
}

/// Returns whether a finished job ended early. All members of another one have finished and left.
bool has_failed(const protocol::JobRecord& record) {
  return !record.membership.members.empty() || !record.end_reason.empty();
}

/// Returns whether a record that would be adopted is of another job than the one that has its number here. Numbers are
/// not given again; a damaged table, or one that another program has written to, may do so.
bool is_another_job(const protocol::JobRecord& record, const Job& job) {
  if (record.name != job.spec().name) return true;
  if (record.membership.finished || record.membership.epoch <= job.membership().epoch) return false;
  const Result<protocol::JobSpec> spec = protocol::decode_job_spec(record.spec);
  return !spec || *spec != job.spec();
}

/// Returns whether members that read the record find the shard's process.
bool names_process(protocol::JobRecord record, uint32_t shard, const protocol::ShardEntry& process) {
  return redirect(record, shard, process) == Change::kNone;
}

/// Returns whether the table is not the one that this process began with, but another one or an older copy.
bool is_loss(const Error& error) { return error.code == ErrorCode::kConflict || error.code == ErrorCode::kStale; }

}  // namespace

void ShardCore::note_time(TimeNs now) {
  if (now - last_call_ > kPause) {
    for (const auto& [number, job] : jobs_) job->extend_deadlines(now - last_call_);
    for (auto& [number, lost] : lost_) lost.since += now - last_call_;
  }
  last_call_ = now;
}

void ShardCore::note_table_trouble(const Error& error) {
  if (!table_trouble_ || last_call_ - table_trouble_->last >= kTroubleOver) {
    table_trouble_ = TableTrouble{error, 0, last_call_, last_call_};
  }
  table_trouble_->error = error;
  table_trouble_->last = last_call_;
  ++table_trouble_->count;
}

void ShardCore::table_failed(const Error& error, Actions& actions) {
  count(Metric::kTableErrors, error_code_name(error.code), actions);
  note_table_trouble(error);
  if (table_reported_at_ && last_call_ - *table_reported_at_ < kTableReportInterval) return;
  log(Severity::kError, fmt::format("the membership table: {}", error.message), actions);
  table_reported_at_ = last_call_;
}

void ShardCore::poll_table(TimeNs now, Actions& actions) {
  refresh_from(table_.polled_change_counter(), now, actions);
  if (superseded_at_ && !stopped_ && now - *superseded_at_ >= kHandOverMax) superseded(actions);
  if (stopped_ || failure_ || superseded_at_) return;
  if (departing_until_) advance_departure(now, actions);
  hold_or_release_lease(actions);
  say_owed_hellos(now, actions);
  remove_leavers(now, actions);  // before they count as silent: a finished worker has not failed
  remove_silent(now, actions);
  refresh_lost(now, actions);
  std::vector<uint64_t> open;
  for (const auto& [number, job] : jobs_) open.push_back(number);
  for (const uint64_t number : open) apply_table_change(number, now, actions);
  for (const auto& [number, job] : jobs_) job->flush_membership(actions);
}

void ShardCore::refresh(TimeNs now, Actions& actions) { refresh_from(table_.change_counter(), now, actions); }

/// Reads the table if its change counter is another one than at the last read.
void ShardCore::refresh_from(const Result<uint64_t>& counter, TimeNs now, Actions& actions) {
  if (!counter && is_loss(counter.error())) return lose_table(counter.error(), now, actions);
  if (!counter) return table_failed(counter.error(), actions);
  if (table_counter_ == *counter) return;
  table_counter_ = *counter;
  refresh_neighbours(now, actions);
  if (stopped_ || failure_ || superseded_at_) return;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at++->second;  // closing erases it
    Result<std::optional<protocol::JobRecord>> record = table_.read_job(job.membership().job);
    if (!record) {
      table_counter_.reset();
      table_failed(record.error(), actions);
    } else if (!*record || is_another_job(**record, job)) {
      close(job, protocol::Abort{ErrorCode::kNotAMember, "the job is not in the membership table any more"}, "removed",
            actions);
    } else {
      redirect_shards(**record, actions);
      adopt(job, std::move(**record), now, actions);
    }
  }
}

/// Corrects the addresses of shards that were started again elsewhere. They hear of their jobs by the workers' Hellos.
void ShardCore::redirect_shards(protocol::JobRecord& record, Actions& actions) {
  const auto redirect_all = [this](protocol::JobRecord& at) {
    Change change = Change::kNone;
    for (uint32_t shard = 0; shard < config_.shard_count; ++shard) {
      if (redirect(at, shard, neighbours_[shard].entry) == Change::kChanged) change = Change::kChanged;
    }
    return change;
  };
  protocol::JobRecord trial = record;
  if (redirect_all(trial) == Change::kNone) return;
  Result<protocol::JobRecord> told = change_job(
      table_, record.membership.job, [&](protocol::JobRecord& at) -> Result<Change> { return redirect_all(at); });
  if (told) {
    record = std::move(*told);
  } else {
    table_counter_.reset();
    table_failed(told.error(), actions);
  }
}

void ShardCore::refresh_neighbours(TimeNs now, Actions& actions) {
  Result<std::vector<protocol::ShardEntry>> map = table_.shard_map();
  if (!map) {
    table_counter_.reset();
    return table_failed(map.error(), actions);
  }
  map->resize(config_.shard_count);
  if ((*map)[config_.shard].incarnation < config_.incarnation) {
    const std::string gone = fmt::format("the membership table has not this start of shard {} any more", config_.shard);
    return lose_table({ErrorCode::kStale, gone}, now, actions);
  }
  protocol::ShardEntry& own = neighbours_[config_.shard].entry;
  const std::string address = std::exchange(own, std::move((*map)[config_.shard])).address;
  if (own.incarnation != config_.incarnation || (!address.empty() && address != own.address))
    return superseded(actions);
  refresh_drain(actions);
  for (uint32_t shard = 0; shard < config_.shard_count; ++shard) {
    Neighbour& neighbour = neighbours_[shard];
    protocol::ShardEntry& entry = (*map)[shard];
    if (shard == config_.shard || neighbour.entry == entry) continue;
    // A change counts as known only once its connection is requested: if memory ends before, the next poll finds it
    // again.
    if (!entry.address.empty()) actions.connects.push_back({shard, entry.address});
    if (neighbour.entry.incarnation != entry.incarnation && neighbour.peer) {
      shard_sessions_.erase(*neighbour.peer);
      neighbour.peer.reset();
    }
    neighbour.entry = std::move(entry);
    for (Neighbour& each : neighbours_) each.hello_at = now;  // all of them: the map is another one
  }
  say_owed_hellos(now, actions);
}

void ShardCore::superseded(Actions& actions) {
  const protocol::ShardEntry& entry = neighbours_[config_.shard].entry;
  const bool leaves = entry.incarnation > config_.incarnation && is_leaving_number();
  if (!superseded_at_ && leaves) {
    log(Severity::kInfo,
        fmt::format("a spare ({}) has taken shard {}; this process ends", entry.address, config_.shard), actions);
    actions.audit.push_back({.what = AuditEvent::What::kDrain,
                             .by = {.bytes = {}, .address = entry.address},
                             .incarnation = entry.incarnation,
                             .code = departing_until_ ? "shutdown" : "operator"});
  } else if (!leaves) {
    failure_ = Error{ErrorCode::kConflict, fmt::format("another process ({}) has started as shard {}; this one stops",
                                                       entry.address, config_.shard)};
    log(Severity::kError, failure_->message, actions);
  }
  if (!superseded_at_) superseded_at_ = last_call_;
  const bool may_wait = leaves && last_call_ - *superseded_at_ < kHandOverMax;
  bool all_told = true;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at++->second;  // closing erases it
    Result<std::optional<protocol::JobRecord>> record = table_.read_job(job.membership().job);
    if (!record) table_failed(record.error(), actions);
    const bool is_there = record && *record;
    if (is_there && close_if_over(job, **record, StoreEnd::kDrop, actions)) continue;
    if (is_there) redirect_shards(**record, actions);
    // Where this is the only shard, no other process tells the workers the spare's address.
    const bool has_address = record && (!*record || names_process(**record, config_.shard, entry));
    if (!has_address && may_wait) {
      all_told = false;
      continue;
    }
    // The workers continue with the other process: it asks them for their state.
    hand_over(job, is_there ? (*record)->membership : job.membership(), actions);
  }
  if (all_told) {
    stopped_ = true;
  } else {
    table_counter_.reset();  // the next poll tries again
  }
}

/// R11c: Ends all jobs with the reason and stops, once the stores are saved. The table is another one or an older copy:
/// nothing in it is about this process.
void ShardCore::lose_table(const Error& why, TimeNs now, Actions& actions) {
  if (!failure_) {
    Error failure{ErrorCode::kConflict, fmt::format("{}; shard {} stops", why.message, config_.shard)};
    log(Severity::kError, failure.message, actions);
    failure_ = std::move(failure);
  }
  const Result<bool> taken = is_number_taken(why);
  if (!taken) {  // the next poll finds the loss again
    table_counter_.reset();
    return table_failed(taken.error(), actions);
  }
  const StoreEnd store = *taken ? StoreEnd::kDrop : StoreEnd::kSave;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at++->second;  // closing erases it
    close(job, protocol::Abort{ErrorCode::kUnavailable, failure_->message}, "removed", actions, store);
  }
  lost_.clear();
  leavers_.clear();
  if (!draining_until_) draining_until_ = now;
  advance_shutdown(now, actions);
}

/// Returns whether another process has this shard's number in the table. In another table, any start is another
/// process's. In an older copy, the starts before this one are of processes that are gone.
Result<bool> ShardCore::is_number_taken(const Error& loss) const {
  const Result<std::vector<protocol::ShardEntry>> map = table_.shard_map();
  if (!map) return std::unexpected(map.error());
  const uint64_t start = config_.shard < map->size() ? (*map)[config_.shard].incarnation : 0;
  return loss.code == ErrorCode::kConflict ? start != 0 : start > config_.incarnation;
}

void ShardCore::adopt(Job& job, protocol::JobRecord record, TimeNs now, Actions& actions) {
  protocol::Membership& membership = record.membership;
  if (membership.epoch <= job.membership().epoch) return;
  const uint64_t shard_incarnation =
      config_.shard < membership.shards.size() ? membership.shards[config_.shard].incarnation : 0;
  const bool has_successor = shard_incarnation > config_.incarnation;
  if (close_if_over(job, record, has_successor ? StoreEnd::kDrop : StoreEnd::kSave, actions)) return;
  if (has_successor) return hand_over(job, membership, actions);
  catch_out_of_memory(membership.job, actions, [&] {
    const auto joined = std::ranges::count_if(membership.members, [&](const protocol::Member& member) {
      return !is_member(job.membership(), member.worker, member.incarnation);
    });
    for (const protocol::PeerId& gone : job.adopt(std::move(membership), now, actions)) sessions_.erase(gone);
    if (joined > 0)
      actions.metrics.push_back({Metric::kMembersJoined, job.spec().name, "", static_cast<double>(joined)});
  });
}

/// Sends the members the address of the process that serves this shard of the job now.
void ShardCore::hand_over(Job& job, const protocol::Membership& membership, Actions& actions) {
  for (const protocol::Member& member : job.members().all()) {
    const Members::Link* link = job.members().link(member.worker);
    if (!link || !link->peer) continue;
    protocol::Header header = job.members().header(member.worker, member.incarnation);
    header.epoch = membership.epoch;
    protocol::MembershipChange change{
        job.members().view_of(membership, member.worker, member.incarnation, *link->peer)};
    actions.to_peers.push_back({*link->peer, {header, std::move(change), {}}});
  }
  close(job, std::nullopt, "superseded", actions, StoreEnd::kDrop);
}

void ShardCore::remove(Job& job, std::span<const Leaver> leavers, TimeNs now, Actions& actions) {
  const Leaving leaving = leavers.front().leaving;
  std::vector<uint32_t> removed;
  Result<protocol::JobRecord> record =
      change_job(table_, job.membership().job, [&](protocol::JobRecord& at) -> Result<Change> {
        removed.clear();
        for (const Leaver& one : leavers) {
          if (leave(at, one.member, leaving, job.spec().workers_min, one.reach) == Change::kChanged)
            removed.push_back(one.member.worker);
        }
        const bool is_over = !removed.empty() && at.membership.finished;
        if (is_over && leaving != Leaving::kFinished)
          give_end_reason(at, {ErrorCode::kUnavailable, too_few_left(job.spec(), removed, leaving, at.membership)});
        return removed.empty() ? Change::kNone : Change::kChanged;
      });
  if (!record) {
    table_failed(record.error(), actions);
    const bool said = leaving == Leaving::kFinished || leaving == Leaving::kFailed;
    if (!said) return;  // found again at the next poll
    leavers_.insert(leavers_.end(), leavers.begin(), leavers.end());
    return;
  }
  if (!removed.empty()) {
    actions.metrics.push_back({leaving == Leaving::kFinished ? Metric::kMembersFinished : Metric::kMembersRemoved,
                               job.spec().name, shard_table_name_of(leaving), static_cast<double>(removed.size())});
  }
  for (const uint32_t worker : removed) {
    if (leaving == Leaving::kFinished || leaving == Leaving::kFailed) break;
    log(Severity::kWarning,
        fmt::format("job '{}': worker {} {} and is removed", job.spec().name, worker, why_removed(leaving, job.spec())),
        actions);
    const Members::Link* link = job.members().link(worker);
    actions.audit.push_back({.what = AuditEvent::What::kEvict,
                             .by = link && link->last_peer ? *link->last_peer : protocol::PeerId(),
                             .job = job.spec().name,
                             .worker = worker,
                             .incarnation = link ? link->incarnation : 0,
                             .code = std::string(shard_table_name_of(leaving)),
                             .sentence = "it " + why_removed(leaving, job.spec())});
  }
  // Ended by this removal. Where another shard ended the job before, close_if_over() logs it.
  if (!removed.empty() && record->membership.finished && has_failed(*record)) {
    log(Severity::kError, record->end_reason, actions);
    return close(job, end_abort(*record), "too_few_workers", actions);
  }
  if (leaving == Leaving::kFinished || leaving == Leaving::kFailed) {
    for (const Leaver& one : leavers) {
      const Members::Link* link = job.members().link(one.member.worker);
      if (link && link->peer) sessions_.erase(*link->peer);
      job.members().disconnect(one.member.worker);
    }
  }
  adopt(job, std::move(*record), now, actions);
}

std::vector<ShardCore::Leaver> ShardCore::leavers_of(const Job& job, std::span<const protocol::Member> members,
                                                     Leaving leaving) {
  std::vector<Leaver> leavers;
  for (const protocol::Member& member : members) leavers.push_back({job.membership().job, member, leaving});
  return leavers;
}

void ShardCore::remove_leavers(TimeNs now, Actions& actions) {
  // Removes all leavers of one job in one change, and forgets them only after that: if memory ends in between, the next
  // poll continues. A member that cannot be removed now moves to the end, behind the `left` of this poll.
  for (size_t left = leavers_.size(); left > 0;) {
    const uint64_t number = leavers_.front().job;
    const Leaving leaving = leavers_.front().leaving;
    const auto together = [&](const Leaver& one) { return one.job == number && one.leaving == leaving; };
    Job* job = find_job(number);
    std::vector<Leaver> leaving_now;
    for (size_t at = 0; job && at < left; ++at) {
      const protocol::Member& leaver = leavers_[at].member;
      if (together(leavers_[at]) && is_member(job->membership(), leaver.worker, leaver.incarnation))
        leaving_now.push_back(leavers_[at]);
    }
    if (!leaving_now.empty()) remove(*job, leaving_now, now, actions);
    const auto end = leavers_.begin() + static_cast<std::ptrdiff_t>(left);
    const auto kept = std::remove_if(leavers_.begin(), end, together);
    left = static_cast<size_t>(kept - leavers_.begin());
    leavers_.erase(kept, end);
  }
}

bool ShardCore::is_leaving(uint64_t job, const protocol::Member& member) const {
  return std::ranges::any_of(leavers_, [&](const Leaver& one) {
    return one.job == job && one.member.worker == member.worker && one.member.incarnation == member.incarnation;
  });
}

void ShardCore::remove_silent(TimeNs now, Actions& actions) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at++->second;  // closing erases it
    const auto leaves = [&](const protocol::Member& member) { return is_leaving(job.membership().job, member); };
    const std::optional<std::string> abandoned = job.abandoned(now);
    if (abandoned && !std::ranges::all_of(job.membership().members, leaves)) {
      end_in_table(job, {ErrorCode::kTimeout, *abandoned}, "abandoned", actions);
      continue;
    }
    std::vector<protocol::Member> silent = job.silent(now);
    // A member that said Goodbye is removed for that, as soon as the table can be written.
    std::erase_if(silent, leaves);
    if (!silent.empty()) remove(job, leavers_of(job, silent, Leaving::kSilent), now, actions);
  }
}

void ShardCore::apply_table_change(uint64_t number, TimeNs now, Actions& actions) {
  Job* job = find_job(number);
  if (!job || stopped_ || now < pursue_after_) return;
  Job::TableChange table_change = job->table_change(now);
  const uint64_t epoch = job->membership().epoch;
  if (table_change.kind == Job::TableChange::Kind::kNone) return;
  if (table_change.kind == Job::TableChange::Kind::kRemove)
    return apply_removal(*job, std::move(table_change), now, actions);
  if (table_change.kind == Job::TableChange::Kind::kEnd)
    return end_in_table(*job, {ErrorCode::kStale, table_change.because}, "abandoned", actions);
  const bool activates = table_change.kind == Job::TableChange::Kind::kActivate;
  Result<std::optional<protocol::JobRecord>> record =
      change_job_in(table_, number, epoch, [&](protocol::JobRecord& at) -> Result<Change> {
        if (table_change.kind == Job::TableChange::Kind::kPath) return take_path(at, table_change.path);
        return activates ? activate(at, config_.shard, table_change.parent, table_change.reach)
                         : cut_logs(at, table_change.choice);
      });
  if (!record && record.error().code == ErrorCode::kLimitExceeded) {
    return end_in_table(*job, record.error(), "limit_exceeded", actions);
  }
  if (!record && record.error().code == ErrorCode::kStale) {
    if (!activates && job->may_wait_for_steps(now)) return;
    return end_in_table(*job, record.error(), "abandoned", actions);
  }
  if (!record) {
    pursue_after_ = now + static_cast<TimeNs>(config_.limits.table_poll_ms) * kNsPerMs;
    return table_failed(record.error(), actions);
  }
  if (!*record) {
    table_counter_.reset();
    return refresh(now, actions);
  }
  catch_out_of_memory(number, actions, [&] {
    tell_change(*job, table_change, (*record)->membership.branches, actions);
    if (table_change.kind == Job::TableChange::Kind::kPath) job->path_changed(table_change.because, now);
    if (activates) job->activated((*record)->membership.branches, now);
  });
  job = find_job(number);
  if (job) adopt(*job, std::move(**record), now, actions);
}

void ShardCore::tell_change(const Job& job, const Job::TableChange& table_change, uint64_t branch,
                            Actions& actions) const {
  const std::string& name = job.spec().name;
  if (table_change.kind == Job::TableChange::Kind::kPath) {
    actions.metrics.push_back({Metric::kPathChanges, name, protocol::enum_word(table_change.path), 1});
    const bool falls_back = table_change.path == protocol::Path::kServer;
    return log(falls_back ? Severity::kWarning : Severity::kInfo,
               fmt::format("job '{}': {}; {} decides its steps from now on", name, table_change.because,
                           falls_back ? fmt::format("shard {}", config_.shard) : "the switch"),
               actions);
  }
  const bool activates = table_change.kind == Job::TableChange::Kind::kActivate;
  actions.metrics.push_back({Metric::kRecoveries, name, activates ? "activated" : "cut", 1});
  log(activates ? Severity::kInfo : Severity::kWarning,
      activates ? fmt::format("job '{}': shard {} continues as log branch {}", name, config_.shard, branch)
                : fmt::format("job '{}': no worker has the weights of all parts; it goes back to the state of worker "
                              "{}",
                              name, table_change.choice.worker),
      actions);
}

void ShardCore::apply_removal(Job& job, Job::TableChange table_change, TimeNs now, Actions& actions) {
  std::erase_if(table_change.members,
                [&](const protocol::Member& member) { return is_leaving(job.membership().job, member); });
  if (table_change.members.empty()) return;
  if (table_change.leaving == Leaving::kWrong && job.membership().members.size() == table_change.members.size()) {
    return end_in_table(job,
                        {ErrorCode::kMalformed, fmt::format("job '{}': what its workers keep of shard {} is damaged",
                                                            job.spec().name, config_.shard)},
                        "malformed", actions);
  }
  remove(job, leavers_of(job, table_change.members, table_change.leaving), now, actions);
}

void ShardCore::refresh_lost(TimeNs now, Actions& actions) {
  for (auto at = lost_.begin(); at != lost_.end();) {
    if (!at->second.due(now)) {
      ++at;
      continue;
    }
    if (at->second.action == LostJob::LostJobAction::kUnlessReopened && find_job(at->first)) {
      at = lost_.erase(at);
      continue;
    }
    const Result<protocol::JobRecord> ended =
        change_job(table_, at->first,
                   [&why = at->second.why](protocol::JobRecord& record) -> Result<Change> { return end(record, why); });
    if (!ended && ended.error().code != ErrorCode::kNotAMember) {
      table_failed(ended.error(), actions);
      ++at;
      continue;
    }
    at = lost_.erase(at);
  }
}

}  // namespace millrace::server
