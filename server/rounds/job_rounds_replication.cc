#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "server/rounds/job_rounds.h"

/// Jobs with apply_after_acks (R18): counts the members that have an update, and notifies the members.
namespace millrace::server {

void JobRounds::advance_replicated(const protocol::Member& from, const std::map<PartRound*, AckKind>& acks,
                                   Actions& actions) {
  std::vector<const PartRound*> raised;
  std::vector<const PartRound*> asked;
  for (const auto& [part, is] : acks) {
    if (part->advance_replicated(setup_.members)) {
      raised.push_back(part);
    } else if (is == AckKind::kRepeated && part->replicated() != 0) {
      asked.push_back(part);
    }
  }
  announce_replicated(raised, setup_.members.synced(), actions);
  if (from.state == protocol::MemberState::kSynced) announce_replicated(asked, std::span(&from, 1), actions);
}

void JobRounds::advance_all_replicated(Actions& actions) {
  if (!applies_after_acks()) return;
  std::vector<const PartRound*> raised;
  for (PartRound& part : parts_) {
    if (part.advance_replicated(setup_.members)) raised.push_back(&part);
  }
  announce_replicated(raised, setup_.members.synced(), actions);
}

void JobRounds::announce_replicated(std::span<const PartRound* const> parts, std::span<const protocol::Member> to,
                                    Actions& actions) const {
  if (parts.empty()) return;
  protocol::Ack replicated;
  for (const PartRound* part : parts) replicated.entries.push_back({part->layout().part, part->replicated()});
  for (const protocol::Member& member : to) setup_.members.send(member, replicated, actions);
}

const PartRound* JobRounds::least_replicated() const {
  const PartRound* least = nullptr;
  for (const PartRound& part : parts_) {
    if (part.replicated() < part.decided() && (!least || part.replicated() < least->replicated())) least = &part;
  }
  return applies_after_acks() ? least : nullptr;
}

void JobRounds::wait_of_replication(const PartRound& part, Waiting& waiting) const {
  waiting.wait = Wait::kAcknowledgements;
  waiting.since = part.last_decided_at();
  waiting.at = {part.layout().bucket, part.layout().part, part.replicated(), 0};
  for (const protocol::Member& member : setup_.members.all()) {
    const bool joins = member.state == protocol::MemberState::kJoining;
    if (joins || part.acknowledged(member.worker) <= part.replicated()) waiting.workers.push_back(member.worker);
  }
  waiting.because = fmt::format(
      "step {} of part {} is decided, and applied once {} workers have it (apply_after_acks); worker {} has not "
      "acknowledged it",
      part.replicated(), part.layout().part, setup_.spec.apply_after_acks, fmt::join(waiting.workers, ", "));
}

}  // namespace millrace::server
