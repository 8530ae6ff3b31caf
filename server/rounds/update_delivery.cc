#include "server/rounds/update_delivery.h"

#include <algorithm>

namespace millrace::server {
namespace {

// With one the line would be empty for a round trip after every message.
constexpr size_t kUnderWayMax = 2;

}  // namespace

std::optional<Delivery::Steps> Delivery::next(uint32_t worker, uint64_t decided, Pace pace) const {
  const auto line = lines_.find(worker);
  const Steps rest{line == lines_.end() ? 0 : line->second.sent, decided};
  if (rest.from >= rest.below) return std::nullopt;
  if (pace == Pace::kEach || line == lines_.end()) return rest;
  if (line->second.summed || line->second.under_way.size() >= kUnderWayMax) return std::nullopt;
  if (std::ranges::any_of(sums_, [worker](const auto& sum) { return sum.second.begun_by == worker; }))
    return std::nullopt;
  return rest;
}

void Delivery::sent(uint32_t worker, uint64_t below, Pace pace) {
  Line& line = lines_[worker];
  line.sent = below;
  line.summed.reset();
  if (pace == Pace::kMerged) line.under_way.push_back(below);
}

bool Delivery::wait_for_sum(uint32_t worker, Steps steps, uint64_t token, MemoryCharge charge) {
  lines_[worker].summed = steps;
  return sums_.try_emplace(steps, Sum{token, worker, std::move(charge)}).second;
}

Delivery::Waiting Delivery::take_waiting(Steps steps, uint64_t token) {
  Waiting waiting;
  const auto sum = sums_.find(steps);
  if (sum == sums_.end() || sum->second.token != token) return waiting;
  waiting.begun_by = sum->second.begun_by;
  sums_.erase(sum);
  for (auto& [worker, line] : lines_) {
    if (line.summed == steps) waiting.workers.push_back(worker);
  }
  return waiting;
}

void Delivery::acknowledged(uint32_t worker, uint64_t n) {
  Line& line = lines_[worker];
  while (!line.under_way.empty() && line.under_way.front() <= n) line.under_way.pop_front();
  line.sent = std::max(line.sent, n);
  if (line.summed && line.summed->from < n) line.summed.reset();
}

void Delivery::restart(uint32_t worker, uint64_t n) { lines_[worker] = Line{.sent = n}; }

uint64_t Delivery::sent_to(uint32_t worker) const {
  const auto line = lines_.find(worker);
  return line == lines_.end() ? 0 : line->second.sent;
}

void Delivery::clear() {
  lines_.clear();
  sums_.clear();
}

}  // namespace millrace::server
