#include "worker/core/rejoin/contribution_outcome.h"

#include <algorithm>

#include "protocol/base/limits.h"

namespace millrace::worker {

Fate fate_of(const std::optional<protocol::SummaryEntry>& counted, uint64_t life, uint64_t step, uint32_t staleness) {
  if (!counted || counted->counted_mask == 0 || step > counted->last_step) return Fate::kNotCounted;
  const uint64_t back = counted->last_step - step;
  if (back > staleness || back >= 64) return Fate::kUnknown;
  if ((counted->counted_mask >> back & 1) == 0) return Fate::kNotCounted;
  const auto earlier = std::ranges::find_if(counted->earlier_lives,
                                            [step](const auto& life_and_last) { return life_and_last.second >= step; });
  const uint64_t counted_under = earlier == counted->earlier_lives.end() ? counted->life : earlier->first;
  return counted_under == life ? Fate::kCounted : Fate::kNotCounted;
}

Fate fate_of_sequence(const std::optional<protocol::SummaryEntry>& counted, uint64_t life, uint64_t sequence) {
  if (!counted || life > counted->life) return Fate::kNotCounted;
  if (life == counted->life) return sequence < counted->sequence ? Fate::kCounted : Fate::kNotCounted;
  const auto& lives = counted->earlier_lives;
  const auto own = std::ranges::find(lives, life, &std::pair<uint64_t, uint64_t>::first);
  if (own != lives.end()) return sequence < own->second ? Fate::kCounted : Fate::kNotCounted;
  const bool reaches_back = lives.size() < protocol::kEarlierLivesMax || lives.front().first < life;
  return reaches_back ? Fate::kNotCounted : Fate::kUnknown;
}

bool counted_since(const std::optional<protocol::SummaryEntry>& counted, uint64_t n) {
  return counted && counted->counted_mask != 0 && counted->last_step >= n;
}

}  // namespace millrace::worker
