#include "server/shard/shard_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "kernels/base/check.h"

/// Checks the sender of a message and its identity, and finds the message's job. Admission is in shard_core_hello.cc,
/// the table in shard_core_table.cc.
namespace millrace::server {
namespace {

template <typename T>
bool holds(const protocol::Body& body) {
  return std::holds_alternative<T>(body);
}

/// Returns whether a message carries a member's state, which holds for one epoch only.
bool is_return(const protocol::Body& body) {
  return holds<protocol::State>(body) || holds<protocol::Update>(body) || holds<protocol::Fetched>(body) ||
         holds<protocol::Snapshot>(body) || holds<protocol::Synced>(body);
}

bool is_pull(const protocol::Body& body) { return holds<protocol::Pull>(body) || holds<protocol::Place>(body); }

/// Returns whether a worker that leaves does not know its identity yet: it left before its Welcome arrived.
bool is_unnamed(const protocol::Header& header) {
  return header.job == 0 && header.epoch == 0 && header.incarnation == 0 && header.shard_incarnation == 0;
}

}  // namespace

/// A job may take what no other job could need to reach its fair share: a full job does not make another one wait.
class ShardCore::Gate : public MemoryGate {
 public:
  explicit Gate(const ShardCore& core) : core_(core) {}

  std::optional<Error> refuses(const MemoryAccount& job, uint64_t bytes) const override {
    const Limits& limits = core_.config_.limits;
    if (job.used_bytes() + bytes > job.limit_bytes()) {
      return Error{ErrorCode::kUnavailable,
                   fmt::format("the job uses {} bytes of this shard; {} more are over its limit of {} "
                               "(--job-memory-bytes-max, or the quota of the key that created it)",
                               job.used_bytes(), bytes, job.limit_bytes())};
    }
    const uint64_t share = limits.shard_memory_bytes_max / std::max<size_t>(1, core_.jobs_.size());
    uint64_t spoken_for = job.used_bytes() + bytes + core_.bytes_of_ending_stores();
    for (const auto& [number, other] : core_.jobs_) {
      if (&other->rounds().account() != &job) spoken_for += std::max(other->rounds().account().used_bytes(), share);
    }
    if (spoken_for <= limits.shard_memory_bytes_max || job.used_bytes() + bytes <= share) return std::nullopt;
    return Error{
        ErrorCode::kUnavailable,
        fmt::format("shard {} has {} bytes for {} jobs and this one uses {}; {} more would be taken from the others "
                    "(--shard-memory-bytes-max)",
                    core_.config_.shard, limits.shard_memory_bytes_max, core_.jobs_.size(), job.used_bytes(), bytes)};
  }

 private:
  const ShardCore& core_;
};

ShardCore::ShardCore(ShardConfig config, protocol::MembershipTable& table, TimeNs now)
    : config_(std::move(config)),
      table_(table),
      gate_(std::make_unique<Gate>(*this)),
      neighbours_(config_.shard_count),
      next_poll_(now),
      last_call_(now) {
  MILLRACE_CHECK(config_.shard < config_.shard_count && config_.incarnation > 0, config_.shard, config_.shard_count,
                 config_.incarnation);
}

ShardCore::~ShardCore() = default;

Job* ShardCore::find_job(uint64_t job) {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : at->second.get();
}

void ShardCore::count(Metric metric, std::string_view label, Actions& actions) const {
  actions.metrics.push_back({metric, {}, label, 1});
}

void ShardCore::log(Severity severity, std::string text, Actions& actions) const {
  actions.log.push_back({severity, std::move(text)});
}

void ShardCore::reply(const protocol::PeerId& to, const protocol::Header& about, protocol::Body body,
                      Actions& actions) const {
  protocol::Header header = about;
  header.shard = config_.shard;
  header.shard_incarnation = config_.incarnation;
  actions.to_peers.push_back({to, {header, std::move(body), {}}});
}

void ShardCore::on_out_of_memory(std::optional<uint64_t> number, Actions& actions) noexcept {
  Job* job = number ? find_job(*number) : nullptr;
  if (job) job->rounds().on_out_of_memory();
  table_counter_.reset();  // only some jobs may have adopted the table's state
  try {
    count(Metric::kDropped, "out_of_memory", actions);
    if (job) close_if_failed(*job, actions);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): on_tick() closes it
  }
}

void ShardCore::on_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions) {
  note_time(now);
  if (stopped_) return;
  const protocol::Header header = message.header;
  const bool hello = holds<protocol::Hello>(message.body) || holds<protocol::ShardHello>(message.body);
  const bool done =
      catch_out_of_memory(std::nullopt, actions, [&] { handle_message(from, std::move(message), now, actions); });
  if (done || !hello) return;  // senders of other messages repeat them
  catch_out_of_memory(std::nullopt, actions, [&] {
    protocol::Refuse refusal;
    refusal.code = ErrorCode::kUnavailable;
    refusal.sentence = kNotRun;
    refusal.retry = true;
    reply(from, header, std::move(refusal), actions);
  });
}

void ShardCore::on_arriving(const protocol::PeerId& from, uint64_t bytes, TimeNs now) {
  note_time(now);
  const auto session = sessions_.find(from);
  Job* job = session == sessions_.end() ? nullptr : find_job(session->second.job);
  if (job && is_member(job->membership(), session->second.worker, session->second.incarnation))
    job->on_arriving(session->second.worker, bytes, now);
}

void ShardCore::handle_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions) {
  count(Metric::kMessages, protocol::body_name(message.body), actions);
  const protocol::Body& body = message.body;
  if (const auto* hello = std::get_if<protocol::Hello>(&body))
    return on_hello(from, message.header, *hello, now, actions);
  if (const auto* hello = std::get_if<protocol::ShardHello>(&body)) {
    return on_shard_hello(from, message.header, *hello, now, actions);
  }
  if (holds<protocol::ThresholdHistogram>(body)) return on_histogram(from, message, now, actions);
  const bool from_worker = holds<protocol::Contribution>(body) || holds<protocol::Ack>(body) ||
                           holds<protocol::Heartbeat>(body) || holds<protocol::Goodbye>(body) || is_return(body) ||
                           is_pull(body);
  if (!from_worker) return count(Metric::kDropped, "unexpected_message", actions);
  on_worker_message(from, std::move(message), now, actions);
}

bool ShardCore::name_by_session(const protocol::PeerId& from, protocol::Header& header) const {
  const auto session = sessions_.find(from);
  if (session == sessions_.end()) return false;
  header.job = session->second.job;
  header.incarnation = session->second.incarnation;
  header.shard_incarnation = config_.incarnation;
  return true;
}

bool ShardCore::fits_session(const protocol::PeerId& from, const protocol::Header& header, Actions& actions) {
  if (header.shard != config_.shard) {
    count(Metric::kDropped, "wrong_shard", actions);
    return false;
  }
  if (header.shard_incarnation != config_.incarnation) {
    // Of a worker that outlived this shard's predecessor, or that knows of a successor: a new Hello corrects it.
    protocol::Refuse refusal;
    refusal.code = ErrorCode::kUnavailable;
    refusal.sentence = fmt::format("shard {} was started again (start {}, the worker knows start {}): say Hello to it",
                                   config_.shard, config_.incarnation, header.shard_incarnation);
    refusal.retry = true;
    count(Metric::kRefused, "other_start", actions);
    reply(from, header, std::move(refusal), actions);
    return false;
  }
  const auto session = sessions_.find(from);
  if (session == sessions_.end()) {
    protocol::Refuse refusal;
    refusal.code = ErrorCode::kNotAMember;
    refusal.sentence = "this connection has not said Hello";
    refusal.retry = true;
    count(Metric::kRefused, "no_hello", actions);
    reply(from, header, std::move(refusal), actions);
    return false;
  }
  const Session& known = session->second;
  if (known.job != header.job || known.worker != header.worker || known.incarnation != header.incarnation) {
    count(Metric::kDropped, "other_identity", actions);
    return false;
  }
  return true;
}

bool ShardCore::has_session(const protocol::PeerId& peer) const {
  return sessions_.contains(peer) || shard_sessions_.contains(peer);
}

void ShardCore::on_worker_message(const protocol::PeerId& from, protocol::Message message, TimeNs now,
                                  Actions& actions) {
  if (holds<protocol::Goodbye>(message.body) && is_unnamed(message.header) && !name_by_session(from, message.header))
    return count(Metric::kDropped, "no_hello", actions);
  const protocol::Header header = message.header;
  if (!fits_session(from, header, actions)) return;
  Job* job = find_job(header.job);
  if (!job) return count(Metric::kDropped, "unknown_job", actions);
  if (header.epoch > job->membership().epoch) {
    // Another shard notified the worker of a change first: read the table, then judge. The epoch is the sender's: one
    // that the table lacks costs no more reads than the poll.
    const Members::Link* link = job->members().link(header.worker);
    if (link && now < link->next_epoch_look) return count(Metric::kDropped, "unknown_epoch", actions);
    refresh(now, actions);
    job = find_job(header.job);
    if (!job || !sessions_.contains(from)) return;
    if (header.epoch > job->membership().epoch) {
      job->members().epoch_unknown(header.worker, now + static_cast<TimeNs>(config_.limits.table_poll_ms) * kNsPerMs);
      return count(Metric::kDropped, "unknown_epoch", actions);
    }
  }
  const protocol::Member* found = find_member(job->membership(), header.worker);
  if (!found || found->incarnation != header.incarnation) return count(Metric::kDropped, "other_identity", actions);
  const protocol::Member member = *found;
  job->members().heard(member.worker, now);
  const bool returns = is_return(message.body);
  const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body);
  const bool speaks_of_switch = heartbeat && heartbeat->switch_state != protocol::Heartbeat::Switch::kNoReport;
  if (returns && header.epoch != job->membership().epoch) return count(Metric::kDropped, "late_answer", actions);
  catch_out_of_memory(header.job, actions,
                      [&] { on_member_message(from, *job, member, std::move(message), now, actions); });
  if (returns || speaks_of_switch) apply_table_change(header.job, now, actions);
}

void ShardCore::on_member_message(const protocol::PeerId& from, Job& job, const protocol::Member& member,
                                  protocol::Message message, TimeNs now, Actions& actions) {
  const auto* contribution = std::get_if<protocol::Contribution>(&message.body);
  const auto* ack = std::get_if<protocol::Ack>(&message.body);
  if ((contribution || ack) && job.recovering()) {
    count(Metric::kDropped, "recovering", actions);
  } else if (contribution && job.spec().path == protocol::Path::kSwitch) {
    job.rounds().refuse_by_path(member, *contribution, now, actions);
  } else if (contribution) {
    const auto intake = draining_until_ ? JobRounds::Intake::kDraining : JobRounds::Intake::kOpen;
    job.rounds().on_contribution(member, *contribution, std::move(message.payload), intake, now, actions);
  } else if (ack) {
    job.rounds().on_ack(member, *ack, now, actions);
  } else if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body)) {
    // A membership that did not reach the worker (its queue was full) would hold back all updates of the new epoch.
    if (message.header.epoch < job.membership().epoch) {
      job.members().send(member, job.change_for(member), actions);
    }
    if (heartbeat->finishing && job.members().finishes(member.worker)) job.rounds().on_finishing(now, actions);
    // A joiner reports the state that it started with, which may be off the log: it will be settled. A report from
    // before the membership in which it is synced may arrive later.
    const bool of_this_epoch = message.header.epoch == job.membership().epoch;
    if (!job.recovering() && of_this_epoch && member.state == protocol::MemberState::kSynced) {
      job.rounds().on_steps_applied(member, heartbeat->steps_applied, now, actions);
      job.rounds().on_digests(member, heartbeat->digests, now, actions);
    }
    if (of_this_epoch) job.on_switch_report(member, *heartbeat, now, actions);
    reply(from, job.members().header(member.worker, member.incarnation),
          job.heartbeat_answer(member, heartbeat->sequence), actions);
  } else if (const auto* goodbye = std::get_if<protocol::Goodbye>(&message.body)) {
    return on_goodbye(job, member, *goodbye, now, actions);
  } else if (holds<protocol::Synced>(message.body)) {
    return on_synced(job, member, now, actions);
  } else if (is_pull(message.body)) {
    on_pull(job, member, std::move(message), actions);
  } else {
    job.on_return_message(member, std::move(message), now, actions);
  }
  close_if_failed(job, actions);
}

void ShardCore::on_synced(Job& job, const protocol::Member& member, TimeNs now, Actions& actions) {
  if (member.state == protocol::MemberState::kSynced) return count(Metric::kDropped, "synced", actions);
  if (job.recovering()) return count(Metric::kDropped, "recovering", actions);
  if (!job.rounds().is_settled(member.worker)) return count(Metric::kDropped, "not_settled", actions);
  Result<std::optional<protocol::JobRecord>> record = change_job_in(
      table_, job.membership().job, job.membership().epoch,
      [&](protocol::JobRecord& at) -> Result<Change> { return synced(at, member.worker, member.incarnation); });
  if (!record) return table_failed(record.error(), actions);  // the worker repeats the message
  if (!*record) return refresh(now, actions);                 // another epoch: it settles again
  log(Severity::kInfo,
      fmt::format("job '{}': worker {} takes part again under incarnation {}", job.spec().name, member.worker,
                  member.incarnation),
      actions);
  adopt(job, std::move(**record), now, actions);
}

/// Returns whether a member may have come so far. A shard knows the steps of its own parts alone.
bool ShardCore::may_be_reach(std::span<const protocol::LogReach> reach, const Job& job) const {
  if (reach.size() > job.layout().shard_count) return false;
  const auto is_later = [&](const protocol::LogReach& one) { return one.decided_in > job.membership().epoch; };
  if (std::ranges::any_of(reach, is_later)) return false;
  return job.recovering() || reach.size() <= config_.shard ||
         reach[config_.shard].steps <= job.rounds().steps_decided();
}

void ShardCore::on_goodbye(Job& job, const protocol::Member& member, const protocol::Goodbye& goodbye, TimeNs now,
                           Actions& actions) {
  if (is_leaving(job.membership().job, member)) return;
  const bool finished = goodbye.reason == protocol::Goodbye::Reason::kFinished;
  log(finished ? Severity::kInfo : Severity::kWarning,
      fmt::format("job '{}': worker {} {}{}{}", job.spec().name, member.worker, finished ? "has finished" : "leaves",
                  goodbye.sentence.empty() ? "" : ": ", goodbye.sentence),
      actions);
  const Members::Link* link = job.members().link(member.worker);
  actions.audit.push_back({.what = AuditEvent::What::kLeave,
                           .by = link && link->last_peer ? *link->last_peer : protocol::PeerId(),
                           .job = job.spec().name,
                           .worker = member.worker,
                           .incarnation = member.incarnation,
                           .code = finished ? "finished" : "failed",
                           .sentence = goodbye.sentence});
  Leaver leaver{job.membership().job, member, finished ? Leaving::kFinished : Leaving::kFailed};
  // R10f is a rule of mode synchronous, and of steps that shards decide.
  const bool binds = job.spec().mode == protocol::Mode::kSynchronous && job.spec().path != protocol::Path::kSwitch;
  if (finished && binds) leaver.reach = goodbye.reach;
  if (!may_be_reach(leaver.reach, job)) {
    count(Metric::kDropped, "impossible_reach", actions);
    log(Severity::kWarning,
        fmt::format(
            "job '{}': worker {} has finished with steps that cannot be; a restarted shard may repeat its steps",
            job.spec().name, member.worker),
        actions);
    leaver.reach.clear();
  }
  remove(job, std::span(&leaver, 1), now, actions);
}

void ShardCore::on_histogram(const protocol::PeerId& from, const protocol::Message& message, TimeNs now,
                             Actions& actions) {
  const auto session = shard_sessions_.find(from);
  if (session == shard_sessions_.end()) return count(Metric::kDropped, "no_hello", actions);
  const protocol::Header& header = message.header;
  if (header.shard != session->second || header.shard_incarnation != neighbours_[session->second].entry.incarnation) {
    return count(Metric::kDropped, "other_identity", actions);
  }
  Job* job = find_job(header.job);
  if (!job) return count(Metric::kDropped, "unknown_job", actions);
  const auto& body = std::get<protocol::ThresholdHistogram>(message.body);
  if (protocol::histogram_hash(header.job, body, message.payload.bytes) != body.payload_hash) {
    return count(Metric::kDropped, "damaged_histogram", actions);  // as if it had not come: the last threshold is used
  }
  if (job->recovering()) return count(Metric::kDropped, "recovering", actions);
  catch_out_of_memory(header.job, actions, [&] {
    job->rounds().on_histogram(session->second, body, message.payload, now, actions);
    close_if_failed(*job, actions);
  });
}

void ShardCore::on_malformed(const Error& error, TimeNs now, Actions& actions) {
  note_time(now);
  catch_out_of_memory(std::nullopt, actions, [&] {
    count(Metric::kDropped, error_code_name(error.code), actions);
    if (error.code != ErrorCode::kUnsupported) return;  // bytes that are no message are no refusal of a peer
    refusals_.note({.of = Refusal::Of::kUnreadable,
                    .job = {},
                    .number = 0,
                    .software = {},
                    .code = error.code,
                    .sentence = error.message},
                   now);
  });
}

void ShardCore::on_task_done(const std::shared_ptr<Task>& task, TimeNs now, Actions& actions) {
  note_time(now);
  if (stopped_) return;
  if (Job* job = find_job(task->job())) {
    catch_out_of_memory(task->job(), actions, [&] {
      job->rounds().on_task_done(*task, now, actions);
      close_if_failed(*job, actions);
    });
  } else if (task->kind() == Task::Kind::kStore) {
    on_last_task_done(static_cast<const StoreTask&>(*task), actions);
  }
  if (draining_until_) catch_out_of_memory(std::nullopt, actions, [&] { advance_shutdown(now, actions); });
}

void ShardCore::on_tick(TimeNs now, Actions& actions) {
  note_time(now);
  if (stopped_) return;
  // Before the poll: to it, jobs that this shard has ended in the table look like those that another one has.
  if (draining_until_) catch_out_of_memory(std::nullopt, actions, [&] { advance_shutdown(now, actions); });
  if (stopped_) return;
  if (now >= next_poll_) {
    next_poll_ = now + static_cast<TimeNs>(config_.limits.table_poll_ms) * kNsPerMs;
    catch_out_of_memory(std::nullopt, actions, [&] { poll_table(now, actions); });
    if (stopped_) return;
  }
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const uint64_t number = at->first;
    Job& job = *at++->second;  // closing erases it
    catch_out_of_memory(number, actions, [&] {
      job.on_tick(now, actions);
      close_if_failed(job, actions);
    });
  }
  retry_last_saves(now, actions);
}

TimeNs ShardCore::next_deadline() const {
  TimeNs first = next_poll_;
  for (const auto& [number, job] : jobs_) {
    if (const std::optional<TimeNs> at = job->deadline()) first = std::min(first, *at);
  }
  for (const auto& [number, store] : ending_stores_) {
    if (const std::optional<TimeNs> at = store ? store->deadline() : std::nullopt) first = std::min(first, *at);
  }
  if (draining_until_) first = std::min(first, ending_until_ ? next_ending_ : *draining_until_);
  return first;
}

}  // namespace millrace::server
