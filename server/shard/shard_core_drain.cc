#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/shard/shard_core.h"

/// An operator's request that this process leaves its number to a spare. The process grants it by giving its lease
/// back, and serves its jobs until a spare has taken the number. Then superseded() hands them over.
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

/// Returns whether this process has granted a request, so that a spare may take its number.
bool ShardCore::is_leaving_number() const { return drain_ && drain_->refusal.empty() && lease_released_; }

void ShardCore::hold_or_release_lease(Actions& actions) {
  if (!drain_) drain_wait_logged_ = false;
  if (drain_ && drain_->refusal.empty()) {
    if (const std::string refusal = refuses_drain(); !refusal.empty()) {
      const protocol::DrainNote answer{config_.incarnation, refusal};
      const Result<bool> answered = table_.set_drain(config_.shard, config_.incarnation, answer);
      if (!answered) {
        table_failed(answered.error(), actions);
      } else {
        drain_ = answer;
        log(Severity::kWarning, fmt::format("shard {} keeps its number: {}", config_.shard, refusal), actions);
      }
    } else if (const std::string waits = finishes_first(); !waits.empty()) {
      if (!std::exchange(drain_wait_logged_, true))
        log(Severity::kInfo, fmt::format("shard {} leaves its number to a spare later: {}", config_.shard, waits),
            actions);
    } else {
      // A process whose number is taken ends at once, and with it the last save of a job that is over.
      const Status released = table_.hold_leaving_lease(config_.shard, config_.incarnation);
      if (!released) return table_failed(released.error(), actions);
      if (std::exchange(lease_released_, true)) return;
      return log(Severity::kInfo,
                 fmt::format("shard {} leaves its number to a spare, as an operator asked", config_.shard), actions);
    }
  }
  lease_released_ = false;
  if (const Status held = table_.hold_lease(config_.shard, config_.incarnation); !held)
    table_failed(held.error(), actions);
}

}  // namespace millrace::server
