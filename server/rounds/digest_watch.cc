#include "server/rounds/digest_watch.h"

#include <algorithm>

namespace millrace::server {

DigestWatch::News DigestWatch::differs(const protocol::Member& member, uint32_t part, uint64_t steps, TimeNs now) {
  const auto first = known_.lower_bound({member.worker, 0});
  const bool any = first != known_.end() && first->first.first == member.worker;
  known_.try_emplace({member.worker, part}, Disagreement{member.worker, member.incarnation, part, steps, now});
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
      return member.worker == entry.second.worker && member.incarnation == entry.second.incarnation;
    });
  });
}

std::vector<Disagreement> DigestWatch::all() const {
  std::vector<Disagreement> out;
  for (const auto& [key, one] : known_) out.push_back(one);
  return out;
}

}  // namespace millrace::server
