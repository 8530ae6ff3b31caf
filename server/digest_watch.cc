#include "server/digest_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/job_rounds.h"

namespace millrace::server {

DigestWatch::News DigestWatch::differs(const protocol::Member& member, uint32_t part, uint64_t steps, TimeNs now) {
  const auto first = known_.lower_bound({member.worker, 0});
  const bool any = first != known_.end() && first->first.first == member.worker;
  known_.try_emplace({member.worker, part}, Disagreement{member.worker, member.life, part, steps, now});
  return any ? News::kNone : News::kFirstOfWorker;
}

DigestWatch::News DigestWatch::agrees(const protocol::Member& member, uint32_t part) {
  if (known_.empty() || known_.erase({member.worker, part}) == 0) return News::kNone;
  const auto left = known_.lower_bound({member.worker, 0});
  return left != known_.end() && left->first.first == member.worker ? News::kNone : News::kAgreesAgain;
}

void DigestWatch::keep(std::span<const protocol::Member> members) {
  std::erase_if(known_, [members](const auto& entry) {
    return std::ranges::none_of(members, [&](const protocol::Member& member) {
      return member.worker == entry.second.worker && member.life == entry.second.life;
    });
  });
}

std::vector<Disagreement> DigestWatch::all() const {
  std::vector<Disagreement> out;
  for (const auto& [key, one] : known_) out.push_back(one);
  return out;
}

void JobRounds::on_digests(const protocol::Member& from, std::span<const protocol::Heartbeat::Digest> digests,
                           TimeNs now, Actions& actions) {
  for (const protocol::Heartbeat::Digest& theirs : digests) {
    PartRound* part = local_part(theirs.part);
    if (part && !part->takes(from)) continue;  // its weights are not settled
    if (!part || theirs.n > part->decided()) {
      count(Metric::kDropped, "impossible_digest", 1, actions);
      continue;
    }
    // An acknowledgement may be lost, and nothing be sent that would bring another one.
    if (asynchronous() && part->acknowledge(from.worker, theirs.n, setup_.members.all()))
      acknowledged(from, *part, theirs.n, actions);
    const std::optional<uint64_t> ours = part->digest_after(theirs.n);
    if (!ours) {
      count(Metric::kDigests, "too_old", 1, actions);
      continue;
    }
    const bool equal = *ours == theirs.digest;
    count(Metric::kDigests, equal ? "agree" : "differ", 1, actions);
    const DigestWatch::News news =
        equal ? digest_watch_.agrees(from, theirs.part) : digest_watch_.differs(from, theirs.part, theirs.n, now);
    if (news == DigestWatch::News::kFirstOfWorker) {
      actions.log.push_back(
          {Severity::kError, fmt::format("job '{}': worker {} has not applied what this shard decided: after {} steps "
                                         "of part {} its digest is {:016x}, not {:016x}; its weights are not those of "
                                         "the others",
                                         setup_.spec.name, from.worker, theirs.n, theirs.part, theirs.digest, *ours)});
    } else if (news == DigestWatch::News::kAgreesAgain) {
      actions.log.push_back({Severity::kInfo, fmt::format("job '{}': worker {} agrees again on what was applied",
                                                          setup_.spec.name, from.worker)});
    }
  }
}

}  // namespace millrace::server
