#include "server/status/refusal_log.h"

#include <algorithm>
#include <utility>

namespace millrace::server {

std::string_view refused_name(Refusal::Of of) {
  switch (of) {
    case Refusal::Of::kWorker: return "worker";
    case Refusal::Of::kContribution: return "contribution";
    case Refusal::Of::kShard: return "shard";
    case Refusal::Of::kByShard: return "by_shard";
    case Refusal::Of::kUnreadable: return "unreadable";
  }
  return "unreadable";
}

void RefusalLog::note(Refusal refusal, TimeNs now) {
  const auto known = std::ranges::find_if(entries_, [&](const Refusal& one) {
    return one.of == refusal.of && one.number == refusal.number && one.code == refusal.code && one.job == refusal.job;
  });
  if (known != entries_.end()) {
    known->software = std::move(refusal.software);
    known->sentence = std::move(refusal.sentence);
    known->last = now;
    ++known->count;
    return;
  }
  refusal.first = refusal.last = now;
  refusal.count = 1;
  if (entries_.size() == kMax) entries_.erase(std::ranges::min_element(entries_, {}, &Refusal::last));
  entries_.push_back(std::move(refusal));
}

std::vector<Refusal> RefusalLog::all() const {
  std::vector<Refusal> out = entries_;
  std::ranges::stable_sort(out, std::greater(), &Refusal::last);
  return out;
}

}  // namespace millrace::server
