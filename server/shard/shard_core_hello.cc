#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "protocol/datagram/job_numbers.h"
#include "protocol/job/switch_layout.h"
#include "protocol/messages/handshake.h"
#include "protocol/messages/shard_map.h"
#include "server/shard/shard_core.h"

/// Admission: which process may represent a worker of a job, and which other shards are accepted.
namespace millrace::server {
namespace {

/// A layout of a hostile specification is not computed when it could have more parts than this many times the limit.
constexpr uint64_t kPartsSlack = 16;
constexpr uint32_t kPartsPerShardPlanned = 16;  ///< plan_layout's own most, where the job does not set it

/// Time after which a ShardHello is sent again that was refused for a temporary reason.
constexpr TimeNs kHelloAgain = kNsPerS;

/// A process that returns does not replace an earlier one that was heard later than this, no matter how often it sends
/// heartbeats.
constexpr TimeNs kReplacedAfter = kNsPerS;
/// The same where the earlier one's connection is closed. A live process, whose connection the network broke, opens
/// another one within that time.
constexpr TimeNs kReopenedWithin = kNsPerS / 2;

Status limit(uint64_t asked, uint64_t allowed, std::string_view what, std::string_view flag) {
  if (asked <= allowed) return {};
  return fail(ErrorCode::kLimitExceeded,
              fmt::format("{} {}, over this shard's limit of {} ({})", asked, what, allowed, flag));
}

Members::Process process_of(const protocol::Hello& hello) {
  const bool takes_merged = (hello.capabilities & protocol::kTakesMerged) != 0;
  const auto weights = !hello.has_weights ? Members::Weights::kNone
                       : takes_merged     ? Members::Weights::kTakeMerged
                                          : Members::Weights::kAttached;
  return {weights, hello.returns};
}

/// Returns the silence after which a member may be dead.
TimeNs doubtful_after(const protocol::JobSpec& spec) {
  return std::max(2 * spec.heartbeat.count() * kNsPerMs, kReplacedAfter);
}

std::string seconds_of(TimeNs ns) {
  return fmt::format("{:.1f} s", static_cast<double>(std::max<TimeNs>(ns, 0)) / static_cast<double>(kNsPerS));
}

/// Returns the refusal for a process that does not return, while an earlier run keeps its job's name for `wait` longer.
/// returns  whether the workers of that run return when they are restarted: then waiting with an open connection does
///          not help.
Error not_free_yet(const std::string& earlier, bool returns, uint32_t worker, TimeNs wait) {
  if (!returns) return {ErrorCode::kUnavailable, fmt::format("{}: its name is free in {}", earlier, seconds_of(wait))};
  return {ErrorCode::kIdentityInUse,
          fmt::format("{}; its workers return when restarted, but this process of worker {} does not: start it with "
                      "--state as before, or wait {} until the name is free, or take another name",
                      earlier, worker, seconds_of(wait))};
}

/// Returns the refusal for a process whose key may not begin a job in place of an earlier run. That run is not ended.
Error no_successor(const std::string& earlier, const Error& why) {
  return {ErrorCode::kUnavailable, fmt::format("{}; {}", earlier, why.message)};
}

/// Returns whether the worker has the weights that a job needs which begins with those of worker 0.
Status judge_initial_weights(const protocol::Header& header, const protocol::Hello& hello) {
  if (hello.spec.initial_weights != protocol::InitialWeights::kFirst || hello.has_weights) return {};
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("job '{}' begins with the weights of worker 0: worker {} is to give or take them, and can only "
                  "where weights are attached; attach weights to every tensor",
                  hello.spec.name, header.worker));
}

/// Returns whether the worker may join: whether a running job admits it, and whether it has weights where they are
/// needed.
Status may_join(const protocol::JobRecord& record, const protocol::Header& header, const protocol::Hello& hello,
                const Joiner& joiner) {
  if (const Status weights = judge_initial_weights(header, hello); !weights) return weights;
  const protocol::Member* member = find_member(record.membership, header.worker);
  const bool is_there = member && (member->nonce == hello.nonce || member->incarnation != joiner.replaces);
  if (record.membership.finished || !record.membership.started || is_there) return {};
  if (header.incarnation != 0 && !hello.returns) {
    return fail(ErrorCode::kNotAMember,
                fmt::format("worker {} is not a member of job '{}' any more (it was incarnation {}): to rejoin it must "
                            "send a Hello with `returns`",
                            header.worker, record.name, header.incarnation));
  }
  // Where the shards hold the weights a worker needs none.
  if (!hello.has_weights && !hello.spec.has_store()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("worker {} would join job '{}', which is running: it needs the weights of a worker that is "
                            "in it, and can take them only where weights are attached; attach weights to every tensor",
                            header.worker, record.name));
  }
  return {};
}

std::unexpected<Error> other_layout() {
  return fail(ErrorCode::kShardMapMismatch,
              "the worker cuts the job into other parts than this shard: their versions differ");
}

}  // namespace

void ShardCore::on_hello(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                         TimeNs now, Actions& actions) {
  const Result<Admitted> admitted = admit(from, header, hello, now, actions);
  if (!admitted) return refuse_hello(from, header, hello, admitted.error(), now, actions);
  if (admitted->ended) return turn_away(from, header, hello, *admitted->ended, now, actions);
  count(Metric::kWorkerHandshakes, "accepted", actions);
  Job& job = *admitted->job;
  const protocol::Member& member = admitted->member;
  const auto replaced = job.members().connect(member.worker, from, process_of(hello), now);
  if (replaced) sessions_.erase(*replaced);
  const auto other = sessions_.find(from);
  if (other != sessions_.end() &&
      (other->second.job != job.membership().job || other->second.worker != member.worker)) {
    // One connection speaks for one worker: the earlier one is silent from now on.
    count(Metric::kDropped, "connection_reused", actions);
    if (Job* before = find_job(other->second.job)) before->members().disconnect(other->second.worker);
  }
  const Session session{job.membership().job, member.worker, member.incarnation};
  if (other == sessions_.end() || !other->second.is_of(session)) {
    actions.audit.push_back({.what = AuditEvent::What::kJoin,
                             .by = from,
                             .job = job.spec().name,
                             .worker = member.worker,
                             .incarnation = member.incarnation});
  }
  sessions_[from] = session;
  job.members().send(member, job.welcome(hello, config_.software), actions);
  catch_out_of_memory(job.membership().job, actions, [&] { job.on_welcomed(member, now, actions); });
}

Status ShardCore::judge_hello(const protocol::Header& header, const protocol::Hello& hello) const {
  if (const auto agreed = protocol::negotiate(hello, {.software = config_.software}); !agreed) {
    return fail(agreed.error().code, agreed.error().sentence);
  }
  if (header.shard != config_.shard || hello.shard_count != config_.shard_count) {
    return fail(
        ErrorCode::kShardMapMismatch,
        fmt::format(
            "the worker expects shard {} of {} here; this is shard {} of {}: give the worker every shard's address, "
            "in order of their numbers",
            header.shard, hello.shard_count, config_.shard, config_.shard_count));
  }
  if (const Status spec = judge_spec(hello.spec); !spec) return spec;
  if (header.worker >= hello.spec.workers) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("worker {} of a job of {}: numbers are 0 to {}", header.worker,
                                                         hello.spec.workers, hello.spec.workers - 1));
  }
  return {};
}

Status ShardCore::judge_spec(const protocol::JobSpec& spec) const {
  const Limits& limits = config_.limits;
  if (const Status valid = protocol::validate(spec); !valid) return valid;
  if (const Status ok = limit(spec.workers, limits.workers_max, "workers", "--workers-max"); !ok) return ok;
  if (const Status ok = limit(spec.tensors.size(), limits.tensors_max, "tensors", "--tensors-max"); !ok) return ok;
  if (spec.dead_after.count() < limits.dead_after_ms_min) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("dead_after of {} ms is below this shard's least of {} (--dead-after-min)",
                            spec.dead_after.count(), limits.dead_after_ms_min));
  }
  const uint64_t per_shard = spec.parts_per_shard != 0 ? spec.parts_per_shard : kPartsPerShardPlanned;
  const uint64_t parts = spec.tensors.size() * config_.shard_count * per_shard;
  return limit(parts, uint64_t{limits.parts_max} * kPartsSlack, "parts at most", "--parts-max, with room for fusing");
}

Job* ShardCore::named(std::string_view name) {
  for (const auto& [number, job] : jobs_) {
    if (job->spec().name == name) return job.get();
  }
  return nullptr;
}

Result<protocol::JobRecord> ShardCore::open_record(const protocol::PeerId& from, const protocol::Header& header,
                                                   const protocol::Hello& hello, const protocol::JobLayout& layout) {
  Result<std::optional<protocol::JobRecord>> known = table_.read_job(hello.spec.name);
  if (!known) return std::unexpected(known.error());
  if (header.job != 0 && (!*known || (*known)->membership.job != header.job)) {
    return fail(ErrorCode::kNotAMember, fmt::format("job {} ('{}') has ended", header.job, hello.spec.name));
  }
  const std::string name = name_of_key(from);
  // The row of a process that ended between its two writes is as good as none: the next Hello opens the job.
  const bool is_new = !*known || (!name.empty() && (*known)->opened_by.empty());
  if (const Status may = is_new ? judge_rights(from, header, hello, JobKnown::kNo) : Status(); !may) {
    // It may join: a key that may create the job can come at any time.
    if (may.error().code != ErrorCode::kUnauthenticated) return std::unexpected(may.error());
    return fail(ErrorCode::kUnavailable, may.error().message + ", which does not exist yet");
  }
  if (!named(hello.spec.name)) {
    if (const Status may = judge_opening(is_new ? name : (*known)->opened_by, hello.spec.name); !may)
      return std::unexpected(may.error());
  }
  if (const Status past = *known ? judge_past(**known, header) : Status(); !past) return std::unexpected(past.error());
  if (*known) return std::move(**known);
  // A refusal of the joiner comes before the row, which would stay.
  if (const Status weights = judge_initial_weights(header, hello); !weights) return std::unexpected(weights.error());
  if (!layout.parts.empty()) {
    const Status store = judge_store(hello.spec, layout, job_bytes_max_of(name, hello.spec.name));
    if (!store) return std::unexpected(store.error());
  }
  return table_.create_job(hello.spec.name, protocol::encode_job_spec(hello.spec), hello.spec.path);
}

/// Returns the incarnation of an earlier process of this worker that the Hello may replace. That process was not heard
/// for two heartbeats, and for a second. Half a second is enough where its connection is closed.
uint64_t ShardCore::replaceable_incarnation(uint64_t job, const protocol::Header& header, const protocol::Hello& hello,
                                            TimeNs now) {
  Job* open = find_job(job);
  const Members::Link* link = open && hello.returns ? open->members().link(header.worker) : nullptr;
  if (!link) return 0;
  // A Goodbye that the table does not have yet: the member has finished, and is not replaced (R10f).
  const protocol::Member* member = find_member(open->membership(), header.worker);
  if (member && is_leaving(job, *member)) return 0;
  const bool is_closed = link->peer && config_.is_closed && config_.is_closed(*link->peer);
  const TimeNs silence_min = is_closed ? kReopenedWithin : doubtful_after(hello.spec);
  return link->heard + silence_min <= now ? link->incarnation : 0;
}

/// R11b: Returns why the Hello has to wait for a run whose members are all silent, and ends that run once they are
/// dead. Only processes that return may continue such a run. A new process must not continue it alone, and must not
/// take the name while a member may live. It waits, and begins a new job of that name.
std::optional<Error> ShardCore::of_dead_run(const protocol::PeerId& from, const protocol::Header& header,
                                            const protocol::Hello& hello, TimeNs now, Actions& actions) {
  Job* job = named(hello.spec.name);
  if (!job || hello.returns || header.job != 0 || !job->membership().started || job->membership().members.empty())
    return {};
  const TimeNs silence = job->members().silence_of_all(now);
  if (silence < doubtful_after(job->spec())) return {};
  const Result<std::optional<protocol::JobRecord>> record = table_.read_job(job->membership().job);
  if (!record) return record.error();
  if (!*record) return {};
  const TimeNs free_after = TimeNs{silent_ms_max_of(**record, protocol::wire_ms(job->spec().dead_after))} * kNsPerMs;
  const std::string earlier = fmt::format("job '{}' is an earlier run's, none of whose workers has been heard for {}",
                                          hello.spec.name, seconds_of(silence));
  if (silence >= free_after) {
    if (const Status may = judge_rights(from, header, hello, JobKnown::kNo); !may)
      return no_successor(earlier, may.error());
    end_in_table(*job,
                 {ErrorCode::kStale, fmt::format("job '{}': none of its workers has been heard for {}, and a new "
                                                 "process, which does not return, begins a job of that name",
                                                 job->spec().name, seconds_of(silence))},
                 "abandoned", actions);
    return {};
  }
  return not_free_yet(earlier, (*record)->workers_rejoin, header.worker, free_after - silence);
}

uint32_t ShardCore::silent_ms_max_of(const protocol::JobRecord& record, uint32_t dead_after_ms) const {
  return std::max(dead_after_ms, record.workers_rejoin ? config_.limits.abandon_ms : 0);
}

/// Returns for how long a process that is still a member keeps its number. Empty: this shard does not know the member.
std::string ShardCore::time_in_the_way(uint64_t number, uint32_t worker, TimeNs now) {
  Job* job = find_job(number);
  const Members::Link* link = job ? job->members().link(worker) : nullptr;
  if (!link) return {};
  const TimeNs silence = now - link->heard;
  const TimeNs dead_after = job->spec().dead_after.count() * kNsPerMs;
  return fmt::format(" (last heard {} ago; once it has been silent for {}, in {}, it is removed)", seconds_of(silence),
                     seconds_of(dead_after), seconds_of(dead_after - silence));
}

Result<protocol::JobRecord> ShardCore::join_job(const protocol::PeerId& from, const protocol::JobRecord& record,
                                                const protocol::Header& header, const protocol::Hello& hello,
                                                TimeNs now, std::optional<Error>& refused) {
  const protocol::ShardEntry own{neighbours_[config_.shard].entry.address, config_.incarnation,
                                 neighbours_[config_.shard].entry.datagrams};
  const Joiner joiner{.worker = header.worker,
                      .nonce = hello.nonce,
                      .replaces = replaceable_incarnation(record.membership.job, header, hello, now),
                      .returns = hello.returns && header.incarnation == 0};
  const std::string key_name = name_of_key(from);
  return change_job(table_, record.membership.job, [&](protocol::JobRecord& at) -> Result<Change> {
    refused.reset();
    protocol::JobRecord claimed_only = at;
    const Result<Claim> claimed = claim_shard(claimed_only, config_.shard, own);
    if (!claimed) return std::unexpected(claimed.error());
    // Recorded before the table can have it: a later opening of the job here has to recover.
    if (*claimed == Claim::kSuccessor && !at.membership.finished) successions_.insert(at.membership.job);
    at = claimed_only;
    const Status may = may_join(at, header, hello, joiner);
    const Result<Change> joined = may ? join(at, joiner, hello.spec) : std::unexpected(may.error());
    if (joined && *joined == Change::kChanged && at.opened_by.empty()) at.opened_by = key_name;
    if (joined) return *claimed == Claim::kKnown ? *joined : Change::kChanged;
    if (*claimed != Claim::kSuccessor || at.membership.finished) return joined;
    // Regardless of the asker, the job runs, and this shard must ask its members for their state.
    refused = joined.error();
    at = std::move(claimed_only);
    return Change::kChanged;
  });
}

/// Returns why a row that this process does not serve blocks the Hello: its processes died before they could end it.
/// Without this check, a crash would reserve the job's name forever.
std::optional<Error> ShardCore::left_behind(const protocol::PeerId& from, const protocol::JobRecord& record,
                                            const protocol::JobSpec& theirs, const protocol::Header& header,
                                            const protocol::Hello& hello, TimeNs now) {
  const protocol::Membership& membership = record.membership;
  if (find_job(membership.job)) return std::nullopt;
  const auto lost = lost_.find(membership.job);
  if (lost != lost_.end() && lost->second.action == LostJob::LostJobAction::kOver &&
      membership.shards.size() > config_.shard && membership.shards[config_.shard].incarnation == config_.incarnation) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("job '{}' has ended, and its end is not yet in the membership table", record.name)};
  }
  const uint64_t incarnation =
      config_.shard < membership.shards.size() ? membership.shards[config_.shard].incarnation : 0;
  const bool earlier = incarnation != 0 && incarnation < config_.incarnation;
  if (!earlier && !membership.members.empty()) return std::nullopt;
  const protocol::Member* member = find_member(membership, header.worker);
  const bool in_the_way = theirs != hello.spec || (member && member->nonce != hello.nonce && !hello.returns);
  if (!in_the_way) return std::nullopt;
  const std::string earlier_run = fmt::format(
      "job '{}' is an earlier run's, which was not ended and none of whose workers has been heard since this shard "
      "started",
      record.name);
  if (const Status may = judge_rights(from, header, hello, JobKnown::kNo); !may)
    return no_successor(earlier_run, may.error());
  const uint32_t silent_ms_max = silent_ms_max_of(record, protocol::wire_ms(theirs.dead_after));
  Error why{ErrorCode::kTimeout, "none of its workers was heard after a shard had started again"};
  const LostJob& waits =
      lost_
          .try_emplace(membership.job, LostJob{record.name, now, silent_ms_max, LostJob::LostJobAction::kUnlessReopened,
                                               std::move(why)})
          .first->second;
  return not_free_yet(earlier_run, record.workers_rejoin && !hello.returns, header.worker, waits.due_at() - now);
}

Result<ShardCore::Admitted> ShardCore::admit(const protocol::PeerId& from, const protocol::Header& header,
                                             const protocol::Hello& hello, TimeNs now, Actions& actions) {
  if (const Status ok = judge_hello(header, hello); !ok) return std::unexpected(ok.error());
  // Before anything that the Hello may cause at a job of this name. Whether it may create one is judged once the table
  // has none.
  if (const Status may = judge_rights(from, header, hello, JobKnown::kYes); !may) return std::unexpected(may.error());
  const auto is_here = [&](const Job* job) {
    const protocol::Member* member = job ? find_member(job->membership(), header.worker) : nullptr;
    return member && member->nonce == hello.nonce && (header.job == 0 || header.job == job->membership().job);
  };
  Job* job = named(hello.spec.name);
  if (!is_here(job) || draining_until_) {
    const Status may_read = config_.rights.admit_to_table ? config_.rights.admit_to_table(from, now) : Status();
    if (!may_read) return std::unexpected(may_read.error());
    const Result<Job*> joined = admit_newcomer(from, header, hello, now, actions);
    if (!joined && config_.rights.refused_by_table) config_.rights.refused_by_table(from, now);
    // Of a table that this Hello found to be another one nothing is true of this process (R11c).
    if (!joined && (stopped_ || failure_)) return std::unexpected(joined.error());
    if (!joined) return end_or_refusal(header.job, hello.spec.name, joined.error());
    job = *joined;
  }
  if (!is_here(job))
    return fail(ErrorCode::kNotAMember, fmt::format("worker {} is not a member any more", header.worker));
  if (!job->members().is_key_of(header.worker, from.key)) {
    return fail(ErrorCode::kIdentityInUse,
                fmt::format("worker {} of job '{}' is a process with another key", header.worker, hello.spec.name));
  }
  if (job->spec() != hello.spec) {
    return fail(ErrorCode::kJobMismatch, fmt::format("job '{}' is open with another specification: {}", hello.spec.name,
                                                     protocol::first_difference(job->spec(), hello.spec)));
  }
  if (job->layout_hash() != hello.layout_hash) return other_layout();
  return Admitted{job, *find_member(job->membership(), header.worker)};
}

Result<Job*> ShardCore::admit_newcomer(const protocol::PeerId& from, const protocol::Header& header,
                                       const protocol::Hello& hello, TimeNs now, Actions& actions) {
  // A job with a store would end the departure, and all jobs with it.
  if (draining_until_ || superseded_at_ || (departing_until_ && hello.spec.has_store()))
    return fail(ErrorCode::kUnavailable, fmt::format("shard {} is shutting down", config_.shard));
  // A member stays a member, regardless of its connection.
  if (const Status room = config_.room_for_worker ? config_.room_for_worker(now) : Status(); !room)
    return std::unexpected(room.error());
  refresh(now, actions);
  if (stopped_ || failure_ || superseded_at_)
    return fail(ErrorCode::kUnavailable, failure_ ? failure_->message : kNotRun);
  if (std::optional<Error> wait = of_dead_run(from, header, hello, now, actions)) return std::unexpected(*wait);
  return admit_by_table(from, header, hello, now, actions);
}

Result<Job*> ShardCore::admit_by_table(const protocol::PeerId& from, const protocol::Header& header,
                                       const protocol::Hello& hello, TimeNs now, Actions& actions) {
  // Refusals by this shard alone come before the table has a row for the job.
  protocol::JobLayout layout;
  for (const auto& [number, store] : ending_stores_) {
    if (!store || store->name() != hello.spec.name) continue;
    const std::string failure = store->status().last_failure;
    return fail(ErrorCode::kUnavailable,
                fmt::format("the store of the job '{}' that was is being saved{}{}", store->name(),
                            failure.empty() ? "" : "; a try has failed: ", failure));
  }
  if (!named(hello.spec.name)) {
    const Status room = limit(jobs_.size() + 1, config_.limits.jobs_max, "jobs open", "--jobs-max");
    if (!room) return std::unexpected(room.error());
    layout = protocol::plan_layout(hello.spec, config_.shard_count);
    const Status parts = limit(layout.parts.size(), config_.limits.parts_max, "parts", "--parts-max");
    if (!parts) return std::unexpected(parts.error());
    if (protocol::layout_hash(layout) != hello.layout_hash) return other_layout();
    if (const Status store = judge_store(hello.spec, layout, config_.limits.job_memory_bytes_max); !store)
      return std::unexpected(store.error());
    if (const Status datagrams = judge_datagrams(hello.spec, layout); !datagrams)
      return std::unexpected(datagrams.error());
  }
  const Result<protocol::JobRecord> record = open_record(from, header, hello, layout);
  if (!record) return std::unexpected(record.error());
  const Result<protocol::JobSpec> theirs = protocol::decode_job_spec(record->spec);
  if (!theirs) return std::unexpected(theirs.error());
  if (!layout.parts.empty()) {
    const std::string& creator = record->opened_by.empty() ? name_of_key(from) : record->opened_by;
    const Status store = judge_store(hello.spec, layout, job_bytes_max_of(creator, hello.spec.name));
    if (!store) return std::unexpected(store.error());
  }
  if (std::optional<Error> wait = left_behind(from, *record, *theirs, header, hello, now))
    return std::unexpected(*wait);
  if (*theirs != hello.spec) {
    return fail(ErrorCode::kJobMismatch, fmt::format("job '{}' is open with another specification: {}", hello.spec.name,
                                                     protocol::first_difference(*theirs, hello.spec)));
  }
  std::optional<Error> refused;
  Result<protocol::JobRecord> joined = join_job(from, *record, header, hello, now, refused);
  if (!joined) {
    Error error = joined.error();
    if (error.code == ErrorCode::kIdentityInUse)
      error.message += time_in_the_way(record->membership.job, header.worker, now);
    return std::unexpected(std::move(error));
  }
  const uint64_t number = joined->membership.job;
  Job* job = find_job(number);
  // Only where a job of this name ended between the two reads: the worker's next Hello finds the new one.
  if (!job && layout.parts.empty())
    return fail(ErrorCode::kUnavailable, "the job of this name has just ended; try again");
  if (!job) job = open_job(joined->opened_by, number, hello.spec, std::move(layout), actions);
  adopt(*job, std::move(*joined), now, actions);
  job = find_job(number);
  if (refused) return std::unexpected(*refused);
  if (!job) return fail(ErrorCode::kUnavailable, kNotRun);  // opening it broke off; a new Hello starts again
  return job;
}

Job* ShardCore::open_job(const std::string& key_name, uint64_t number, const protocol::JobSpec& spec,
                         protocol::JobLayout layout, Actions& actions) {
  log(Severity::kInfo,
      fmt::format("job '{}' ({}): {} workers, {} tensors, {} parts", spec.name, number, spec.workers,
                  spec.tensors.size(), layout.parts.size()),
      actions);
  actions.metrics.push_back({Metric::kJobsOpened, spec.name, "", 1});
  const auto start = successions_.contains(number) ? Job::Start::kSuccessor : Job::Start::kFresh;
  if (start == Job::Start::kSuccessor) {
    log(Severity::kWarning,
        fmt::format("job '{}' ({}): an earlier start of shard {} has served it; its workers are asked where they stand",
                    spec.name, number, config_.shard),
        actions);
  }
  Opened& opened = opened_.insert_or_assign(number, Opened{key_name, config_.limits}).first->second;
  opened.fixed_bytes = array_bytes(spec, layout) + record_bytes(spec, layout, config_.shard);
  opened.limits.job_memory_bytes_max = job_bytes_max_of(key_name, spec.name);
  auto made = std::make_unique<Job>(Job::Setup{spec, std::move(layout), *gate_, opened.limits, memory_, refusals_,
                                               config_.shard, config_.incarnation, config_.shard_count, start,
                                               config_.codec_costs, config_.queued_bytes});
  // Before the job is known: if it breaks off here, the next Hello opens it again.
  if (JobStore* store = made->rounds().store()) {
    const auto begin = start == Job::Start::kFresh ? JobStore::StartKind::kFresh : JobStore::StartKind::kSuccessor;
    store->open(number, config_.saves, begin, last_call_, actions);
  }
  std::optional<DatagramChange> served;
  if (config_.datagrams.judge && spec.path == protocol::Path::kSwitch)
    served = DatagramChange{number, spec, protocol::plan_switch_layout(spec, made->layout())};
  // What takes memory comes first: an open job of path switch is served.
  actions.datagrams.reserve(actions.datagrams.size() + 1);
  Job* job = jobs_.emplace(number, std::move(made)).first->second.get();
  if (served) actions.datagrams.push_back(std::move(*served));
  return job;
}

/// Checks that shard 0 can replace the job's switch: it has the job's key and room. Otherwise the job is not begun.
Status ShardCore::judge_datagrams(const protocol::JobSpec& spec, const protocol::JobLayout& layout) const {
  if (spec.path != protocol::Path::kSwitch || !config_.datagrams.judge) return {};
  const protocol::JobNumbers numbers{spec.switch_path.job, spec.switch_path.lanes};
  for (const auto& [number, job] : jobs_) {
    const protocol::SwitchSpec& other = job->spec().switch_path;
    if (job->spec().path != protocol::Path::kSwitch || !numbers.overlap({other.job, other.lanes})) continue;
    return fail(
        ErrorCode::kIdentityInUse,
        fmt::format("job '{}' has number {} at its switch, as this one: shard {} tells their datagrams apart by it; "
                    "give each its own (switch_job; a job of several switch_lanes has as many, from there on)",
                    job->spec().name, std::max(other.job, numbers.job), config_.shard));
  }
  return config_.datagrams.judge(spec, protocol::plan_switch_layout(spec, layout));
}

void ShardCore::on_shard_hello(const protocol::PeerId& from, const protocol::Header& header,
                               const protocol::ShardHello& hello, TimeNs now, Actions& actions) {
  protocol::Refuse refusal;
  refusal.retry = true;
  const uint32_t shard = header.shard;
  const auto agree = [&] {
    std::vector<protocol::ShardEntry> map;
    for (const Neighbour& neighbour : neighbours_) map.push_back(neighbour.entry);
    return shard < config_.shard_count && shard != config_.shard &&
           hello.shard_map_hash == protocol::shard_map_hash(map) &&
           header.shard_incarnation == neighbours_[shard].entry.incarnation;
  };
  if (const auto agreed = protocol::negotiate(hello, {.software = config_.software}); !agreed) {
    refusal = agreed.error();
  } else if (agree() || (refresh(now, actions), agree())) {
    std::optional<protocol::PeerId> peer = from;
    shard_sessions_[from] = shard;  // what takes memory comes before the change
    std::swap(neighbours_[shard].peer, peer);
    if (peer && *peer != from) shard_sessions_.erase(*peer);
    return count(Metric::kShardHandshakes, "accepted", actions);
  } else {
    refusal.code = ErrorCode::kShardMapMismatch;
    refusal.sentence = fmt::format(
        "shard {} (incarnation {}) and shard {} of {} do not see the same shard map (here shard {} is at {}, "
        "incarnation {}): do they use one membership table?",
        shard, header.shard_incarnation, config_.shard, config_.shard_count, shard,
        shard < config_.shard_count && !neighbours_[shard].entry.address.empty() ? neighbours_[shard].entry.address
                                                                                 : "no address",
        shard < config_.shard_count ? neighbours_[shard].entry.incarnation : 0);
  }
  refusals_.note({.of = Refusal::Of::kShard,
                  .job = {},
                  .number = shard,
                  .software = hello.software,
                  .code = refusal.code,
                  .sentence = refusal.sentence},
                 now);
  actions.audit.push_back({.what = AuditEvent::What::kRefuse,
                           .by = from,
                           .of_shard = shard,
                           .code = std::string(error_code_name(refusal.code)),
                           .sentence = refusal.sentence});
  log(Severity::kWarning, refusal.sentence, actions);
  count(Metric::kShardHandshakes, "refused", actions);
  count(Metric::kRefused, error_code_name(refusal.code), actions);
  reply(from, header, std::move(refusal), actions);
}

void ShardCore::say_shard_hello(uint32_t shard, Actions& actions) const {
  std::vector<protocol::ShardEntry> map;
  for (const Neighbour& neighbour : neighbours_) map.push_back(neighbour.entry);
  protocol::ShardHello hello;
  hello.shard_map_hash = protocol::shard_map_hash(map);
  hello.software = config_.software;
  protocol::Header header;
  header.shard = config_.shard;
  header.shard_incarnation = config_.incarnation;
  actions.to_shards.push_back({shard, {header, std::move(hello), {}}});
}

/// Sends the ShardHellos that are due. One that breaks off here is sent at the next poll of the table.
void ShardCore::say_owed_hellos(TimeNs now, Actions& actions) {
  for (uint32_t shard = 0; shard < config_.shard_count; ++shard) {
    Neighbour& neighbour = neighbours_[shard];
    if (shard == config_.shard || neighbour.entry.address.empty()) continue;
    if (!neighbour.hello_at || *neighbour.hello_at > now) continue;
    say_shard_hello(shard, actions);
    neighbour.hello_at.reset();
  }
}

void ShardCore::on_shard_reconnected(uint32_t shard, TimeNs now, Actions& actions) {
  note_time(now);
  if (stopped_ || shard >= config_.shard_count) return;
  neighbours_[shard].hello_at = now;
  catch_out_of_memory(std::nullopt, actions, [&] { say_owed_hellos(now, actions); });
}

void ShardCore::on_shard_reply(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions) {
  note_time(now);
  if (stopped_ || shard >= config_.shard_count) return;
  catch_out_of_memory(std::nullopt, actions, [&] {
    const auto* refusal = std::get_if<protocol::Refuse>(&message.body);
    if (!refusal) return count(Metric::kDropped, "unexpected_message", actions);
    // Only a ShardHello is refused. Without an accepted one, no histogram is accepted, so it is sent again.
    if (refusal->retry && !neighbours_[shard].hello_at) neighbours_[shard].hello_at = now + kHelloAgain;
    refusals_.note({.of = Refusal::Of::kByShard,
                    .job = {},
                    .number = shard,
                    .software = {},
                    .code = refusal->code,
                    .sentence = refusal->sentence},
                   now);
    log(Severity::kWarning, fmt::format("shard {} refused this shard: {}", shard, refusal->sentence), actions);
    count(Metric::kDropped, "refused_by_shard", actions);
  });
}

}  // namespace millrace::server
