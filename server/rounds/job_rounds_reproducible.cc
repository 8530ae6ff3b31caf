#include <algorithm>

#include "server/rounds/job_rounds.h"

/// Re-selection in reproducible jobs: a part is cut while it is summed, by the decisions of the step before on all
/// shards.
namespace millrace::server {

bool JobRounds::lacks_counts(const PartRound& part) const {
  const StepThreshold* steps = bucket_of(part).steps.get();
  return steps != nullptr && !steps->threshold(part.decided());
}

void JobRounds::count_step(PartRound& part, uint64_t step, SharedHistogram histogram, TimeNs now, Actions& actions) {
  Bucket& bucket = bucket_of(part);
  if (!bucket.steps || failure_) return;
  const SharedHistogram own = bucket.steps->on_decided(index_in(bucket, part), step, std::move(histogram), now);
  if (!own) return;
  std::vector<uint32_t> others = bucket.steps->shards();
  std::erase(others, setup_.shard);
  say_histogram(bucket, step, *own, others, actions);
  if (bucket.steps->threshold(step + 1)) advance_bucket(bucket, now, actions);
}

void JobRounds::on_step_histogram(Bucket& bucket, uint32_t shard, uint64_t step, SharedHistogram histogram, TimeNs now,
                                  Actions& actions) {
  switch (bucket.steps->on_remote(shard, step, std::move(histogram))) {
    case StepThreshold::Remote::kTaken:
      if (bucket.steps->threshold(step + 1)) advance_bucket(bucket, now, actions);
      return;
    case StepThreshold::Remote::kRepeated:
      count(Metric::kLateHistograms, "", 1, actions);
      if (const SharedHistogram own = bucket.steps->answer_to(shard, step, now)) {
        say_histogram(bucket, step, *own, std::span(&shard, 1), actions);
      }
      return;
    case StepThreshold::Remote::kLate: return count(Metric::kLateHistograms, "", 1, actions);
    case StepThreshold::Remote::kAhead: return count(Metric::kDropped, "histogram_ahead", 1, actions);
    case StepThreshold::Remote::kUnknownShard: return count(Metric::kDropped, "unknown_shard", 1, actions);
  }
}

void JobRounds::repeat_histograms(TimeNs now, Actions& actions) {
  for (Bucket& bucket : buckets_) {
    if (!bucket.steps) continue;
    const std::optional<StepThreshold::Repeat> again = bucket.steps->repeat(now);
    if (again) say_histogram(bucket, again->step, *again->own, again->to, actions);
  }
}

void JobRounds::advance_bucket(const Bucket& bucket, TimeNs now, Actions& actions) {
  for (size_t at = bucket.first; at < bucket.first + bucket.count; ++at) advance(parts_[at], now, actions);
}

}  // namespace millrace::server
