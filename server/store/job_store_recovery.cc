#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/messages/log_digest.h"
#include "server/store/job_store.h"

/// A store whose shard has restarted (R8), or whose log was cut (R10e): finds the weights that belong to the continued
/// log.
namespace millrace::server {

void JobStore::drop() {
  dropped_ = true;
  loaded_.reset();
  unusable_save_.clear();
  for (Part& part : parts_) {
    // What runs has the arrays, and changes them, unless it reads.
    const bool changed = part.running && !std::holds_alternative<StoreTask::Read>(part.queue.front().work) &&
                         !std::holds_alternative<StoreTask::Copy>(part.queue.front().work);
    if (changed || !part.ready) {
      part.arrays = std::make_shared<StoreArrays>();
      part.filled = false;
    }
    for (Operation& operation : std::exchange(part.queue, {})) {
      if (std::holds_alternative<StoreTask::Read>(operation.work)) part.waiting.push_back(std::move(operation));
    }
    part.running.reset();
    // Runs that have come are dropped with the queue.
    if (!part.ready && part.placed != 0) part.notice = Part::Notice::kOwed;
    part.ready = false;
    part.saved_n = UINT64_MAX;
    part.forgotten = 0;
  }
  first_weights_unsaved_ = false;  // become_ready() sets it again
  saving_.reset();                 // its next part may be of another log
  stale_ = unanswered_;
}

// Compares the digests of the steps, not log branches. A shard that died before any member heard of its log branch may
// have saved under it.
bool JobStore::reaches(const Part& part, const StorePosition& position, const Log& log) {
  const PartRound& rounds = log(part.part);
  uint64_t digest = position.summary.log_digest;
  for (uint64_t step = position.n; step < rounds.decided(); ++step) {
    const PartRound::RetainedUpdate* kept = rounds.retained(step);
    if (!kept) return false;
    digest = protocol::extend_log_digest(digest, kept->body, kept->payload.bytes);
  }
  return position.n <= rounds.decided() && digest == rounds.summary().log_digest;
}

void JobStore::go_on_from(Part& part, StorePosition position, std::shared_ptr<StoreArrays> arrays, const Log& log,
                          Actions& actions) {
  const PartRound& rounds = log(part.part);
  part.arrays = std::move(arrays);
  part.filled = true;
  part.position = std::move(position);
  part.handed = part.position.n;
  for (uint64_t step = part.handed; step < rounds.decided(); ++step) {
    const PartRound::RetainedUpdate& kept = *rounds.retained(step);
    decided(kept.body, kept.payload, actions);
  }
  become_ready(part, actions);
}

bool JobStore::continue_from_initial(Part& part, const Log& log, Actions& actions) {
  const StorePosition beginning;
  if (header_.spec.store.begin == protocol::StoreBegin::kSaved || !reaches(part, beginning, log)) return false;
  const bool placed = header_.spec.store.begin == protocol::StoreBegin::kWorker;
  if (placed && log(part.part).decided() != 0) return false;
  part.position = beginning;
  part.handed = 0;
  part.filled = false;
  part.placed = 0;
  part.arrays = std::make_shared<StoreArrays>();
  ask(part, {.work = StoreTask::Fill{part.dimension}}, actions);
  if (placed) return true;  // the worker whose place_weights() has not returned sends them again
  for (uint64_t step = 0; step < log(part.part).decided(); ++step) {
    const PartRound::RetainedUpdate& kept = *log(part.part).retained(step);
    decided(kept.body, kept.payload, actions);
  }
  return true;
}

bool JobStore::go_on_from_save(Part& part, const Log& log, Actions& actions) {
  const auto saved = std::ranges::find(loaded_->parts, part.part, &StorePart::part);
  if (saved == loaded_->parts.end() || saved->arrays.weights.size() != part.dimension) return false;
  StorePosition position = saved->position;
  if (loaded_->header.job != header_.job) {
    // Of the job that this one began from: its weights are those before the first step.
    if (header_.spec.store.begin != protocol::StoreBegin::kSaved) return false;
    position = {};
  }
  if (!reaches(part, position, log)) return false;
  if (loaded_->header.job == header_.job) part.saved_n = position.n;
  go_on_from(part, std::move(position), std::make_shared<StoreArrays>(std::move(saved->arrays)), log, actions);
  return true;
}

void JobStore::recover(const Log& log, Actions& actions) {
  if (!dropped_ || loading_ || failure_) return;
  const bool may_load = saves_.possible && !loaded_;
  std::vector<Part*> missing;
  for (Part& part : parts_) {
    const bool fills = part.running && std::holds_alternative<StoreTask::Fill>(part.queue.front().work);
    if (part.ready || fills) continue;
    if (part.filled && reaches(part, part.position, log)) {
      go_on_from(part, part.position, part.arrays, log, actions);
      continue;
    }
    if (loaded_ && go_on_from_save(part, log, actions)) continue;
    // A save is tried before zeros: it may spare the replay, and it holds the first weights where a worker placed them.
    if (may_load || !continue_from_initial(part, log, actions)) missing.push_back(&part);
  }
  if (missing.empty()) {
    dropped_ = false;
    loaded_.reset();
    retains_updates_ = true;
    // The save on the disk may be of no use to the next successor.
    const auto unsaved = [](const Part& part) { return part.saved_n == UINT64_MAX && part.position.n != 0; };
    if (std::ranges::any_of(parts_, unsaved)) save(actions);
    save_when_ready(actions);
    return;
  }
  if (may_load) {
    loading_ = true;
    return request(StoreRequest::What::kLoad, {}, actions);
  }
  failure_ = Error{
      ErrorCode::kIo,
      fmt::format(
          "job '{}': the weights that shard {} held of part {} are lost: {} of this job is on its log as far back "
          "as the workers keep updates (--store-dir, --store-save-every){}{}",
          header_.name, header_.shard, missing.front()->part, saves_.possible ? "no save" : "nothing",
          unusable_save_.empty() ? "" : "; ", unusable_save_)};
}

void JobStore::restore(uint32_t number, StorePosition position, StoreArrays arrays, Actions& actions) {
  Part* part = local(number);
  MILLRACE_CHECK(part != nullptr && arrays.weights.size() == part->dimension, number, arrays.weights.size());
  bool copying = false;
  for (Operation& operation : std::exchange(part->queue, {})) {
    copying |= std::holds_alternative<StoreTask::Copy>(operation.work);
    if (std::holds_alternative<StoreTask::Read>(operation.work)) part->waiting.push_back(std::move(operation));
  }
  part->running.reset();
  part->arrays = std::make_shared<StoreArrays>(std::move(arrays));
  part->handed = position.n;
  part->position = std::move(position);
  part->filled = true;
  if (copying) ask(*part, {.work = StoreTask::Copy{}}, actions);
  become_ready(*part, actions);
}

}  // namespace millrace::server
