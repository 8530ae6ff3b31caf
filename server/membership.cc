#include "server/membership.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::server {
namespace {

/// Conflicts mean that somebody made progress; so many in a row mean that something is wrong.
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

Result<Change> join(protocol::JobRecord& record, uint32_t worker, uint64_t nonce, uint32_t workers) {
  protocol::JobView& view = record.view;
  if (view.finished) return fail(ErrorCode::kNotAMember, fmt::format("job '{}' has ended", record.name));
  const auto at = member_at(view.members, worker);
  if (at != view.members.end() && at->worker == worker) {
    if (at->nonce == nonce) return Change::kNone;
    return fail(
        ErrorCode::kIdentityInUse,
        fmt::format(
            "worker {} of job '{}' is another process that is still a member; give every worker its own number, "
            "or wait until the other one is removed",
            worker, record.name));
  }
  if (view.started) {
    return fail(
        ErrorCode::kNotAMember,
        fmt::format(
            "worker {} is not a member of job '{}', which is running; joining or rejoining a running job needs a "
            "resync, which this version does not have",
            worker, record.name));
  }
  view.members.insert(at, protocol::Member{worker, next_life(record, worker), nonce, protocol::MemberState::kSynced});
  if (view.members.size() >= workers) view.started = true;
  return Change::kChanged;
}

Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min) {
  protocol::JobView& view = record.view;
  const auto at = member_at(view.members, who.worker);
  if (view.finished || at == view.members.end() || at->worker != who.worker || at->life != who.life)
    return Change::kNone;
  if (view.started && leaving == Leaving::kSilent && view.members.size() == 1) return Change::kNone;
  view.members.erase(at);
  if (view.members.empty()) view.finished = true;
  if (view.started && leaving != Leaving::kFinished && view.members.size() < workers_min) view.finished = true;
  return Change::kChanged;
}

Result<Change> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry) {
  protocol::JobView& view = record.view;
  if (view.shards.size() <= shard) view.shards.resize(shard + 1);
  protocol::ShardEntry& known = view.shards[shard];
  if (known.life == entry.life) return Change::kNone;
  if (known.life > entry.life) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("a later process serves shard {} of job '{}'", shard, record.name));
  }
  if (view.started && known.life != 0) {
    return fail(
        ErrorCode::kShardLost,
        fmt::format("shard {} of job '{}' was restarted and has lost the job's rounds; start the job again once its "
                    "workers have ended",
                    shard, record.name));
  }
  known = entry;
  return Change::kChanged;
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
