#include "server/part/contribution_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::server {

uint64_t Arrivals::next_of(uint32_t worker, uint64_t incarnation, const protocol::SummaryEntry* counted) const {
  const auto line = lines_.find(worker);
  if (line != lines_.end() && line->second.incarnation == incarnation) return line->second.next;
  return counted && counted->incarnation == incarnation ? counted->sequence : 0;
}

Admission Arrivals::judge(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash,
                          const protocol::SummaryEntry* counted) const {
  const uint64_t next = next_of(worker, incarnation, counted);
  if (sequence < next) return Admission::kDuplicate;
  // One more than pushes: an empty one may go before them, after a return.
  if (sequence - next > uint64_t{staleness_} + 1) return Admission::kAhead;
  const auto line = lines_.find(worker);
  if (line == lines_.end() || line->second.incarnation != incarnation) return Admission::kAdmit;
  const auto here = line->second.waiting.find(sequence);
  if (here == line->second.waiting.end()) return Admission::kAdmit;
  return here->second.open.hash == hash ? Admission::kDuplicate : Admission::kConflict;
}

void Arrivals::admit(uint32_t worker, OpenContribution open, TimeNs now, const protocol::SummaryEntry* counted) {
  const uint64_t next = next_of(worker, open.incarnation, counted);
  Line& line = lines_[worker];
  if (line.incarnation != open.incarnation) {
    // keep() came before, with the membership of this incarnation.
    MILLRACE_CHECK(line.waiting.empty(), worker, line.incarnation, open.incarnation);
    line.incarnation = open.incarnation;
    line.next = next;
  }
  const uint64_t sequence = open.sequence;
  const auto [slot, empty] = line.waiting.try_emplace(sequence, Waiting{next_arrival_++, now, std::move(open)});
  MILLRACE_CHECK(empty && sequence >= next, worker, sequence, next);
  if (sequence == next) in_order_.emplace(slot->second.arrival, worker);
}

Arrivals::Waiting* Arrivals::find(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash) {
  const auto line = lines_.find(worker);
  if (line == lines_.end() || line->second.incarnation != incarnation) return nullptr;
  const auto slot = line->second.waiting.find(sequence);
  if (slot == line->second.waiting.end()) return nullptr;
  const OpenContribution& open = slot->second.open;
  return open.hash == hash && !open.is_decoded() ? &slot->second : nullptr;
}

bool Arrivals::decoded(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash, SharedStream stream,
                       MemoryCharge charge) {
  Waiting* const waiting = find(worker, incarnation, sequence, hash);
  if (!waiting) return false;
  waiting->open.stream = std::move(stream);
  waiting->open.charge = std::move(charge);
  return true;
}

bool Arrivals::reject(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash) {
  const Waiting* const waiting = find(worker, incarnation, sequence, hash);
  if (!waiting) return false;
  in_order_.erase(waiting->arrival);
  lines_.at(worker).waiting.erase(sequence);
  return true;
}

std::optional<Arrivals::Arrival> Arrivals::take() {
  if (in_order_.empty()) return std::nullopt;
  const uint32_t worker = in_order_.begin()->second;
  Line& line = lines_.at(worker);
  const auto first = line.waiting.find(line.next);
  MILLRACE_CHECK(first != line.waiting.end() && first->second.arrival == in_order_.begin()->first, worker, line.next);
  if (!first->second.open.is_decoded()) return std::nullopt;
  in_order_.erase(in_order_.begin());
  Arrival arrival{worker, first->second.at, std::move(first->second.open)};
  line.waiting.erase(first);
  ++line.next;
  const auto following = line.waiting.find(line.next);
  if (following != line.waiting.end()) in_order_.emplace(following->second.arrival, worker);
  return arrival;
}

uint64_t Arrivals::keep(std::span<const protocol::Member> members) {
  uint64_t dropped = 0;
  for (auto line = lines_.begin(); line != lines_.end();) {
    const auto member = std::ranges::lower_bound(members, line->first, {}, &protocol::Member::worker);
    if (member != members.end() && member->worker == line->first && member->incarnation == line->second.incarnation) {
      ++line;
      continue;
    }
    for (const auto& [sequence, waiting] : line->second.waiting) in_order_.erase(waiting.arrival);
    dropped += line->second.waiting.size();
    line = lines_.erase(line);
  }
  return dropped;
}

}  // namespace millrace::server
