#include "switch_agg/process/metrics_export.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace millrace::switch_agg {
namespace {

using monitoring::CounterFamily;

/// Counts what grew; the series is there from the first call on.
void count(const CounterFamily& family, std::initializer_list<std::string_view> labels, uint64_t now, uint64_t before) {
  family.with(labels).increment(static_cast<double>(now - before));
}

/// Returns the counts from which `now` is counted. A lane that was added again since `before` began at 0: all its
/// counts are new.
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

MetricsExport::MetricsExport(monitoring::Metrics& metrics) : metrics_(metrics), switch_(metrics) {}

void MetricsExport::update_lane(const std::string& lane, const LaneReport& now, const LaneReport& before) {
  count(switch_.packets, {lane, "in"}, now.port.packets_in, before.port.packets_in);
  count(switch_.packets, {lane, "out"}, now.port.packets_out, before.port.packets_out);
  count(switch_.bytes, {lane, "in"}, now.port.bytes_in, before.port.bytes_in);
  count(switch_.bytes, {lane, "out"}, now.port.bytes_out, before.port.bytes_out);
  const std::vector<ReasonCount> drops_before = port_drops(before.port);
  const std::vector<ReasonCount> drops = port_drops(now.port);
  for (size_t i = 0; i < drops.size(); ++i)
    count(switch_.port_dropped, {lane, drops[i].reason}, drops[i].count, drops_before[i].count);
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    const auto event = static_cast<AggregatorEvent>(i);
    if (now.aggregator[event] == before.aggregator[event] && !begins_events_) continue;
    count(switch_.events, {lane, aggregator_event_name(event)}, now.aggregator[event], before.aggregator[event]);
  }
  count(switch_.retransmissions, {lane}, retransmissions(now.aggregator), retransmissions(before.aggregator));
}

void MetricsExport::update_job(const SwitchStatus::JobStatus& job, const AggregatorCounters& new_events) {
  switch_.job_slots.with({job.name}).set(job.slots_reserved);
  switch_.job_slots_in_use.with({job.name}).set(job.slots_in_use);
  switch_.job_workers.with({job.name}).set(job.workers);
  if (job.rack) {
    switch_.partials_in_flight.with({job.name}).set(job.rack->now.in_flight);
    switch_.uplink_welcome.with({job.name}).set(job.rack->now.uplink == RackUplink::kWelcome ? 1 : 0);
  }
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    const auto event = static_cast<AggregatorEvent>(i);
    if (new_events[event] == 0) continue;  // of many jobs, all events would be more series than one name may have
    count(switch_.job_events, {job.name, aggregator_event_name(event)}, new_events[event], 0);
  }
  using Event = AggregatorEvent;
  count(switch_.job_packets, {job.name, "in"}, new_events[Event::kReceived], 0);
  count(switch_.job_packets, {job.name, "out"}, new_events[Event::kSent], 0);
  count(switch_.job_bytes, {job.name, "in"}, new_events[Event::kReceivedBytes], 0);
  count(switch_.job_bytes, {job.name, "out"}, new_events[Event::kSentBytes], 0);
  count(switch_.job_retransmissions, {job.name}, retransmissions(new_events), 0);
}

void MetricsExport::update(const SwitchStatus& status) {
  before_.resize(status.lanes.size());
  begins_events_ = status.lanes.size() * kAggregatorEvents <= monitoring::Metrics::kSeriesMax;
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
  switch_.slots_reserved.with().set(reserved);
  switch_.slots_max.with().set(status.slots_max);
}

}  // namespace millrace::switch_agg
