#include "worker/peer/algorithms/group_speeds.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/peer/collectives/allgather.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kStreamTags = 1U << 20;  ///< behind the first tag, as the next one
constexpr uint32_t kSpeedTags = 2U << 20;
constexpr uint32_t kPings = 8;
constexpr uint32_t kStreams = 3;
constexpr size_t kStreamBytes = 1U << 17;  ///< of a message that is taken for long
constexpr double kSpeedMax = 1e18;

double span_s(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerS); }

Packet bytes_packet(size_t size) { return {BodyForm::kNumbers, SharedBytes::from(ByteBuffer(size))}; }

/// There and back with a neighbour, several times: half of the fastest.
Task<double> ping(Channel& channel, uint32_t first_tag) {
  const uint32_t partner = channel.rank() ^ 1U;
  if (partner >= channel.size()) co_return 0.0;
  const bool begins = channel.rank() < partner;
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (uint32_t i = 0; i < kPings; ++i) {
    const TimeNs begin = channel.clock();
    if (begins) channel.send(partner, first_tag + i, bytes_packet(8));
    co_await channel.receive(partner, first_tag + i);
    if (!begins) channel.send(partner, first_tag + i, bytes_packet(8));
    if (begins) best = std::min(best, channel.clock() - begin);
  }
  co_return begins ? span_s(best) / 2 : 0.0;
}

/// Every rank to the next one around the ring, at the same time: the fastest of several, a byte.
Task<double> stream(Channel& channel, uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t next = (channel.rank() + 1) % size;
  const uint32_t before = (channel.rank() + size - 1) % size;
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (uint32_t i = 0; i < kStreams; ++i) {
    const TimeNs begin = channel.clock();
    channel.send(next, first_tag + i, bytes_packet(kStreamBytes));
    co_await channel.receive(before, first_tag + i);
    best = std::min(best, channel.clock() - begin);
  }
  co_return span_s(best) / static_cast<double>(kStreamBytes);
}

/// Calls `visit` for each speed, in the order in which ranks send them.
template <typename Speeds, typename Visit>
void each_speed(Speeds& speeds, const Visit& visit) {
  visit(speeds.latency_s);
  visit(speeds.byte_s);
  visit(speeds.add_entry_s);
  visit(speeds.add_value_s);
  auto& select = speeds.select;
  for (auto* one : {&select.callers_s, &select.topk_s, &select.gaussian_s, &select.reevaluate_s, &select.reuse_s}) {
    visit(*one);
  }
  for (auto* coding : {&speeds.contribution, &speeds.sums}) {
    visit(coding->bytes);
    visit(coding->encode_s);
    visit(coding->decode_s);
  }
}

std::vector<double> speeds_as_numbers(const GroupSpeeds& own) {
  std::vector<double> numbers{own.entries};
  each_speed(own.speeds, [&numbers](double speed) { numbers.push_back(speed); });
  return numbers;
}

Result<GroupSpeeds> slowest_of(const std::vector<std::vector<double>>& all, const GroupSpeeds& own) {
  GroupSpeeds most;
  each_speed(most.speeds, [](double& speed) { speed = 0; });
  const size_t count = speeds_as_numbers(own).size();
  for (const std::vector<double>& one : all) {
    if (one.size() != count ||
        !std::ranges::all_of(one, [](double number) { return number >= 0 && number < kSpeedMax; })) {
      return fail(ErrorCode::kMalformed, "a rank's measurements are none");
    }
    size_t at = 0;
    most.entries += one[at++] / static_cast<double>(all.size());
    each_speed(most.speeds, [&](double& speed) { speed = std::max(speed, one[at++]); });
  }
  // What no rank could measure.
  if (most.speeds.latency_s == 0) most.speeds.latency_s = own.speeds.latency_s;
  if (most.speeds.byte_s == 0) most.speeds.byte_s = own.speeds.byte_s;
  if (most.speeds.add_entry_s == 0) most.speeds.add_entry_s = own.speeds.add_entry_s;
  if (most.speeds.add_value_s == 0) most.speeds.add_value_s = own.speeds.add_value_s;
  return most;
}

}  // namespace

Task<Result<GroupSpeeds>> measure_group(Channel& channel, GroupSpeeds own, uint32_t first_tag) {
  if (channel.size() == 1) co_return own;
  GroupSpeeds mine = own;
  mine.speeds.latency_s = co_await ping(channel, first_tag);
  mine.speeds.byte_s = co_await stream(channel, first_tag + kStreamTags);
  const KernelSpeeds kernels = measure_kernel_speeds([&channel] { return channel.clock(); });
  mine.speeds.add_entry_s = kernels.add_entry_s;
  mine.speeds.add_value_s = kernels.add_value_s;
  auto all = co_await allgather_numbers<double>(channel, speeds_as_numbers(mine), first_tag + kSpeedTags);
  if (!all) co_return std::unexpected(all.error());
  co_return slowest_of(*all, own);
}

}  // namespace millrace::peer
