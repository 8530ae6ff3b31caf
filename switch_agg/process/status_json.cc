#include "switch_agg/process/status_json.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "kernels/base/version.h"
#include "switch_agg/aggregator/waiting_text.h"

namespace millrace::switch_agg {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of_events(const AggregatorCounters& counters) {
  OrderedJson events = OrderedJson::object();
  for (size_t i = 0; i < kAggregatorEvents; ++i) {
    const auto event = static_cast<AggregatorEvent>(i);
    if (counters[event] != 0) events[std::string(aggregator_event_name(event))] = counters[event];
  }
  return events;
}

OrderedJson json_of_lane(const SwitchStatus::LaneStatus& lane) {
  const LaneReport& report = lane.report;
  OrderedJson dropped = OrderedJson::object();
  for (const ReasonCount& one : port_drops(report.port)) {
    if (one.count != 0) dropped[std::string(one.reason)] = one.count;
  }
  return {{"address", lane.address},
          {"seen_ms", lane.age_ns / kNsPerMs},
          {"packets_in", report.port.packets_in},
          {"packets_out", report.port.packets_out},
          {"bytes_in", report.port.bytes_in},
          {"bytes_out", report.port.bytes_out},
          {"retransmissions", retransmissions(report.aggregator)},
          {"arp_answered", report.port.arp_answered},
          {"echo_answered", report.port.echo_answered},
          {"dropped", std::move(dropped)},
          {"events", json_of_events(report.aggregator)}};
}

OrderedJson json_of_workers(uint64_t bits) {
  OrderedJson workers = OrderedJson::array();
  for (uint64_t left = bits; left != 0; left &= left - 1) workers.push_back(std::countr_zero(left));
  return workers;
}

/// Where `job` is in role combine, or has racks in front of it.
void add_racks(const SwitchStatus::JobStatus& job, OrderedJson& json) {
  for (const uint64_t workers : job.racks) json["racks"].push_back(json_of_workers(workers));
  if (!job.rack) return;
  const AggregatorCounters& counters = job.counters;
  json["rack"] = {{"number", job.rack->number},
                  {"workers", json_of_workers(job.rack->workers)},
                  {"shard", job.rack->shard},
                  {"uplink", uplink_name(job.rack->now.uplink)},
                  {"gathering", job.rack->now.gathering},
                  {"partials_in_flight", job.rack->now.in_flight},
                  {"raw", job.rack->now.raw},
                  {"packets_up", counters[AggregatorEvent::kSentUp]},
                  {"bytes_up", counters[AggregatorEvent::kSentUpBytes]},
                  {"entries_kept", counters[AggregatorEvent::kEntriesSelected]},
                  {"entries_cut", counters[AggregatorEvent::kEntriesNotSelected]}};
}

/// Adds the workers that the job is blocked on, since when, and why; and each worker that is live or had rejected
/// packets.
void add_waits(const SwitchStatus::JobStatus& job, TimeNs now, OrderedJson& json) {
  const SwitchWaiting& waiting = job.now.waiting;
  json["waiting_for"] = wait_name(waiting.what);
  json["blocked_on"] = json_of_workers(waiting.workers);
  json["waiting_ms"] = waiting.what == SwitchWait::kNothing ? 0 : (now - waiting.since) / kNsPerMs;
  json["waiting_because"] = waiting_sentence(job.now, now);
  OrderedJson members = OrderedJson::array();
  for (size_t worker = 0; worker < job.now.doors.size(); ++worker) {
    const SwitchDoor& door = job.now.doors[worker];
    const bool live = (job.now.live >> worker & 1) != 0;
    if (!live && door.rejected == 0) continue;
    OrderedJson member = {{"worker", worker}, {"live", live}, {"greeted", (job.now.greeted >> worker & 1) != 0}};
    if (door.heard_at != 0) member["heard_ms"] = (now - door.heard_at) / kNsPerMs;
    member["rejected"] = door.rejected;
    if (door.rejected != 0) member["rejected_ms"] = (now - door.rejected_at) / kNsPerMs;
    members.push_back(std::move(member));
  }
  json["members"] = std::move(members);
}

OrderedJson json_of_job(const SwitchStatus::JobStatus& job, TimeNs now) {
  OrderedJson json = {{"name", job.name},
                      {"job", job.job},
                      {"lanes", job.lanes},
                      {"role", job.role},
                      {"phase", job.phase},
                      {"epoch", job.epoch},
                      {"workers", job.workers},
                      {"slots", job.slots_reserved},
                      {"slots_in_use", job.slots_in_use},
                      {"slots_max", job.slots},
                      {"window_indices", job.window_indices},
                      {"reselect_k", job.reselect_k},
                      {"packets_in", job.counters[AggregatorEvent::kReceived]},
                      {"packets_out", job.counters[AggregatorEvent::kSent]},
                      {"bytes_in", job.counters[AggregatorEvent::kReceivedBytes]},
                      {"bytes_out", job.counters[AggregatorEvent::kSentBytes]},
                      {"retransmissions", retransmissions(job.counters)},
                      {"events", json_of_events(job.counters)}};
  add_racks(job, json);
  add_waits(job, now, json);
  return json;
}

}  // namespace

std::string status_json(const SwitchStatus& status) {
  OrderedJson lanes = OrderedJson::array();
  for (const SwitchStatus::LaneStatus& lane : status.lanes) lanes.push_back(json_of_lane(lane));
  OrderedJson jobs = OrderedJson::array();
  uint64_t slots = 0;
  for (const SwitchStatus::JobStatus& job : status.jobs) {
    jobs.push_back(json_of_job(job, status.now));
    slots += job.slots_reserved;
  }
  const OrderedJson json = {{"pmd", status.pmd},      {"dpdk", status.dpdk},           {"software", software_name()},
                            {"slots", slots},         {"slots_max", status.slots_max}, {"lcores", std::move(lanes)},
                            {"jobs", std::move(jobs)}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace millrace::switch_agg
