#include <algorithm>

#include "protocol/messages/participants.h"
#include "server/part/part_round.h"

/// Decides which members a step waits for, and for how long.
///
/// A member that is left out loses nothing: the update does not name it, and it takes its sent entries back (R4). So
/// every choice here is safe; the choices differ in how much a step carries and how soon. No step waits for joining
/// members (R3a).
///
///   synchronous        every synced member.
///   asynchronous       no member: a step is the contribution whose turn it is (Arrivals).
///   bounded staleness  a quorum and the deadline. For members that were left out of `staleness` steps in a row, it
///                      waits without limit.
///   partial            a quorum and the deadline. With participants only these are expected; without quorum and
///                      deadline the step waits for all of them.
namespace millrace::server {

using protocol::Mode;

bool PartRound::is_in(uint32_t worker) const {
  const auto open = open_.find(decided_);
  if (open == open_.end()) return false;
  const auto slot = open->second.by_worker.find(worker);
  return slot != open->second.by_worker.end() && slot->second.is_decoded();
}

/// Returns the steps before decided() that were decided without the worker, up to the last one with it.
uint64_t PartRound::left_out(uint32_t worker) const {
  const auto at = std::ranges::lower_bound(summary_.workers, worker, {}, &protocol::SummaryEntry::worker);
  const bool ever = at != summary_.workers.end() && at->worker == worker;
  return ever ? decided_ - at->last_step - 1 : decided_;
}

std::optional<TimeNs> PartRound::due(const Members& members) const {
  const auto found = open_.find(decided_);
  if (stage_ != Stage::kCollecting || members.synced().empty() || found == open_.end()) return std::nullopt;
  const OpenStep& open = found->second;
  if (open.decoded == 0) return std::nullopt;
  // Only synced members under their present incarnations are open (admission, adopt), so counting is enough.
  if (asynchronous() || open.decoded == members.synced().size()) return open.timing.last;
  if (spec_->mode == Mode::kSynchronous) return std::nullopt;
  // Contributions that have arrived are counted: they are decoded soon.
  if (open.decoded < open.by_worker.size()) return std::nullopt;
  // The common answer, without looking at every member: too few are in, and enough of them may still come.
  const size_t quorum = spec_->quorum;
  if (spec_->participants == 0 && open.decoded < quorum && members.pushing().size() >= quorum) return std::nullopt;
  const std::vector<uint32_t> absent = waited_for(members);
  if (absent.empty()) return open.timing.last;
  if (spec_->quorum == 0 && spec_->deadline.count() == 0) return std::nullopt;  // all participants, no other member
  // A quorum, or fewer where fewer contributions can still arrive.
  const auto may_come =
      std::ranges::count_if(members.pushing(), [this](const protocol::Member& one) { return !is_in(one.worker); });
  if (open.decoded < std::min<size_t>(quorum, open.decoded + static_cast<size_t>(may_come))) return std::nullopt;
  const bool bounded = spec_->mode == Mode::kBoundedStaleness;
  if (bounded && std::ranges::any_of(absent, [&](uint32_t worker) { return left_out(worker) >= spec_->staleness; })) {
    return std::nullopt;
  }
  return std::max(open.timing.first, last_decided_at_) + spec_->deadline.count() * kNsPerMs;
}

std::vector<uint32_t> PartRound::waited_for(const Members& members) const {
  std::vector<uint32_t> missing;
  if (asynchronous()) return missing;
  const bool all = spec_->mode == Mode::kSynchronous;
  for (const uint32_t worker : protocol::participants_of(*spec_, members.all(), decided_)) {
    const Members::Link* link = members.link(worker);
    if (!is_in(worker) && (all || !link || !link->finishing)) missing.push_back(worker);
  }
  return missing;
}

}  // namespace millrace::server
