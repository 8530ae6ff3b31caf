#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "server/rounds/job_rounds.h"

/// Jobs with apply_after_acks (R18): counts the members that have an update, and notifies the members.
namespace millrace::server {

void JobRounds::raise_backed(const protocol::Member& from, const std::map<PartRound*, AckIs>& acks, Actions& actions) {
  std::vector<const PartRound*> raised;
  std::vector<const PartRound*> asked;
  for (const auto& [part, is] : acks) {
    if (part->raise_backed(setup_.members)) {
      raised.push_back(part);
    } else if (is == AckIs::kRepeated && part->backed() != 0) {
      asked.push_back(part);
    }
  }
  tell_backed(raised, setup_.members.synced(), actions);
  if (from.state == protocol::MemberState::kSynced) tell_backed(asked, std::span(&from, 1), actions);
}

void JobRounds::raise_all_backed(Actions& actions) {
  if (!holds_updates()) return;
  std::vector<const PartRound*> raised;
  for (PartRound& part : parts_) {
    if (part.raise_backed(setup_.members)) raised.push_back(&part);
  }
  tell_backed(raised, setup_.members.synced(), actions);
}

void JobRounds::tell_backed(std::span<const PartRound* const> parts, std::span<const protocol::Member> to,
                            Actions& actions) const {
  if (parts.empty()) return;
  protocol::Ack backed;
  for (const PartRound* part : parts) backed.entries.push_back({part->layout().part, part->backed()});
  for (const protocol::Member& member : to) setup_.members.send(member, backed, actions);
}

const PartRound* JobRounds::least_backed() const {
  const PartRound* least = nullptr;
  for (const PartRound& part : parts_) {
    if (part.backed() < part.decided() && (!least || part.backed() < least->backed())) least = &part;
  }
  return holds_updates() ? least : nullptr;
}

void JobRounds::wait_of_backing(const PartRound& part, Waiting& waiting) const {
  waiting.wait = Wait::kAcknowledgements;
  waiting.since = part.turned_at();
  waiting.at = {part.layout().bucket, part.layout().part, part.backed(), 0};
  for (const protocol::Member& member : setup_.members.all()) {
    const bool joins = member.state == protocol::MemberState::kJoining;
    if (joins || part.acknowledged(member.worker) <= part.backed()) waiting.workers.push_back(member.worker);
  }
  waiting.because = fmt::format(
      "step {} of part {} is decided, and applied once {} workers have it (apply_after_acks); worker {} has not said "
      "so",
      part.backed(), part.layout().part, setup_.spec.apply_after_acks, fmt::join(waiting.workers, ", "));
}

}  // namespace millrace::server
