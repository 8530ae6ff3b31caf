#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "server/store/job_store.h"

/// Saves: begins one, copies and writes one part after another, ends it. Also reads the save that a job begins with.
namespace millrace::server {
namespace {

/// Returns the code that the members of a job receive with a failed load. A damaged save is a damaged file of this
/// shard to them. As a malformed message it would have another exit code at a worker that joins than at one that runs.
ErrorCode load_failure_code(ErrorCode code) { return code == ErrorCode::kMalformed ? ErrorCode::kIo : code; }

}  // namespace

void JobStore::request(StoreRequest::What what, SharedBytes bytes, Actions& actions) {
  if (what != StoreRequest::What::kLoad) ++unanswered_;
  actions.store_requests.push_back({what, header_.job, header_.name, std::move(bytes)});
}

bool JobStore::has_changed() const {
  // The beginning gives zeros and saved weights again: a job without a step must not replace an earlier job's save.
  const bool placed = header_.spec.store.begin == protocol::StoreBegin::kWorker;
  // What waits to be applied is in it: a part is copied in its turn.
  return std::ranges::any_of(
      parts_, [placed](const Part& part) { return (placed || part.handed != 0) && part.saved_n != part.handed; });
}

bool JobStore::is_ready() const { return std::ranges::all_of(parts_, &Part::ready); }

bool JobStore::is_idle() const {
  return std::ranges::all_of(parts_, [](const Part& part) { return part.queue.empty(); });
}

/// Returns whether all weights are there, and no save has them.
bool JobStore::can_save() const {
  return saves_.possible && !failure_ && !parts_.empty() && is_ready() && has_changed();
}

void JobStore::save(Actions& actions) {
  if (!saves_.possible || failure_) return;
  // Weights that are not all there are worth nothing.
  if (saving_ || !is_ready()) {
    save_again_ = true;
    return;
  }
  save_again_ = false;
  if (!can_save()) return;
  const StoreRecord header = encode_store_header(header_);
  ByteBuffer bytes(store_file_magic().begin(), store_file_magic().end());
  bytes.insert(bytes.end(), header.bytes.begin(), header.bytes.end());
  saving_ = Saving{.next = 0, .hash = header.hash, .n = {}, .bytes = bytes.size()};
  request(StoreRequest::What::kBegin, SharedBytes::from(std::move(bytes)), actions);
}

void JobStore::save_when_ready(Actions& actions) {
  if (save_again_ && !dropped_ && !saving_ && is_ready()) save(actions);
}

void JobStore::go_on_saving(Actions& actions) {
  if (saving_->next < parts_.size()) return ask(parts_[saving_->next], {.work = StoreTask::Copy{}}, actions);
  saving_->stage = Saving::Stage::kWaiting;
  end_acknowledged(actions);
}

void JobStore::acknowledged(uint32_t number, uint64_t n, uint64_t stable) {
  Part* part = local(number);
  MILLRACE_CHECK(part != nullptr, number);
  part->acknowledged = n;
  part->forgotten = stable;
}

void JobStore::end_acknowledged(Actions& actions) {
  if (!saving_ || saving_->stage != Saving::Stage::kWaiting) return;
  // A step that was sent to no worker yet is void if this shard dies now, and with it a save that has it. After the
  // job's end, no process continues the log.
  for (size_t at = 0; at < parts_.size() && !ended_; ++at) {
    if (parts_[at].acknowledged < saving_->n[at]) return;
  }
  end_saving(actions);
}

void JobStore::end_saving(Actions& actions) {
  StoreRecord end = encode_store_end(header_.parts, saving_->hash);
  saving_->stage = Saving::Stage::kEnding;
  saving_->bytes += end.bytes.size();
  request(StoreRequest::What::kEnd, SharedBytes::from(std::move(end.bytes)), actions);
}

void JobStore::copied(Part& part, const SharedBytes& record, Actions& actions) {
  if (!saving_) return;
  saving_->hash = store_record_hash(record.bytes);
  saving_->n.push_back(part.position.n);
  saving_->bytes += record.bytes.size();
  ++saving_->next;
  request(StoreRequest::What::kAppend, record, actions);
}

uint64_t JobStore::needs_from(uint32_t number) const {
  const Part* part = local(number);
  MILLRACE_CHECK(part != nullptr, number);
  if (dropped_) return 0;  // recover() may need all there is
  if (!saves_.possible || !retains_updates_ || ended_) return UINT64_MAX;
  return begins_from(*part);
}

void JobStore::on_retained(uint64_t bytes, uint64_t bytes_max, Actions& actions) {
  if (!saves_.possible || dropped_ || ended_) return;
  const uint64_t most = std::min(bytes_max, std::max(kRetainedBytesMin, 2 * charge_.bytes()));
  if (bytes > most / 2 && !saving_ && !save_failed_) save(actions);
  if (bytes <= most || !retains_updates_) return;
  retains_updates_ = false;
  actions.log.push_back(
      {Severity::kWarning,
       fmt::format("job '{}': {} bytes of updates are kept, and its store is not saved: they are forgotten. Until the "
                   "next save the job does not survive a restart of this shard",
                   header_.name, bytes)});
}

void JobStore::on_written(const Status& written, Actions& actions) {
  --unanswered_;
  if (stale_ != 0) {
    --stale_;
    return;
  }
  if (!saving_) return;
  if (!written) return save_failed(written.error(), actions);
  if (saving_->stage != Saving::Stage::kEnding) return go_on_saving(actions);
  for (size_t at = 0; at < parts_.size(); ++at) parts_[at].saved_n = saving_->n[at];
  const auto [least, most] = std::ranges::minmax(saving_->n);
  actions.log.push_back({Severity::kInfo, fmt::format("job '{}': its store is saved, {} bytes, after {} steps{}",
                                                      header_.name, saving_->bytes, least,
                                                      least == most ? "" : fmt::format(" to {} of a part", most))});
  count(Metric::kStoreSaves, "written", actions);
  ++saves_written_;
  last_failure_.clear();
  save_failed_ = false;
  retry_at_.reset();
  retains_updates_ = true;
  saving_.reset();
  // While it was written, updates after its position were forgotten. From now on they are retained: the next save is
  // whole.
  if (lacks_updates()) save_again_ = true;
  end_first_save(actions);
  save_when_ready(actions);
  advance_end(actions);
}

/// Returns whether updates are forgotten that a successor of this shard would need after the save that it begins with.
bool JobStore::lacks_updates() const {
  return std::ranges::any_of(parts_, [](const Part& part) { return part.forgotten > begins_from(part); });
}

/// Answers the pulls that waited for the first weights to be saved. The save may have failed.
void JobStore::end_first_save(Actions& actions) {
  if (!std::exchange(first_weights_unsaved_, false)) return;
  for (Part& part : parts_) begin_waiting(part, actions);
}

void JobStore::save_failed(const Error& why, Actions& actions) {
  actions.log.push_back({Severity::kError, fmt::format("job '{}': its store could not be saved: {}; the save before "
                                                       "stays as it is",
                                                       header_.name, why.message)});
  count(Metric::kStoreSaves, "failed", actions);
  ++saves_failed_;
  last_failure_ = why.message;
  save_failed_ = true;
  saving_.reset();
  end_first_save(actions);
  save_when_ready(actions);
  advance_end(actions);
}

void JobStore::on_loaded(Result<StoreFile> loaded, Actions& actions) {
  loading_ = false;
  if (failure_ || ended_) return;
  if (dropped_) {
    const Status usable = loaded ? may_start_with(*loaded, header_) : std::unexpected(loaded.error());
    // A save that cannot be used counts as none: recover() handles that case.
    loaded_ = usable ? std::move(*loaded) : StoreFile{};
    if (usable) return;
    unusable_save_ = usable.error().message;
    actions.log.push_back(
        {Severity::kWarning, fmt::format("job '{}': its save is not used: {}", header_.name, unusable_save_)});
    return;
  }
  if (!loaded) {
    failure_ = Error{load_failure_code(loaded.error().code),
                     fmt::format("job '{}' is to begin with saved weights: {}", header_.name, loaded.error().message)};
    return;
  }
  Status fits = may_start_with(*loaded, header_);
  for (size_t at = 0; fits && at < parts_.size(); ++at) {
    const StorePart& saved = loaded->parts[at];
    if (saved.part == parts_[at].part && saved.arrays.weights.size() == parts_[at].dimension) continue;
    fits =
        fail(ErrorCode::kMalformed, fmt::format("the save of job '{}' has other parts than its header says", name()));
  }
  if (!fits) {
    failure_ = Error{load_failure_code(fits.error().code), fits.error().message};
    return;
  }
  for (size_t at = 0; at < parts_.size(); ++at) {
    parts_[at].arrays = std::make_shared<StoreArrays>(std::move(loaded->parts[at].arrays));
    parts_[at].filled = true;
    become_ready(parts_[at], actions);
  }
  actions.log.push_back(
      {Severity::kInfo, fmt::format("job '{}': its store begins with what job {} saved after {} steps", header_.name,
                                    loaded->header.job, loaded->parts.empty() ? 0 : loaded->parts[0].position.n)});
}

void JobStore::on_tick(TimeNs now, Actions& actions) {
  if (save_failed_ && !retry_at_) retry_at_ = now + kRetryAfter;
  const bool again = retry_at_ && now >= *retry_at_;
  const bool due = saves_.every != 0 && !ended_ && now >= next_save_;
  if (due) next_save_ = now + saves_.every;
  if (again) retry_at_.reset();
  if ((again || due) && !saving_) save(actions);  // the disk is slower than the interval: this one is left out
  advance_end(actions);
}

std::optional<TimeNs> JobStore::deadline() const {
  if (saves_.every == 0 || ended_) return retry_at_;
  return retry_at_ ? std::min(*retry_at_, next_save_) : next_save_;
}

void JobStore::end(MemoryAccount& account, Actions& actions) {
  ended_ = true;
  for (Part& part : parts_) {
    part.waiting.clear();
    for (Operation& operation : part.queue) operation.charge = {};
    // The first may be running; its result is awaited. Nothing here takes memory.
    for (size_t at = part.running ? 1 : 0; at < part.queue.size();) {
      const StoreTask::Work& work = part.queue[at].work;
      const bool of_members =
          std::holds_alternative<StoreTask::Read>(work) || std::holds_alternative<StoreTask::Place>(work);
      at = of_members ? static_cast<size_t>(part.queue.erase(part.queue.begin() + static_cast<ptrdiff_t>(at)) -
                                            part.queue.begin())
                      : at + 1;
    }
  }
  queued_bytes_.reset();
  charge_ = MemoryCharge(account, charge_.bytes());
  account_ = &account;
  // The last save is tried at once, also where one has failed before.
  save_failed_ = false;
  retry_at_.reset();
  advance_end(actions);
}

void JobStore::advance_end(Actions& actions) {
  if (ended_) end_acknowledged(actions);
  // The decided steps go into the last save. One that has failed is tried again by on_tick().
  if (!ended_ || saving_ || save_failed_ || !is_idle() || !can_save()) return;
  save(actions);
}

bool JobStore::over() const {
  if (!ended_) return false;
  return failure_.has_value() || (!saving_ && is_idle() && !can_save());
}

/// Returns whether a successor of this shard finds the weights: by the last save, or the beginning, and by the updates
/// that are retained since. Until placed weights are saved, their worker places them again.
bool JobStore::survives_restart() const {
  if (!saves_.possible || !retains_updates_ || dropped_ || lacks_updates()) return false;
  const bool placed = header_.spec.store.begin == protocol::StoreBegin::kWorker;
  if (!placed || first_weights_unsaved_ || !is_ready()) return true;
  return std::ranges::none_of(parts_, [](const Part& part) { return part.saved_n == UINT64_MAX; });
}

StoreStatus JobStore::status() const {
  StoreStatus status;
  status.optimizer = optimizer_text(header_.spec.store.optimizer);
  status.ready = is_ready();
  status.bytes = charge_.bytes();
  status.steps_applied = status.saved_steps = parts_.empty() ? 0 : UINT64_MAX;
  for (const Part& part : parts_) {
    status.steps_applied = std::min(status.steps_applied, part.position.n);
    status.saved_steps = std::min(status.saved_steps, begins_from(part));
    status.pulls_waiting += part.waiting.size();
  }
  status.saves_written = saves_written_;
  status.saves_failed = saves_failed_;
  status.last_failure = last_failure_;
  status.survives_restart = survives_restart();
  return status;
}

}  // namespace millrace::server
