#include "server/connections/connection_judge.h"

#include <algorithm>
#include <utility>

namespace millrace::server {

bool ConnectionJudge::is_silent(const ConnectionSample& one, TimeNs now) const {
  return !one.has_session && now - std::max(one.accepted_at, one.hello_at) >= limits_.silent_max;
}

/// Ends the surplus connections of each address: those that said Hello last stay.
void ConnectionJudge::judge_addresses(Others& by_address, std::vector<Verdict>& verdicts) const {
  for (auto& [address, connections] : by_address) {
    if (connections.size() <= limits_.without_session_max) continue;
    std::ranges::sort(connections, [](const ConnectionSample* one, const ConnectionSample* other) {
      return std::pair(one->hello_at, one->accepted_at) < std::pair(other->hello_at, other->accepted_at);
    });
    connections.resize(connections.size() - limits_.without_session_max);
    for (const ConnectionSample* one : connections)
      verdicts.push_back({one->descriptor, one->accepted_at, "too_many_of_address"});
  }
}

std::vector<ConnectionJudge::Verdict> ConnectionJudge::look(std::span<const ConnectionSample> samples, Inbox inbox,
                                                            TimeNs now) {
  std::vector<Verdict> verdicts;
  std::vector<std::pair<uint64_t, int>> unfinished;  // bytes that the last look saw already
  uint64_t total = 0;
  std::unordered_map<int, Seen> seen;
  Others by_address;
  for (const ConnectionSample& one : samples) {
    const auto before = seen_.find(one.descriptor);
    const bool same = before != seen_.end() && before->second.accepted_at == one.accepted_at &&
                      before->second.messages == one.messages;
    // What waits in the inbox was received: nothing of a connection whose bytes were taken or did not grow since.
    const bool is_quiet = inbox == Inbox::kDrained || (same && before->second.unread_bytes == one.unread_bytes);
    const bool silent = is_quiet && is_silent(one, now);
    if (silent && same && before->second.was_silent) {
      verdicts.push_back({one.descriptor, one.accepted_at, one.messages == 0 ? "never_spoke" : "no_session"});
      continue;
    }
    const uint64_t certain = same ? before->second.unread_bytes : 0;
    const bool is_member = one.has_session || one.was_admitted;
    if (certain > (is_member ? limits_.unread_each_max : limits_.unread_first_max)) {
      verdicts.push_back({one.descriptor, one.accepted_at, "unfinished_message"});
      continue;
    }
    if (one.unread_bytes == 0 && one.has_session) continue;
    seen[one.descriptor] = {one.accepted_at, one.unread_bytes, one.messages, silent};
    if (one.has_session) continue;
    if (is_quiet && now - one.accepted_at >= kNewFor) by_address[one.address].push_back(&one);
    if (certain == 0) continue;
    unfinished.emplace_back(certain, one.descriptor);
    total += certain;
  }
  judge_addresses(by_address, verdicts);
  if (total > limits_.unread_total_max) {
    std::ranges::sort(unfinished, std::greater());
    for (const auto& [bytes, descriptor] : unfinished) {
      if (total <= limits_.unread_total_max) break;
      verdicts.push_back({descriptor, seen[descriptor].accepted_at, "unfinished_messages"});
      seen.erase(descriptor);
      total -= bytes;
    }
  }
  seen_ = std::move(seen);
  return verdicts;
}

}  // namespace millrace::server
