#include "switch_agg/process/switch_status.h"

#include <algorithm>

#include "protocol/datagram/job_numbers.h"
#include "switch_agg/aggregator/waiting_text.h"

namespace millrace::switch_agg {

std::string_view phase_name(SwitchPhase phase) {
  switch (phase) {
    case SwitchPhase::kClosed: return "closed";
    case SwitchPhase::kCollecting: return "collecting";
    case SwitchPhase::kFetching: return "fetching";
    case SwitchPhase::kOpen: return "open";
  }
  return "closed";
}

std::string_view uplink_name(RackUplink uplink) {
  switch (uplink) {
    case RackUplink::kNone: return "none";
    case RackUplink::kAsking: return "asking";
    case RackUplink::kHello: return "hello";
    case RackUplink::kWelcome: return "welcome";
  }
  return "none";
}

namespace {

void add_rack(const RackStatus& one, bool first, RackStatus& all) {
  all.uplink = first ? one.uplink : std::min(all.uplink, one.uplink);
  all.gathering += one.gathering;
  all.in_flight += one.in_flight;
  all.raw += one.raw;
}

void forget_reports(SwitchStatus::JobStatus& job) {
  job.slots_reserved = job.slots_in_use = 0;
  job.counters = {};
  job.lane_counters.clear();
  job.now = {};
  if (job.rack) job.rack->now = {};
}

/// Adds one lane's report of the job.
void add_report(const LaneReport::Job& one, bool first, SwitchStatus::JobStatus& job) {
  job.slots_reserved += one.status.slots;
  job.slots_in_use += one.status.slots_in_use;
  if (first || one.status.phase < job.farthest_behind) {
    job.farthest_behind = one.status.phase;
    job.epoch = one.status.epoch;
  }
  job.now.live |= one.status.live;
  job.now.epoch = std::max(job.now.epoch, one.status.epoch);
  job.now.greeted = first ? one.status.greeted : job.now.greeted & one.status.greeted;
  add_waiting(one.status, job.now);
  if (job.rack && one.status.rack) add_rack(*one.status.rack, first, job.rack->now);
  for (size_t event = 0; event < kAggregatorEvents; ++event) job.counters.events[event] += one.counters.events[event];
  job.lane_counters[one.status.job] = one.counters;
}

}  // namespace

void add_job_reports(SwitchStatus& status) {
  for (SwitchStatus::JobStatus& job : status.jobs) {
    const protocol::JobNumbers numbers{job.job, job.lanes};
    forget_reports(job);
    bool first = true;
    for (const SwitchStatus::LaneStatus& lane : status.lanes) {
      for (const LaneReport::Job& one : lane.report.jobs) {
        if (!numbers.lane_of(one.status.job)) continue;
        add_report(one, first, job);
        first = false;
      }
    }
    job.phase = phase_name(job.farthest_behind);
  }
}

std::vector<ReasonCount> port_drops(const PortCounters& port) {
  return {{"too_long", port.too_long},
          {"malformed_frame", port.malformed_frame},
          {"other_protocol", port.other_protocol},
          {"other_destination", port.other_destination},
          {"lane_full", port.lane_full},
          {"no_buffer", port.no_buffer},
          {"send_full", port.send_full},
          {"send_refused", port.send_refused},
          {"no_neighbour", port.no_neighbour}};
}

uint64_t retransmissions(const AggregatorCounters& counters) {
  return counters[AggregatorEvent::kDuplicate] + counters[AggregatorEvent::kPrevious] +
         counters[AggregatorEvent::kCurrentClosed];
}

}  // namespace millrace::switch_agg
