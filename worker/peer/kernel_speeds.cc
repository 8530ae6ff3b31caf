#include "worker/peer/kernel_speeds.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"

namespace millrace::peer {
namespace {

constexpr int kRounds = 5;
constexpr uint32_t kEntries = 1U << 15;  ///< of each sparse stream
constexpr uint64_t kValues = 1U << 19;   ///< of each dense one: with its sum more than a second-level cache has

/// For each entry of `streams`.
double seconds_an_entry(std::span<const StreamView> streams, const std::function<TimeNs()>& clock) {
  uint64_t entries = 0;
  for (const StreamView& stream : streams) entries += stream.count();
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (int round = 0; round < kRounds; ++round) {
    const TimeNs begin = clock();
    const auto sum = sum_many(streams);
    best = std::min(best, clock() - begin);
    MILLRACE_CHECK(sum.has_value(), entries);
    if (best <= 0) return 0;
  }
  return static_cast<double>(best) / static_cast<double>(kNsPerS) / static_cast<double>(entries);
}

}  // namespace

KernelSpeeds measure_kernel_speeds(const std::function<TimeNs()>& clock) {
  // Far enough apart that the sum stays sparse.
  constexpr uint32_t kApart = 8;
  Stream even = Stream::empty(uint64_t{2} * kApart * kEntries), odd = even;
  for (uint32_t i = 0; i < kEntries; ++i) {
    even.indices.push_back(2 * kApart * i);
    odd.indices.push_back(2 * kApart * i + kApart);
  }
  even.values.assign(kEntries, 1.0F);
  odd.values.assign(kEntries, 1.0F);
  const std::array sparse{std::as_const(even).view(), std::as_const(odd).view()};
  KernelSpeeds speeds{.add_entry_s = seconds_an_entry(sparse, clock)};
  if (speeds.add_entry_s == 0) return speeds;
  Stream dense{kValues, true, {}, {}};
  dense.values.assign(kValues, 1.0F);
  const Stream other = dense;  // not the same memory twice: that would come from a cache
  const std::array both{std::as_const(dense).view(), other.view()};
  speeds.add_value_s = seconds_an_entry(both, clock);
  return speeds;
}

}  // namespace millrace::peer
