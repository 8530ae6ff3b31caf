#include "switch_agg/aggregator/waiting_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace millrace::switch_agg {
namespace {

/// Packets that were rejected or ignored longer ago explain nothing any more.
constexpr TimeNs kRejectedLately = 30 * kNsPerS;

double waited_s(TimeNs since, TimeNs now) { return static_cast<double>(now - since) / static_cast<double>(kNsPerS); }

std::string named_workers(uint64_t workers) {
  return fmt::format("worker{} {}", std::popcount(workers) == 1 ? "" : "s", workers_text(workers));
}

/// Returns the workers whose latest packet failed authentication, within kRejectedLately.
uint64_t rejected_lately(const SwitchJobStatus& job, TimeNs now) {
  uint64_t workers = 0;
  for (size_t worker = 0; worker < job.doors.size(); ++worker) {
    const SwitchDoor& door = job.doors[worker];
    const bool lately = door.rejected != 0 && now - door.rejected_at <= kRejectedLately;
    if (lately && door.rejected_at >= door.heard_at) workers |= uint64_t{1} << worker;
  }
  return workers;
}

std::string rejection_text(const SwitchJobStatus& job, uint64_t workers, TimeNs now) {
  if (workers == 0) return {};
  uint64_t packets = 0;
  TimeNs last = 0;
  for (uint64_t left = workers; left != 0; left &= left - 1) {
    const SwitchDoor& door = job.doors[static_cast<size_t>(std::countr_zero(left))];
    packets += door.rejected;
    last = std::max(last, door.rejected_at);
  }
  return fmt::format(
      "{} packets that name {} were dropped, the last {:.1f} s ago: their MAC is wrong (bad_mac); is the key "
      "there this job's?",
      packets, named_workers(workers), waited_s(last, now));
}

/// Names a worker that gets no answer because of its datagrams' length, unless another packet of it came since.
std::string length_text(const SwitchJobStatus& job, TimeNs now) {
  for (size_t worker = 0; worker < job.doors.size(); ++worker) {
    const SwitchDoor& door = job.doors[worker];
    const bool lately = door.other_bytes != 0 && now - door.other_bytes_at <= kRejectedLately;
    if (!lately || door.other_bytes_at < door.heard_at) continue;
    return fmt::format(
        "worker {} has datagrams of {} bytes (--switch-packet-bytes), \"packet_bytes\" of this job is {}: it gets no "
        "answer",
        worker, door.other_bytes, job.packet_bytes);
  }
  return {};
}

std::string whom_it_waits_for(const SwitchJobStatus& job, TimeNs now) {
  const double seconds = waited_s(job.waiting.since, now);
  const std::string who = job.waiting.workers == 0 ? "its workers" : named_workers(job.waiting.workers);
  switch (job.waiting.what) {
    case SwitchWait::kNothing: return {};
    case SwitchWait::kGreetings:
      return fmt::format("epoch {} has waited {:.1f} s for {} to greet", job.epoch, seconds, who);
    case SwitchWait::kKeptResults:
      return fmt::format("epoch {} has waited {:.1f} s for results that {} kept", job.epoch, seconds, who);
    case SwitchWait::kContributions:
      return fmt::format("turns have waited {:.1f} s for contributions of {}", seconds, who);
    case SwitchWait::kDecider:
      return fmt::format("the aggregator that decides has not welcomed this rack for {:.1f} s", seconds);
  }
  return {};
}

}  // namespace

std::string_view wait_name(SwitchWait what) {
  switch (what) {
    case SwitchWait::kNothing: return "";
    case SwitchWait::kGreetings: return "greetings";
    case SwitchWait::kKeptResults: return "kept_results";
    case SwitchWait::kContributions: return "contributions";
    case SwitchWait::kDecider: return "decider";
  }
  return "";
}

std::string workers_text(uint64_t workers) {
  std::string text;
  for (uint64_t left = workers; left != 0; left &= left - 1)
    text += (text.empty() ? "" : ", ") + std::to_string(std::countr_zero(left));
  return text;
}

std::string waiting_sentence(const SwitchJobStatus& job, TimeNs now) {
  std::string sentence = whom_it_waits_for(job, now);
  for (const std::string& why : {rejection_text(job, rejected_lately(job, now), now), length_text(job, now)})
    sentence += (sentence.empty() || why.empty() ? "" : "; ") + why;
  return sentence;
}

void add_waiting(const SwitchJobStatus& lane, SwitchJobStatus& job) {
  job.packet_bytes = lane.packet_bytes;
  const bool waits = lane.waiting.what != SwitchWait::kNothing;
  if (waits && job.waiting.what == lane.waiting.what) {
    job.waiting.workers |= lane.waiting.workers;
    job.waiting.since = std::min(job.waiting.since, lane.waiting.since);
  } else if (waits && (job.waiting.what == SwitchWait::kNothing || lane.waiting.since < job.waiting.since)) {
    job.waiting = lane.waiting;
  }
  for (size_t worker = 0; worker < job.doors.size(); ++worker) {
    SwitchDoor& door = job.doors[worker];
    const SwitchDoor& one = lane.doors[worker];
    door.heard_at = std::max(door.heard_at, one.heard_at);
    door.rejected += one.rejected;
    door.rejected_at = std::max(door.rejected_at, one.rejected_at);
    if (one.other_bytes_at < door.other_bytes_at) continue;
    door.other_bytes = one.other_bytes;
    door.other_bytes_at = one.other_bytes_at;
  }
}

}  // namespace millrace::switch_agg
