#include <array>

#include "monitoring/catalog.h"
#include "monitoring/catalog_lists.h"

namespace millrace::monitoring {
namespace {

constexpr std::array<MetricInfo, 16> kSwitchMetrics = {{
    {.name = "millrace_switch_packets_total",
     .kind = MetricKind::kCounter,
     .labels = kLaneDirection,
     .help = "Datagrams in and out"},
    {.name = "millrace_switch_bytes_total",
     .kind = MetricKind::kCounter,
     .labels = kLaneDirection,
     .help = "Their UDP payload"},
    {.name = "millrace_switch_port_dropped_total",
     .kind = MetricKind::kCounter,
     .labels = kLaneReason,
     .help = "Packets that the port dropped, by reason"},
    {.name = "millrace_switch_events_total",
     .kind = MetricKind::kCounter,
     .labels = kLaneEvent,
     .help = "Outcomes of packets and actions of slots, by event (switch_agg/DESIGN.md)"},
    {.name = "millrace_switch_retransmissions_total",
     .kind = MetricKind::kCounter,
     .labels = kLaneOnly,
     .help = "Contributions that had come before: duplicates, of the turn before, of a closed turn"},
    {.name = "millrace_switch_slots_max", .kind = MetricKind::kGauge, .help = "Slots of all lcores"},
    {.name = "millrace_switch_slots_reserved", .kind = MetricKind::kGauge, .help = "Slots that jobs have"},
    {.name = "millrace_switch_job_events_total",
     .kind = MetricKind::kCounter,
     .labels = kJobEvent,
     .help = "The same by job, from where the job of the packet is known",
     .shown = Shown::kDetail},
    {.name = "millrace_switch_job_packets_total",
     .kind = MetricKind::kCounter,
     .labels = kJobDirection,
     .help = "Datagrams in that name a job of this switch, and out to its workers (role combine: and its decider)"},
    {.name = "millrace_switch_job_bytes_total",
     .kind = MetricKind::kCounter,
     .labels = kJobDirection,
     .help = "Their UDP payload"},
    {.name = "millrace_switch_job_retransmissions_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Contributions of a job that had come before"},
    {.name = "millrace_switch_job_slots", .kind = MetricKind::kGauge, .labels = kJob, .help = "Slots that a job has"},
    {.name = "millrace_switch_job_slots_in_use",
     .kind = MetricKind::kGauge,
     .labels = kJob,
     .help = "Of these, slots whose turn is open now (role combine: whose sum is not whole)"},
    {.name = "millrace_switch_job_workers",
     .kind = MetricKind::kGauge,
     .labels = kJob,
     .help = "Workers of a job",
     .shown = Shown::kDetail},
    {.name = "millrace_switch_partials_in_flight",
     .kind = MetricKind::kGauge,
     .labels = kJob,
     .help = "Role combine: partial sums that went up and whose slot has had no newer turn"},
    {.name = "millrace_switch_uplink_welcome",
     .kind = MetricKind::kGauge,
     .labels = kJob,
     .help = "Role combine: 1 while the aggregator that decides takes the sums of this rack"},
}};

}  // namespace

std::span<const MetricInfo> switch_metric_infos() { return kSwitchMetrics; }

SwitchMetrics::SwitchMetrics(Metrics& metrics)
    : packets(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_packets_total")]),
      bytes(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_bytes_total")]),
      port_dropped(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_port_dropped_total")]),
      events(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_events_total")]),
      retransmissions(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_retransmissions_total")]),
      slots_max(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_slots_max")]),
      slots_reserved(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_slots_reserved")]),
      job_events(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_events_total")]),
      job_packets(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_packets_total")]),
      job_bytes(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_bytes_total")]),
      job_retransmissions(metrics,
                          kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_retransmissions_total")]),
      job_slots(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_slots")]),
      job_slots_in_use(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_slots_in_use")]),
      job_workers(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_job_workers")]),
      partials_in_flight(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_partials_in_flight")]),
      uplink_welcome(metrics, kSwitchMetrics[index_of(kSwitchMetrics, "millrace_switch_uplink_welcome")]) {}

}  // namespace millrace::monitoring
