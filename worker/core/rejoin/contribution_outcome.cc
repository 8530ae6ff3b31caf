#include "worker/core/rejoin/contribution_outcome.h"

#include <algorithm>

#include "protocol/base/limits.h"

namespace millrace::worker {

ContributionOutcome contribution_outcome_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t incarnation,
                                            uint64_t step, uint32_t staleness) {
  if (!counted || counted->counted_mask == 0 || step > counted->last_step) return ContributionOutcome::kNotCounted;
  const uint64_t back = counted->last_step - step;
  if (back > staleness || back >= 64) return ContributionOutcome::kUnknown;
  if ((counted->counted_mask >> back & 1) == 0) return ContributionOutcome::kNotCounted;
  const auto earlier = std::ranges::find_if(counted->earlier_incarnations, [step](const auto& incarnation_and_last) {
    return incarnation_and_last.second >= step;
  });
  const uint64_t counted_under = earlier == counted->earlier_incarnations.end() ? counted->incarnation : earlier->first;
  return counted_under == incarnation ? ContributionOutcome::kCounted : ContributionOutcome::kNotCounted;
}

ContributionOutcome sequence_outcome_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t incarnation,
                                        uint64_t sequence) {
  if (!counted || incarnation > counted->incarnation) return ContributionOutcome::kNotCounted;
  if (incarnation == counted->incarnation)
    return sequence < counted->sequence ? ContributionOutcome::kCounted : ContributionOutcome::kNotCounted;
  const auto& incarnations = counted->earlier_incarnations;
  const auto own = std::ranges::find(incarnations, incarnation, &std::pair<uint64_t, uint64_t>::first);
  if (own != incarnations.end())
    return sequence < own->second ? ContributionOutcome::kCounted : ContributionOutcome::kNotCounted;
  const bool reaches_back =
      incarnations.size() < protocol::kEarlierIncarnationsMax || incarnations.front().first < incarnation;
  return reaches_back ? ContributionOutcome::kNotCounted : ContributionOutcome::kUnknown;
}

bool counted_since(const std::optional<protocol::SummaryEntry>& counted, uint64_t n) {
  return counted && counted->counted_mask != 0 && counted->last_step >= n;
}

}  // namespace millrace::worker
