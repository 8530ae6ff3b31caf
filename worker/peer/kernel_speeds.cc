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
template <typename T>
double seconds_an_entry(std::span<const StreamView<T>> streams, const std::function<TimeNs()>& clock) {
  uint64_t entries = 0;
  for (const StreamView<T>& stream : streams) entries += stream.count();
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (int round = 0; round < kRounds; ++round) {
    const TimeNs begin = clock();
    const auto sum = sum_many<T>(streams);
    best = std::min(best, clock() - begin);
    MILLRACE_CHECK(sum.has_value(), entries);
    if (best <= 0) return 0;
  }
  return static_cast<double>(best) / static_cast<double>(kNsPerS) / static_cast<double>(entries);
}

}  // namespace

template <typename T>
KernelSpeeds measure_kernel_speeds(const std::function<TimeNs()>& clock) {
  // Far enough apart that the sum stays sparse.
  constexpr uint32_t kApart = 8;
  Stream<T> even = Stream<T>::empty(uint64_t{2} * kApart * kEntries), odd = even;
  for (uint32_t i = 0; i < kEntries; ++i) {
    even.indices.push_back(2 * kApart * i);
    odd.indices.push_back(2 * kApart * i + kApart);
  }
  even.values.assign(kEntries, T{1});
  odd.values.assign(kEntries, T{1});
  const std::array sparse{std::as_const(even).view(), std::as_const(odd).view()};
  KernelSpeeds speeds{.add_entry_s = seconds_an_entry<T>(sparse, clock)};
  if (speeds.add_entry_s == 0) return speeds;
  Stream<T> dense{kValues, true, {}, {}};
  dense.values.assign(kValues, T{1});
  const Stream<T> other = dense;  // not the same memory twice: that would come from a cache
  const std::array both{std::as_const(dense).view(), other.view()};
  speeds.add_value_s = seconds_an_entry<T>(both, clock);
  return speeds;
}

template KernelSpeeds measure_kernel_speeds<float>(const std::function<TimeNs()>&);
template KernelSpeeds measure_kernel_speeds<double>(const std::function<TimeNs()>&);

}  // namespace millrace::peer
