#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "server/shard/shard_core.h"

/// The ends of jobs, in the table and for their members, and the end of the shard.
namespace millrace::server {
namespace {

/// Least time for which a shutdown tries to write the ends of jobs to the table, even after the drain time.
constexpr TimeNs kEndingMin = kNsPerS;

/// Returns the sentence that members receive at the end of a job.
std::string sentence_of(const protocol::Body& last_message) {
  if (const auto* abort = std::get_if<protocol::Abort>(&last_message)) return abort->sentence;
  if (const auto* goodbye = std::get_if<protocol::Goodbye>(&last_message)) return goodbye->sentence;
  return {};
}

std::string not_ended(std::string_view name, uint64_t number) {
  return fmt::format(
      "job '{}' ({}) is over, and its end is not in the membership table: its name stays taken until its workers have "
      "left it at another shard; or, once this shard is started again, for dead_after after a worker asks for it "
      "(--abandon-after where the job's workers return)",
      name, number);
}

}  // namespace

void ShardCore::end_in_table(Job& job, Error why, std::string_view label, Actions& actions) {
  Change change = Change::kNone;
  Result<protocol::JobRecord> ended =
      change_job(table_, job.membership().job, [&](protocol::JobRecord& record) -> Result<Change> {
        change = end(record, why);
        return change;
      });
  if (!ended) {
    table_failed(ended.error(), actions);
    // Each poll tries again to write the end. Until then no worker may open the job again without the rounds decided
    // here.
    lost_.insert_or_assign(job.membership().job,
                           LostJob{job.spec().name, last_call_, 0, LostJob::LostJobAction::kOver, why});
  }
  log(Severity::kError, why.message, actions);
  // Another shard was faster: all members receive one code and one sentence, regardless of the shard.
  if (ended && change == Change::kNone) return adopt(job, std::move(*ended), last_call_, actions);
  close(job, protocol::Abort{why.code, std::move(why.message)}, label, actions);
}

void ShardCore::close(Job& job, std::optional<protocol::Body> last_message, std::string_view label, Actions& actions,
                      StoreEnd store) {
  // All that takes memory comes first: where it ends the job is still open, and is closed again. So its end counts
  // once.
  LogLine line{Severity::kInfo, fmt::format("job '{}' ({}) is over: {}", job.spec().name, job.membership().job, label)};
  MetricEvent event{Metric::kJobsEnded, job.spec().name, label, 1};
  Ended ended{job.spec().name, job.membership().job, std::string(label), last_message ? sentence_of(*last_message) : "",
              last_call_};
  AuditEvent audit{.what = AuditEvent::What::kEnd, .job = ended.name, .code = ended.how, .sentence = ended.sentence};
  actions.audit.reserve(actions.audit.size() + 1);
  ended_.reserve(kEndedMax + 1);
  actions.log.reserve(actions.log.size() + 1);
  actions.metrics.reserve(actions.metrics.size() + 1);
  actions.datagrams.reserve(actions.datagrams.size() + 1);
  for (const protocol::Member& member : job.members().all()) {
    if (last_message) job.members().send(member, *last_message, actions);
    const Members::Link* link = job.members().link(member.worker);
    if (link && link->peer) sessions_.erase(*link->peer);
  }
  if (store == StoreEnd::kSave) end_store(job, actions);
  if (const JobStore* left = job.rounds().store()) give_up_save(job.membership().job, *left, actions);
  actions.log.push_back(std::move(line));
  actions.metrics.push_back(std::move(event));
  actions.audit.push_back(std::move(audit));
  ended_.push_back(std::move(ended));
  if (ended_.size() > kEndedMax) ended_.erase(ended_.begin());
  successions_.erase(job.membership().job);
  if (config_.datagrams.judge && job.spec().path == protocol::Path::kSwitch)
    actions.datagrams.push_back(DatagramChange{job.membership().job});
  // Not by its membership's number: a job that broke off while it was opened has none.
  std::erase_if(jobs_, [&job](const auto& entry) { return entry.second.get() == &job; });
  std::erase_if(opened_, [this](const auto& entry) { return !jobs_.contains(entry.first); });
}

/// Closes a job that has ended in the table, with the code and the sentence of its end. Returns false: it has not.
bool ShardCore::close_if_over(Job& job, const protocol::JobRecord& record, StoreEnd store, Actions& actions) {
  if (!record.membership.finished) return false;
  // The last member of a job that failed is not listed any more; the reason of the end is.
  const bool is_left = record.membership.members.empty() && record.end_reason.empty();
  if (!is_left) log(Severity::kError, end_sentence(record), actions);
  close(job, is_left ? std::nullopt : std::optional<protocol::Body>(end_abort(record)), is_left ? "finished" : "ended",
        actions, store);
  return true;
}

void ShardCore::close_if_failed(Job& job, Actions& actions) {
  if (!job.rounds().failure()) return;
  end_in_table(job, *job.rounds().failure(), error_code_name(job.rounds().failure()->code), actions);
}

void ShardCore::begin_shutdown(TimeNs now, Actions& actions) {
  note_time(now);
  // Another process has the number, and its jobs: this one ends when its workers know the address.
  if (stopped_ || superseded_at_ || departing_until_ || draining_until_) return;
  const TimeNs half = half_of_drain();
  // Without jobs there is nothing to hand over: the number is free as soon as this process has ended.
  if (!jobs_.empty() && half > 0) {
    departing_until_ = now + half;
  } else {
    draining_until_ = now + 2 * half;
  }
  catch_out_of_memory(std::nullopt, actions, [&] {
    log(Severity::kInfo, fmt::format("shard {} is shutting down", config_.shard), actions);
    if (departing_until_) advance_departure(now, actions);
    if (draining_until_) advance_shutdown(now, actions);
    if (departing_until_) hold_or_release_lease(actions);
  });
}

void ShardCore::advance_shutdown(TimeNs now, Actions& actions) {
  if (!ending_until_) {
    const bool idle = std::ranges::all_of(jobs_, [](const auto& entry) { return entry.second->rounds().idle(); });
    if (!idle && now < *draining_until_) return;
    for (auto& [number, job] : jobs_) job->rounds().send_rest(actions);
    ending_until_ = std::max(*draining_until_, now + kEndingMin);
    next_ending_ = now;
  }
  if (now < next_ending_) return;
  next_ending_ = now + static_cast<TimeNs>(config_.limits.table_poll_ms) * kNsPerMs;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at++->second;  // closing erases it
    end_at_shutdown(job, now, actions);
  }
  // Jobs that ended here before, and whose end the table does not have: poll_table() writes it.
  const bool owes = std::ranges::any_of(lost_, [now](const auto& entry) { return entry.second.due(now); });
  if (owes && now >= *ending_until_) {
    for (const auto& [number, lost] : lost_) {
      if (lost.due(now)) log(Severity::kError, not_ended(lost.name, number), actions);
    }
  }
  if (now >= *ending_until_) give_up_last_saves(actions);
  stopped_ = jobs_.empty() && ending_stores_.empty() && (!owes || now >= *ending_until_);
}

/// Ends the job in the table and closes it. A job that has ended before is closed with that end. Where the table cannot
/// be written, the job stays open and is tried again, until it was tried for long enough.
void ShardCore::end_at_shutdown(Job& job, TimeNs now, Actions& actions) {
  const Error why{ErrorCode::kUnavailable, fmt::format("shard {} was shut down", config_.shard)};
  const Result<protocol::JobRecord> ended = change_job(
      table_, job.membership().job, [&why](protocol::JobRecord& record) -> Result<Change> { return end(record, why); });
  // An end with this reason is this shard's, by an earlier try that broke off.
  const bool is_other = ended && end_abort(*ended) != protocol::Abort{why.code, why.message};
  if (is_other && close_if_over(job, *ended, StoreEnd::kSave, actions)) return;
  if (!ended && ended.error().code != ErrorCode::kNotAMember) {
    table_failed(ended.error(), actions);
    if (now < *ending_until_) return;
    log(Severity::kError, not_ended(job.spec().name, job.membership().job), actions);
  }
  close(job, protocol::Goodbye{protocol::Goodbye::Reason::kShutdown, why.message}, "shutdown", actions);
}

}  // namespace millrace::server
