#include <algorithm>
#include <utility>

#include "worker/core/rejoin/contribution_outcome.h"
#include "worker/core/session_core_impl.h"

/// Mode asynchronous (R16): each contribution is a step of the log by itself. This worker numbers its contributions
/// within its incarnation and the part. The update that names a contribution resolves it, at any step; all other
/// updates are only applied.
namespace millrace::worker {

uint64_t SessionCore::Impl::take_sequence(PartRun& part) const {
  if (std::exchange(part.sequence_incarnation, incarnation) != incarnation) part.next_sequence = 0;
  return part.next_sequence++;
}

double SessionCore::Impl::denominator_of(const protocol::Update& update) const {
  if (update.merged.empty())
    return protocol::denominator_of(config.spec.combine, update.contributors.size(), update.weight_sum);
  return protocol::denominator_of(config.spec.combine, 1, update.merged.front().weight);
}

bool SessionCore::Impl::may_be_merged(const protocol::Update& update) const {
  const double denominator = denominator_of(update);
  return asynchronous() && update.whole_sum && std::ranges::all_of(update.merged, [&](const protocol::MergedStep& one) {
           return protocol::denominator_of(config.spec.combine, 1, one.weight) == denominator;
         });
}

std::vector<SessionCore::Impl::OwnContribution> SessionCore::Impl::own_contributions(
    const protocol::Update& update) const {
  std::vector<OwnContribution> own;
  const auto look_at = [&](const protocol::ContributorId& one, uint64_t step) {
    if (one.worker == config.worker) own.push_back({one, step});
  };
  for (const protocol::ContributorId& one : update.contributors) look_at(one, update.step);
  for (size_t i = 0; i < update.merged.size(); ++i) {
    look_at(update.merged[i].contributor, update.step - (update.merged.size() - 1 - i));
  }
  return own;
}

// Contributions of one incarnation are counted in the order of their numbers. Those of an earlier incarnation are
// counted before all of a later one. So unnamed contributions that were sent before a named one are never counted.
std::optional<uint64_t> SessionCore::Impl::resolve_listed(PartRun& part, const protocol::Update& update,
                                                          const SharedStream& carried, Actions& actions) {
  std::optional<uint64_t> push;
  for (const auto& [own, step] : own_contributions(update)) {
    const auto named = std::ranges::find_if(part.outstanding, [&own](const Outstanding& out) {
      return out.incarnation == own.incarnation && out.sequence == own.sequence;
    });
    if (named == part.outstanding.end()) continue;
    for (auto out = part.outstanding.begin(); out != named; ++out) give_back(part, *out);
    resolve_counted(part, step, *named, update, carried);
    push = named->step;
    part.outstanding.erase(part.outstanding.begin(), std::next(named));
  }
  while (push && part.answers < *push) answer_without_update(part, part.answers, part.n, actions);
  return push;
}

// R16c: contributions that the new weights contain are applied. Those counted beyond them wait for their update, since
// a decided step may still become void. Those that the summary does not name can never be counted any more.
void SessionCore::Impl::resolve_sequences(PartRun& part, const protocol::Settle& settle, uint64_t next) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  std::optional<protocol::SummaryEntry> in_weights;
  if (next > part.n && part.incoming) {
    const auto& workers = part.incoming->summary.workers;
    const auto own = std::ranges::find(workers, config.worker, &protocol::SummaryEntry::worker);
    if (own != workers.end()) in_weights = *own;
  }
  for (Outstanding& out : std::exchange(part.outstanding, {})) {
    const ContributionOutcome applied = sequence_outcome_of(in_weights, out.incarnation, out.sequence);
    if (applied == ContributionOutcome::kCounted) {
      was_applied(part, in_weights->last_step, out, nullptr);
    } else if (applied == ContributionOutcome::kUnknown) {
      lose_unreturnable(part, out);
    } else if (sequence_outcome_of(settle.counted, out.incarnation, out.sequence) == ContributionOutcome::kNotCounted) {
      ++counters.not_counted;
      bucket.return_to_quarantine(part.at, out.sent.copy());
    } else {
      part.outstanding.push_back(std::move(out));
    }
  }
}

// Contributions of earlier incarnations wait for their update. If that became void, they wait for an update of this
// incarnation, which follows it. An empty contribution ensures that there is one: possibly no worker pushes again.
void SessionCore::Impl::restart_sequences(Actions& actions) {
  for (BucketRun& run : buckets) run.returned_to = run.selected;
  for (PartRun& part : parts) {
    answer_returned(part, actions);
    if (part.outstanding.empty()) continue;
    Outstanding out;
    out.step = part.outstanding.back().step;
    out.incarnation = incarnation;
    out.sequence = take_sequence(part);
    out.sent = SharedStream::from(Stream::empty(part.dimension()));
    make_empty(part, out);
    part.outstanding.push_back(std::move(out));
  }
  for (BucketRun& run : buckets) answer_pushes(run);
}

}  // namespace millrace::worker
