#include "switch_agg/metrics_export.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace millrace::switch_agg {
namespace {

using monitoring::CounterFamily;
using monitoring::GaugeFamily;
using monitoring::MetricInfo;
using monitoring::MetricKind;

constexpr std::array<std::string_view, 2> kLaneDirection = {"lcore", "direction"};
constexpr std::array<std::string_view, 2> kLaneReason = {"lcore", "reason"};
constexpr std::array<std::string_view, 2> kLaneEvent = {"lcore", "event"};
constexpr std::array<std::string_view, 1> kLane = {"lcore"};
constexpr std::array<std::string_view, 2> kJobEvent = {"job", "event"};
constexpr std::array<std::string_view, 2> kJobDirection = {"job", "direction"};
constexpr std::array<std::string_view, 1> kJob = {"job"};

constexpr MetricInfo kPackets = {"millrace_switch_packets_total", MetricKind::kCounter, kLaneDirection,
                                 "Datagrams in and out"};
constexpr MetricInfo kBytes = {"millrace_switch_bytes_total", MetricKind::kCounter, kLaneDirection,
                               "Their UDP payload"};
constexpr MetricInfo kPortDropped = {"millrace_switch_port_dropped_total", MetricKind::kCounter, kLaneReason,
                                     "Packets that the port dropped, by reason"};
constexpr MetricInfo kEvents = {"millrace_switch_events_total", MetricKind::kCounter, kLaneEvent,
                                "What became of packets, and what the slots did, by event (switch_agg/DESIGN.md)"};
constexpr MetricInfo kRetransmissions = {"millrace_switch_retransmissions_total", MetricKind::kCounter, kLane,
                                         "Contributions that had come before: duplicates, of the turn before, of a "
                                         "closed turn"};
constexpr MetricInfo kSlotsMax = {"millrace_switch_slots_max", MetricKind::kGauge, {}, "Slots of all lcores"};
constexpr MetricInfo kSlots = {"millrace_switch_slots_reserved", MetricKind::kGauge, {}, "Slots that jobs have"};
constexpr MetricInfo kJobEvents = {"millrace_switch_job_events_total", MetricKind::kCounter, kJobEvent,
                                   "The same by job, from where the packet's job is known"};
constexpr MetricInfo kJobPackets = {"millrace_switch_job_packets_total", MetricKind::kCounter, kJobDirection,
                                    "Datagrams in that name a job of this switch, and out"};
constexpr MetricInfo kJobBytes = {"millrace_switch_job_bytes_total", MetricKind::kCounter, kJobDirection,
                                  "Their UDP payload"};
constexpr MetricInfo kJobRetransmissions = {"millrace_switch_job_retransmissions_total", MetricKind::kCounter, kJob,
                                            "Contributions of a job that had come before"};
constexpr MetricInfo kJobSlots = {"millrace_switch_job_slots", MetricKind::kGauge, kJob, "Slots that a job has"};
constexpr MetricInfo kJobSlotsInUse = {"millrace_switch_job_slots_in_use", MetricKind::kGauge, kJob,
                                       "Of these, slots whose turn is open now (role combine: whose sum is not whole)"};
constexpr MetricInfo kJobWorkers = {"millrace_switch_job_workers", MetricKind::kGauge, kJob, "Workers of a job"};
constexpr MetricInfo kPartialsInFlight = {
    "millrace_switch_partials_in_flight", MetricKind::kGauge, kJob,
    "Role combine: partial sums that went up and whose slot has had no newer turn"};
constexpr MetricInfo kUplinkWelcome = {"millrace_switch_uplink_welcome", MetricKind::kGauge, kJob,
                                       "Role combine: 1 while the aggregator that decides takes this rack's sums"};

constexpr std::array kCatalog = {
    kPackets,       kBytes,      kPortDropped,      kEvents,       kRetransmissions,    kSlotsMax,
    kSlots,         kJobEvents,  kJobPackets,       kJobBytes,     kJobRetransmissions, kJobSlots,
    kJobSlotsInUse, kJobWorkers, kPartialsInFlight, kUplinkWelcome};

void count(const CounterFamily& family, std::initializer_list<std::string_view> labels, uint64_t now, uint64_t before) {
  if (now > before) family.with(labels).increment(static_cast<double>(now - before));
}

/// What `now` is counted from. A lane that was added anew since `before` began at 0: all that it says is new.
AggregatorCounters base_of(const AggregatorCounters& now, const AggregatorCounters& before) {
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    if (now.events[i] < before.events[i]) return {};
  }
  return before;
}

/// Of all lanes together, since `before`.
AggregatorCounters new_events(const std::map<uint32_t, AggregatorCounters>& now,
                              const std::map<uint32_t, AggregatorCounters>& before) {
  AggregatorCounters sum;
  for (const auto& [lane, counters] : now) {
    const auto known = before.find(lane);
    const AggregatorCounters base = known == before.end() ? AggregatorCounters{} : base_of(counters, known->second);
    for (size_t i = 0; i < kAggregatorEvents; ++i) sum.events[i] += counters.events[i] - base.events[i];
  }
  return sum;
}

}  // namespace

std::span<const MetricInfo> switch_metric_catalog() { return kCatalog; }

void MetricsExport::update_lane(const std::string& lane, const LaneReport& now, const LaneReport& before) {
  const CounterFamily packets(metrics_, kPackets);
  const CounterFamily bytes(metrics_, kBytes);
  const CounterFamily dropped(metrics_, kPortDropped);
  const CounterFamily events(metrics_, kEvents);
  count(packets, {lane, "in"}, now.port.packets_in, before.port.packets_in);
  count(packets, {lane, "out"}, now.port.packets_out, before.port.packets_out);
  count(bytes, {lane, "in"}, now.port.bytes_in, before.port.bytes_in);
  count(bytes, {lane, "out"}, now.port.bytes_out, before.port.bytes_out);
  const std::vector<ReasonCount> drops_before = port_drops(before.port);
  const std::vector<ReasonCount> drops = port_drops(now.port);
  for (size_t i = 0; i < drops.size(); ++i)
    count(dropped, {lane, drops[i].reason}, drops[i].count, drops_before[i].count);
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    const auto event = static_cast<AggregatorEvent>(i);
    count(events, {lane, aggregator_event_name(event)}, now.aggregator[event], before.aggregator[event]);
  }
  count(CounterFamily(metrics_, kRetransmissions), {lane}, retransmissions(now.aggregator),
        retransmissions(before.aggregator));
}

void MetricsExport::update_job(const SwitchStatus::JobStatus& job, const AggregatorCounters& new_events) {
  GaugeFamily(metrics_, kJobSlots).with({job.name}).set(job.slots_reserved);
  GaugeFamily(metrics_, kJobSlotsInUse).with({job.name}).set(job.slots_in_use);
  GaugeFamily(metrics_, kJobWorkers).with({job.name}).set(job.workers);
  if (job.rack) {
    GaugeFamily(metrics_, kPartialsInFlight).with({job.name}).set(job.rack->now.in_flight);
    GaugeFamily(metrics_, kUplinkWelcome).with({job.name}).set(job.rack->now.uplink == RackUplink::kWelcome ? 1 : 0);
  }
  const CounterFamily events(metrics_, kJobEvents);
  const CounterFamily packets(metrics_, kJobPackets);
  const CounterFamily bytes(metrics_, kJobBytes);
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    const auto event = static_cast<AggregatorEvent>(i);
    count(events, {job.name, aggregator_event_name(event)}, new_events[event], 0);
  }
  using Event = AggregatorEvent;
  count(packets, {job.name, "in"}, new_events[Event::kReceived], 0);
  count(packets, {job.name, "out"}, new_events[Event::kSent], 0);
  count(bytes, {job.name, "in"}, new_events[Event::kReceivedBytes], 0);
  count(bytes, {job.name, "out"}, new_events[Event::kSentBytes], 0);
  count(CounterFamily(metrics_, kJobRetransmissions), {job.name}, retransmissions(new_events), 0);
}

void MetricsExport::update(const SwitchStatus& status) {
  before_.resize(status.lanes.size());
  for (size_t lane = 0; lane < status.lanes.size(); ++lane) {
    update_lane(std::to_string(lane), status.lanes[lane].report, before_[lane]);
    before_[lane] = status.lanes[lane].report;
  }
  double reserved = 0;
  decltype(jobs_) now_known;
  for (const SwitchStatus::JobStatus& job : status.jobs) {
    reserved += job.slots_reserved;
    const std::string label = monitoring::Metrics::label_text(job.name);
    now_known[label] = job.lane_counters;
    update_job(job, new_events(job.lane_counters, jobs_[label]));
  }
  for (const auto& [gone, counters] : jobs_) {
    if (!now_known.contains(gone)) metrics_.forget("job", gone);
  }
  jobs_ = std::move(now_known);
  GaugeFamily(metrics_, kSlots).with().set(reserved);
  GaugeFamily(metrics_, kSlotsMax).with().set(status.slots_max);
}

}  // namespace millrace::switch_agg
