#include "server/membership/membership_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "protocol/base/limits.h"
#include "protocol/messages/log_branch.h"
#include "protocol/table/job_end.h"

namespace millrace::server {
namespace {

/// Number of conflicts in a row that indicates a fault. Each single conflict means that another process made progress.
constexpr int kAttemptsMax = 64;

auto member_at(std::vector<protocol::Member>& members, uint32_t worker) {
  return std::ranges::lower_bound(members, worker, {}, &protocol::Member::worker);
}

uint64_t next_incarnation(protocol::JobRecord& record, uint32_t worker) {
  const auto at = std::ranges::find(record.last_incarnations, worker, &std::pair<uint32_t, uint64_t>::first);
  if (at != record.last_incarnations.end()) return ++at->second;
  record.last_incarnations.emplace_back(worker, 1);
  return 1;
}

/// R10f: Notes how far a member had come that leaves as finished.
void note_finished(protocol::JobRecord& record, std::span<const protocol::LogReach> reach) {
  if (record.finished.size() < reach.size()) record.finished.resize(reach.size());
  for (size_t shard = 0; shard < reach.size(); ++shard) {
    protocol::LogReach& noted = record.finished[shard];
    noted = {std::max(noted.steps, reach[shard].steps), std::max(noted.decided_in, reach[shard].decided_in)};
  }
}

}  // namespace

Result<protocol::JobRecord> change_job(protocol::MembershipTable& table, uint64_t job, const Transform& transform) {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<std::optional<protocol::JobRecord>> read = table.read_job(job);
    if (!read) return std::unexpected(read.error());
    if (!*read) return fail(ErrorCode::kNotAMember, fmt::format("job {} is not in the membership table any more", job));
    protocol::JobRecord record = std::move(**read);
    const uint64_t epoch = record.membership.epoch;
    const Result<Change> change = transform(record);
    if (!change) return std::unexpected(change.error());
    if (*change == Change::kNone) return record;
    record.membership.epoch = epoch + 1;
    const Result<bool> swapped = table.compare_and_swap(epoch, record);
    if (!swapped) return std::unexpected(swapped.error());
    if (*swapped) return record;
  }
  return fail(ErrorCode::kUnavailable,
              fmt::format("job {} changed under every one of {} attempts to change it", job, kAttemptsMax));
}

Result<std::optional<protocol::JobRecord>> change_job_in(protocol::MembershipTable& table, uint64_t job, uint64_t epoch,
                                                         const Transform& transform) {
  Result<std::optional<protocol::JobRecord>> read = table.read_job(job);
  if (!read) return std::unexpected(read.error());
  if (!*read) return fail(ErrorCode::kNotAMember, fmt::format("job {} is not in the membership table any more", job));
  protocol::JobRecord record = std::move(**read);
  if (record.membership.epoch != epoch || record.membership.finished) return std::optional<protocol::JobRecord>();
  const Result<Change> change = transform(record);
  if (!change) return std::unexpected(change.error());
  if (*change == Change::kNone) return std::optional(std::move(record));
  record.membership.epoch = epoch + 1;
  const Result<bool> swapped = table.compare_and_swap(epoch, record);
  if (!swapped) return std::unexpected(swapped.error());
  if (!*swapped) return std::optional<protocol::JobRecord>();
  return std::optional(std::move(record));
}

Status judge_past(const protocol::JobRecord& record, const protocol::Header& header) {
  if (header.epoch <= record.membership.epoch) return {};
  return fail(
      ErrorCode::kNotAMember,
      fmt::format("worker {} knows epoch {} of job '{}', and the membership table has epoch {}: the table is an "
                  "older copy",
                  header.worker, header.epoch, record.name, record.membership.epoch));
}

Result<Change> join(protocol::JobRecord& record, const Joiner& joiner, const protocol::JobSpec& spec) {
  protocol::Membership& membership = record.membership;
  if (membership.finished) return fail(ErrorCode::kUnavailable, end_sentence(record));
  const auto at = member_at(membership.members, joiner.worker);
  const bool present = at != membership.members.end() && at->worker == joiner.worker;
  if (present && at->nonce == joiner.nonce) return Change::kNone;
  if (present && (!membership.started || at->incarnation != joiner.replaces)) {
    return fail(
        ErrorCode::kIdentityInUse,
        fmt::format(
            "worker {} of job '{}' is another process that is still a member; give every worker its own number, "
            "or wait until the other one is removed",
            joiner.worker, record.name));
  }
  // The job starts when all of 0 .. workers - 1 are there: the lowest-numbered worker is 0.
  const bool takes_weights = spec.initial_weights == protocol::InitialWeights::kFirst && joiner.worker != 0;
  const auto state =
      membership.started || takes_weights ? protocol::MemberState::kJoining : protocol::MemberState::kSynced;
  const protocol::Member member{joiner.worker, next_incarnation(record, joiner.worker), joiner.nonce, state};
  if (present) {
    *at = member;
  } else {
    membership.members.insert(at, member);
  }
  if (membership.members.size() >= spec.workers) membership.started = true;
  record.workers_rejoin = record.workers_rejoin || joiner.returns;
  return Change::kChanged;
}

Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min,
             std::span<const protocol::LogReach> reach) {
  protocol::Membership& membership = record.membership;
  const auto at = member_at(membership.members, who.worker);
  if (membership.finished || at == membership.members.end() || at->worker != who.worker ||
      at->incarnation != who.incarnation)
    return Change::kNone;
  const bool at_own_request = leaving == Leaving::kFinished || leaving == Leaving::kFailed;
  if (membership.started && !at_own_request && membership.members.size() == 1) return Change::kNone;
  if (membership.started && leaving == Leaving::kFinished) {
    ++membership.left;
    if (at->state == protocol::MemberState::kSynced) note_finished(record, reach);
  }
  membership.members.erase(at);
  if (membership.members.empty()) membership.finished = true;
  const bool lost = at_own_request ? leaving == Leaving::kFailed : leaving != Leaving::kBehind;
  if (membership.started && lost && membership.members.size() < workers_min) membership.finished = true;
  if (membership.finished) record.finished = {};
  return Change::kChanged;
}

Status has_finished_steps(const protocol::JobRecord& record, uint32_t shard, const protocol::LogReach& reach) {
  if (shard >= record.finished.size()) return {};
  const protocol::LogReach& noted = record.finished[shard];
  if (reach.steps >= noted.steps && reach.decided_in >= noted.decided_in) return {};
  return fail(ErrorCode::kStale,
              fmt::format("job '{}': other workers finished at step {}, and no worker that is left has all of these "
                          "steps: take the model of a worker that finished",
                          record.name, noted.steps));
}

Result<Claim> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry) {
  protocol::Membership& membership = record.membership;
  if (membership.shards.size() <= shard) membership.shards.resize(shard + 1);
  protocol::ShardEntry& known = membership.shards[shard];
  if (known.incarnation == entry.incarnation) return Claim::kKnown;
  if (known.incarnation > entry.incarnation) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("a later process serves shard {} of job '{}'", shard, record.name));
  }
  const bool took_part = membership.started && known.incarnation != 0;
  known = entry;
  return took_part ? Claim::kSuccessor : Claim::kFirst;
}

Change redirect(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry) {
  protocol::Membership& membership = record.membership;
  if (membership.finished || shard >= membership.shards.size()) return Change::kNone;
  protocol::ShardEntry& known = membership.shards[shard];
  if (known.incarnation == 0 || known.incarnation >= entry.incarnation) return Change::kNone;
  if (known.address == entry.address && known.datagrams == entry.datagrams) return Change::kNone;
  known.address = entry.address;
  known.datagrams = entry.datagrams;
  return Change::kChanged;
}

Change take_path(protocol::JobRecord& record, protocol::Path path) {
  if (record.membership.path == path) return Change::kNone;
  record.membership.path = path;
  return Change::kChanged;
}

Change synced(protocol::JobRecord& record, uint32_t worker, uint64_t incarnation) {
  const auto at = member_at(record.membership.members, worker);
  const bool joins = at != record.membership.members.end() && at->worker == worker && at->incarnation == incarnation &&
                     at->state == protocol::MemberState::kJoining;
  if (!joins) return Change::kNone;
  at->state = protocol::MemberState::kSynced;
  return Change::kChanged;
}

namespace {

Result<Change> begin_branch(protocol::JobRecord& record, std::span<const protocol::Activation> activations) {
  protocol::Membership& membership = record.membership;
  if (membership.activations.size() + activations.size() > protocol::kActivationsMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("shards of job '{}' have been recovered {} times, which is all that its row has room for",
                            record.name, membership.activations.size()));
  }
  membership.branches += 1;
  for (protocol::Activation each : activations) {
    each.branch = membership.branches;
    membership.activations.push_back(each);
  }
  return Change::kChanged;
}

}  // namespace

Result<Change> activate(protocol::JobRecord& record, uint32_t shard, uint64_t parent, const protocol::LogReach& reach) {
  if (const Status has = has_finished_steps(record, shard, reach); !has) return std::unexpected(has.error());
  const protocol::Activation activation{shard, 0, parent};
  return begin_branch(record, std::span(&activation, 1));
}

Result<Change> cut_logs(protocol::JobRecord& record, const CutChoice& choice) {
  protocol::Membership& membership = record.membership;
  if (!find_member(membership, choice.worker)) {
    return fail(ErrorCode::kNotAMember, fmt::format("worker {} is not a member any more", choice.worker));
  }
  for (uint32_t shard = 0; shard < choice.reach.size(); ++shard) {
    if (const Status has = has_finished_steps(record, shard, choice.reach[shard]); !has)
      return std::unexpected(has.error());
  }
  if (membership.shards.size() < choice.parents.size()) membership.shards.resize(choice.parents.size());
  std::vector<protocol::Activation> activations;
  for (uint32_t shard = 0; shard < choice.parents.size(); ++shard) {
    activations.push_back({shard, 0, choice.parents[shard]});
  }
  const Result<Change> begun = begin_branch(record, activations);
  if (!begun) return begun;
  for (protocol::Member& member : membership.members) {
    member.state = member.worker == choice.worker ? protocol::MemberState::kSynced : protocol::MemberState::kJoining;
  }
  membership.cut = membership.epoch + 1;
  membership.cut_worker = choice.worker;
  return Change::kChanged;
}

CutChoice choose_for_cut(const std::map<uint32_t, protocol::State>& states, const protocol::JobLayout& layout,
                         const protocol::Membership& membership) {
  const auto reach = [](const protocol::State::Part& part) { return std::tuple(part.branch, part.decided_in, part.n); };
  const auto* chosen = &*states.begin();
  for (const auto& each : states) {
    // No state exceeds the greatest one in every part: a state that did would be greater in the order of the parts as
    // well.
    const bool further =
        std::ranges::lexicographical_compare(chosen->second.parts, each.second.parts, {}, reach, reach);
    if (further) chosen = &each;
  }
  CutChoice choice;
  choice.worker = chosen->first;
  for (uint32_t shard = 0; shard < layout.shard_count; ++shard) {
    const bool holds = std::ranges::any_of(layout.parts, [shard](const auto& part) { return part.shard == shard; });
    choice.parents.push_back(holds ? 0 : protocol::branch_of(membership, shard));
  }
  for (const protocol::State::Part& part : chosen->second.parts) {
    uint64_t& parent = choice.parents.at(layout.parts.at(part.part).shard);
    parent = std::max(parent, part.branch);  // parts of one shard differ where a joiner has not settled all of them
  }
  // A shard without parts has all steps of its parts.
  choice.reach.assign(layout.shard_count, {UINT64_MAX, UINT64_MAX});
  std::vector<bool> seen(layout.shard_count);
  for (const protocol::State::Part& part : chosen->second.parts) {
    const uint32_t shard = layout.parts.at(part.part).shard;
    protocol::LogReach& reached = choice.reach.at(shard);
    if (!seen[shard]) reached = {part.n, part.decided_in};
    reached = {std::min(reached.steps, part.n), std::max(reached.decided_in, part.decided_in)};
    seen[shard] = true;
  }
  return choice;
}

Change end(protocol::JobRecord& record, const Error& why) {
  if (record.membership.finished) return Change::kNone;
  end_record(record, why);
  return Change::kChanged;
}

protocol::Abort end_abort(const protocol::JobRecord& record) { return {record.end_code, record.end_reason}; }

std::string end_sentence(const protocol::JobRecord& record) {
  const std::string_view reason =
      record.end_reason.empty() ? "its workers have finished" : std::string_view(record.end_reason);
  return fmt::format("job '{}' has ended: {}", record.name, reason);
}

const protocol::Member* find_member(const protocol::Membership& membership, uint32_t worker) {
  const auto at = std::ranges::lower_bound(membership.members, worker, {}, &protocol::Member::worker);
  return at != membership.members.end() && at->worker == worker ? &*at : nullptr;
}

bool is_member(const protocol::Membership& membership, uint32_t worker, uint64_t incarnation) {
  const protocol::Member* member = find_member(membership, worker);
  return member && member->incarnation == incarnation;
}

}  // namespace millrace::server
