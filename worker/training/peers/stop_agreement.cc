#include "worker/training/peers/stop_agreement.h"

#include <algorithm>
#include <vector>

#include "worker/peer/group/group_gather.h"

namespace millrace::training {

Result<bool> StopAgreement::ask(const std::atomic<bool>& stop) {
  if (++steps_ < every_) return false;
  steps_ = 0;
  const TimeNs now = monotonic_now_ns();
  const auto passed = static_cast<uint64_t>(now - asked_at_);
  asked_at_ = now;
  const auto all = peer::gather<uint64_t>(group_, "stop?", {stop.load() ? uint64_t{1} : 0, passed});
  if (!all) return std::unexpected(all.error());
  bool stops = false;
  uint64_t slowest = 0;
  for (size_t at = 0; at < all->size(); at += 2) {
    stops = stops || (*all)[at] != 0;
    slowest = std::max(slowest, (*all)[at + 1]);
  }
  constexpr uint64_t kWantedNs = kNsPerS / 4;
  constexpr uint32_t kEveryMax = 1 << 16;
  if (slowest < kWantedNs / 2) every_ = std::min(every_ * 2, kEveryMax);
  if (slowest > kWantedNs) every_ = std::max(every_ / 2, 1u);
  return stops;
}

}  // namespace millrace::training
