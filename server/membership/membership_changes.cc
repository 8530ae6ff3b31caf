#include "server/membership/membership_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "protocol/base/limits.h"
#include "protocol/messages/log_branch.h"

namespace millrace::server {
namespace {

/// Number of conflicts in a row that indicates a fault. Each single conflict means that another process made progress.
constexpr int kAttemptsMax = 64;

auto member_at(std::vector<protocol::Member>& members, uint32_t worker) {
  return std::ranges::lower_bound(members, worker, {}, &protocol::Member::worker);
}

uint64_t next_life(protocol::JobRecord& record, uint32_t worker) {
  const auto at = std::ranges::find(record.last_lives, worker, &std::pair<uint32_t, uint64_t>::first);
  if (at != record.last_lives.end()) return ++at->second;
  record.last_lives.emplace_back(worker, 1);
  return 1;
}

}  // namespace

Result<protocol::JobRecord> change_job(protocol::MembershipTable& table, uint64_t job, const Transform& transform) {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<std::optional<protocol::JobRecord>> read = table.read_job(job);
    if (!read) return std::unexpected(read.error());
    if (!*read) return fail(ErrorCode::kNotAMember, fmt::format("job {} is not in the membership table any more", job));
    protocol::JobRecord record = std::move(**read);
    const uint64_t epoch = record.view.epoch;
    const Result<Change> change = transform(record);
    if (!change) return std::unexpected(change.error());
    if (*change == Change::kNone) return record;
    record.view.epoch = epoch + 1;
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
  if (record.view.epoch != epoch || record.view.finished) return std::optional<protocol::JobRecord>();
  const Result<Change> change = transform(record);
  if (!change) return std::unexpected(change.error());
  if (*change == Change::kNone) return std::optional(std::move(record));
  record.view.epoch = epoch + 1;
  const Result<bool> swapped = table.compare_and_swap(epoch, record);
  if (!swapped) return std::unexpected(swapped.error());
  if (!*swapped) return std::optional<protocol::JobRecord>();
  return std::optional(std::move(record));
}

Result<Change> join(protocol::JobRecord& record, const Joiner& joiner, const protocol::JobSpec& spec) {
  protocol::JobView& view = record.view;
  if (view.finished) return fail(ErrorCode::kNotAMember, fmt::format("job '{}' has ended", record.name));
  const auto at = member_at(view.members, joiner.worker);
  const bool present = at != view.members.end() && at->worker == joiner.worker;
  if (present && at->nonce == joiner.nonce) return Change::kNone;
  if (present && (!view.started || at->life != joiner.replaces)) {
    return fail(
        ErrorCode::kIdentityInUse,
        fmt::format(
            "worker {} of job '{}' is another process that is still a member; give every worker its own number, "
            "or wait until the other one is removed",
            joiner.worker, record.name));
  }
  // The job starts when all of 0 .. workers - 1 are there: the lowest-numbered worker is 0.
  const bool takes_weights = spec.initial_weights == protocol::InitialWeights::kFirst && joiner.worker != 0;
  const auto state = view.started || takes_weights ? protocol::MemberState::kJoining : protocol::MemberState::kSynced;
  const protocol::Member member{joiner.worker, next_life(record, joiner.worker), joiner.nonce, state};
  if (present) {
    *at = member;
  } else {
    view.members.insert(at, member);
  }
  if (view.members.size() >= spec.workers) view.started = true;
  record.workers_return = record.workers_return || joiner.returns;
  return Change::kChanged;
}

Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min) {
  protocol::JobView& view = record.view;
  const auto at = member_at(view.members, who.worker);
  if (view.finished || at == view.members.end() || at->worker != who.worker || at->life != who.life)
    return Change::kNone;
  const bool by_own_word = leaving == Leaving::kFinished || leaving == Leaving::kFailed;
  if (view.started && !by_own_word && view.members.size() == 1) return Change::kNone;
  view.members.erase(at);
  if (view.started && leaving == Leaving::kFinished) ++view.left;
  if (view.members.empty()) view.finished = true;
  const bool lost = by_own_word ? leaving == Leaving::kFailed : leaving != Leaving::kBehind;
  if (view.started && lost && view.members.size() < workers_min) view.finished = true;
  return Change::kChanged;
}

Result<Claim> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry) {
  protocol::JobView& view = record.view;
  if (view.shards.size() <= shard) view.shards.resize(shard + 1);
  protocol::ShardEntry& known = view.shards[shard];
  if (known.life == entry.life) return Claim::kKnown;
  if (known.life > entry.life) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("a later process serves shard {} of job '{}'", shard, record.name));
  }
  const bool took_part = view.started && known.life != 0;
  known = entry;
  return took_part ? Claim::kSuccessor : Claim::kFirst;
}

Change redirect(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry) {
  protocol::JobView& view = record.view;
  if (view.finished || shard >= view.shards.size()) return Change::kNone;
  protocol::ShardEntry& known = view.shards[shard];
  if (known.life == 0 || known.life >= entry.life) return Change::kNone;
  if (known.address == entry.address && known.datagrams == entry.datagrams) return Change::kNone;
  known.address = entry.address;
  known.datagrams = entry.datagrams;
  return Change::kChanged;
}

Change take_path(protocol::JobRecord& record, protocol::Path path) {
  if (record.view.path == path) return Change::kNone;
  record.view.path = path;
  return Change::kChanged;
}

Change synced(protocol::JobRecord& record, uint32_t worker, uint64_t life) {
  const auto at = member_at(record.view.members, worker);
  const bool joins = at != record.view.members.end() && at->worker == worker && at->life == life &&
                     at->state == protocol::MemberState::kJoining;
  if (!joins) return Change::kNone;
  at->state = protocol::MemberState::kSynced;
  return Change::kChanged;
}

namespace {

Result<Change> begin_lineage(protocol::JobRecord& record, std::span<const protocol::Activation> activations) {
  protocol::JobView& view = record.view;
  if (view.activations.size() + activations.size() > protocol::kActivationsMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("shards of job '{}' have been recovered {} times, which is all that its row has room for",
                            record.name, view.activations.size()));
  }
  view.lineages += 1;
  for (protocol::Activation each : activations) {
    each.lineage = view.lineages;
    view.activations.push_back(each);
  }
  return Change::kChanged;
}

}  // namespace

Result<Change> activate(protocol::JobRecord& record, uint32_t shard, uint64_t parent) {
  const protocol::Activation activation{shard, 0, parent};
  return begin_lineage(record, std::span(&activation, 1));
}

Result<Change> cut(protocol::JobRecord& record, const CutChoice& choice) {
  protocol::JobView& view = record.view;
  if (!find_member(view, choice.worker)) {
    return fail(ErrorCode::kNotAMember, fmt::format("worker {} is not a member any more", choice.worker));
  }
  if (view.shards.size() < choice.parents.size()) view.shards.resize(choice.parents.size());
  std::vector<protocol::Activation> activations;
  for (uint32_t shard = 0; shard < choice.parents.size(); ++shard) {
    activations.push_back({shard, 0, choice.parents[shard]});
  }
  const Result<Change> begun = begin_lineage(record, activations);
  if (!begun) return begun;
  for (protocol::Member& member : view.members) {
    member.state = member.worker == choice.worker ? protocol::MemberState::kSynced : protocol::MemberState::kJoining;
  }
  view.cut = view.epoch + 1;
  view.cut_worker = choice.worker;
  return Change::kChanged;
}

CutChoice choose_for_cut(const std::map<uint32_t, protocol::State>& states, const protocol::JobLayout& layout,
                         const protocol::JobView& view) {
  const auto reach = [](const protocol::State::Part& part) {
    return std::tuple(part.lineage, part.decided_in, part.n);
  };
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
    choice.parents.push_back(holds ? 0 : protocol::lineage_of(view, shard));
  }
  for (const protocol::State::Part& part : chosen->second.parts) {
    uint64_t& parent = choice.parents.at(layout.parts.at(part.part).shard);
    parent = std::max(parent, part.lineage);  // parts of one shard differ where a joiner has not settled all of them
  }
  return choice;
}

Change end(protocol::JobRecord& record) {
  if (record.view.finished) return Change::kNone;
  record.view.finished = true;
  return Change::kChanged;
}

const protocol::Member* find_member(const protocol::JobView& view, uint32_t worker) {
  const auto at = std::ranges::lower_bound(view.members, worker, {}, &protocol::Member::worker);
  return at != view.members.end() && at->worker == worker ? &*at : nullptr;
}

bool is_member(const protocol::JobView& view, uint32_t worker, uint64_t life) {
  const protocol::Member* member = find_member(view, worker);
  return member && member->life == life;
}

}  // namespace millrace::server
