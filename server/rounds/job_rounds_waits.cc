#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "server/rounds/job_rounds.h"
#include "server/status/wait.h"

/// Why the oldest open step stands, and since when.
namespace millrace::server {

const PartRound* JobRounds::oldest_open() const {
  const PartRound* oldest = nullptr;
  for (const PartRound& part : parts_) {
    if (!part.has_any_open()) continue;
    // Of parts at one step, one that still lacks contributions is more informative than one that waits for the others.
    const bool collecting = part.stage() == PartRound::Stage::kCollecting;
    if (!oldest || part.decided() < oldest->decided() ||
        (part.decided() == oldest->decided() && collecting && oldest->stage() != PartRound::Stage::kCollecting)) {
      oldest = &part;
    }
  }
  return oldest;
}

void JobRounds::wait_of_attempt(const PartRound& part, Waiting& waiting) const {
  const std::string step = fmt::format("step {} of part {}", part.decided(), part.layout().part);
  const Bucket& bucket = buckets_.at(bucket_at_.at(part.layout().bucket));
  waiting.since = part.attempt().begun;
  if (part.stage() != PartRound::Stage::kSummed || !bucket.threshold) {
    waiting.wait = Wait::kComputing;
    waiting.because = fmt::format("{} is being summed", step);
    return;
  }
  waiting.wait = Wait::kMagnitudes;
  waiting.shards = bucket.threshold->missing(part.decided());
  waiting.because =
      fmt::format("{} is summed and blocked on the magnitudes of {} {}", step,
                  waiting.shards.empty() ? "the bucket's other parts" : "shard", fmt::join(waiting.shards, ", "));
}

void JobRounds::wait_of_collecting(const PartRound& part, Waiting& waiting) const {
  const std::string step = fmt::format("step {} of part {}", part.decided(), part.layout().part);
  waiting.since = part.collecting_since();
  const std::optional<TimeNs> due = part.due(setup_.members);
  waiting.workers = part.waited_for(setup_.members);
  std::erase_if(waiting.workers, [&part](uint32_t worker) { return part.is_here(worker); });
  if (due && store_ && !store_->takes(part.layout().part, part.decided())) {
    waiting.wait = Wait::kStore;
    waiting.workers = store_->waits_for(setup_.members);
    waiting.because = fmt::format("{} is blocked on the store: {}", step, store_->waiting_because(setup_.members));
  } else if (due && blocked_on_memory_ && is_blocked_on_memory()) {
    waiting.wait = Wait::kMemory;
    waiting.since = *due;
    waiting.workers.clear();
    for (const protocol::Member& member : setup_.members.all()) {
      if (steps_applied(member.worker) < part.decided()) waiting.workers.push_back(member.worker);
    }
    waiting.because = fmt::format(
        "retained updates fill half of the job's memory (--job-memory-bytes-max); {} is blocked until worker {} "
        "acknowledges earlier ones",
        step, fmt::join(waiting.workers, ", "));
  } else if (due && lacks_counts(part)) {
    waiting.wait = Wait::kMagnitudes;
    waiting.workers.clear();
    waiting.shards = bucket_of(part).steps->missing(part.decided());
    waiting.because = fmt::format(
        "{} takes its threshold from step {}, and is blocked on the magnitudes of {} {}", step, part.decided() - 1,
        waiting.shards.empty() ? "the bucket's other parts" : "shard", fmt::join(waiting.shards, ", "));
  } else if (std::vector<uint32_t> joiners = initializing_members(part); !joiners.empty()) {
    waiting.wait = Wait::kContributions;
    waiting.workers = std::move(joiners);
    waiting.because = fmt::format("{} is blocked on worker {}, which takes over the weights of worker 0", step,
                                  fmt::join(waiting.workers, ", "));
  } else if (waiting.workers.empty()) {
    waiting.wait = Wait::kComputing;
    waiting.because = fmt::format("{} is being decoded", step);
  } else if (due) {
    waiting.wait = Wait::kDeadline;
    waiting.due = *due;
    waiting.because = fmt::format("{} has its quorum and waits for worker {} until its deadline", step,
                                  fmt::join(waiting.workers, ", "));
  } else {
    waiting.wait = Wait::kContributions;
    waiting.because = fmt::format("{} is blocked on worker {}", step, fmt::join(waiting.workers, ", "));
  }
}

std::optional<Waiting> JobRounds::waiting() const {
  const PartRound* oldest = oldest_open();
  Waiting waiting;
  const PartRound* unbacked = least_replicated();
  // A worker without the update pushes no further: its contribution is missing because of that.
  if (unbacked && (!oldest || (oldest->stage() == PartRound::Stage::kCollecting && !oldest->due(setup_.members)))) {
    wait_of_replication(*unbacked, waiting);
    return waiting;
  }
  if (!oldest && !starved_) return std::nullopt;
  if (!oldest) {
    waiting.wait = Wait::kMemory;
    waiting.workers = {starved_->worker};
    waiting.since = starved_->since;
    waiting.at = starved_->at;
    waiting.because = fmt::format("the contribution of worker {} is refused: {}", starved_->worker, starved_->because);
    return waiting;
  }
  waiting.at = {oldest->layout().bucket, oldest->layout().part, oldest->decided(), oldest->here()};
  if (oldest->stage() == PartRound::Stage::kCollecting) {
    wait_of_collecting(*oldest, waiting);
  } else {
    wait_of_attempt(*oldest, waiting);
  }
  if (starved_) waiting.because += fmt::format("; contributions are refused: {}", starved_->because);
  return waiting;
}

}  // namespace millrace::server
