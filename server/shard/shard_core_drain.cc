#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/shard/shard_core.h"

/// The departure of this process, which leaves its number to a spare: at an operator's request, or at a shutdown while
/// a spare waits. The process gives its lease back, and serves its jobs until a spare has taken the number. Then
/// superseded() hands them over.
namespace millrace::server {

void ShardCore::refresh_drain(Actions& actions) {
  Result<std::optional<protocol::DrainNote>> note = table_.read_drain(config_.shard);
  if (!note) {
    table_counter_.reset();
    return table_failed(note.error(), actions);
  }
  drain_ = *note && (*note)->incarnation == config_.incarnation ? std::move(*note) : std::nullopt;
}

/// Returns why a spare could not continue this shard's jobs; empty: it could.
std::string ShardCore::refuses_drain() const {
  if (config_.datagrams.judge) {
    return fmt::format(
        "shard {} decides in place of a switch (--datagrams), and a spare does not; stop it and start it "
        "again elsewhere",
        config_.shard);
  }
  for (const auto& [number, job] : jobs_) {
    const JobStore* store = std::as_const(job->rounds()).store();
    if (!store || store->status().survives_restart || store->is_dropped() || store->is_saving()) continue;
    return fmt::format("the weights of job '{}' are in no save (--store-dir); they would be lost", job->spec().name);
  }
  for (const auto& [number, store] : ending_stores_) {
    if (store->is_saving() || !store->deadline()) continue;  // it has not failed
    return fmt::format("job '{}' is over, and its last save has failed: {}; it would be lost", store->name(),
                       store->status().last_failure);
  }
  return {};
}

/// Returns the recovery or save that must end before a spare can continue this shard's jobs. Empty: none.
std::string ShardCore::finishes_first() const {
  for (const auto& [number, job] : jobs_) {
    const JobStore* store = std::as_const(job->rounds()).store();
    if (job->recovering() || (store && store->is_dropped())) return fmt::format("job '{}' recovers", job->spec().name);
    if (store && !store->status().survives_restart) return fmt::format("job '{}' is being saved", job->spec().name);
  }
  if (ending_stores_.empty()) return {};
  return fmt::format("job '{}' is over, and is being saved", ending_stores_.begin()->second->name());
}

/// Returns whether an operator or a shutdown wants this process to leave its number, and it has not refused.
bool ShardCore::is_asked_to_leave() const { return departing_until_ || (drain_ && drain_->refusal.empty()); }

/// Returns whether this process has given its lease back, so that a spare may take its number.
bool ShardCore::is_leaving_number() const { return is_asked_to_leave() && lease_released_; }

void ShardCore::hold_or_release_lease(Actions& actions) {
  if (!is_asked_to_leave()) drain_wait_logged_ = false;
  if (is_asked_to_leave()) {
    if (std::string refusal = refuses_drain(); !refusal.empty()) {
      refuse_drain(std::move(refusal), actions);
    } else if (const std::string waits = finishes_first(); !waits.empty()) {
      if (!std::exchange(drain_wait_logged_, true))
        log(Severity::kInfo, fmt::format("shard {} leaves its number to a spare later: {}", config_.shard, waits),
            actions);
    } else {
      return release_lease(actions);
    }
  }
  lease_released_ = false;
  if (const Status held = table_.hold_lease(config_.shard, config_.incarnation); !held)
    table_failed(held.error(), actions);
}

void ShardCore::release_lease(Actions& actions) {
  // A process whose number is taken ends at once, and with it the last save of a job that is over.
  const Status released = table_.hold_leaving_lease(config_.shard, config_.incarnation);
  if (!released) return table_failed(released.error(), actions);
  if (std::exchange(lease_released_, true)) return;
  log(Severity::kInfo,
      fmt::format("shard {} leaves its number to a spare, {}", config_.shard,
                  departing_until_ ? "since it is shutting down" : "as an operator asked"),
      actions);
}

/// Answers an operator's request. A shutdown that finds the reason ends the departure instead.
void ShardCore::refuse_drain(std::string refusal, Actions& actions) {
  if (!drain_ || !drain_->refusal.empty()) return;
  protocol::DrainNote answer{config_.incarnation, std::move(refusal)};
  const Result<bool> answered = table_.set_drain(config_.shard, config_.incarnation, answer);
  if (!answered) return table_failed(answered.error(), actions);
  log(Severity::kWarning, fmt::format("shard {} keeps its number: {}", config_.shard, answer.refusal), actions);
  drain_ = std::move(answer);
}

/// Returns half of the time of a shutdown: the departure has the first one, and rounds in flight the second one.
TimeNs ShardCore::half_of_drain() const { return static_cast<TimeNs>(config_.limits.drain_ms) * kNsPerMs / 2; }

/// Returns why a shutdown must not move this shard's jobs; empty: it may. A spare continues a store from its own
/// --store-dir. Whether that is this process's folder only an operator knows.
std::string ShardCore::refuses_departure() const {
  if (drain_ && drain_->refusal.empty()) return refuses_drain();
  const auto of_store = std::ranges::find_if(jobs_, [](const auto& job) { return job.second->spec().has_store(); });
  if (of_store != jobs_.end()) {
    return fmt::format("the weights of job '{}' are in this shard's --store-dir; 'millrace cluster drain' moves them",
                       of_store->second->spec().name);
  }
  return refuses_drain();
}

/// Continues the departure of a shutdown. Where no spare takes the number, the jobs end, in the time that is left.
///
/// REQUIRES: the table was read in this poll, and has no other process of this number.
void ShardCore::advance_departure(TimeNs now, Actions& actions) {
  const std::string why = ends_departure(now, actions);
  if (why.empty()) return;
  draining_until_ = *departing_until_ + half_of_drain();
  departing_until_.reset();
  if (!jobs_.empty()) {
    log(Severity::kInfo, fmt::format("shard {} leaves its number to no spare: {}", config_.shard, why), actions);
  }
}

/// Returns why a shutdown stops waiting for a spare; empty: it waits.
std::string ShardCore::ends_departure(TimeNs now, Actions& actions) {
  const Result<protocol::ClusterView> view = table_.read_cluster();
  if (!view) table_failed(view.error(), actions);
  const bool is_known = view && config_.shard < view->shards.size();
  // The next poll finds the other process.
  if (is_known && view->shards[config_.shard].entry.incarnation > config_.incarnation) return {};
  if (jobs_.empty()) return "it has no jobs";
  if (std::string refusal = refuses_departure(); !refusal.empty()) return refusal;
  if (now >= *departing_until_) return "none has taken it within half of --drain";
  if (!view) return {};
  // The spares of a file are read after its shards, and one may take the number in between: it does not wait either.
  const bool may_be_taken = lease_released_ && !spares_gone_;
  spares_gone_ = view->spares.empty();
  return spares_gone_ && !may_be_taken ? "none waits" : "";
}

}  // namespace millrace::server
