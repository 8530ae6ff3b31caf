#include <fmt/format.h>

#include <utility>

#include "server/shard/shard_core.h"

/// The stores of jobs: their memory at a shard, pulls, saves, and the end of a store after its job.
namespace millrace::server {
namespace {

/// A store may have this share of a job's memory; the rest is the rounds'.
constexpr uint64_t kStoreShare = 2;

}  // namespace

/// Returns the memory of the job's weights, optimizer state and history here.
uint64_t ShardCore::array_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout) const {
  return store_bytes(spec, layout, config_.shard) + history_bytes(spec, layout, config_.shard);
}

Status ShardCore::judge_store(const protocol::JobSpec& spec, const protocol::JobLayout& layout,
                              uint64_t job_bytes_max) const {
  if (spec.store.begin == protocol::StoreBegin::kSaved && !config_.saves.possible) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the job is to begin with saved weights, and shard {} keeps no saves (--store-dir)",
                            config_.shard));
  }
  if (spec.has_store() && config_.saves.possible && config_.saves.judge) {
    // Checked here, so that the job does not fail after a training whose result it must save.
    if (const Status can = config_.saves.judge(spec.name); !can) {
      return fail(ErrorCode::kUnsupported, fmt::format("the store's saves would have no place at shard {}: {}",
                                                       config_.shard, can.error().message));
    }
  }
  const uint64_t arrays = array_bytes(spec, layout);
  const uint64_t bytes = arrays + record_bytes(spec, layout, config_.shard);
  if (bytes > job_bytes_max / kStoreShare) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("{} bytes of weights, optimizer state, history and records of parts and workers, over "
                            "1/{} of this shard's limit of {} (--job-memory-bytes-max, or the quota of the key that "
                            "created the job)",
                            bytes, kStoreShare, job_bytes_max));
  }
  const uint64_t bytes_max = config_.limits.shard_memory_bytes_max;
  const uint64_t ending = bytes_of_ending_stores();
  // Other jobs' contributions pass, and each job has its fair share: records are compared with other jobs' arrays and
  // records.
  uint64_t used = ending;
  uint64_t asked = bytes;
  for (const auto& [number, opened] : opened_)
    if (jobs_.contains(number)) used += opened.fixed_bytes;  // not of a job whose opening broke off
  if (arrays != 0 && memory_.used_bytes() + arrays > used + asked) {
    used = memory_.used_bytes();
    asked = arrays;
  }
  if (asked != 0 && used + asked > bytes_max) {
    const bool is_short = used - ending + asked <= bytes_max;
    return fail(is_short ? ErrorCode::kUnavailable : ErrorCode::kLimitExceeded,
                fmt::format("{} bytes of weights, optimizer state, history and records of parts and workers where jobs "
                            "use {} of this shard's {} (--shard-memory-bytes-max){}",
                            asked, used, bytes_max,
                            ending == 0 ? "" : fmt::format("; the last saves of ended jobs will free {}", ending)));
  }
  return {};
}

void ShardCore::on_pull(Job& job, const protocol::Member& member, protocol::Message message, Actions& actions) {
  JobStore* store = job.rounds().store();
  const auto* pull = std::get_if<protocol::Pull>(&message.body);
  const auto* place = std::get_if<protocol::Place>(&message.body);
  if (store && pull) return store->on_pull(member, *pull, std::move(message.payload), job.members(), actions);
  if (store && place) return store->on_place(member, *place, std::move(message.payload), job.members(), actions);
  if (!pull) return count(Metric::kDropped, "impossible_place", actions);
  protocol::Pulled pulled;
  pulled.id = pull->id;
  pulled.part = pull->part;
  pulled.code = ErrorCode::kInvalidArgument;
  pulled.sentence = fmt::format("job '{}' has no store", job.spec().name);
  job.members().send(member, std::move(pulled), actions);
}

void ShardCore::save_stores(TimeNs now, Actions& actions) {
  note_time(now);
  if (!config_.saves.possible) {
    return log(Severity::kWarning, "asked to save the stores of jobs, and there is no place for it (--store-dir)",
               actions);
  }
  for (const auto& [number, job] : jobs_) {
    catch_out_of_memory(number, actions, [&job, &actions] {
      if (JobStore* store = job->rounds().store()) store->save(actions);
    });
  }
}

const JobStore* ShardCore::store(uint64_t number) const {
  const auto at = jobs_.find(number);
  return at == jobs_.end() ? nullptr : std::as_const(at->second->rounds()).store();
}

JobStore* ShardCore::ending_store(uint64_t job) {
  const auto at = ending_stores_.find(job);
  return at == ending_stores_.end() ? nullptr : at->second.get();
}

void ShardCore::forget_ended_store(uint64_t job, Actions& actions) {
  const auto at = ending_stores_.find(job);
  if (at == ending_stores_.end() || (at->second && !at->second->over())) return;
  if (at->second) give_up_save(job, *at->second, actions);
  ending_stores_.erase(at);
}

/// Removes the file of a save that no later request will end.
void ShardCore::give_up_save(uint64_t job, const JobStore& store, Actions& actions) const {
  if (config_.saves.possible && (store.is_saving() || store.is_dropped()))
    actions.store_requests.push_back({StoreRequest::What::kGiveUp, job, store.name(), {}});
}

/// Returns the bytes of the weights that only their last save frees.
uint64_t ShardCore::bytes_of_ending_stores() const {
  uint64_t bytes = 0;
  for (const auto& [number, store] : ending_stores_) bytes += store ? store->bytes() : 0;
  return bytes;
}

void ShardCore::retry_last_saves(TimeNs now, Actions& actions) {
  for (auto at = ending_stores_.begin(); at != ending_stores_.end();) {
    const uint64_t number = at->first;
    JobStore* store = at++->second.get();  // forgetting erases it
    catch_out_of_memory(std::nullopt, actions, [&] {
      if (store) store->on_tick(now, actions);
      forget_ended_store(number, actions);
    });
  }
}

/// Drops the stores whose last save has failed: a shutdown does not wait for their disk.
void ShardCore::give_up_last_saves(Actions& actions) {
  for (auto at = ending_stores_.begin(); at != ending_stores_.end();) {
    const JobStore* store = at->second.get();
    if (!store || store->is_saving() || !store->deadline()) {
      ++at;
      continue;
    }
    log(Severity::kError,
        fmt::format("job '{}' ({}) is over, and its last save has failed: {}; the save before stays as it is",
                    store->name(), at->first, store->status().last_failure),
        actions);
    at = ending_stores_.erase(at);
  }
}

void ShardCore::on_last_task_done(const StoreTask& task, Actions& actions) {
  JobStore* store = ending_store(task.job());
  if (!store) return;  // the job has no store any more
  catch_out_of_memory(std::nullopt, actions, [&] {
    store->on_task_done(task, nullptr, actions);
    forget_ended_store(task.job(), actions);
  });
}

void ShardCore::end_store(Job& job, Actions& actions) {
  JobStore* store = job.rounds().store();
  if (!store || !config_.saves.possible) return;
  const uint64_t number = job.membership().job;
  std::unique_ptr<JobStore>& left = ending_stores_[number];  // before the job loses it
  store->end(memory_, actions);
  left = job.rounds().take_store();
  forget_ended_store(number, actions);
}

void ShardCore::on_store_written(uint64_t number, const Status& written, TimeNs now, Actions& actions) {
  note_time(now);
  if (JobStore* store = ending_store(number)) {
    catch_out_of_memory(std::nullopt, actions, [&] {
      store->on_written(written, actions);
      forget_ended_store(number, actions);
    });
    if (draining_until_) catch_out_of_memory(std::nullopt, actions, [&] { advance_shutdown(now, actions); });
    return;
  }
  Job* job = find_job(number);
  if (!job || !job->rounds().store()) return;
  catch_out_of_memory(number, actions, [&] {
    job->rounds().on_store_written(written, now, actions);
    close_if_failed(*job, actions);
  });
}

void ShardCore::on_store_loaded(uint64_t number, Result<StoreFile> loaded, TimeNs now, Actions& actions) {
  note_time(now);
  Job* job = find_job(number);
  if (!job || !job->rounds().store()) return;
  catch_out_of_memory(number, actions, [&] {
    job->rounds().store()->on_loaded(std::move(loaded), actions);
    job->rounds().on_store_moved(now, actions);
    close_if_failed(*job, actions);
  });
}

}  // namespace millrace::server
